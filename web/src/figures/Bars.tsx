// Probabilities as a table with bars, and the chain from logits to the drawn token.
import { useMemo } from "preact/hooks";
import { useHeld } from "./hooks";
import { barScale, type BarRow } from "./plots";
import { chain, draw, uniform } from "./sampling";
import { say } from "./say";
import { number, percent, shown } from "./text";
import type { Sampling } from "./types";

export interface BarColumn {
  title: string;
  values: (number | null)[];
  format?: (value: number) => string;
}

export interface BarsProps {
  rows: BarRow[];
  title: string;
  label?: string; // of the first column
  value?: string; // of the bars
  format?: (value: number) => string;
  columns?: BarColumn[];
}

export function Bars({ rows, title, label = say("token"), value = say("final"), format = percent, columns = [] }: BarsProps) {
  const { zero, signed, bar } = barScale(rows.map((r) => r.value));
  const share = (part: number) => `${part * 100}%`;
  const drawn = (value: number) => {
    const at = bar(value);
    return at && <span class="fig-bar" style={{ left: share(at.start), width: share(at.length) }} />;
  };
  return (
    <div class="fig-scroll" tabIndex={0} role="group" aria-label={title}>
      <table class="fig-table fig-bars">
        <caption class="fig-hidden">{title}</caption>
        <thead>
          <tr>
            <th scope="col">{label}</th>
            {columns.map((c) => <th scope="col">{c.title}</th>)}
            <th scope="col">{value}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr class={[row.kept === false ? "fig-gone" : "", row.chosen ? "fig-chosen" : ""].join(" ")}>
              <th scope="row" dir="auto" title={row.note}>
                {row.chosen && <span aria-hidden="true">▸ </span>}
                {shown(row.label.slice(0, 80))}
              </th>
              {columns.map((c) => <td>{c.values[i] === null || c.values[i] === undefined ? "–" : (c.format ?? ((v: number) => number(v, 3)))(c.values[i] as number)}</td>)}
              <td class="fig-bar-cell">
                <span class="fig-bar-room">
                  {drawn(row.value)}
                  {signed && <span class="fig-bar-zero" style={{ left: share(zero) }} />}
                </span>
                <span class="fig-bar-number">{format(row.value)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export interface PredictionProps {
  names: string[] | ((id: number) => string);
  logits: Float32Array;
  sampling: Sampling;
  seed: number;
  onChange?: (sampling: Sampling, seed: number) => void;
  count?: number;
  title: string;
}

/** The `count` likeliest tokens, and the drawn one if it is not among them. */
export function listed(logits: Float32Array, count: number, drawn: number): number[] {
  const order = [...logits.keys()].sort((a, b) => logits[b] - logits[a]).slice(0, count);
  return order.includes(drawn) ? order : [...order, drawn];
}

export function Prediction(props: PredictionProps) {
  const { logits, title, count = 20 } = props;
  const [held, hold] = useHeld<[Sampling, number]>(undefined, [props.sampling, props.seed], ([s, n]) => props.onChange?.(s, n));
  const [sampling, seed] = props.onChange ? ([props.sampling, props.seed] as const) : held;
  const steps = useMemo(() => chain(logits, sampling), [logits, sampling]);
  const u = useMemo(() => uniform(seed), [seed]);
  const drawn = useMemo(() => draw(steps.final, u), [steps, u]);
  const ids = useMemo(() => listed(logits, count, drawn), [logits, count, drawn]);
  const name = (id: number) => (typeof props.names === "function" ? props.names(id) : props.names[id]);
  const set = (change: Partial<Sampling>) => hold([{ ...sampling, ...change }, seed]);
  const pick = (of: Float64Array) => ids.map((id) => of[id]);
  const below = useMemo(() => steps.final.reduce((sum, p, id) => (id < drawn ? sum + p : sum), 0), [steps, drawn]);
  return (
    <div class="fig-prediction">
      <div class="fig-row">
        <Slider label={say("temperature")} min={0} max={3} step={0.05} value={sampling.temperature} said={String(sampling.temperature)} set={(temperature) => set({ temperature })} />
        <Slider label={say("topK")} min={0} max={Math.min(200, logits.length)} step={1} value={sampling.topK ?? 0} said={sampling.topK === null ? say("all") : String(sampling.topK)} set={(k) => set({ topK: k || null })} />
        <Slider label={say("topP")} min={0.01} max={1} step={0.01} value={sampling.topP ?? 1} said={sampling.topP === null ? say("all") : String(sampling.topP)} set={(p) => set({ topP: p >= 1 ? null : p })} />
        <Slider label={say("minP")} min={0} max={1} step={0.01} value={sampling.minP ?? 0} said={sampling.minP === null ? say("all") : String(sampling.minP)} set={(p) => set({ minP: p || null })} />
        <label class="fig-field">
          {say("seed")}
          <input type="number" min={0} step={1} value={seed} onInput={(e) => hold([sampling, Math.max(0, Math.trunc(Number(e.currentTarget.value) || 0))])} />
        </label>
      </div>
      <p class="fig-read" role="status">
        {sampling.temperature === 0 ? say("greedy", { token: shown(name(drawn)) }) : say("drawn", { u: u.toFixed(6), token: shown(name(drawn)) })}
        {". "}
        {say("keptLine", { kept: steps.kept.toLocaleString("en"), all: logits.length.toLocaleString("en"), entropy: number(steps.entropy, 3) })}
      </p>
      {sampling.temperature > 0 && (
        <div class="fig-cdf" role="img" aria-label={say("drawn", { u: u.toFixed(6), token: shown(name(drawn)) })}>
          <span class="fig-cdf-part" style={{ left: `${below * 100}%`, width: `${Math.max(steps.final[drawn] * 100, 0.3)}%` }} />
          <span class="fig-cdf-u" style={{ left: `${u * 100}%` }} />
        </div>
      )}
      <Bars
        title={title}
        rows={ids.map((id) => ({ label: name(id), value: steps.final[id], kept: steps.final[id] > 0, chosen: id === drawn, note: `id ${id}` }))}
        columns={[
          { title: say("logit"), values: ids.map((id) => logits[id]), format: (v) => number(v, 3) },
          { title: say("p"), values: pick(steps.p), format: percent },
          { title: say("heated"), values: pick(steps.heated), format: percent },
          { title: say("topK"), values: pick(steps.topK), format: percent },
          { title: say("topP"), values: pick(steps.topP), format: percent },
        ]}
      />
    </div>
  );
}

function Slider(props: { label: string; min: number; max: number; step: number; value: number; said: string; set: (value: number) => void }) {
  const { label, min, max, step, value, said, set } = props;
  return (
    <label class="fig-field">
      {label}
      <input type="range" min={min} max={max} step={step} value={value} aria-valuetext={said} onInput={(e) => set(Number(e.currentTarget.value))} />
      <output>{said}</output>
    </label>
  );
}
