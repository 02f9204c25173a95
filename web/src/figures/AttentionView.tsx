// Attention of one pass: all heads, one head as a matrix, as lines or over the text.
import { useMemo, useState } from "preact/hooks";
import { Frame } from "./Canvas";
import { greatest } from "./colour";
import type { AttentionData } from "./FigureView";
import { HeadGrid } from "./HeadGrid";
import { Lines } from "./Lines";
import { Matrix } from "./Matrix";
import { drawGrid, drawMatrix } from "./paint";
import { arranged, greatestHead, groupNames, head, headCount, isCausal, maskOf, mean, pool, SIDES } from "./patterns";
import { drawLines } from "./plots";
import { say } from "./say";
import { TextView } from "./TextView";
import { csv } from "./text";
import type { FigureJson, GridLayer, Numbers, Palette, Scale } from "./types";

type View = "grid" | "matrix" | "lines" | "text";
const VIEWS: View[] = ["grid", "matrix", "lines", "text"];
const SCALES: Scale[] = ["linear", "sqrt", "log"];

export function AttentionView({ figure, data }: { figure: FigureJson; data: AttentionData }) {
  const { patterns } = data;
  const [at, setAt] = useState(data.pattern);
  const [asked, setWhich] = useState<number | "mean" | "max">(data.head);
  const [view, setView] = useState<View>(data.view);
  const [scale, setScale] = useState<Scale>(data.scale);
  const [palette, setPalette] = useState<Palette>(data.palette);
  const [hidden, setHidden] = useState(data.hide_first);
  const [words, setWords] = useState(data.words ?? false);
  const [between, setBetween] = useState(data.between ?? "");
  const [pinned, pin] = useState<number | null>(null);
  const pattern = patterns[at];
  const T = pattern.queries.length;
  const S = pattern.keys.length;
  const hide = hidden && !pattern.cross && S > 1;
  const heads = pattern.values.length ? headCount(pattern) : 1;
  const which = typeof asked === "number" && pattern.values.length ? Math.min(asked, heads - 1) : asked;
  const raw: Numbers = useMemo(() => (!pattern.values.length ? pattern.values : which === "mean" ? mean(pattern) : which === "max" ? greatestHead(pattern) : head(pattern, which)), [pattern, which]);
  const pair = pattern.second != null;
  const pieces = [pattern.query_words, pattern.key_words].some((w) => w?.some((v, i) => i > 0 && v === w[i - 1]));
  const shown = useMemo(
    () => arranged(raw.length ? raw : new Float32Array(T * S), T, S, { hideFirst: hide, between: pair ? between : "", second: pattern.second, words, queryWords: pattern.query_words, keyWords: pattern.key_words }),
    [raw, hide, words, between, pattern],
  );
  const { values } = shown;
  const queries = useMemo(() => groupNames(pattern.queries, shown.rows), [pattern, shown]);
  const keys = useMemo(() => groupNames(pattern.keys, shown.columns), [pattern, shown]);
  const signed = pattern.kind === "effective";
  const causal = useMemo(() => isCausal(pattern), [pattern]);
  const masked = useMemo(() => maskOf(shown.rows, shown.columns, { causal, window: pattern.cross ? null : pattern.window }), [shown, causal]);
  const limit = greatest(values);
  const layers = useMemo(() => (view !== "grid" ? [] : patterns.filter((p) => p.values.length)).map((p): GridLayer => {
    const size = p.queries.length * p.keys.length;
    const small = Array.from({ length: headCount(p) }, (_, h) => pool(p.values.subarray(h * size, (h + 1) * size), p.queries.length, p.keys.length, 48));
    const all = new Float32Array(small.reduce((n, s) => n + s.values.length, 0));
    small.forEach((s, h) => all.set(s.values, h * s.values.length));
    return { name: p.name, heads: small.length, rows: small[0]?.rows ?? 0, columns: small[0]?.columns ?? 0, values: all, signed: p.kind === "effective" };
  }), [patterns, view === "grid"]);
  const lineHeads = useMemo(() => [{ label: title(which), values }], [values, which]);
  const said = [...(view === "grid" ? [say("grid")] : [pattern.name, title(which)]), signed ? "effective, signed" : "", view === "grid" ? "" : say(scale), hide ? say("hidden") : "", words && pieces ? say("byWords") : "", pair && between ? side(between) : ""].filter(Boolean).join(" · ");
  const spec = { rows: queries, columns: keys, values, signed, scale, palette, limit, masked, rowTitle: say(pattern.written ? "written" : "query"), columnTitle: say(pattern.written ? "source" : "key") };
  const heading = figure.about.model ? say("attentionOf", { model: figure.about.model }) : say("attention");
  const step = (by: number) => which !== "mean" && which !== "max" && setWhich((which + by + heads) % heads);
  const layer = (by: number) => setAt((at + by + patterns.length) % patterns.length);
  const keyed = (e: KeyboardEvent) => {
    if (/INPUT|SELECT|TEXTAREA/.test((e.composedPath()[0] as Element).tagName)) return;
    const act = { "[": () => layer(-1), "]": () => layer(1), ",": () => step(-1), ".": () => step(1), g: () => setView("grid") }[e.key];
    if (act) act();
  };
  const draw = () => (view === "grid" ? drawGrid({ layers, scale, palette }) : view === "lines" ? drawLines({ queries, keys, heads: lineHeads, pinned }) : drawMatrix(spec));
  const place = (groups: number[][], of: number[] | undefined, i: number) => (words && of ? of[groups[i][0]] : groups[i][0]);
  const rows = () => queries.flatMap((q, t) => keys.map((k, s) => [pattern.name, title(which), place(shown.rows, pattern.query_words, t), q, place(shown.columns, pattern.key_words, s), k, values[t * keys.length + s]]));
  return (
    <div onKeyDown={keyed}>
      <Frame title={`${heading}: ${said}`} about={{ model: figure.about.model ?? null, text: figure.about.text ?? null }} note={figure.note} exports={{ name: "attention", python: figure.python, draw, csv: () => csv([["layer", "head", "query_at", "query", "key_at", "key", "weight"], ...rows()]) }}>
        <div class="fig-row">
          <div class="fig-tabs" role="group" aria-label={say("view")}>
            {VIEWS.map((v) => <button type="button" class="fig-button" aria-pressed={v === view} onClick={() => setView(v)}>{say(v)}</button>)}
          </div>
          <label class="fig-field">{say("layer")}
            <select value={at} onChange={(e) => setAt(Number(e.currentTarget.value))}>{patterns.map((p, i) => <option value={i}>{p.name}</option>)}</select>
          </label>
          <label class="fig-field">{say("head")}
            <select value={String(which)} onChange={(e) => setWhich(/\d/.test(e.currentTarget.value) ? Number(e.currentTarget.value) : (e.currentTarget.value as "mean"))}>
              {Array.from({ length: heads }, (_, h) => <option value={h}>{h}</option>)}
              <option value="mean">{say("mean")}</option>
              <option value="max">{say("max")}</option>
            </select>
          </label>
          <label class="fig-field">{say("scale")}
            <select value={scale} onChange={(e) => setScale(e.currentTarget.value as Scale)}>{SCALES.map((s) => <option value={s}>{say(s)}</option>)}</select>
          </label>
          {!signed && <label class="fig-field">{say("colours")}
            <select value={palette} onChange={(e) => setPalette(e.currentTarget.value as Palette)}><option value="blue">{say("blue")}</option><option value="cividis">{say("cividis")}</option></select>
          </label>}
          {!pattern.cross && <label class="fig-field"><input type="checkbox" checked={hidden} onChange={(e) => setHidden(e.currentTarget.checked)} />{say("hideFirst")}</label>}
          {pieces && <label class="fig-field"><input type="checkbox" checked={words} onChange={(e) => { setWords(e.currentTarget.checked); pin(null); }} />{say("words")}</label>}
          {pair && <label class="fig-field">{say("between")}
            <select value={between} onChange={(e) => { setBetween(e.currentTarget.value); pin(null); }}><option value="">{say("all")}</option>{SIDES.map((s) => <option value={s}>{side(s)}</option>)}</select>
          </label>}
        </div>
        {view === "grid" && <HeadGrid layers={layers} scores={data.scores} scale={scale} palette={palette} selected={{ layer: at, head: typeof which === "number" ? which : 0 }}
          onSelect={(h) => { setAt(h.layer); setWhich(h.head); }} onOpen={() => setView("matrix")} />}
        {!raw.length && <p class="fig-note" role="status">{say("loading")}</p>}
        {view === "matrix" && raw.length > 0 && <Matrix {...spec} title={said} pinned={pinned} onPin={pin} />}
        {view === "lines" && raw.length > 0 && <Lines queries={queries} keys={keys} heads={lineHeads} title={said} pinned={pinned} onPin={pin} />}
        {view === "text" && raw.length > 0 && <TextView queries={queries} keys={keys} values={values} masked={masked} title={said} signed={signed} scale={scale} palette={palette} pinned={pinned} onPin={pin} />}
      </Frame>
    </div>
  );
}

/** "ab" as A → B. */
function side(between: string): string {
  return [...between.toUpperCase()].join(" → ");
}

function title(which: number | "mean" | "max"): string {
  return typeof which === "number" ? `${say("head")} ${which}` : say(which);
}
