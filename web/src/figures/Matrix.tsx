// A heat map on canvas that a keyboard and a screen reader can walk: the WAI-ARIA grid pattern.
import { useMemo, useRef } from "preact/hooks";
import { Canvas } from "./Canvas";
import { greatest } from "./colour";
import { useHeld, useName, useTheme, useWidth } from "./hooks";
import { cellAt, drawLegend, drawMatrix } from "./paint";
import { rank } from "./patterns";
import { say } from "./say";
import { number, shown } from "./text";
import type { Cell, Numbers, Palette, Scale } from "./types";

export interface MatrixProps {
  rows: string[];
  columns: string[];
  values: Numbers;
  title: string;
  signed?: boolean;
  byValue?: boolean; // ranks follow the values, not their sizes
  scale?: Scale;
  palette?: Palette;
  limit?: number;
  masked?: Uint8Array; // 1 where a mask hides the cell: it is hatched and has no number
  rowTitle?: string;
  columnTitle?: string;
  compact?: boolean;
  cell?: Cell | null;
  onCell?: (cell: Cell | null) => void;
  pinned?: number | null;
  onPin?: (row: number | null) => void;
  table?: boolean; // start as a table
}

const CLIP = 120;

/** Where a key leads; null if it is none of the grid's. */
export function moved(cell: Cell, key: string, ctrl: boolean, T: number, S: number): Cell | null {
  const at = (row: number, column: number): Cell => ({ row: Math.min(Math.max(row, 0), T - 1), column: Math.min(Math.max(column, 0), S - 1) });
  const { row, column } = cell;
  switch (key) {
    case "ArrowUp": return at(row - 1, column);
    case "ArrowDown": return at(row + 1, column);
    case "ArrowLeft": return at(row, column - 1);
    case "ArrowRight": return at(row, column + 1);
    case "PageUp": return at(row - 10, column);
    case "PageDown": return at(row + 10, column);
    case "Home": return ctrl ? at(0, 0) : at(row, 0);
    case "End": return ctrl ? at(T - 1, S - 1) : at(row, S - 1);
    default: return null;
  }
}

export function Matrix(props: MatrixProps) {
  const { rows, columns, values, title, signed = false, scale = "linear", palette = "blue" } = props;
  const T = rows.length;
  const S = columns.length;
  const limit = props.limit ?? greatest(values);
  const theme = useTheme();
  const [ref, width] = useWidth();
  const id = useName("matrix");
  const [cell, setCell] = useHeld<Cell | null>(props.cell, null, props.onCell);
  const [pinned, pin] = useHeld<number | null>(props.pinned, null, props.onPin);
  const [table, setTable] = useHeld(undefined, props.table ?? false);
  const scroller = useRef<HTMLDivElement>(null);
  const drawing = useMemo(
    () => drawMatrix({ ...props, limit }, width),
    [rows, columns, values, signed, scale, palette, limit, props.masked, props.compact, width, props.rowTitle, props.columnTitle],
  );
  const legend = useMemo(() => drawLegend({ signed, scale, palette, limit }), [signed, scale, palette, limit]);
  const L = drawing.layout;
  const active = cell && cell.row < T && cell.column < S ? cell : null;

  const place = (event: MouseEvent) => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return cellAt(L, T, S, event.clientX - box.left, event.clientY - box.top);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Escape") pin(null);
    else if (event.key === "Enter" && active) pin(pinned === active.row ? null : active.row);
    else {
      const next = active ? moved(active, event.key, event.ctrlKey || event.metaKey, T, S) : moved({ row: 0, column: 0 }, event.key, false, T, S) && { row: 0, column: 0 };
      if (!next) return;
      setCell(next);
      const view = scroller.current;
      const x = L.left + next.column * L.cellWidth;
      if (view && (x < view.scrollLeft + L.left || x + L.cellWidth > view.scrollLeft + view.clientWidth)) view.scrollLeft = x - view.clientWidth / 2;
    }
    event.preventDefault();
  };
  const words = active ? said(props, active) : "";
  return (
    <div ref={ref} class="fig-matrix">
      <div class="fig-row">
        <div class="fig-legend" role="img" aria-label={`0 … ${number(limit, 3)}, ${say(scale)}`}>
          <Canvas drawing={legend} theme={theme} />
        </div>
        <button type="button" class="fig-button" aria-pressed={table} onClick={() => setTable(!table)}>
          {say(table ? "figure" : "table")}
        </button>
        <span class="fig-read" role="status" aria-live="polite">{words}</span>
      </div>
      {table ? (
        <Table {...props} />
      ) : (
        <div
          class="fig-scroll"
          ref={scroller}
          role="grid"
          tabIndex={0}
          aria-label={`${title}. ${say("gridHint")}`}
          aria-rowcount={T}
          aria-colcount={S}
          aria-activedescendant={active ? `${id}-cell` : undefined}
          onKeyDown={key}
          onFocus={() => !active && T && S && setCell({ row: 0, column: 0 })}
        >
          <div
            class="fig-stage"
            role="presentation"
            style={{ width: `${drawing.width}px`, height: `${drawing.height}px` }}
            onMouseMove={(e) => {
              const at = place(e);
              if (at && (at.row !== active?.row || at.column !== active.column)) setCell(at);
            }}
            onClick={(e) => {
              const at = place(e);
              if (at) pin(pinned === at.row ? null : at.row);
            }}
          >
            <Canvas drawing={drawing} theme={theme} />
            {pinned !== null && pinned < T && (
              <div class="fig-pin" style={{ left: `${L.left}px`, top: `${L.top + pinned * L.cellHeight}px`, width: `${S * L.cellWidth}px`, height: `${L.cellHeight}px` }} />
            )}
            {active && (
              <div class="fig-cross" style={{ left: `${L.left + active.column * L.cellWidth}px`, top: `${L.top + active.row * L.cellHeight}px`, width: `${L.cellWidth}px`, height: `${L.cellHeight}px` }} />
            )}
          </div>
          <div role="row" aria-rowindex={(active?.row ?? 0) + 1} class="fig-hidden">
            <div role="gridcell" id={`${id}-cell`} aria-colindex={(active?.column ?? 0) + 1} aria-selected={pinned !== null && pinned === active?.row}>
              {words || title}
            </div>
          </div>
        </div>
      )}
    </div>
  );
}

/** What is read out at a cell. */
export function said(props: Pick<MatrixProps, "rows" | "columns" | "values" | "masked" | "byValue">, at: Cell): string {
  const names = { row: shown(props.rows[at.row].slice(0, 80)), column: shown(props.columns[at.column].slice(0, 80)) };
  const S = props.columns.length;
  const value = props.values[at.row * S + at.column];
  if (props.masked?.[at.row * S + at.column] || Number.isNaN(value)) return say("masked", names);
  return say("cell", { ...names, value: number(value, 4), rank: rank(props.values, S, at, props.byValue) });
}

function Table({ rows, columns, values, title, masked }: MatrixProps) {
  const S = columns.length;
  const [T, W] = [Math.min(rows.length, CLIP), Math.min(S, CLIP)];
  const cut = T < rows.length || W < S;
  return (
    <div class="fig-scroll" tabIndex={0} role="group" aria-label={title}>
      {cut && <p class="fig-note">{say("tooLarge", { shown: CLIP, all: Math.max(rows.length, S) })}</p>}
      <table class="fig-table">
        <caption class="fig-hidden">{title}</caption>
        <thead>
          <tr>
            <td />
            {columns.slice(0, W).map((c) => <th scope="col" dir="auto">{shown(c.slice(0, 80))}</th>)}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, T).map((name, t) => (
            <tr>
              <th scope="row" dir="auto">{shown(name.slice(0, 80))}</th>
              {Array.from({ length: W }, (_, s) => <td>{masked?.[t * S + s] || Number.isNaN(values[t * S + s]) ? "–" : number(values[t * S + s], 4)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
