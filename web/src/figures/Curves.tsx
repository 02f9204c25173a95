// Curves over steps: raw values faint, their running mean over them, the numbers where the pointer is.
import { useMemo, useState } from "preact/hooks";
import { Stage } from "./Canvas";
import { useTheme, useWidth } from "./hooks";
import { drawCurves } from "./plots";
import { say } from "./say";
import { brief, number } from "./text";
import type { Curve } from "./types";

export interface CurvesProps {
  curves: Curve[];
  title: string;
  xTitle: string;
  yTitle: string;
  logY?: boolean;
  smooth?: number;
  xNames?: readonly string[];
  controls?: boolean;
  onView?: (view: { logY: boolean; smooth: number }) => void;
}

/** The place in x nearest to a value; x rises. */
export function nearest(x: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - x[low - 1] < x[low] - value ? low - 1 : low;
}

export function Curves({ curves, title, xTitle, yTitle, controls = true, ...start }: CurvesProps) {
  const theme = useTheme();
  const [ref, width] = useWidth();
  const [logY, setLog] = useState(start.logY ?? false);
  const [smooth, setSmooth] = useState(start.smooth ?? 0);
  const [at, setAt] = useState<number | null>(null);
  const [table, setTable] = useState(false);
  const tell = (view: { logY: boolean; smooth: number }) => {
    setLog(view.logY);
    setSmooth(view.smooth);
    start.onView?.(view);
  };
  const drawing = useMemo(() => drawCurves({ curves, xTitle, yTitle, logY, smooth, xNames: start.xNames }, width), [curves, xTitle, yTitle, logY, smooth, start.xNames, width]);
  const { box } = drawing.layout;
  const longest = curves.reduce<Curve | null>((l, c) => (!l || c.x.length > l.x.length ? c : l), null);
  const step = (by: number) => {
    if (!longest?.x.length) return;
    const i = at === null ? (by > 0 ? -1 : longest.x.length) : nearest(longest.x, at);
    setAt(longest.x[Math.min(Math.max(i + by, 0), longest.x.length - 1)]);
  };
  const keyed = (e: KeyboardEvent) => {
    if (e.key === "ArrowRight") step(1);
    else if (e.key === "ArrowLeft") step(-1);
    else if (e.key === "Escape") setAt(null);
    else return false;
    return true;
  };
  const words = at === null ? "" : [`${xTitle} ${brief(at)}`, ...curves.filter((c) => c.x.length).map((c) => `${c.name} ${number(c.y[nearest(c.x, at)], 4)}`)].join(", ");
  return (
    <div ref={ref} class="fig-curves">
      <div class="fig-row">
        {controls && (
          <>
            <label class="fig-field"><input type="checkbox" checked={logY} onChange={(e) => tell({ logY: e.currentTarget.checked, smooth })} />{say("logY")}</label>
            <label class="fig-field">{say("smoothing")}<input type="range" min={0} max={0.99} step={0.01} value={smooth} onInput={(e) => tell({ logY, smooth: Number(e.currentTarget.value) })} /><output>{smooth}</output></label>
            <button type="button" class="fig-button" aria-pressed={table} onClick={() => setTable(!table)}>{say(table ? "figure" : "table")}</button>
          </>
        )}
        <span class="fig-read" role="status">{words}</span>
      </div>
      {table ? (
        <CurveTable curves={curves} title={title} xTitle={xTitle} />
      ) : (
        <Stage label={title} drawing={drawing} theme={theme} onKey={keyed} onMove={(p) => setAt(!p || p.x < box.x || p.x > box.x + box.w ? null : drawing.layout.fromX(p.x))}>
          {at !== null && <div class="fig-hair" style={{ left: `${drawing.layout.toX(at)}px`, top: `${box.y}px`, height: `${box.h}px` }} />}
        </Stage>
      )}
    </div>
  );
}

const CLIP = 200;

function CurveTable({ curves, title, xTitle }: Pick<CurvesProps, "curves" | "title" | "xTitle">) {
  return (
    <div class="fig-scroll" tabIndex={0} role="group" aria-label={title}>
      {curves.map((c) => {
        const every = Math.max(1, Math.ceil(c.x.length / CLIP));
        const rows = Array.from({ length: Math.ceil(c.x.length / every) }, (_, i) => i * every);
        return (
          <table class="fig-table">
            <caption>{c.name}{every > 1 ? `, every ${every}th of ${c.x.length}` : ""}</caption>
            <thead><tr><th scope="col">{xTitle}</th><th scope="col">{c.name}</th></tr></thead>
            <tbody>{rows.map((i) => <tr><th scope="row">{c.x[i]}</th><td>{number(c.y[i], 4)}</td></tr>)}</tbody>
          </table>
        );
      })}
    </div>
  );
}
