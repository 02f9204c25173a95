// Compare: two models, or one model at two moments, on one input: the same text, both answers, and the difference.
import { useMemo } from "preact/hooks";
import { asked, modelPath, startText, useCaps, useModels, useOf, useTensor, type Caps, type Mixer, type ModelRow, type Top, type Trace, type TraceGroup } from "../api";
import { Curves, drawCurves, drawMatrix, maskOf, Matrix } from "../figures";
import { Figure, heat, matrixCsv, plotted } from "../figure";
import { get, post } from "../http";
import { useResource, type Resource } from "../resource";
import { t } from "../strings";
import { Ask, Await, Busy, count, CopyPython, figure, Panel, percent, Select, TextField, Title, TopList, useDraft, Warnings, Wrong, Scroll, Segments } from "../ui";
import { choice, set, str, whole } from "../url";
import { axes, names } from "./attention";
import { Other } from "./predict";

type Compared = {
  a: Trace; b: Trace; same_tokens: boolean; kl: number[] | null; difference: { group_a: string; group_b: string }[];
  shared_top: { id: number; text: string; shown: string; a: number; b: number }[] | null; position: number; token: string; note: string; python: string;
};

export function ComparePage({ caps }: { caps: Caps | undefined }) {
  const models = useModels();
  const usable = (models.data?.models ?? []).filter((m) => !m.error && m.kind !== "vectors");
  const chosen = caps?.id ?? (str("m") || models.data?.default); // known before its record is: nothing is asked of another first
  const first = str("a") || (usable.find((m) => m.id === chosen) ?? usable[0])?.id || "";
  const second = str("b") || partner(usable, first);
  const choices = usable.map((m) => ({ value: m.id, label: `${m.id} (${m.family})` }));
  const capsA = useCaps(first || null);
  return (
    <>
      <Title name="compare" />
      {usable.length ? (
        <>
          <div class="row">
            <Select label="A" value={first} onChange={(a) => set({ a })} choices={choices} />
            <Select label="B" value={second} onChange={(b) => set({ b })} choices={choices} />
            <button type="button" onClick={() => set({ a: second, b: first })}>{t("compare.swap")}</button>
          </div>
          <Await of={capsA}>{(caps) => (caps.id === first ? <Both caps={caps} second={second} /> : null)}</Await>
        </>
      ) : models.loading ? null : <Panel><p>{t("compare.nothing")}</p></Panel>}
    </>
  );
}

/** Whom to compare with at first: of nearly the same size, of the same kind if one is, and one that can do something with a text. */
function partner(models: ModelRow[], first: string): string {
  const mine = models.find((m) => m.id === first);
  const far = (m: ModelRow) => (m.kind === mine?.kind ? 0 : 3) + (m.tasks.length ? 0 : 9) + Math.abs(Math.log((m.params ?? 1) / (mine?.params ?? 1)));
  return models.filter((m) => m.id !== first).sort((a, b) => far(a) - far(b))[0]?.id ?? first;
}

const PARTS = ["answers", "losses", "speed", "gradient"] as const;

/** The part that the address names, or the one whose settings it has. */
const shownPart = () => choice("part", PARTS, str("speed") ? "speed" : str("win") || str("lx") ? "losses" : "answers");

function Both({ caps, second }: { caps: Caps; second: string }) {
  const question = asked(caps);
  const text = question.text || startText(caps);
  const body = { text, target: question.target ?? null, a: { model: caps.id, edit: null }, b: { model: second, edit: null } };
  const found = useResource<Compared>(second ? `compare ${JSON.stringify(body)}` : null, () => post("/api/compare", body));
  const capsB = useCaps(second || null);
  const part = shownPart();
  return (
    <>
      <Ask plain caps={caps} text={text} />
      <Await of={found}>{(r) => (
        <>
          <Warnings of={[...new Set([...r.a.warnings, ...r.b.warnings])]} />
          {r.note ? <p class="note">{r.note}</p> : null}
          <Segments label={t("compare.part")} value={part} onChange={(part) => set({ part }, "replace")} choices={PARTS.map((v) => ({ value: v, label: t(`compare.parts.${v}`) }))} />
          {part === "answers" ? <Answers of={r} caps={caps} capsB={capsB.data} /> : null}
          {part === "losses" && capsB.data?.id === second ? <Losses a={caps} b={capsB.data} text={text} target={question.target} /> : null}
          {part === "speed" ? <Speeds a={caps.id} b={second} /> : null}
          {part === "gradient" ? <Reaches a={r.a} b={r.b} /> : null}
          <CopyPython python={r.python} />
        </>
      )}</Await>
    </>
  );
}

/** What both answer and where they look: their words in one table if they share a vocabulary, and the difference of their patterns. */
function Answers({ of, caps, capsB }: { of: Compared; caps: Caps; capsB: Caps | undefined }) {
  const shared = of.shared_top?.length ? of.shared_top : null;
  return (
    <>
      <div class="cols half">
        <Side trace={of.a} caps={caps} name="A" words={!shared} />
        <Side trace={of.b} caps={capsB} name="B" words={!shared} />
      </div>
      <div class="cols half">
        {shared ? <Shared of={of} rows={shared} /> : null}
        <Difference of={of} />
      </div>
    </>
  );
}

function Side({ trace, caps, name, words }: { trace: Trace; caps: Caps | undefined; name: string; words: boolean }) {
  return (
    <Panel title={`${name}: ${trace.model}`}>
      <dl class="facts">
        {caps && caps.id === trace.model ? (<><dt>{t("facts.family")}</dt><dd>{caps.family}</dd><dt>{t("facts.params")}</dt><dd>{count(caps.params)}</dd></>) : null}
        <dt>{t("compare.tokens")}</dt><dd>{trace.tokens.length + (trace.target?.length ?? 0)}</dd>
        {caps && caps.id === trace.model ? (<><dt>{t("compare.path")}</dt><dd>{caps.mixing.map((m) => <div key={`${m.stack} ${m.by} ${m.window}`}>{reaches(m)}</div>)}</dd></>) : null}
        <dt>{t("compare.time")}</dt><dd>{Math.round(trace.ms)} ms</dd>
      </dl>
      {trace.target ? <p class="answer" dir="auto">{trace.generated?.text ?? trace.target.map((x) => x.shown).join(" ")}</p> : null}
      {!words ? null : trace.prediction.top?.length ? <TopList top={trace.prediction.top.slice(0, 8) as Top[]} /> : <Other trace={trace} prediction={trace.prediction} />}
      {trace.groups.length ? <Pattern trace={trace} name={name as "A" | "B"} /> : <p class="muted">{trace.note}</p>}
    </Panel>
  );
}

/** How a token reaches another in a stack, in words. */
function reaches({ stack, by, window }: Mixer): string {
  const said = t(window === null ? `compare.paths.${by}` : `compare.windows.${by}`, { window: window ?? 0 });
  const where = by === "cross-attention" || by === "alignment" ? t("compare.stacks.cross") : stack === "blocks" ? "" : t(`compare.stacks.${stack}`);
  return where ? `${where}: ${said}` : said;
}

/** The layer that is drawn of a side: alignment with a source where there is one, else the first group; its last layer, or the one chosen. */
function drawnOf(trace: Trace, name: "A" | "B"): { group: TraceGroup; layer: number; path: string } | null {
  const group = trace.groups.find((g) => g.cross) ?? trace.groups[0];
  if (!group) return null;
  const last = group.layers.length - 1;
  const layer = whole(`l${name.toLowerCase()}`, whole("l", last, 0, last), 0, last);
  return { group, layer, path: group.layers[layer] };
}

const alone = (names: string[]) => names.map((_, i) => [i]);

function useMask(rows: string[], columns: string[], group: TraceGroup, window: number | null) {
  return useMemo(() => maskOf(alone(rows), alone(columns), { causal: group.causal && !group.cross, window: group.cross ? null : window }), [rows.length, columns.length, group, window]);
}

function Pattern({ trace, name }: { trace: Trace; name: "A" | "B" }) {
  const { group, layer, path } = drawnOf(trace, name)!;
  const found = useTensor(trace, { name: `${path}.pattern`, reduction: "mean" });
  const rows = names(trace, group.queries);
  const columns = names(trace, group.keys);
  const masked = useMask(rows, columns, group, group.windows[layer]);
  const title = t(group.kind === "effective" ? "compare.effective" : "compare.pattern", { name, layer });
  const signed = group.kind === "effective";
  const [rowTitle, columnTitle] = axes(group);
  return (
    <>
      {group.layers.length > 1 ? (
        <Select label={t("compare.layerOf", { name })} value={String(layer)} onChange={(l) => set({ [`l${name.toLowerCase()}`]: l }, "replace")} choices={group.layers.map((p, i) => ({ value: String(i), label: `${i} (${p})` }))} />
      ) : null}
      <Await of={found}>{({ values }) => values.length === rows.length * columns.length ? (
        <Figure title={title} name={`${trace.model}-${path}`} model={trace.model} python={trace.python} drawing={() => drawMatrix({ rows, columns, values, signed, masked, rowTitle, columnTitle })} html={heat(title, rows, columns, values, signed, rowTitle, columnTitle)} csv={() => matrixCsv(rows, columns, values)}>
          <Matrix rows={rows} columns={columns} values={values} title={title} signed={signed} masked={masked} rowTitle={rowTitle} columnTitle={columnTitle} />
        </Figure>
      ) : null}</Await>
    </>
  );
}

function Shared({ of, rows }: { of: Compared; rows: NonNullable<Compared["shared_top"]> }) {
  return (
    <Panel title={t("compare.shared")}>
      {of.kl?.length ? <p>{t("compare.sharedAt", { kl: figure(of.kl[of.position]), token: of.token })}</p> : null}
      <Scroll label={t("compare.shared")}><table>
        <thead><tr><th>{t("predict.token")}</th><th class="n">A</th><th class="n">B</th></tr></thead>
        <tbody>{rows.slice(0, 15).map((r) => <tr key={r.id}><th scope="row" class="mono" dir="auto">{r.shown}</th><td class="n">{percent(r.a)}</td><td class="n">{percent(r.b)}</td></tr>)}</tbody>
      </table></Scroll>
    </Panel>
  );
}

/** The mean pattern that A shows minus the one that B shows, where both speak of the same tokens. */
function Difference({ of }: { of: Compared }) {
  const [a, b] = [drawnOf(of.a, "A"), drawnOf(of.b, "B")];
  if (!a || !b) return null;
  const can = of.difference.some((pair) => pair.group_a === a.group.name && pair.group_b === b.group.name);
  if (can) return <Subtracted of={of} a={a} b={b} />;
  return of.note ? null : <Panel title={t("compare.noDifference")}><p class="muted">{t("compare.noDifferenceNote")}</p></Panel>;
}

type Drawn = NonNullable<ReturnType<typeof drawnOf>>;

function Subtracted({ of, a, b }: { of: Compared; a: Drawn; b: Drawn }) {
  const one = useTensor(of.a, { name: `${a.path}.pattern`, reduction: "mean" });
  const two = useTensor(of.b, { name: `${b.path}.pattern`, reduction: "mean" });
  const rows = names(of.a, a.group.queries);
  const columns = names(of.a, a.group.keys);
  const masked = useMask(rows, columns, { ...a.group, causal: a.group.causal && b.group.causal }, null);
  const title = t("compare.difference", { a: a.layer, b: b.layer });
  const [rowTitle, columnTitle] = axes(a.group);
  if (one.error || two.error) return null;
  if (!one.data || !two.data || one.data.values.length !== two.data.values.length || one.data.values.length !== rows.length * columns.length) return null;
  const values = one.data.values.map((v, i) => v - two.data!.values[i]);
  return (
    <Panel>
      <Figure title={title} name="difference" python={of.python} drawing={() => drawMatrix({ rows, columns, values, signed: true, masked, rowTitle, columnTitle })} html={heat(title, rows, columns, values, true, rowTitle, columnTitle)} csv={() => matrixCsv(rows, columns, values)}>
        <Matrix rows={rows} columns={columns} values={values} title={title} signed masked={masked} rowTitle={rowTitle} columnTitle={columnTitle} />
      </Figure>
    </Panel>
  );
}

type Loss = { model: string; position: number[]; loss: number[]; count: number[]; windows: number; length: number; hidden: boolean; python: string };

const PASSAGE = t("compare.passage");
const WINDOWS = ["8", "16", "32", "64", "128", "1024"];

function useLoss(caps: Caps, text: string, target: string | undefined): Resource<Loss> {
  const writes = caps.kind === "encoder-decoder";
  const can = caps.predicts === "words" && caps.tokenizer !== null && (!writes || !!target);
  const body = { model: caps.id, text: writes ? text : str("lx", PASSAGE), target: writes ? target : undefined, window: Number(choice("win", WINDOWS, "32")) };
  return useResource<Loss>(can ? `losses ${JSON.stringify(body)}` : null, (signal) => post("/api/losses", body, signal), true);
}

/** How sure each is by its place in the context: what it gains from having read more. */
function Losses({ a, b, text, target }: { a: Caps; b: Caps; text: string; target: string | undefined }) {
  const found = [useLoss(a, text, target), useLoss(b, text, target)];
  const [draft, setDraft] = useDraft(str("lx", PASSAGE));
  const both = [a, b].every((c) => c.kind === "encoder-decoder");
  const send = () => set({ lx: draft === PASSAGE ? null : draft }, "replace");
  const known = found.flatMap((r, i) => (r.data ? [{ ...r.data, name: `${"AB"[i]}: ${r.data.model}` }] : []));
  const curves = known.map((r) => ({ name: r.name, x: r.position, y: r.loss }));
  const error = found.find((r) => r.error)?.error;
  const title = t("compare.losses");
  const spec = { curves, xTitle: t("compare.place"), yTitle: t("compare.nats") };
  const notes = [...known.map((r) => t("compare.lossOf", { name: r.name, n: r.windows, length: r.length })), known.some((r) => r.hidden) ? t("compare.lossHidden") : "", t("compare.lossNote")];
  return (
    <Panel>
      {both ? null : (
        <form class="row" onSubmit={(e) => { e.preventDefault(); send(); }}>
          <TextField label={t("compare.lossText")} value={draft} onInput={setDraft} rows={3} />
          <Select label={t("compare.window")} value={choice("win", WINDOWS, "32")} onChange={(win) => set({ win: win === "32" ? null : win }, "replace")} choices={WINDOWS.map((v) => ({ value: v, label: v === "1024" ? t("compare.whole") : v }))} />
          <button type="submit">{t("ask.run")}</button>
        </form>
      )}
      {error ? <Wrong error={error} /> : null}
      {curves.length ? (
        <Figure title={title} note={notes.filter(Boolean).join(" ")} name="loss-by-position" python={known.map((r) => r.python).join("\n\n")} drawing={() => drawCurves(spec)} html={plotted(spec.yTitle, curves)}
          csv={() => [["name", "place", "nats", "windows"], ...known.flatMap((r) => r.position.map((p, i) => [r.name, p, r.loss[i], r.count[i]]))]}>
          <Curves {...spec} title={title} />
        </Figure>
      ) : <><h2>{title}</h2>{found.some((r) => r.loading) ? <Busy cancel={() => found.forEach((r) => r.cancel?.())} /> : <p class="muted">{t(both ? "compare.lossTarget" : "compare.lossNone")}</p>}</>}
    </Panel>
  );
}

type Rates = { length: number[]; rate: number[] };
type Speed = { model: string; read: Rates; write: Rates | null; threads: number; device: string; python: string };

/** Tokens a second by length, measured when asked for: one model after the other, so that they do not share the machine. */
function Speeds({ a, b }: { a: string; b: string }) {
  const wanted = str("speed");
  const one = useResource<Speed>(wanted ? `speed ${wanted} ${a}` : null, (signal) => get(`${modelPath(a)}/speed`, {}, signal), true);
  const two = useResource<Speed>(wanted && one.data?.model === a ? `speed ${wanted} ${b}` : null, (signal) => get(`${modelPath(b)}/speed`, {}, signal), true);
  const again = () => set({ speed: Number(wanted || 0) + 1 }, "replace");
  return (
    <Panel title={t("compare.speed")}>
      <div class="row"><button type="button" onClick={again}>{t(wanted ? "compare.measureAgain" : "compare.measure")}</button><span class="muted small">{t("compare.measureNote")}</span></div>
      {wanted ? (
        <Await of={one} wait={t("compare.measuring")}>{(first) => (
          <Await of={two} wait={t("compare.measuring")}>{(second) => (
            <>{(["read", "write"] as const).map((what) => <Rate key={what} what={what} speeds={[first, second]} />)}</>
          )}</Await>
        )}</Await>
      ) : null}
    </Panel>
  );
}

function Rate({ what, speeds }: { what: "read" | "write"; speeds: Speed[] }) {
  const curves = speeds.flatMap((s, i) => (s[what] ? [{ name: `${"AB"[i]}: ${s.model}`, x: s[what]!.length, y: s[what]!.rate }] : []));
  if (!curves.length) return null;
  const title = t(`compare.rate_${what}`);
  const spec = { curves, xTitle: t("compare.length"), yTitle: t("compare.rate"), logY: true };
  return (
    <Figure title={title} note={t("compare.rateNote", { device: speeds[0].device, threads: speeds[0].threads })} name={`speed-${what}`} python={speeds.map((s) => s.python).join("\n\n")} drawing={() => drawCurves(spec)} html={plotted(spec.yTitle, curves)}
      csv={() => [["name", "tokens", "tokens per second"], ...curves.flatMap((c) => c.x.map((v, i) => [c.name, v, c.y[i]]))]}>
      <Curves {...spec} title={title} />
    </Figure>
  );
}

type Reach = { distances: number[]; relative: number[]; python: string };

/** How far back a gradient reaches in each: the reason attention replaced recurrence. */
function Reaches({ a, b }: { a: Trace; b: Trace }) {
  const one = useOf<Reach>(a, "reach");
  const two = useOf<Reach>(b, "reach");
  if (!one.data || !two.data) return null;
  const curves = [[a, one.data] as const, [b, two.data] as const].map(([trace, r], i) => ({ name: `${"AB"[i]}: ${trace.model}`, x: r.distances, y: r.relative }));
  const title = t("states.reach");
  const spec = { curves, xTitle: t("states.distance"), yTitle: t("states.gradient"), logY: true };
  return (
    <Panel>
      <Figure title={title} note={t("states.reachNote")} name="reach" python={`${one.data.python}\n\n${two.data.python}`} drawing={() => drawCurves(spec)} html={plotted(spec.yTitle, curves)} csv={() => [["name", "distance", t("states.gradient")], ...curves.flatMap((c) => c.x.map((v, i) => [c.name, v, c.y[i]]))]}>
        <Curves {...spec} title={title} controls={false} />
      </Figure>
    </Panel>
  );
}
