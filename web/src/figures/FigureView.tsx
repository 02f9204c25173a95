// A whole figure from its unpacked JSON: which components it takes follows from its kind.
import { useMemo, useState } from "preact/hooks";
import { AttentionView } from "./AttentionView";
import { BeamTree, branchRows } from "./BeamTree";
import { Bars, Prediction, listed } from "./Bars";
import { Frame } from "./Canvas";
import { Curves } from "./Curves";
import { useTheme } from "./hooks";
import { ModelView } from "./ModelView";
import { drawBars, drawCurves, drawScatter } from "./plots";
import { chain, draw, uniform } from "./sampling";
import { Scatter } from "./Scatter";
import { expression, StepsView, written } from "./StepsView";
import { Strip, drawPanel, panelRows } from "./Strip";
import { say } from "./say";
import { csv, number } from "./text";
import { drawTree, type BeamTexts } from "./tree";
import type { Curve, FigureJson, HeadScore, Numbers, Panel, Pattern, Sampling, Worked, WorkedLine } from "./types";

interface Array_ {
  shape: number[];
  values: Numbers;
}

type Bare<T> = Omit<T, "values"> & { values: Array_ };

export interface AttentionData {
  patterns: Pattern[];
  scores: HeadScore[];
  pattern: number;
  head: number | "mean" | "max";
  view: "matrix" | "grid";
  scale: "linear" | "sqrt" | "log";
  hide_first: boolean;
  words?: boolean;
  between?: string;
  palette: "blue" | "cividis";
}

const bare = <T extends { values: Numbers }>(list: unknown): T[] => (list as Bare<T>[]).map((p) => ({ ...p, values: p.values.values }) as unknown as T);

export function FigureView({ figure }: { figure: FigureJson }) {
  switch (figure.kind) {
    case "attention":
    case "heads":
      return <Attention figure={figure} />;
    case "steps":
      return <Steps figure={figure} />;
    case "next_token":
      return <Next figure={figure} />;
    case "beams":
      return <Search figure={figure} />;
    case "embeddings":
      return <Space figure={figure} />;
    case "training":
      return <Training figure={figure} />;
    case "model":
      return <ModelView figure={figure} />;
    default: // whatever is made of panels needs no code of its own
      if ("panels" in figure.data) return <Panels figure={figure} />;
      return <Frame title={figure.title} about={figure.about} note={say("failed", { why: `kind ${figure.kind}` })} />;
  }
}

function Attention({ figure }: { figure: FigureJson }) {
  const data = useMemo(() => ({ ...(figure.data as unknown as AttentionData), patterns: bare<Pattern>(figure.data.patterns) }), [figure]);
  return <AttentionView figure={figure} data={data} />;
}

/** A panel as it comes out of JSON: its values are an array that was packed, or the cells of a table. */
function panelOf(panel: Panel): Panel {
  const found = panel.values as unknown as Array_ | (string | number)[][];
  return Array.isArray(found) ? { ...panel, values: new Float32Array(), cells: found } : { ...panel, values: found.values };
}

function Panels({ figure }: { figure: FigureJson }) {
  const panels = useMemo(() => (figure.data.panels as Panel[]).map(panelOf), [figure]);
  const [at, setAt] = useState(0);
  const theme = useTheme();
  const { drawn } = figure;
  const together = figure.data.together === true; // one page of all panels
  const panel = together ? undefined : panels[at];
  const draw = panel && panel.as !== "table" ? () => drawPanel(panel)! : undefined;
  return (
    <Frame {...figure} exports={panels.length ? { name: figure.kind, python: figure.python, draw, csv: () => csv([["panel", "row", "column", "value"], ...panels.flatMap(panelRows)]) } : undefined}>
      {panels.length > 1 && !together && (
        <div class="fig-row">
          <label class="fig-field">
            {say("view")}
            <select value={at} onChange={(e) => setAt(Number(e.currentTarget.value))}>
              {panels.map((p, i) => <option value={i}>{p.title}</option>)}
            </select>
          </label>
        </div>
      )}
      {drawn && <div class="fig-scroll"><img class={`fig-drawn ${figure.kind}`} alt={figure.title} src={`data:image/svg+xml,${encodeURIComponent(drawn[theme.dark ? "dark" : "light"])}`} /></div>}
      {panel && <Strip key={at} panel={panel} />}
      {together && <div class="fig-together">{panels.map((p, i) => <div key={i} class={p.as === "table" ? "fig-wide" : undefined}><Strip panel={p} /></div>)}</div>}
    </Frame>
  );
}

function Steps({ figure }: { figure: FigureJson }) {
  const worked = figure.data.worked as Worked;
  const rows = (w: Worked): string[][] =>
    w.lines.flatMap((l) => ("lines" in l ? rows(l) : [[w.title, (l as WorkedLine).label, l.formula, l.operands === null ? "" : expression(l.operands, 6, Infinity), written(l.result, 6, Infinity)]]));
  return (
    <Frame {...figure} exports={{ name: "steps", python: figure.python, csv: () => csv([["section", "step", "formula", "numbers", "result"], ...rows(worked)]), json: () => worked }}>
      <StepsView worked={worked} heading={false} />
    </Frame>
  );
}

function Next({ figure }: { figure: FigureJson }) {
  const data = figure.data as unknown as { names: string[]; logits: Array_; sampling: { temperature: number; top_k: number | null; top_p: number | null; min_p: number | null }; seed: number; count: number };
  const logits = data.logits.values as Float32Array;
  const given = data.sampling;
  const [[sampling, seed], set] = useState<[Sampling, number]>([{ temperature: given.temperature, topK: given.top_k, topP: given.top_p, minP: given.min_p }, data.seed]);
  const now = () => {
    const steps = chain(logits, sampling);
    const drawn = draw(steps.final, uniform(seed));
    return listed(logits, data.count, drawn).map((id) => ({ id, label: data.names[id], value: steps.final[id], p: steps.p[id], chosen: id === drawn }));
  };
  return (
    <Frame
      {...figure}
      exports={{
        name: "next-token",
        python: figure.python,
        draw: () => drawBars(now()),
        csv: () => csv([["token", "id", "logit", "p", "final", "drawn"], ...now().map((r) => [r.label, r.id, logits[r.id], r.p, r.value, r.chosen ? 1 : 0])]),
      }}
    >
      <Prediction names={data.names} logits={logits} sampling={sampling} seed={seed} count={data.count} title={figure.title} onChange={(s, n) => set([s, n])} />
    </Frame>
  );
}

function Search({ figure }: { figure: FigureJson }) {
  const tree = figure.data as unknown as BeamTexts;
  return (
    <Frame {...figure} exports={{ name: "beams", python: figure.python, draw: () => drawTree(tree.branches), csv: () => csv(branchRows(tree)) }}>
      <BeamTree tree={tree} title={figure.title} />
    </Frame>
  );
}

function Space({ figure }: { figure: FigureJson }) {
  const data = figure.data as unknown as { names: string[]; points: Array_; axes: string[]; words: string[]; near: Array_; cosines: Array_; selected: number | null };
  const [selected, select] = useState<number | null>(data.selected);
  const k = data.near.shape[1];
  const at = useMemo(() => new Map(data.names.map((n, i) => [n, i])), [data]);
  const found = selected === null ? [] : Array.from({ length: k }, (_, j) => ({ label: data.words[data.near.values[selected * k + j]], value: data.cosines.values[selected * k + j] }));
  const near = useMemo(() => found.map((r) => at.get(r.label)).filter((i): i is number => i !== undefined), [selected]);
  const [xTitle, yTitle] = data.axes;
  const P = data.points.values;
  return (
    <Frame
      {...figure}
      exports={{
        name: "embeddings",
        python: figure.python,
        draw: () => drawScatter({ points: P, names: data.names, selected, near, xTitle, yTitle }),
        csv: () => csv([["word", "x", "y"], ...data.names.map((n, i) => [n, P[2 * i], P[2 * i + 1]])]),
      }}
    >
      <div class="fig-two">
        <Scatter points={P} names={data.names} title={figure.title} selected={selected} onSelect={select} near={near} xTitle={xTitle} yTitle={yTitle} />
        <div>
          <h3 class="fig-subtitle">{say("neighbours")}</h3>
          {found.length ? <Bars rows={found} title={say("neighbours")} label={say("word")} value="cosine" format={(v) => number(v, 3)} /> : <p class="fig-note">{say("pick")}</p>}
        </div>
      </div>
    </Frame>
  );
}

function Training({ figure }: { figure: FigureJson }) {
  const data = figure.data as unknown as { metric: string; curves: { name: string; x: Array_; y: Array_ }[] };
  const curves: Curve[] = useMemo(() => data.curves.map((c) => ({ name: c.name, x: c.x.values, y: c.y.values })), [data]);
  const [view, setView] = useState({ logY: false, smooth: 0 });
  const rows = () => curves.flatMap((c) => Array.from(c.x, (x, i) => [c.name, x, c.y[i]]));
  return (
    <Frame {...figure} exports={{ name: "training", python: figure.python, draw: () => drawCurves({ curves, xTitle: "step", yTitle: data.metric, ...view }), csv: () => csv([["curve", "step", data.metric], ...rows()]) }}>
      <Curves curves={curves} title={figure.title} xTitle="step" yTitle={data.metric} onView={setView} />
    </Frame>
  );
}
