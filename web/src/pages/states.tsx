// States: what a recurrence carries from step to step, how far back a gradient reaches; neurons and the cache of the others.
import { useOf, useTensor, type Caps, type Trace } from "../api";
import { Curves, drawCurves, drawMatrix, Matrix, type Curve } from "../figures";
import { Figure, heat, matrixCsv, plotted } from "../figure";
import { t } from "../strings";
import { Await, count, CopyPython, figure, Panel, percent, Segments, Select } from "../ui";
import { choice, set, str } from "../url";
import { names } from "./attention";
import { TracePage } from "./trace";

type Part = {
  path: string; cell: string; side: "tokens" | "target"; reverse: boolean; words: string[]; names: Record<string, string>;
  norm: Record<string, number[]>; saturation: Record<string, { low: number; high: number }>; mean: Record<string, number[]>;
};
type States = {
  parts: Part[]; norms: { name: string; values: number[] }[]; neurons: { name: string; shape: number[] }[];
  cache: { bytes_per_token: number; bytes: number } | null; note: string; python: string;
};

export function StatesPage({ caps }: { caps: Caps }) {
  return <TracePage name="states" caps={caps}>{(trace) => <Everything trace={trace} />}</TracePage>;
}

function Everything({ trace }: { trace: Trace }) {
  const states = useOf<States>(trace, "states");
  return (
    <Await of={states}>{(states) => (
      <>
        {states.note ? <p class="muted">{states.note}</p> : null}
        {states.parts.length ? <Cells trace={trace} states={states} /> : null}
        <Reach trace={trace} />
        {states.norms.length ? <Norms trace={trace} states={states} /> : null}
        {states.neurons.length ? <Neurons trace={trace} states={states} /> : null}
        {states.cache ? (
          <Panel title={t("states.cache")}>
            <p>{t("states.cacheLine", { each: count(states.cache.bytes_per_token), all: count(states.cache.bytes) })}</p>
          </Panel>
        ) : null}
      </>
    )}</Await>
  );
}

function Cells({ trace, states }: { trace: Trace; states: States }) {
  const part = states.parts.find((p) => p.path === str("part")) ?? states.parts[0];
  const word = choice("gate", part.words);
  const deep = trace.shapes[part.names[word]]?.length === 3; // a state space: a few numbers in each channel
  const tensor = useTensor(trace, { name: part.names[word], reduction: deep ? "norm" : undefined });
  const tokens = names(trace, part.side);
  return (
    <Panel title={t("states.cells")}>
      <div class="row">
        {states.parts.length > 1 ? <Select label={t("states.part")} value={part.path} onChange={(v) => set({ part: v }, "replace")} choices={states.parts.map((p) => ({ value: p.path, label: `${p.path} (${p.cell}${p.reverse ? ` ${t("states.backwards")}` : ""})` }))} /> : null}
        <Segments label={t("states.gate")} value={word} onChange={(v) => set({ gate: v }, "replace")} choices={part.words.map((w) => ({ value: w, label: `${w} · ${t(`states.words.${w}`)}` }))} />
      </div>
      <Await of={tensor}>{({ shape, values }) => {
        const [T, H] = shape;
        const turned = new Float32Array(values.length);
        for (let i = 0; i < T; i++) for (let j = 0; j < H; j++) turned[j * T + i] = values[i * H + j];
        const units = Array.from({ length: H }, (_, j) => String(j));
        const columns = Array.from({ length: T }, (_, i) => tokens[i] ?? String(i));
        const signed = values.some((v) => v < 0);
        const title = t(deep ? "states.titleNorm" : "states.title", { word, path: part.path });
        return (
          <Figure title={title} name={`${part.path}-${word}`} model={trace.model} python={states.python} drawing={() => drawMatrix({ rows: units, columns, values: turned, signed, compact: true })} csv={() => matrixCsv(units, columns, turned)}
            html={heat(title, units, columns, turned, signed, t("states.unit"), t("states.time"))}>
            <Matrix compact rows={units} columns={columns} values={turned} title={title} signed={signed} rowTitle={t("states.unit")} columnTitle={t("states.time")} />
          </Figure>
        );
      }}</Await>
      {part.saturation[word] ? <p>{t("states.saturation", { low: percent(part.saturation[word].low), high: percent(part.saturation[word].high) })}</p> : null}
      <Traces part={part} trace={trace} python={states.python} />
    </Panel>
  );
}

/** The size of the states and the mean of the gates over time. */
function Traces({ part, trace, python }: { part: Part; trace: Trace; python: string }) {
  const curves = (values: Record<string, number[]>): Curve[] => Object.entries(values).map(([word, y]) => ({ name: t(`states.words.${word}`), x: y.map((_, i) => i), y }));
  const plot = (kind: "mean" | "size", drawn: Curve[]) =>
    drawn.length ? <Plot title={t(`states.${kind}`)} name={`traces-${kind}`} curves={drawn} trace={trace} x={t("states.time")} y="" python={python} xNames={names(trace, part.side)} /> : null;
  return <>{plot("mean", curves(part.mean))}{plot("size", curves(part.norm))}</>;
}

function Plot(props: { title: string; name: string; curves: Curve[]; trace: Trace; x: string; y: string; python?: string; note?: string; logY?: boolean; xNames?: string[] }) {
  const { curves, title, x, y, logY, xNames } = props;
  return (
    <Figure title={title} name={props.name} model={props.trace.model} note={props.note} python={props.python} drawing={() => drawCurves({ curves, xTitle: x, yTitle: y, logY, xNames })} html={plotted(y || title, curves)}
      csv={() => [["name", props.x, "value"], ...curves.flatMap((c) => Array.from(c.x, (v, i) => [c.name, v, c.y[i]]))]}>
      <Curves curves={curves} title={title} xTitle={x} yTitle={y} logY={logY} xNames={xNames} controls={false} />
    </Figure>
  );
}

function Reach({ trace }: { trace: Trace }) {
  const reach = useOf<{ distances: number[]; relative: number[]; python: string }>(trace, "reach");
  return (
    <Panel>
      <Await of={reach}>{({ distances, relative, python }) => (
        <Plot title={t("states.reach")} note={t("states.reachNote")} name="gradient-by-distance" curves={[{ name: trace.model, x: distances, y: relative }]} trace={trace} x={t("states.distance")} y={t("states.gradient")} python={python} logY />
      )}</Await>
    </Panel>
  );
}

/** The output of a stack is behind its last layer, where it has a norm. */
function layerName(output: string): string {
  const name = output.replace(/\.output$/, "");
  return ["blocks", "encoder", "decoder"].includes(name) ? t("states.stackEnd", { name }) : name;
}

/** At most so many, from the first to the last, evenly. */
function spread<T>(all: T[], most: number): T[] {
  return all.length <= most ? all : Array.from({ length: most }, (_, i) => all[Math.round((i * (all.length - 1)) / (most - 1))]);
}

function Norms({ trace, states }: { trace: Trace; states: States }) {
  const curves = states.norms.map((n) => ({ name: layerName(n.name), x: n.values.map((_, i) => i), y: n.values }));
  const shown = spread(curves, 8); // as many as can be told apart
  const side = trace.target && !states.norms[0].name.startsWith("encoder") ? "target" : "tokens";
  const note = shown.length < curves.length ? t("states.normsSome", { n: shown.length, of: curves.length }) : undefined;
  return (
    <Panel>
      <Plot title={t("states.norms")} note={note} name="norms" curves={shown} trace={trace} x={t("states.time")} y="‖x‖" python={states.python} xNames={names(trace, side)} />
    </Panel>
  );
}

type Neuron = { index: number; max: number; tokens: [number, number][] };

function Neurons({ trace, states }: { trace: Trace; states: States }) {
  const name = states.neurons.some((n) => n.name === str("mlp")) ? str("mlp") : states.neurons[0].name;
  const found = useOf<{ neurons: Neuron[]; python?: string }>(trace, "neurons", { name, count: 8 });
  const side = trace.target && !name.startsWith("encoder") ? "target" : "tokens";
  const tokens = names(trace, side);
  return (
    <Panel title={t("states.neurons")}>
      <Select label={t("states.part")} value={name} onChange={(v) => set({ mlp: v }, "replace")} choices={states.neurons.map((n) => ({ value: n.name, label: `${n.name} (${n.shape[n.shape.length - 1]})` }))} />
      <Await of={found}>{({ neurons }) => (
        <div class="scroll" tabIndex={0} role="group" aria-label={t("states.neurons")}>
          <table>
            <thead><tr><th class="n">{t("states.neuron")}</th><th class="n">{t("states.most")}</th><th>{t("states.where")}</th></tr></thead>
            <tbody>{neurons.map((n) => (
              <tr key={n.index}>
                <td class="n">{n.index}</td><td class="n">{figure(n.max)}</td>
                <td>{n.tokens.slice(0, 5).map(([i, v]) => <span key={i} class="badge"><span class="mono" dir="auto">{tokens[i] ?? i}</span> {figure(v, 3)}</span>)}</td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}</Await>
      <CopyPython python={found.data?.python ?? states.python} />
    </Panel>
  );
}
