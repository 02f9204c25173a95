// Every head as a small picture: layers down, heads across, in the model's order or by a score.
import { useMemo } from "preact/hooks";
import { Canvas } from "./Canvas";
import { useHeld, useName, useTheme, useWidth } from "./hooks";
import { drawGrid } from "./paint";
import { say } from "./say";
import { number } from "./text";
import type { GridLayer, HeadAt, HeadScore, Palette, Scale, ScoreName } from "./types";

export interface HeadGridProps {
  layers: GridLayer[];
  scores?: HeadScore[];
  sort?: ScoreName | null;
  onSort?: (score: ScoreName | null) => void;
  scale?: Scale;
  palette?: Palette;
  selected?: HeadAt;
  onSelect?: (at: HeadAt) => void;
  onOpen?: (at: HeadAt) => void;
}

const SCORES: ScoreName[] = ["entropy", "distance", "previous", "first", "induction"];

/** For each layer the heads in the order they are shown: by the score from the greatest, or as they are. */
export function ordered(layers: readonly GridLayer[], scores: readonly HeadScore[], by: ScoreName | null): number[][] {
  const at = new Map(scores.map((s) => [`${s.name} ${s.head}`, s]));
  return layers.map((layer) => {
    const heads = Array.from({ length: layer.heads }, (_, h) => h);
    if (!by) return heads;
    const value = (h: number) => at.get(`${layer.name} ${h}`)?.[by] ?? -Infinity;
    return heads.sort((a, b) => value(b) - value(a) || a - b);
  });
}

export function HeadGrid(props: HeadGridProps) {
  const { layers, scores = [], scale = "sqrt", palette = "blue" } = props;
  const theme = useTheme();
  const [ref, width] = useWidth();
  const id = useName("heads");
  const [sort, setSort] = useHeld<ScoreName | null>(props.sort, null, props.onSort);
  const [selected, select] = useHeld<HeadAt | undefined>(props.selected, { layer: 0, head: 0 }, (at) => at && props.onSelect?.(at));
  const order = useMemo(() => ordered(layers, scores, sort), [layers, scores, sort]);
  const at = selected ?? { layer: 0, head: 0 };
  const place = { layer: at.layer, head: Math.max(0, order[at.layer]?.indexOf(at.head) ?? 0) };
  const shown = useMemo(() => layers.map((layer, l) => rearranged(layer, order[l])), [layers, order]);
  const drawing = useMemo(() => drawGrid({ layers: shown, scale, palette, selected: place }, width), [shown, scale, palette, place.layer, place.head, width]);
  const L = drawing.layout;
  const each = L.size + L.gap;
  const has = SCORES.filter((s) => scores.some((x) => typeof x[s] === "number"));
  const said = (where: HeadAt) => {
    const layer = layers[where.layer];
    const score = scores.find((s) => s.name === layer?.name && s.head === where.head);
    const parts = score ? has.filter((s) => typeof score[s] === "number").map((s) => `${say(s)} ${number(score[s] as number, 2)}`) : [];
    return [say("headCell", { layer: layer?.name ?? "", head: where.head }), ...parts].join(", ");
  };
  const go = (l: number, column: number) => {
    const layer = Math.min(Math.max(l, 0), layers.length - 1);
    const c = Math.min(Math.max(column, 0), layers[layer].heads - 1);
    select({ layer, head: order[layer][c] });
  };
  const key = (e: KeyboardEvent) => {
    const { layer, head } = place;
    const last = (layers[layer]?.heads ?? 1) - 1;
    const to: Record<string, [number, number]> = {
      ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head], ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
      Home: e.ctrlKey ? [0, 0] : [layer, 0], End: e.ctrlKey ? [layers.length - 1, last] : [layer, last],
    };
    if (e.key === "Enter") props.onOpen?.(at);
    else if (to[e.key]) go(...to[e.key]);
    else return;
    e.preventDefault();
  };
  return (
    <div ref={ref} class="fig-grid">
      <div class="fig-row">
        {has.length > 0 && (
          <label class="fig-field">
            {say("sort")}
            <select value={sort ?? ""} onChange={(e) => setSort((e.currentTarget.value || null) as ScoreName | null)}>
              <option value="">{say("asIs")}</option>
              {has.map((s) => <option value={s}>{say(s)}</option>)}
            </select>
          </label>
        )}
        <span class="fig-read" role="status" aria-live="polite">{layers.length ? said(at) : ""}</span>
      </div>
      <div
        class="fig-scroll"
        role="grid"
        tabIndex={0}
        aria-label={say("grid")}
        aria-rowcount={layers.length}
        aria-colcount={layers.reduce((m, l) => Math.max(m, l.heads), 0)}
        aria-activedescendant={`${id}-cell`}
        onKeyDown={key}
      >
        <div
          role="presentation"
          class="fig-stage fig-pointer"
          style={{ width: `${drawing.width}px`, height: `${drawing.height}px` }}
          onClick={(e) => {
            const box = e.currentTarget.getBoundingClientRect();
            const l = Math.floor((e.clientY - box.top - L.top) / each);
            const h = Math.floor((e.clientX - box.left - L.left) / each);
            if (!layers[l] || h < 0 || h >= layers[l].heads) return;
            const where = { layer: l, head: order[l][h] };
            select(where);
            props.onOpen?.(where);
          }}
        >
          <Canvas drawing={drawing} theme={theme} />
        </div>
        <div role="row" aria-rowindex={at.layer + 1} class="fig-hidden">
          <div role="gridcell" id={`${id}-cell`} aria-selected="true" aria-colindex={place.head + 1}>
            {layers.length ? said(at) : ""}
          </div>
        </div>
      </div>
    </div>
  );
}

function rearranged(layer: GridLayer, order: number[]): GridLayer {
  if (order.every((h, i) => h === i)) return layer;
  const size = layer.rows * layer.columns;
  const values = new Float32Array(layer.heads * size);
  order.forEach((h, i) => {
    for (let k = 0; k < size; k++) values[i * size + k] = layer.values[h * size + k];
  });
  return { ...layer, values };
}
