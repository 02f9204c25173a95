// Embeddings: a map for the eye; neighbours and analogies always in the full space.
import { useMemo, useState } from "preact/hooks";
import { knows, modelPath, useVocabulary, type Caps, type Vocabulary } from "../api";
import { drawScatter, OKABE_ITO, Scatter } from "../figures";
import { Figure, points as pointed } from "../figure";
import { get, post, queried } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Await, CopyPython, figure, NumberField, Panel, Segments, Select, Slider, TextField, Title, useDraft, Scroll } from "../ui";
import { choice, set, str, whole } from "../url";

type Point = { id: number; text: string; shown: string; x: number; y: number; z?: number };
type Map_ = { points: Point[]; explained: number[]; axes: string[]; note: string; method: string; methods: string[]; normalised: boolean; python: string };
type Near = { text: string; shown?: string; score: number };

const METHODS = ["pca", "tsne", "umap"];
const METRICS = ["cosine", "euclid"];
const SUMS = ["add", "mul"];

export function SpacePage({ caps }: { caps: Caps }) {
  const tables = caps.embeddings?.length ? caps.embeddings : ["input"];
  const table = choice("table", tables);
  const usable = caps.embeddings.length > 0 || caps.kind === "vectors";
  if (!usable) {
    return (
      <>
        <Title name="space" />
        <Panel><p>{t("space.nothing")}</p></Panel>
      </>
    );
  }
  const tabs = ["map", "analogy", ...(caps.kind === "vectors" ? [] : ["context"])];
  const tab = choice("tab", tabs);
  return (
    <>
      <Title name="space" />
      <div class="row">
        <Segments label={t("space.what")} value={tab} onChange={(v) => set({ tab: v })} choices={tabs.map((v) => ({ value: v, label: t(`space.tabs.${v}`) }))} />
        {tables.length > 1 && tab === "map" ? <Select label={t("space.table")} value={table} onChange={(v) => set({ table: v })} choices={tables.map((v) => ({ value: v, label: t(`space.tables.${v}`) }))} /> : null}
      </div>
      {tab === "map" ? <MapView caps={caps} table={table} /> : tab === "analogy" ? <Analogy caps={caps} /> : <Contextual caps={caps} />}
    </>
  );
}

/** The named groups of strings.json as far as a vocabulary has their words; none where too few are left. */
function groupsOf(vocabulary: Vocabulary | undefined): { name: string; words: string[] }[] {
  if (!vocabulary) return [];
  const groups = t("space.groups").split("; ").map((line) => line.split(": "));
  const known = groups.map(([name, words]) => ({ name, words: words.split(" ").filter((word) => knows(vocabulary, word)) })).filter((g) => g.words.length > 2);
  return known.length > 2 ? known : [];
}

const DRAWN = ["groups", "frequent"];

function MapView({ caps, table }: { caps: Caps; table: string }) {
  const vocabulary = useVocabulary(caps.id);
  const named = groupsOf(vocabulary.data);
  const grouped = !str("words") && named.length > 0 && choice("of", DRAWN, str("count") ? "frequent" : "groups") === "groups";
  const words = grouped ? named.flatMap((g) => g.words).join(",") : str("words");
  const most = whole("count", 300, 3, 5000);
  const method = choice("map", METHODS);
  const slow = method === "pca" ? {} : { method, perplexity: whole("perp", 30, 2, 200), seed: whole("seed", 0) };
  const path = `${modelPath(caps.id)}/space/map${queried({ count: most, words, table, dims: method === "pca" ? 3 : 2, ...slow })}`;
  const map = useResource<Map_>(vocabulary.data || words || vocabulary.error ? `map ${path}` : null, () => get(path));
  const [word, setWord] = useDraft(str("w"));
  const [listed, setListed] = useDraft(str("words"));
  const send = () => set({ w: word.trim(), words: listed.trim() });
  return (
    <>
      <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <div class="row">
          <TextField label={t("space.word")} value={word} onInput={setWord} rows={1} send={send} first />
          <TextField label={t("space.only")} value={listed} onInput={setListed} rows={1} send={send} placeholder="king,queen,man,woman" />
        </div>
        <div class="row">
          <button type="submit" class="primary">{t("space.look")}</button>
          {str("words") || !named.length ? null : <Segments label={t("space.drawn")} value={grouped ? "groups" : "frequent"} onChange={(of) => set({ of: of === "groups" ? null : of, count: null })} choices={DRAWN.map((v) => ({ value: v, label: t(`space.${v}Words`) }))} />}
          {words ? null : <Slider label={t("space.count")} value={most} min={50} max={2000} step={50} onChange={(n) => set({ count: n }, "replace")} />}
          <Select label={t("space.map")} value={method} onChange={(v) => set({ map: v === "pca" ? null : v })}
            choices={METHODS.filter((v) => v !== "umap" || method === v || map.data?.methods.includes(v)).map((v) => ({ value: v, label: t(`space.maps.${v}`) }))} />
          {method === "pca" ? null : (
            <>
              <NumberField label={t("space.perplexity")} value={whole("perp", 30, 2, 200)} min={2} max={200} onChange={(n) => set({ perp: n === 30 ? null : n }, "replace")} />
              <NumberField label={t("predict.seed")} value={whole("seed", 0)} min={0} onChange={(n) => set({ seed: n || null }, "replace")} />
            </>
          )}
        </div>
      </form>
      <div class="cols side">
        <Panel><Await of={map} wait={method === "pca" ? undefined : t("space.slow")}>{(map) => <Picture map={map} caps={caps} named={grouped ? named : []} />}</Await></Panel>
        <Neighbours caps={caps} table={table} />
      </div>
    </>
  );
}

function Picture({ map, caps, named }: { map: Map_; caps: Caps; named: { name: string; words: string[] }[] }) {
  const exact = map.method === "pca";
  const third = exact && str("axes") === "13";
  const points = Float32Array.from(map.points.flatMap((p) => [p.x, third ? (p.z ?? 0) : p.y]));
  const names = map.points.map((p) => p.shown);
  const w = str("w");
  const found = w === "" ? -1 : map.points.findIndex((p) => p.text === w || p.shown === w || p.shown === `·${w}`);
  const selected = found < 0 ? null : found;
  const title = t("space.title", { n: names.length, map: t(`space.maps.${map.method}`) });
  const axes = [map.axes[0], map.axes[third ? 2 : 1]];
  const of = named.flatMap((g, i) => g.words.map(() => i));
  const groups = of.length === names.length ? of : undefined; // as the map was asked for
  const spec = { points, names, title, xTitle: axes[0], yTitle: axes[1], selected, groups };
  return (
    <Figure title={title} note={exact ? t("space.note") : `${t("space.note")} ${map.note}.`} name="embeddings" model={caps.id} python={map.python} drawing={() => drawScatter(spec)} html={pointed(names, points, axes)}
      csv={() => [["id", "token", "x", "y", "z"], ...map.points.map((p) => [p.id, p.text, p.x, p.y, p.z ?? null])]}>
      {groups ? <p class="row small" data-groups>{named.map((g, i) => <span key={g.name}><span style={{ color: OKABE_ITO[i] }} aria-hidden="true">●</span> {g.name}</span>)}</p> : null}
      <Scatter {...spec} onSelect={(i) => set({ w: i === null ? null : map.points[i].text }, "replace")} />
      {exact ? <Segments label={t("space.axes")} value={third ? "13" : "12"} onChange={(v) => set({ axes: v === "12" ? null : v }, "replace")} choices={[{ value: "12", label: "1 × 2" }, { value: "13", label: "1 × 3" }]} /> : null}
    </Figure>
  );
}

function Neighbours({ caps, table }: { caps: Caps; table: string }) {
  const word = str("w");
  const metric = choice("metric", METRICS);
  const path = `${modelPath(caps.id)}/space/neighbours${queried({ word, count: 12, metric, table })}`;
  const near = useResource<{ word: string; near: Near[]; python: string }>(word ? `near ${path}` : null, () => get(path));
  return (
    <Panel title={word ? t("space.nearest", { word }) : t("space.neighbours")}>
      <Segments label={t("space.metric")} value={metric} onChange={(v) => set({ metric: v === "cosine" ? null : v }, "replace")} choices={METRICS.map((v) => ({ value: v, label: t(`space.metrics.${v}`) }))} />
      {word ? (
        <Await of={near}>{({ near, python }) => (
          <>
            <NearTable rows={near} />
            <CopyPython python={python} />
          </>
        )}</Await>
      ) : <p class="muted">{t("space.pick")}</p>}
    </Panel>
  );
}

function NearTable({ rows }: { rows: Near[] }) {
  return (
    <Scroll label={t("space.neighbours")}><table data-near>
      <tbody>{rows.map((r) => <tr key={r.text}><th scope="row" class="mono" dir="auto">{r.shown ?? r.text}</th><td class="n">{figure(r.score)}</td></tr>)}</tbody>
    </table></Scroll>
  );
}

type Plane = { words: string[]; points: number[][]; share: number; cosine: number[] };
type Analogies = { formula: string; plane: Plane | null; near: Near[]; excluded: string[]; with_inputs: Near[]; python: string };

function Analogy({ caps }: { caps: Caps }) {
  const given = { a: str("a", "man"), b: str("b", "king"), c: str("c", "woman") };
  const [d, setD] = useDraft(str("d"));
  const [a, setA] = useDraft(given.a);
  const [b, setB] = useDraft(given.b);
  const [c, setC] = useDraft(given.c);
  const method = choice("method", SUMS);
  const path = `${modelPath(caps.id)}/space/analogy${queried({ ...given, d: str("d"), count: 10, method })}`;
  const vocabulary = useVocabulary(caps.id);
  const chosen = ["a", "b", "c"].some((key) => str(key) !== "");
  const known = vocabulary.data && Object.values(given).every((word) => knows(vocabulary.data!, word));
  const found = useResource<Analogies>(chosen || known ? `analogy ${path}` : null, () => get(path));
  const send = () => set({ a: a.trim(), b: b.trim(), c: c.trim(), d: d.trim() });
  return (
    <>
      <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <div class="row">
          <TextField label={t("play.fields.a")} value={a} onInput={setA} rows={1} required send={send} first />
          <TextField label={t("play.fields.b")} value={b} onInput={setB} rows={1} required send={send} />
          <TextField label={t("play.fields.c")} value={c} onInput={setC} rows={1} required send={send} />
          <TextField label={t("space.fourth")} value={d} onInput={setD} rows={1} send={send} placeholder={t("space.fourthBest")} />
        </div>
        <div class="row">
          <button type="submit" class="primary">{t("space.solve")}</button>
          <Segments label={t("space.method")} value={method} onChange={(v) => set({ method: v === "add" ? null : v }, "replace")} choices={SUMS.map((v) => ({ value: v, label: t(`space.methods.${v}`) }))} />
        </div>
      </form>
      <Await of={found}>{(r) => (
        <Panel title={t("space.analogyTitle", given)}>
          <div class="cols wide">
            {r.plane ? <Arrows plane={r.plane} caps={caps} python={r.python} /> : null}
            <div class="stack tight"><h3>{t("space.best")}</h3><p class="muted small">{t("space.excluded", { words: r.excluded.join(", ") })}</p><NearTable rows={r.near} /><p class="mono small">{r.formula}</p></div>
            <div class="stack tight"><h3>{t("space.withInputs")}</h3><p class="muted small">{t("space.withInputsNote")}</p><NearTable rows={r.with_inputs} /></div>
          </div>
          <CopyPython python={r.python} />
        </Panel>
      )}</Await>
    </>
  );
}

const ARROWS = [{ from: 0, to: 2 }, { from: 1, to: 3 }, { from: 0, to: 1, dashed: true }, { from: 2, to: 3, dashed: true }];

/** An analogy as a parallelogram, on a plane made for its words. */
function Arrows({ plane, caps, python }: { plane: Plane; caps: Caps; python: string }) {
  const [a, b, c, d] = plane.words.map((w) => w.replace(/^[Ġ▁]/, ""));
  const names = [a, b, c, d, t("space.sum", { a, b, c })];
  const points = useMemo(() => Float32Array.from(plane.points.flat()), [plane]);
  const title = t("space.arrows", { a, b, c, d });
  const note = t("space.arrowsNote", { a, b, c, d, across: plane.cosine[0].toFixed(2), along: plane.cosine[1].toFixed(2), share: Math.round(plane.share * 100) });
  const axes = [t("space.axisAlong", { a, b, c, d }), t("space.axisAcross", { a, b, c, d })];
  const spec = { points, names, title, xTitle: axes[0], yTitle: axes[1], arrows: ARROWS };
  return (
    <Figure title={title} note={note} name="analogy" model={caps.id} python={python} drawing={() => drawScatter(spec)} html={pointed(names, points, axes)} csv={() => [["word", "x", "y"], ...names.map((n, i) => [n, plane.points[i][0], plane.points[i][1]])]}>
      <Scatter {...spec} bare />
    </Figure>
  );
}

type Context = { layers: string[]; items: { sentence: number; position: number; token: string; context: string }[]; cosine: number[][][]; map: number[][][]; python: string };

const BANK = "He sat on the bank of the river.\nShe put the money in the bank.\nThe bank raised its interest rates.\nA fish swam near the grassy bank.";

/** One word in several sentences: where the layers take it. */
function Contextual({ caps }: { caps: Caps }) {
  const word = str("cw", "bank");
  const sentences = str("cs", BANK);
  const [draftWord, setDraftWord] = useDraft(word);
  const [draft, setDraft] = useDraft(sentences);
  const [layer, setLayer] = useState(-1);
  const body = { model: caps.id, word, sentences: sentences.split("\n").map((s) => s.trim()).filter(Boolean), layer: null };
  const found = useResource<Context>(`contextual ${JSON.stringify(body)}`, () => post("/api/space/contextual", body));
  const send = () => set({ cw: draftWord.trim(), cs: draft });
  return (
    <>
      <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <div class="row">
          <TextField label={t("space.word")} value={draftWord} onInput={setDraftWord} rows={1} required send={send} first />
          <TextField label={t("space.sentences")} value={draft} onInput={setDraft} rows={4} required />
        </div>
        <div class="row"><button type="submit" class="primary">{t("ask.run")}</button></div>
      </form>
      <Await of={found}>{(r) => {
        const at = layer < 0 ? r.layers.length - 1 : Math.min(layer, r.layers.length - 1);
        const names = r.items.map((item) => `${item.sentence + 1}: ${item.token}`);
        const points = Float32Array.from(r.map[at].flat());
        const layerName = at === 0 ? t("space.embedding") : t("attention.layerSaid", { layer: at - 1 });
        const title = t("space.contextTitle", { word, layer: layerName });
        const spec = { points, names, title };
        return (
          <Panel>
            <Slider label={t("attention.layer")} value={at} min={0} max={r.layers.length - 1} shown={layerName} onChange={setLayer} />
            <p class="muted">{t("space.contextNote", { word })}</p>
            <Figure title={title} name="contextual" model={caps.id} python={r.python} drawing={() => drawScatter(spec)} html={pointed(names, points, ["1", "2"])} csv={() => [["sentence", "token", "x", "y"], ...r.items.map((item, i) => [item.context, item.token, r.map[at][i][0], r.map[at][i][1]])]}>
              <Scatter {...spec} />
            </Figure>
            <div class="scroll" tabIndex={0} role="group" aria-label={t("space.cosines")}><table>
              <thead><tr><th>{t("space.cosines")}</th>{names.map((n) => <th key={n} class="n">{n}</th>)}</tr></thead>
              <tbody>{r.cosine[at].map((row, i) => <tr key={i}><th scope="row" dir="auto">{names[i]}: {r.items[i].context}</th>{row.map((v, j) => <td key={j} class="n">{v.toFixed(2)}</td>)}</tr>)}</tbody>
            </table></div>
          </Panel>
        );
      }}</Await>
    </>
  );
}
