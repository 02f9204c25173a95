// Attention: who looks at whom. One pass feeds the grid, the matrix, the lines and the text.
import { useEffect, useMemo, useState } from "preact/hooks";
import { aligns, topicsOf, useNumbersOf, useOf, useTensor, type Caps, type Scores, type Side, type Tensor, type Trace, type TraceGroup } from "../api";
import { arranged, drawGrid, drawLines, drawMatrix, groupNames, HeadGrid, Lines, maskOf, Matrix, rank, SIDES, TextView, unmasked, type Arranged, type Cell, type GridLayer, type Mask, type Palette, type Scale, type ScoreName } from "../figures";
import { Figure, heat, matrixCsv } from "../figure";
import { Explained } from "../glossary";
import { say } from "../live";
import { t } from "../strings";
import { Await, Check, figure, Go, NumberField, Panel, Segments, Select, Slider } from "../ui";
import { choice, set, str, whole } from "../url";
import { Effects } from "./effects";
import { FindHeads } from "./find";
import { WithAndWithout } from "./scaled";
import { Replace, Switch } from "./switch";
import { TracePage } from "./trace";

export type At = { group: TraceGroup; layer: number; head: number; path: string };

/** The head the address points at, kept within what the model has; where it names none, one with a clear pattern. */
export function located(trace: Trace, groups = trace.groups): At {
  const look = ["g", "l", "h"].some((key) => str(key)) ? null : trace.look;
  const group = groups.find((g) => g.name === (look?.group ?? str("g"))) ?? groups[0];
  const layer = whole("l", look?.layer ?? 0, 0, group.layers.length - 1);
  const head = whole("h", look?.head ?? 0, 0, group.heads[layer] - 1);
  return { group, layer, head, path: group.layers[layer] };
}

/** Another layer or head of the group, as the address says it. */
export const move = (at: At, layer: number, head: number) => set({ g: at.group.name, l: layer, h: Math.min(head, at.group.heads[layer] - 1) }, "replace");

/** The address names the head that a page opens on: what one does there is about it, also when another pass has another clear head. */
export function useNamed(trace: Trace, at: At | null): void {
  useEffect(() => {
    if (at && trace.look && !["g", "l", "h"].some((key) => str(key))) move(at, at.layer, at.head);
  }, [trace]);
}

/** The number of a layer in its stack: a group may leave layers out. */
export const layerNumber = (path: string, index: number) => /^\w+\.(\d+)/.exec(path)?.[1] ?? String(index);

export const side = (trace: Trace, which: Side) => (which === "tokens" ? trace.tokens : trace[which] ?? []);
export const names = (trace: Trace, which: Side) => side(trace, which).map((x) => x.shown);
/** What rows and columns are called: over a source the rows are the words written. */
export const axes = (group: TraceGroup) => (group.queries === "written" ? [t("attention.writtenWord"), t("attention.sourceWord")] : [t("attention.query"), t("attention.key")]);

export function AttentionPage({ caps }: { caps: Caps }) {
  const recurrent = caps.recurrent.length > 0;
  return (
    <TracePage name="attention" caps={caps} usable={caps.attention.length > 0}
      nothing={recurrent ? "attention.recurrentOnly" : "attention.nothing"} instead={recurrent ? "states" : "space"}
      extra={caps.kind === "encoder" ? undefined : (
        <NumberField label={t("attention.write")} value={whole("gen", 0, 0, 64)} min={0} max={64} onChange={(n) => set({ gen: n || null, q: null })} />
      )}
      foot={<p class="foot"><Explained text={t("attention.caution")} /></p>}>
      {(trace) => (trace.groups.length ? <Views caps={caps} trace={trace} /> : <Panel><p>{trace.note}</p></Panel>)}
    </TracePage>
  );
}

const VIEWS = ["grid", "matrix", "lines", "text"];

function Views({ caps, trace }: { caps: Caps; trace: Trace }) {
  const at = located(trace);
  const view = choice("view", VIEWS, "matrix");
  useNamed(trace, at);
  return (
    <>
      <Controls at={at} trace={trace} view={view} />
      {at.group.sink ? <p class="muted">{t("attention.sink")}</p> : null}
      {at.group.kind === "effective" ? <p class="muted">{t("attention.effective", { by: mixed(caps, at.path) })} {at.group.leaves_out ? t("attention.leavesOut", { what: at.group.leaves_out }) : ""}</p> : null}
      {byWords(at, trace) || between(at, trace) ? null : <Scrubber at={at} trace={trace} />}
      {view === "grid" ? <Grid at={at} trace={trace} /> : numbersOf(at, trace) === "unscaled" ? <Unscaled at={at} trace={trace} /> : <OneHead key={view} caps={caps} at={at} trace={trace} view={view} />}
      <FindHeads trace={trace} />
    </>
  );
}

function Controls({ at, trace, view }: { at: At; trace: Trace; view: string }) {
  const choose = (key: string) => (value: string) => set({ [key]: value });
  return (
    <div class="stack tight">
      <div class="row">
        <Segments label={t("attention.view")} value={view} onChange={choose("view")} choices={VIEWS.map((v) => ({ value: v, label: t(`attention.views.${v}`) }))} />
        {trace.groups.length > 1 ? (
          <Segments label={t("attention.group")} value={at.group.name} onChange={(g) => set({ g, l: null, h: null, q: null, k: null })}
            choices={trace.groups.map((g) => ({ value: g.name, label: g.title }))} />
        ) : null}
      </div>
      <div class="row">
        <Select label={t("attention.layer")} value={String(at.layer)} onChange={(l) => move(at, Number(l), at.head)}
          choices={at.group.layers.map((path, i) => ({ value: String(i), label: layerNumber(path, i) }))} />
        <Select label={t("attention.head")} value={String(at.head)} onChange={(h) => move(at, at.layer, Number(h))}
          choices={Array.from({ length: at.group.heads[at.layer] }, (_, i) => ({ value: String(i), label: String(i) }))} />
        {view === "grid" ? null : (
          <Select label={t("attention.over")} value={over(at)} onChange={(v) => set({ over: v === "head" ? null : v })}
            choices={["head", "mean", "max", ...(rollable(at.group) ? ["rollout"] : [])].map((v) => ({ value: v, label: t(`attention.overs.${v}`) }))} />
        )}
        {view === "matrix" && over(at) === "head" && at.group.kind === "softmax" && !byWords(at, trace) ? (
          <Select label={t("attention.numbers")} value={choice("of", numbersThere(at))} onChange={(v) => set({ of: v === "pattern" ? null : v })}
            choices={numbersThere(at).map((v) => ({ value: v, label: t(`attention.of.${v}`) }))} />
        ) : null}
        <Select label={t("attention.scale")} value={scaleOf()} onChange={(v) => set({ scale: v === "linear" ? null : v }, "replace")}
          choices={SCALES.map((v) => ({ value: v, label: t(`attention.scales.${v}`) }))} />
        <Select label={t("attention.palette")} value={paletteOf()} onChange={(v) => set({ palette: v === "blue" ? null : v }, "replace")}
          choices={PALETTES.map((v) => ({ value: v, label: t(`attention.palettes.${v}`) }))} />
        {view === "grid" ? null : <Check label={t("attention.hideFirst")} checked={str("hide") === "first"} onChange={(on) => set({ hide: on ? "first" : null }, "replace")} />}
        {view === "grid" || !pieces(at, trace) ? null : <Check label={t("attention.words")} checked={byWords(at, trace)} onChange={(words) => set({ words, q: null }, "replace")} />}
        {view === "grid" || !paired(at, trace) ? null : (
          <Select label={t("attention.between")} value={between(at, trace)} onChange={(ab) => set({ ab, q: null }, "replace")}
            choices={[{ value: "", label: t("attention.betweenAll") }, ...SIDES.map((s) => ({ value: s, label: sideName(s) }))]} />
        )}
      </div>
    </div>
  );
}

/** What the part at a path mixes tokens by. */
const mixed = (caps: Caps, path: string) => caps.mixing.find((m) => m.paths.includes(path))?.by ?? "";

const NUMBERS = ["pattern", "scores", "effect", "unscaled"];
/** Only where the scores are products that were divided by √d_k and nothing else can the division be left out. */
const numbersThere = (at: At) => NUMBERS.filter((v) => v !== "unscaled" || at.group.divides_by_root[at.layer]);
const SCALES: Scale[] = ["linear", "sqrt", "log"];
const PALETTES: Palette[] = ["blue", "cividis"];
const scaleOf = () => choice("scale", SCALES);
const paletteOf = () => choice("palette", PALETTES);
const rollable = (group: TraceGroup) => group.kind === "softmax" && !group.cross && group.queries === group.keys;

const wordsOf = (trace: Trace, which: Side) => side(trace, which).map((x, i) => x.word ?? i);

/** Whether any word is in pieces, so that there is something to put together. */
function pieces(at: At, trace: Trace): boolean {
  return [at.group.queries, at.group.keys].some((which) => wordsOf(trace, which).some((w, i, all) => i > 0 && w === all[i - 1]));
}

const byWords = (at: At, trace: Trace) => str("words") === "1" && pieces(at, trace);
const paired = (at: At, trace: Trace) => trace.second != null && !at.group.cross;
const between = (at: At, trace: Trace) => (paired(at, trace) && SIDES.some((s) => s === str("ab")) ? str("ab") : "");
const sideName = (ab: string) => [...ab.toUpperCase()].join(" → ");

function over(at: At): string {
  const value = choice("over", ["head", "mean", "max", "rollout"]);
  return value === "rollout" && !rollable(at.group) ? "head" : value;
}

/** Step through what the model wrote: each token is one new row; over a source, the row that wrote it. */
function Scrubber({ at, trace }: { at: At; trace: Trace }) {
  const rows = side(trace, at.group.queries);
  const own = trace.target === null ? "tokens" : "target";
  const first = at.group.queries === "written" ? trace.prompt - 1 : at.group.queries === own ? trace.prompt : rows.length;
  if (!trace.generated || first >= rows.length) return null;
  const row = whole("q", first, 0, rows.length - 1);
  const move = (q: number) => {
    set({ q }, "replace");
    say(t("attention.wrote", { token: rows[q].shown }));
  };
  return (
    <Panel>
      <div class="row">
        <Slider label={t("attention.scrub")} value={Math.max(row, first)} min={first} max={rows.length - 1} shown={rows[Math.max(row, first)].shown} onChange={move} />
        <button type="button" disabled={row <= first} onClick={() => move(row - 1)}>{t("common.previous")}</button>
        <button type="button" disabled={row >= rows.length - 1} onClick={() => move(row + 1)}>{t("common.next")}</button>
        <span class="mono" dir="auto">{rows.slice(first, Math.max(row, first) + 1).map((x) => x.shown).join(" ")}</span>
      </div>
    </Panel>
  );
}

const SCORES: ScoreName[] = ["entropy", "distance", "previous", "first", "induction"];

function Grid({ at, trace }: { at: At; trace: Trace }) {
  const thumbs = useNumbersOf(trace, "thumbs", { group: at.group.name, size: 64 });
  const scores = useOf<{ scores: Scores[] }>(trace, "scores");
  const python = useOf<{ python: string }>(trace, "python", { view: "heads", name: `${at.path}.pattern` });
  const sort = SCORES.find((s) => s === str("sort")) ?? null;
  return (
    <Await of={thumbs}>{({ shape: [, most, h, w], values }) => {
      const size = h * w;
      const layers: GridLayer[] = at.group.layers.map((name, l) => ({
        name: name.replace(/\.attn$/, ""), heads: at.group.heads[l], rows: h, columns: w, signed: at.group.kind === "effective",
        values: values.subarray(l * most * size, (l * most + at.group.heads[l]) * size),
      }));
      const mine = (scores.data?.scores ?? []).filter((s) => at.group.layers.some((l) => s.name === `${l}.pattern`));
      const named = mine.map((s) => ({ ...s, name: s.name.replace(/\.pattern$/, "").replace(/\.attn$/, "") }));
      return (
        <Panel>
          <Figure title={t("attention.gridTitle", { group: at.group.title, scale: t(`attention.scales.${scaleOf()}`) })} name="heads" model={trace.model}
            drawing={() => drawGrid({ layers, scale: scaleOf(), palette: paletteOf() })} python={python.data?.python}
            csv={() => scoreTable(mine)}>
            <HeadGrid layers={layers} scores={named} sort={sort} onSort={(v) => set({ sort: v }, "replace")} scale={scaleOf()} palette={paletteOf()} selected={{ layer: at.layer, head: at.head }}
              onSelect={({ layer, head }) => move(at, layer, head)} onOpen={({ layer, head }) => set({ g: at.group.name, l: layer, h: head, view: "matrix" })} />
          </Figure>
          <Effects group={at.group.name} trace={trace} />
        </Panel>
      );
    }}</Await>
  );
}

function scoreTable(scores: Scores[]): (string | number | null)[][] {
  const columns = ["entropy", "distance", "previous", "first", "induction", "diagonal", "special"] as const;
  return [["name", "head", "entropy (bits)", ...columns.slice(1)], ...scores.map((s) => [s.name, s.head, ...columns.map((c) => s[c])])];
}

const WHOLE = 2_000_000; // entries of a layer that are fetched at once, so that another head is there without asking

function useHead(at: At, trace: Trace): { data?: Float32Array; error?: ReturnType<typeof useTensor>["error"]; loading: boolean } {
  const rows = names(trace, at.group.queries).length;
  const columns = names(trace, at.group.keys).length;
  const what = numbersOf(at, trace);
  const kind = over(at);
  const whole = rows * columns * at.group.heads[at.layer] <= WHOLE && what === "pattern";
  const one = { name: `${at.path}.${what}`, head: whole ? undefined : at.head };
  const query = kind === "head" ? one : kind === "rollout" ? null : { name: `${at.path}.pattern`, reduction: kind };
  const tensor = useTensor(trace, query);
  const side = trace.target === null ? "" : at.path.split(".")[0];
  const rolled = useNumbersOf(trace, kind === "rollout" ? "rollout" : null, { side });
  const found: { data?: Tensor; error?: (typeof tensor)["error"]; loading: boolean } = kind === "rollout" ? rolled : tensor;
  if (!found.data) return { error: found.error, loading: found.loading };
  const size = rows * columns;
  const { values } = found.data;
  const data = values.length > size ? values.subarray(at.head * size, (at.head + 1) * size) : values;
  return { data: data.length === size ? data : undefined, loading: found.loading };
}

/** Which numbers are shown: scores and effects are of pieces, not of words, and stand in a matrix. */
function numbersOf(at: At, trace: Trace): string {
  return over(at) === "head" && !byWords(at, trace) && choice("view", VIEWS, "matrix") === "matrix" ? choice("of", numbersThere(at)) : "pattern";
}

/** Whom the layer's mask hides; a rollout goes over all layers. */
function maskAt(at: At): Mask {
  return { causal: at.group.causal && !at.group.cross, window: at.group.cross || over(at) === "rollout" ? null : at.group.windows[at.layer] };
}

/** The head with and without the division by √d_k. */
function Unscaled({ at, trace }: { at: At; trace: Trace }) {
  const rows = names(trace, at.group.queries);
  const alone = (all: string[]) => all.map((_, i) => [i]);
  const masked = useMemo(() => maskOf(alone(rows), alone(names(trace, at.group.keys)), maskAt(at)), [trace, at.path]);
  return <WithAndWithout at={at} trace={trace} masked={masked} row={str("q") === "" ? null : whole("q", 0, 0, rows.length - 1)} onRow={(q) => set({ q }, "replace")} />;
}

function OneHead({ caps, at, trace, view }: { caps: Caps; at: At; trace: Trace; view: string }) {
  const [all, allKeys] = [names(trace, at.group.queries), names(trace, at.group.keys)];
  const head = useHead(at, trace);
  const what = numbersOf(at, trace);
  const hidden = str("hide") === "first" && what === "pattern" && allKeys.length > 1;
  const [words, ab] = [byWords(at, trace), between(at, trace)];
  const shown = useMemo(() => {
    if (!head.data) return undefined;
    const found = arranged(clean(head.data), all.length, allKeys.length, {
      hideFirst: hidden, between: ab, second: trace.second, words, queryWords: wordsOf(trace, at.group.queries), keyWords: wordsOf(trace, at.group.keys),
    });
    const masked = maskOf(found.rows, found.columns, maskAt(at));
    return { ...found, masked, values: what === "pattern" ? found.values : unmasked(found.values, masked) };
  }, [head.data, hidden, ab, words, what, trace, at.path, over(at)]);
  const one = { name: `${at.path}.pattern`, head: at.head };
  const python = useOf<{ python: string }>(trace, "python", over(at) === "rollout" ? { view: "rollout" } : words || ab ? { view: "words", ...one, words: String(words), between: ab } : { view: "attention", ...one });
  const [cell, setCell] = useState<Cell | null>(null);
  const count = shown?.rows.length ?? all.length;
  const pinned = str("q") === "" ? null : whole("q", 0, 0, count - 1);
  const pin = (row: number | null) => set({ q: row }, "replace");
  return (
    <div class="cols side">
      <Panel>
        <Await of={{ ...head, data: shown }}>{({ values, rows, columns, masked }) => {
          const [queries, keys] = [groupNames(all, rows), groupNames(allKeys, columns)];
          const signed = at.group.kind === "effective" || what === "scores";
          const [rowTitle, columnTitle] = axes(at.group);
          const title = titleOf(at, trace, hidden, what);
          const look = { scale: signed ? undefined : scaleOf(), palette: paletteOf(), signed };
          const lines = [{ label: t("attention.headName", { head: at.head }), values }];
          const drawing = () => view === "lines" ? drawLines({ queries, keys, heads: lines, pinned }) : drawMatrix({ rows: queries, columns: keys, values, masked, rowTitle, columnTitle, ...look });
          return (
            <Figure title={title} name={`attention-${at.path}-${at.head}`} model={trace.model} drawing={drawing} python={python.data?.python} csv={() => matrixCsv(queries, keys, values)}
              html={what === "pattern" ? saved(at, queries, keys, Float32Array.from(values), view) : heat(title, queries, keys, Float32Array.from(values), signed, rowTitle, columnTitle)}>
              {view === "lines" ? <Lines queries={queries} keys={keys} heads={lines} title={title} pinned={pinned} onPin={pin} />
                : view === "text" ? <TextView queries={queries} keys={keys} values={values} masked={masked} title={title} {...look} pinned={pinned ?? 0} onPin={pin} />
                : <Matrix rows={queries} columns={keys} values={values} title={title} {...look} masked={masked} byValue={what === "scores"} rowTitle={rowTitle} columnTitle={columnTitle}
                    cell={cell} onCell={setCell} pinned={pinned} onPin={pin} />}
            </Figure>
          );
        }}</Await>
      </Panel>
      <div class="stack">
        {trace.change ? <Switch at={at} trace={trace} caps={caps} /> : null}
        {view === "matrix" && shown ? <Inspector at={at} trace={trace} shown={shown} what={what} cell={cell} pinned={pinned} keys={allKeys} queries={all} caps={caps} /> : null}
        {trace.change ? null : <Switch at={at} trace={trace} caps={caps} />}
        {caps.reads === "images" ? null : <Replace trace={trace} />}
      </div>
    </div>
  );
}

/** This head as the widget takes it. */
function saved(at: At, queries: string[], keys: string[], values: Float32Array, view: string) {
  const window = at.group.windows[at.layer];
  const pattern = { name: at.path, kind: at.group.kind, cross: at.group.cross, written: at.group.queries === "written", window, queries, keys, values: { array: values, shape: [1, queries.length, keys.length] } };
  return { kind: "attention", data: { patterns: [pattern], scores: [], pattern: 0, head: 0, view, scale: scaleOf(), hide_first: false, palette: paletteOf() } };
}

/** Numbers that are not finite draw nothing. */
function clean(values: Float32Array): Float32Array {
  return values.some((v) => !Number.isFinite(v)) ? values.map((v) => (Number.isFinite(v) ? v : 0)) : values;
}

function titleOf(at: At, trace: Trace, hidden: boolean, what: string): string {
  const kind = over(at);
  const where = t(trace.groups.length > 1 ? "attention.titleGroup" : "attention.titleLayer", { layer: layerNumber(at.path, at.layer), group: at.group.title });
  const who = kind === "head" ? t("attention.titleHead", { where, head: at.head }) : kind === "rollout" ? t("attention.titleRollout") : t(`attention.title_${kind}`, { where });
  const parts = [who, what === "pattern" ? "" : t(`attention.of.${what}`), scaleOf() === "linear" ? "" : t(`attention.scales.${scaleOf()}`), hidden ? t("attention.renormalised") : "", byWords(at, trace) ? t("attention.byWords") : "", sideName(between(at, trace)), trace.edited ? t("attention.modified") : ""];
  return parts.filter(Boolean).join(", ");
}

/** The chosen pair in numbers. */
function Inspector(props: { at: At; trace: Trace; shown: Arranged & { masked?: Uint8Array }; what: string; cell: Cell | null; pinned: number | null; keys: string[]; queries: string[]; caps: Caps }) {
  const { at, trace, cell } = props;
  const { values, rows, columns } = props.shown;
  const softmax = over(at) === "head" && at.group.kind === "softmax";
  const scores = useTensor(trace, softmax ? { name: `${at.path}.scores`, head: at.head } : null);
  const effect = useTensor(trace, softmax ? { name: `${at.path}.effect`, head: at.head } : null);
  const S = columns.length;
  const row = cell?.row ?? props.pinned;
  if (row === null || row === undefined || row >= rows.length || S === 0) return <Panel title={t("attention.pair")}><p class="muted">{t("attention.hover")}</p></Panel>;
  const column = Math.min(cell ? cell.column : strongest(values, row, S, props.what === "scores"), S - 1);
  const more = softmax && rows[row].length === 1 && columns[column].length === 1; // of words there is no one score
  const i = rows[row][0] * props.keys.length + columns[column][0];
  const topic = aligns(props.caps, at.path) ? "alignment" : "attention";
  return (
    <Panel title={t("attention.pair")}>
      <p><span class="mono" dir="auto">{groupNames(props.queries, [rows[row]])[0]}</span> → <span class="mono" dir="auto">{groupNames(props.keys, [columns[column]])[0]}</span></p>
      {props.shown.masked?.[row * S + column] ? <p class="muted">{t("attention.masked")}</p> : (
        <dl class="facts">
          <dt>{t(`attention.of.${props.what}`)}</dt><dd>{figure(values[row * S + column])}</dd>
          <dt>{t("attention.rank")}</dt><dd>{rank(values, S, { row, column }, props.what === "scores")}</dd>
          {scores.data && more && props.what !== "scores" ? (<><dt>{t("attention.of.scores")}</dt><dd>{figure(scores.data.values[i])}</dd></>) : null}
          {effect.data && more && props.what !== "effect" ? (<><dt>{t("attention.of.effect")}</dt><dd>{figure(effect.data.values[i])}</dd></>) : null}
        </dl>
      )}
      {topicsOf(props.caps).includes(topic) ? (
        <Go to="steps" with={{ topic, g: at.group.name, l: at.layer, h: at.head, q: rows[row][0] }}>{t("attention.work")}</Go>
      ) : null}
    </Panel>
  );
}

function strongest(values: ArrayLike<number>, row: number, S: number, byValue: boolean): number {
  for (let s = 0; s < S; s++) if (rank(values, S, { row, column: s }, byValue) === 1 && !Number.isNaN(values[row * S + s])) return s;
  return 0;
}
