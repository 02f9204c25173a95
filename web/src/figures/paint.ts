// The drawings: functions from numbers to pictures, which components show and exports write.
import { css, diverging, greatest, index, ink, ramp, type RGB } from "./colour";
import { FONT, SMALL, cells, textWidth, type Drawing, type Pen, type Theme } from "./pen";
import { ticks } from "./plots";
import { brief, short } from "./text";
import type { Cell, GridLayer, Palette, Scale } from "./types";

export interface Colouring {
  signed?: boolean;
  scale?: Scale;
  palette?: Palette;
  limit?: number;
}

/** A colour for each value, three bytes each. */
export function coloured(values: ArrayLike<number>, how: Colouring, dark: boolean): Uint8Array {
  const { signed = false, scale = "linear", palette = "blue", limit = greatest(values) } = how;
  const table = signed ? diverging(dark) : ramp(palette, dark);
  const out = new Uint8Array(values.length * 3);
  for (let i = 0; i < values.length; i++) {
    const k = 3 * index(Number.isNaN(values[i]) ? 0 : values[i], limit, scale, signed);
    out[3 * i] = table[k];
    out[3 * i + 1] = table[k + 1];
    out[3 * i + 2] = table[k + 2];
  }
  return out;
}

export interface MatrixSpec extends Colouring {
  rows: readonly string[];
  columns: readonly string[];
  values: ArrayLike<number>;
  masked?: Uint8Array; // 1 where a mask hides the cell
  rowTitle?: string;
  columnTitle?: string;
  compact?: boolean; // rows as low as they may be: states over time, positions over dimensions
}

export interface MatrixLayout {
  left: number;
  top: number;
  cellWidth: number;
  cellHeight: number;
  width: number;
  height: number;
  turned: boolean; // column labels stand aslant
}

const SIN = Math.SQRT1_2;
export const longest = (names: readonly string[]) => names.slice(0, 600).reduce((w, n) => Math.max(w, textWidth(short(n))), 0);
export const between = (low: number, x: number, high: number) => Math.min(Math.max(x, low), high);

/** Where everything stands in a matrix of that many rows and columns, on a page `room` wide. */
export function layoutMatrix(spec: Pick<MatrixSpec, "rows" | "columns" | "compact" | "rowTitle">, room: number): MatrixLayout {
  const T = Math.max(spec.rows.length, 1);
  const S = Math.max(spec.columns.length, 1);
  const left = between(34, longest(spec.rows) + 12, 116);
  const wide = longest(spec.columns);
  let cellWidth = between(S > 256 ? 2 : S > 100 ? 4 : 6, (room - left - 8) / S, spec.compact ? 22 : 46);
  const turned = wide > cellWidth - 6;
  const right = turned ? Math.min(wide, 100) * SIN + 4 : 6;
  cellWidth = between(S > 256 ? 2 : S > 100 ? 4 : 6, (room - left - right) / S, spec.compact ? 22 : 46);
  const cellHeight = spec.compact ? between(3, 340 / T, 18) : cellWidth;
  const top = (turned ? Math.min(wide, 100) * SIN + 16 : 22) + (spec.rowTitle ? 14 : 0);
  return { left, top, cellWidth, cellHeight, turned, width: left + S * cellWidth + right, height: top + T * cellHeight + 6 };
}

export function drawMatrix(spec: MatrixSpec, room = 720): Drawing & { layout: MatrixLayout } {
  const L = layoutMatrix(spec, room);
  return { width: L.width, height: L.height, layout: L, paint: (pen, theme) => paintMatrix(pen, theme, spec, L) };
}

function paintMatrix(pen: Pen, theme: Theme, spec: MatrixSpec, L: MatrixLayout): void {
  const T = spec.rows.length;
  const S = spec.columns.length;
  const colours = coloured(spec.values, spec, theme.dark);
  cells(pen, L.left, L.top, S * L.cellWidth, T * L.cellHeight, T, S, colours, theme.background);
  const hidden = Uint8Array.from({ length: T * S }, (_, i) => Number(spec.masked?.[i] || Number.isNaN(spec.values[i])));
  if (hidden.includes(1)) hatch(pen, theme, L, T, S, hidden);
  pen.strokeStyle = theme.faint;
  pen.lineWidth = 1;
  pen.setLineDash([]);
  pen.strokeRect(L.left - 0.5, L.top - 0.5, S * L.cellWidth + 1, T * L.cellHeight + 1);
  pen.font = FONT;
  pen.textBaseline = "middle";
  pen.fillStyle = theme.ink;
  pen.textAlign = "right";
  const everyRow = Math.max(1, Math.ceil(13 / L.cellHeight));
  for (let t = 0; t < T; t += everyRow) pen.fillText(short(spec.rows[t]), L.left - 6, L.top + (t + 0.5) * L.cellHeight);
  const room = spec.columns.length > 40 && spec.columns.every((name, i) => name === String(i)) ? 48 : L.turned ? 13 : 10; // of numbers, round ones
  const everyColumn = room === 48 ? ticks(0, 1e4, (1e4 * L.cellWidth) / room)[1] : Math.max(1, Math.ceil(room / L.cellWidth));
  for (let s = 0; s < S; s += everyColumn) columnLabel(pen, L, short(spec.columns[s]), s);
  if (spec.rowTitle) {
    pen.font = SMALL;
    pen.fillStyle = theme.soft;
    pen.textAlign = "left";
    pen.textBaseline = "top";
    pen.fillText(`${spec.rowTitle} ↓   ${spec.columnTitle ?? ""} →`, 2, 2);
  }
  if (L.cellWidth >= 29 && L.cellHeight >= 18) cellNumbers(pen, spec, L, colours);
}

function columnLabel(pen: Pen, L: MatrixLayout, name: string, s: number): void {
  const x = L.left + (s + 0.5) * L.cellWidth;
  if (!L.turned) {
    pen.textAlign = "center";
    return pen.fillText(name, x, L.top - 10);
  }
  pen.save();
  pen.translate(x, L.top - 7);
  pen.rotate(-Math.PI / 4);
  pen.textAlign = "left";
  pen.fillText(name, 0, 0);
  pen.restore();
}

/** What a mask hides or what has no value is hatched: it is no weight of 0, it was never asked. */
function hatch(pen: Pen, theme: Theme, L: MatrixLayout, T: number, S: number, masked: Uint8Array): void {
  const w = L.cellWidth;
  pen.strokeStyle = theme.faint;
  pen.fillStyle = theme.faint;
  pen.lineWidth = 1;
  pen.globalAlpha = 0.8;
  pen.beginPath();
  for (let t = 0; t < T; t++) {
    const y = L.top + t * L.cellHeight;
    for (let s = 0; s < S; s++) {
      if (!masked[t * S + s]) continue;
      if (w < 8) {
        let end = s;
        while (end < S && masked[t * S + end]) end++;
        pen.fillRect(L.left + s * w, y, (end - s) * w, L.cellHeight / 2);
        s = end;
        continue;
      }
      pen.moveTo(L.left + s * w, y + L.cellHeight);
      pen.lineTo(L.left + (s + 1) * w, y);
    }
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function cellNumbers(pen: Pen, spec: MatrixSpec, L: MatrixLayout, colours: Uint8Array): void {
  const S = spec.columns.length;
  pen.font = SMALL;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (let i = 0; i < spec.values.length; i++) {
    const row = Math.floor(i / S);
    const column = i % S;
    if (spec.masked?.[i] || Number.isNaN(spec.values[i])) continue;
    const colour: RGB = [colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]];
    pen.fillStyle = ink(colour);
    const said = Math.abs(spec.values[i]) < 0.005 ? "0" : spec.values[i].toFixed(2).replace(/^(-?)0\./, "$1.").replace("-", "−");
    pen.fillText(said, L.left + (column + 0.5) * L.cellWidth, L.top + (row + 0.5) * L.cellHeight);
  }
}

/** The colour bar: what a colour means in numbers. */
export function drawLegend(how: Colouring & { limit: number }, width = 220): Drawing {
  const { signed = false, scale = "linear", limit } = how;
  return {
    width: width + 44,
    height: 34,
    paint(pen, theme) {
      const steps = 64;
      const table = signed ? diverging(theme.dark) : ramp(how.palette, theme.dark);
      const bar = new Uint8Array(steps * 3);
      for (let i = 0; i < steps; i++) bar.set(table.subarray(3 * Math.round((i / (steps - 1)) * 255), 3 * Math.round((i / (steps - 1)) * 255) + 3), 3 * i);
      cells(pen, 22, 2, width, 12, 1, steps, bar, "");
      pen.strokeStyle = theme.soft;
      pen.lineWidth = 1;
      pen.setLineDash([]);
      pen.strokeRect(21.5, 1.5, width + 1, 13);
      pen.fillStyle = theme.ink;
      pen.font = SMALL;
      pen.textAlign = "center";
      pen.textBaseline = "top";
      for (const [at, value] of legendTicks(limit, signed, scale)) pen.fillText(brief(value), 22 + at * width, 19);
    },
  };
}

/** Places (0 … 1) along the bar and the values that stand there. */
export function legendTicks(limit: number, signed: boolean, scale: Scale): [number, number][] {
  const back = (share: number) => (scale === "sqrt" ? share * share : scale === "log" ? (share === 0 ? 1e-4 : 10 ** (-4 * (1 - share))) : share) * limit;
  if (signed) return [-1, -0.5, 0, 0.5, 1].map((s) => [(s + 1) / 2, s === 0 ? 0 : Math.sign(s) * back(Math.abs(s))]);
  return [0, 0.25, 0.5, 0.75, 1].map((s) => [s, back(s)]);
}

/** Every head as a small picture: layers down, heads across. */
export interface GridSpec {
  layers: readonly GridLayer[];
  scale?: Scale;
  palette?: Palette;
  selected?: { layer: number; head: number } | null;
}
function part(values: ArrayLike<number>, from: number, to: number): ArrayLike<number> {
  return values instanceof Float32Array || values instanceof Uint8Array ? values.subarray(from, to) : Array.from(values).slice(from, to);
}

export interface GridLayout {
  size: number;
  left: number;
  top: number;
  gap: number;
}

export function drawGrid(spec: GridSpec, room = 720): Drawing & { layout: GridLayout } {
  const heads = spec.layers.reduce((m, l) => Math.max(m, l.heads), 1);
  const left = between(30, longest(spec.layers.map((l) => l.name)) + 12, 150);
  const size = between(26, (room - left) / heads - 5, 72);
  const layout = { size, left, top: 22, gap: 5 };
  const each = size + layout.gap;
  return {
    width: left + heads * each + 2,
    height: layout.top + spec.layers.length * each + 2,
    layout,
    paint(pen, theme) {
      pen.font = SMALL;
      pen.fillStyle = theme.soft;
      pen.textBaseline = "middle";
      pen.textAlign = "center";
      for (let h = 0; h < heads; h++) pen.fillText(String(h), left + h * each + size / 2, 11);
      spec.layers.forEach((layer, l) => {
        const count = layer.rows * layer.columns;
        pen.fillStyle = theme.soft;
        pen.textAlign = "right";
        pen.fillText(short(layer.name, 20), left - 6, layout.top + l * each + size / 2);
        for (let h = 0; h < layer.heads; h++) {
          const values = part(layer.values, h * count, (h + 1) * count);
          const colours = coloured(values, { ...spec, signed: layer.signed }, theme.dark);
          const x = left + h * each;
          const y = layout.top + l * each;
          cells(pen, x, y, size, size, layer.rows, layer.columns, colours, theme.background);
          const mine = spec.selected?.layer === l && spec.selected.head === h;
          pen.strokeStyle = mine ? theme.accent : theme.faint;
          pen.lineWidth = mine ? 2.5 : 1;
          pen.setLineDash([]);
          pen.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
        }
      });
    },
  };
}

export function cssOf(colours: Uint8Array, i: number): string {
  return css([colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]]);
}

/** The cell under a point of the drawing; null beside the matrix. */
export function cellAt(L: MatrixLayout, T: number, S: number, x: number, y: number): Cell | null {
  const column = Math.floor((x - L.left) / L.cellWidth);
  const row = Math.floor((y - L.top) / L.cellHeight);
  return row >= 0 && row < T && column >= 0 && column < S ? { row, column } : null;
}
