// The greatest edges between queries and keys, with how much of the weight they are.
import { useMemo } from "preact/hooks";
import { Stage } from "./Canvas";
import { DASHES, OKABE_ITO } from "./colour";
import { useHeld, useTheme, useWidth } from "./hooks";
import { drawLines } from "./plots";
import { say } from "./say";
import { percent } from "./text";
import type { LineHead } from "./types";

export interface LinesProps {
  queries: string[];
  keys: string[];
  heads: LineHead[];
  title: string;
  top?: number;
  onTop?: (top: number) => void;
  pinned?: number | null;
  onPin?: (row: number | null) => void;
}

export function Lines(props: LinesProps) {
  const { queries, keys, heads } = props;
  const theme = useTheme();
  const [ref, width] = useWidth();
  const [top, setTop] = useHeld(props.top, 5, props.onTop);
  const [pinned, pin] = useHeld<number | null>(props.pinned, null, props.onPin);
  const drawing = useMemo(() => drawLines({ queries, keys, heads, top, pinned }, width), [queries, keys, heads, top, pinned, width]);
  const pick = ({ y }: { y: number }) => {
    const t = Math.floor((y - drawing.layout.top) / drawing.layout.step);
    pin(t >= 0 && t < queries.length && t !== pinned ? t : null);
  };
  const key = (e: KeyboardEvent) => {
    const last = queries.length - 1;
    if (e.key === "ArrowDown") pin(pinned === null ? 0 : Math.min(pinned + 1, last));
    else if (e.key === "ArrowUp") pin(pinned === null ? last : Math.max(pinned - 1, 0));
    else if (e.key === "Escape") pin(null);
    else return false;
    return true;
  };
  const line = say("edges", { shown: drawing.shown.toLocaleString("en"), total: drawing.total.toLocaleString("en"), mass: percent(drawing.mass) });
  return (
    <div ref={ref} class="fig-lines">
      <div class="fig-row">
        <label class="fig-field">
          {say("edgesPer")}
          <input type="range" min={1} max={Math.min(20, keys.length)} value={top} onInput={(e) => setTop(Number(e.currentTarget.value))} />
          <output>{top}</output>
        </label>
        <span class="fig-read" role="status">{line}</span>
      </div>
      {heads.length > 1 && (
        <ul class="fig-keys">
          {heads.map((h, k) => (
            <li>
              <svg width="30" height="8" aria-hidden="true">
                <line x1="0" y1="4" x2="30" y2="4" stroke={OKABE_ITO[k % 8]} stroke-width="2.5" stroke-dasharray={DASHES[k % 8].join(" ")} />
              </svg>
              {h.label}
            </li>
          ))}
        </ul>
      )}
      <Stage label={`${props.title}. ${line}. ${say("gridHint")}`} drawing={drawing} theme={theme} onKey={key} onClick={pick} />
    </div>
  );
}
