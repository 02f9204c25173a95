// Layers: each layer's vectors put through the model's own last norm and head: what it would say if it stopped there.
import { useOf, type Caps, type Trace } from "../api";
import { drawMatrix, Matrix, shown } from "../figures";
import { Figure, heat, matrixCsv } from "../figure";
import { Explained } from "../glossary";
import { t } from "../strings";
import { Await, CopyPython, figure, Panel, percent, Segments, TopList, Scroll } from "../ui";
import { choice, set, whole } from "../url";
import { TracePage } from "./trace";

type Guess = { id: number; text: string; shown: string; p: number };
type Lens = {
  layers: string[]; tokens: string[]; shown: string[]; top: Guess[][][] | null; entropy: number[][] | null; rank: number[][] | null;
  surprisal: (number | null)[][] | null; norms: number[][] | null; cosine: (number | null)[][] | null; python: string;
};
const NUMBERS = ["entropy", "rank", "surprisal", "norms", "cosine"] as const;
type Which = (typeof NUMBERS)[number];

export function LayersPage({ caps }: { caps: Caps }) {
  return (
    <TracePage name="layers" caps={caps}>
      {(trace) => (caps.predicts === "words" ? <LensView trace={trace} follows={caps.kind !== "encoder"} /> : <Lengths trace={trace} />)}
    </TracePage>
  );
}

type Norms = { norms: { name: string; values: number[] }[]; python: string };

/** A model that predicts no words still has vectors that run through its layers. */
function Lengths({ trace }: { trace: Trace }) {
  const states = useOf<Norms>(trace, "states");
  const columns = trace.tokens.map((token) => token.shown);
  const title = t("layers.shows.norms");
  return (
    <Await of={states}>{({ norms, python }) => {
      const kept = norms.filter((n) => n.values.length === columns.length);
      const rows = kept.map((n) => n.name.replace(/\.output$/, ""));
      const values = Float32Array.from(kept.flatMap((n) => n.values));
      return (
        <>
          <p class="muted">{t("layers.noWords")}</p>
          <Panel>
            <Figure title={title} name="layers-norms" model={trace.model} python={python} drawing={() => drawMatrix({ rows, columns, values })} csv={() => matrixCsv(rows, columns, values)} html={heat(title, rows, columns, values, false, t("layers.layer"), t("layers.position"))}>
              <Matrix rows={rows} columns={columns} values={values} title={title} rowTitle={t("layers.layer")} columnTitle={t("layers.position")} />
            </Figure>
          </Panel>
        </>
      );
    }}</Await>
  );
}

/** What each layer would predict: the word that follows, or of an encoder the word at the place itself, which has no surprisal of the next. */
function LensView({ trace, follows }: { trace: Trace; follows: boolean }) {
  const lens = useOf<Lens>(trace, "lens", { count: 8 });
  return (
    <Await of={lens}>{(found) => {
      const lens = follows ? found : { ...found, surprisal: null };
      const there = NUMBERS.filter((n) => lens[n]?.length);
      const shows = [...(lens.top?.length ? ["words"] : []), ...there];
      const show = choice("show", shows);
      return (
        <>
          <Segments label={t("layers.show")} value={show} onChange={(v) => set({ show: v })}
            choices={shows.map((v) => ({ value: v, label: t(`layers.shows.${v}`) }))} />
          <p class="muted"><Explained text={t(`layers.about.${show === "words" && !follows ? "wordsAt" : show}`)} /></p>
          {show === "words" && lens.top ? <Words lens={lens} top={lens.top} model={trace.model} start={trace.prediction.position} /> : <Numbers lens={lens} which={show as Which} model={trace.model} />}
        </>
      );
    }}</Await>
  );
}

function Words({ lens, top, model, start }: { lens: Lens; top: Guess[][][]; model: string; start: number }) {
  const layer = whole("l", top.length - 1, 0, top.length - 1);
  const position = whole("pos", start < 0 ? lens.shown.length - 1 : start, 0, lens.shown.length - 1);
  const p = Float32Array.from(top.flatMap((row) => row.map((guesses) => guesses[0]?.p ?? 0)));
  const order = [...top.keys()].reverse();
  const move = (e: KeyboardEvent) => {
    const [down, across] = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key] ?? [0, 0];
    if (!down && !across) return;
    e.preventDefault();
    const next = { l: Math.min(Math.max(0, layer + down), top.length - 1), pos: Math.min(Math.max(0, position + across), lens.shown.length - 1) };
    set(next, "replace");
    document.getElementById(`lens-${next.l}-${next.pos}`)?.focus();
  };
  return (
    <div class="cols side">
      <Panel>
        <Figure title={t("layers.title")} name="logit-lens" model={model} python={lens.python} drawing={() => drawMatrix({ rows: lens.layers, columns: lens.shown, values: p })}
          csv={() => [["layer", "position", "token", "guess", "p"], ...top.flatMap((row, l) => row.map((g, i) => [lens.layers[l], i, lens.shown[i], g[0]?.text ?? "", g[0]?.p ?? null]))]}>
          <Scroll label={t("layers.title")}>
            <table class="lens" role="grid" aria-label={t("layers.title")} onKeyDown={move}>
              <thead>
                <tr><th scope="col"><span class="hidden">{t("layers.layer")}</span></th>{lens.shown.map((token, i) => <th scope="col" key={i} class="mono" dir="auto">{token}</th>)}</tr>
              </thead>
              <tbody>
                {order.map((l) => (
                  <tr key={l}>
                    <th scope="row">{lens.layers[l]}</th>
                    {top[l].map((guesses, i) => {
                      const here = l === layer && i === position;
                      const share = guesses[0]?.p ?? 0;
                      return (
                        <td key={i} id={`lens-${l}-${i}`} role="gridcell" tabIndex={here ? 0 : -1} aria-selected={here} style={{ "--share": `${Math.round(share * 100)}%` }} onClick={() => set({ l, pos: i }, "replace")} title={percent(share)}>
                          <span class="mono" dir="auto">{shown(guesses[0]?.shown ?? "")}</span>
                        </td>
                      );
                    })}
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </Figure>
      </Panel>
      <Panel title={t("layers.at", { layer: lens.layers[layer], token: lens.shown[position] })}>
        <TopList top={top[layer][position]} />
        <dl class="facts">
          {NUMBERS.map((n) => lens[n]?.[layer] ? (<><dt>{t(`layers.shows.${n}`)}</dt><dd>{n === "rank" ? lens.rank![layer][position] + 1 : figure(lens[n]![layer][position])}</dd></>) : null)}
        </dl>
        <CopyPython python={lens.python} />
      </Panel>
    </div>
  );
}

function Numbers({ lens, which, model }: { lens: Lens; which: Which; model: string }) {
  const rows = lens[which];
  if (!rows) return <Panel><p>{t("layers.none")}</p></Panel>;
  const values = Float32Array.from(rows.flat(), (v) => (v === null ? NaN : which === "rank" ? v + 1 : v));
  const title = t(`layers.shows.${which}`);
  return (
    <Panel>
      <Figure title={title} name={`layers-${which}`} model={model} python={lens.python} drawing={() => drawMatrix({ rows: lens.layers, columns: lens.shown, values, signed: which === "cosine" })} csv={() => matrixCsv(lens.layers, lens.shown, values)}
        html={heat(title, lens.layers, lens.shown, values, which === "cosine", t("layers.layer"), t("layers.position"))}>
        <Matrix rows={lens.layers} columns={lens.shown} values={values} title={title} signed={which === "cosine"} rowTitle={t("layers.layer")} columnTitle={t("layers.position")} />
      </Figure>
    </Panel>
  );
}
