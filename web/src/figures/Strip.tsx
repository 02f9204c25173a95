// One panel of a figure: a heat map, lines, bars or a table.
import { useMemo } from "preact/hooks";
import { Bars } from "./Bars";
import { Canvas } from "./Canvas";
import { Curves } from "./Curves";
import { useTheme } from "./hooks";
import { Matrix } from "./Matrix";
import { drawLegend, drawMatrix, type Colouring } from "./paint";
import type { Drawing } from "./pen";
import { drawBars, drawCurves, type BarRow } from "./plots";
import { number, shown } from "./text";
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

/** Each row of a panel as a bar. */
function asBars(panel: Panel): BarRow[] {
  return panel.rows.map((label, t) => ({ label, value: panel.values[t] }));
}

/** A panel as it is saved; a table has no picture. */
export function drawPanel(panel: Panel): Drawing | null {
  if (panel.as === "lines") return drawCurves({ curves: asCurves(panel), xTitle: panel.columnTitle, yTitle: panel.rowTitle });
  if (panel.as === "bars") return drawBars(asBars(panel), 560, (v) => number(v, 3));
  return panel.as === "table" ? null : drawMatrix({ ...panel, compact: true });
}

/** The numbers of a panel, one row each. */
export function panelRows(panel: Panel): (string | number)[][] {
  const S = panel.columns.length;
  return panel.rows.flatMap((row, t) => panel.columns.map((column, s) => [panel.title, row, column, panel.cells ? panel.cells[t][s] : panel.values[t * S + s]]));
}

function Table({ panel }: { panel: Panel }) {
  const said = (cell: string | number) => (typeof cell === "string" ? shown(cell) : number(cell, 3));
  return (
    <div class="fig-scroll" tabIndex={0} role="group" aria-label={panel.title}>
      <table class="fig-table">
        <caption class="fig-hidden">{panel.title}</caption>
        <thead><tr><th scope="col">{panel.rowTitle}</th>{panel.columns.map((c) => <th scope="col">{c}</th>)}</tr></thead>
        <tbody>{panel.rows.map((row, t) => <tr><th scope="row" dir="auto">{shown(row)}</th>{panel.cells?.[t].map((cell) => <td dir="auto">{said(cell)}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

export function Strip({ panel, palette, onCell }: StripProps) {
  const curves = useMemo(() => (panel.as === "lines" ? asCurves(panel) : []), [panel]);
  return (
    <div class="fig-strip">
      <h3 class="fig-subtitle">{panel.title}</h3>
      {panel.note && <p class="fig-note">{panel.note}</p>}
      {panel.as === "lines" ? (
        <Curves curves={curves} title={panel.title} xTitle={panel.columnTitle} yTitle={panel.rowTitle} controls={false} />
      ) : panel.as === "bars" ? (
        <Bars rows={asBars(panel)} title={panel.title} label={panel.rowTitle} value={panel.columnTitle} format={(v) => number(v, 3)} />
      ) : panel.as === "table" ? (
        <Table panel={panel} />
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
