// A heat map beside others: states over time, positions over dimensions; or the same numbers as lines.
import { useMemo } from "preact/hooks";
import { Canvas } from "./Canvas";
import { Curves } from "./Curves";
import { useTheme } from "./hooks";
import { Matrix } from "./Matrix";
import { drawLegend, type Colouring } from "./paint";
import type { Cell, Curve, Panel, Palette } from "./types";

export interface StripProps {
  panel: Panel;
  palette?: Palette;
  onCell?: (cell: Cell | null) => void;
}

/** Each row of a panel as a curve over its columns. */
export function asCurves(panel: Panel): Curve[] {
  const S = panel.columns.length;
  const numeric = panel.columns.every((c) => c.trim() !== "" && Number.isFinite(Number(c)));
  const x = panel.columns.map((c, i) => (numeric ? Number(c) : i));
  return panel.rows.map((name, t) => ({ name, x, y: panel.values.subarray(t * S, (t + 1) * S) }));
}

export function Strip({ panel, palette, onCell }: StripProps) {
  const curves = useMemo(() => (panel.as === "lines" ? asCurves(panel) : []), [panel]);
  return (
    <div class="fig-strip">
      <h3 class="fig-subtitle">{panel.title}</h3>
      {panel.note && <p class="fig-note">{panel.note}</p>}
      {panel.as === "lines" ? (
        <Curves curves={curves} title={panel.title} xTitle={panel.columnTitle} yTitle={panel.rowTitle} controls={false} />
      ) : (
        <Matrix compact rows={panel.rows} columns={panel.columns} values={panel.values} title={panel.title} signed={panel.signed} palette={palette} rowTitle={panel.rowTitle} columnTitle={panel.columnTitle} onCell={onCell} />
      )}
    </div>
  );
}

export function Legend(props: Colouring & { limit: number }) {
  const theme = useTheme();
  const { limit, signed, scale, palette } = props;
  const drawing = useMemo(() => drawLegend({ limit, signed, scale, palette }), [limit, signed, scale, palette]);
  return <Canvas drawing={drawing} theme={theme} />;
}
