// A map of points with names; distances that count are those of the full space, given as `near`.
import { useMemo } from "preact/hooks";
import { Stage } from "./Canvas";
import { useHeld, useTheme, useWidth } from "./hooks";
import { drawScatter, type Arrow } from "./plots";
import { say } from "./say";
import { shown } from "./text";
import type { Numbers } from "./types";

export interface ScatterProps {
  points: Numbers;
  names: string[];
  title: string;
  xTitle?: string;
  yTitle?: string;
  selected?: number | null;
  onSelect?: (i: number | null) => void;
  near?: number[];
  groups?: number[];
  arrows?: Arrow[];
  bare?: boolean; // no choice of a point
}

export function Scatter(props: ScatterProps) {
  const { points, names, title, xTitle, yTitle, near, groups, arrows } = props;
  const theme = useTheme();
  const [ref, width] = useWidth();
  const [selected, select] = useHeld<number | null>(props.selected, null, props.onSelect);
  const drawing = useMemo(
    () => drawScatter({ points, names, xTitle, yTitle, selected, near, groups, arrows }, width),
    [points, names, xTitle, yTitle, selected, near, groups, arrows, width],
  );
  const pick = ({ x, y }: { x: number; y: number }) => {
    let best: number | null = null;
    let far = 14 ** 2;
    for (let i = 0; i < names.length; i++) {
      const at = drawing.layout.at(i);
      const d = (at.x - x) ** 2 + (at.y - y) ** 2;
      if (d < far) [best, far] = [i, d];
    }
    select(best);
  };
  const keyed = (e: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (e.key === "Escape") select(null);
    else if (by && names.length) select(((selected ?? (by > 0 ? -1 : 0)) + by + names.length) % names.length);
    else return false;
    return true;
  };
  return (
    <div ref={ref} class="fig-scatter">
      {props.bare ? null : <div class="fig-row">
        <label class="fig-field">
          {say("word")}
          <select value={selected ?? ""} onChange={(e) => select(e.currentTarget.value === "" ? null : Number(e.currentTarget.value))}>
            <option value="">–</option>
            {names.slice(0, 2000).map((n, i) => <option value={i}>{shown(n.slice(0, 60))}</option>)}
          </select>
        </label>
        <span class="fig-read" role="status">{selected === null ? say("pick") : shown(names[selected].slice(0, 80))}</span>
      </div>}
      <Stage label={title} drawing={drawing} theme={theme} onKey={keyed} onClick={pick} />
    </div>
  );
}
