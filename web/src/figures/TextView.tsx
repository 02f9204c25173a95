// The tokens in reading order, shaded by what one of them attends to.
import { useMemo } from "preact/hooks";
import { greatest, ink, rgb } from "./colour";
import { useHeld, useTheme } from "./hooks";
import { coloured, cssOf } from "./paint";
import { say } from "./say";
import { number, shown } from "./text";
import type { Numbers, Palette, Scale } from "./types";

export interface TextViewProps {
  queries: string[];
  keys: string[];
  values: Numbers;
  title: string;
  masked?: Uint8Array; // 1 where a mask hides the key
  signed?: boolean;
  scale?: Scale;
  palette?: Palette;
  pinned?: number | null;
  onPin?: (row: number | null) => void;
}

export function TextView(props: TextViewProps) {
  const { queries, keys, values, signed, scale, palette } = props;
  const theme = useTheme();
  const [held, pin] = useHeld<number | null>(props.pinned, null, props.onPin);
  const pinned = held !== null && held < queries.length ? held : queries.length - 1;
  const S = keys.length;
  const row = values.subarray(pinned * S, (pinned + 1) * S);
  const colours = useMemo(() => coloured(row, { signed, scale, palette, limit: greatest(row) }, theme.dark), [row, signed, scale, palette, theme]);
  return (
    <div class="fig-text">
      <p class="fig-note">{say("pinToken")}</p>
      <div class="fig-tokens" role="listbox" aria-label={say("query")}>
        {queries.map((q, t) => (
          <button
            type="button"
            role="option"
            class="fig-token"
            dir="auto"
            aria-selected={t === pinned}
            tabIndex={t === pinned ? 0 : -1}
            onClick={() => pin(t)}
            onKeyDown={(e) => {
              const to = { ArrowLeft: t - 1, ArrowRight: t + 1, Home: 0, End: queries.length - 1 }[e.key];
              if (to === undefined || to < 0 || to >= queries.length) return;
              pin(to);
              (e.currentTarget.parentElement?.children[to] as HTMLElement).focus();
              e.preventDefault();
            }}
          >
            {shown(q.slice(0, 200))}
          </button>
        ))}
      </div>
      <div class="fig-tokens" role="list" aria-label={props.title}>
        {keys.map((k, s) => {
          const colour = cssOf(colours, s);
          const weight = props.masked?.[pinned * S + s] ? say("hiddenByMask") : number(row[s], 4);
          return (
            <span role="listitem" class="fig-token fig-shade" dir="auto" title={weight} aria-label={`${shown(k.slice(0, 80))} ${weight}`} style={{ background: colour, color: ink(rgb(colour)) }}>
              {shown(k.slice(0, 200))}
            </span>
          );
        })}
      </div>
    </div>
  );
}
