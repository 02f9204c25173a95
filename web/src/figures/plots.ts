// Lines between tokens, curves, maps of points and bars.
import { DASHES, OKABE_ITO, greatest } from "./colour";
import { between, longest } from "./paint";
import { edges } from "./patterns";
import { BOLD, FONT, SMALL, textWidth, type Drawing, type Pen, type Theme } from "./pen";
import { brief, percent, short } from "./text";
import type { Curve, LineHead } from "./types";

export interface LinesSpec {
  queries: readonly string[];
  keys: readonly string[];
  heads: readonly LineHead[];
  top?: number;
  pinned?: number | null;
}

export interface LinesLayout {
  step: number;
  left: number;
  right: number;
  top: number;
}

/** Tokens on two sides and the greatest edges between them. */
export function drawLines(spec: LinesSpec, room = 560): Drawing & { layout: LinesLayout; shown: number; total: number; mass: number } {
  const T = spec.queries.length;
  const S = spec.keys.length;
  const step = between(14, 560 / Math.max(T, S), 26);
  const left = between(50, longest(spec.queries) + 16, 130);
  const width = between(left * 2 + 160, room, 620);
  const right = width - between(50, longest(spec.keys) + 16, 130);
  const layout = { step, left, right, top: 26 };
  const found = spec.heads.map((h) => edges(h.values, T, S, spec.top ?? 5));
  const picked = spec.pinned ?? null;
  const sum = (f: (e: (typeof found)[number]) => number) => found.reduce((a, e) => a + f(e), 0);
  return {
    width,
    height: layout.top + Math.max(T, S) * step + 8,
    layout,
    shown: sum((e) => e.edges.length),
    total: sum((e) => e.total),
    mass: sum((e) => e.mass) / Math.max(1, found.length),
    paint(pen, theme) {
      const y = (i: number) => layout.top + (i + 0.5) * step;
      found.forEach((f, k) => {
        const limit = greatest(f.edges.map((e) => e.weight));
        for (const e of f.edges) {
          const mine = picked === null || e.row === picked;
          const strength = Math.abs(e.weight) / limit;
          pen.strokeStyle = found.length > 1 ? OKABE_ITO[k % 8] : e.weight < 0 ? (theme.dark ? "#56b4e9" : "#542788") : theme.dark ? "#ffcf66" : "#08519c";
          pen.globalAlpha = mine ? 0.12 + 0.88 * strength : 0.04;
          pen.lineWidth = mine ? 0.6 + 3.2 * strength : 0.6;
          pen.setLineDash(found.length > 1 ? [...DASHES[k % 8]] : e.weight < 0 ? [5, 3] : []);
          const bend = (right - left) * 0.4;
          pen.beginPath();
          pen.moveTo(left, y(e.row));
          pen.bezierCurveTo(left + bend, y(e.row), right - bend, y(e.column), right, y(e.column));
          pen.stroke();
        }
      });
      pen.globalAlpha = 1;
      pen.setLineDash([]);
      pen.textBaseline = "middle";
      pen.font = SMALL;
      pen.fillStyle = theme.soft;
      pen.textAlign = "right";
      pen.fillText("query", left - 6, 12);
      pen.textAlign = "left";
      pen.fillText("key", right + 6, 12);
      spec.queries.forEach((name, t) => {
        pen.fillStyle = picked === t ? theme.accent : theme.ink;
        pen.font = picked === t ? BOLD : FONT;
        pen.textAlign = "right";
        pen.fillText(short(name), left - 6, y(t));
      });
      pen.font = FONT;
      pen.fillStyle = theme.ink;
      pen.textAlign = "left";
      spec.keys.forEach((name, s) => pen.fillText(short(name), right + 6, y(s)));
    },
  };
}

export interface CurvesSpec {
  curves: readonly Curve[];
  xTitle: string;
  yTitle: string;
  logY?: boolean;
  smooth?: number;
  xNames?: readonly string[]; // in place of the numbers 0, 1, 2 …
}

/** An exponential mean whose start is not pulled to 0: s_t = Σ β^(t−i) y_i / Σ β^(t−i). */
export function smoothed(y: ArrayLike<number>, beta: number): Float64Array {
  const out = new Float64Array(y.length);
  let sum = 0;
  let weight = 0;
  for (let i = 0; i < y.length; i++) {
    sum = beta * sum + y[i];
    weight = beta * weight + 1;
    out[i] = sum / weight;
  }
  return out;
}

/** Round numbers between two: about `count` of them. */
export function ticks(low: number, high: number, count = 5, least = 0): number[] {
  const raw = Math.max(least, (high - low) / count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((m) => m * power >= raw) ?? 10) * power;
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : Number(v.toPrecision(12)));
  return out;
}

export interface CurvesLayout {
  box: { x: number; y: number; w: number; h: number };
  toX(v: number): number;
  toY(v: number): number;
  fromX(px: number): number;
}

export function drawCurves(spec: CurvesSpec, room = 720): Drawing & { layout: CurvesLayout } {
  const width = between(320, room, 900);
  const letters = Math.max(0, ...spec.curves.map((c) => short(c.name, 40).length));
  const column = between(150, 44 + 7 * letters, width - 78); // of the legend
  const per = Math.max(1, Math.floor((width - 70) / column));
  const rows = Math.ceil(spec.curves.length / per);
  const box = { x: 62, y: 14 + rows * 18, w: width - 62 - 16, h: 290 };
  const usable = (v: number) => Number.isFinite(v) && (!spec.logY || v > 0);
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const c of spec.curves)
    for (let i = 0; i < c.x.length; i++) {
      if (!usable(c.y[i])) continue;
      x0 = Math.min(x0, c.x[i]);
      x1 = Math.max(x1, c.x[i]);
      y0 = Math.min(y0, c.y[i]);
      y1 = Math.max(y1, c.y[i]);
    }
  if (!(x1 >= x0)) [x0, x1, y0, y1] = [0, 1, spec.logY ? 0.1 : 0, 1];
  const f = spec.logY ? Math.log10 : (v: number) => v;
  const pad = (f(y1) - f(y0)) * 0.05 || Math.abs(f(y1)) * 0.05 || 0.5;
  const [a, b] = [f(y0) - pad, f(y1) + pad];
  const toX = (v: number) => box.x + ((v - x0) / (x1 - x0 || 1)) * box.w;
  const toY = (v: number) => box.y + box.h - ((f(v) - a) / (b - a)) * box.h;
  const layout = { box, toX, toY, fromX: (px: number) => x0 + ((px - box.x) / box.w) * (x1 - x0) };
  const steps = spec.curves.every((c) => Array.from(c.x).every(Number.isInteger)) ? 1 : 0; // no half tokens
  const yTicks = spec.logY ? logTicks(10 ** a, 10 ** b) : ticks(a, b);
  return {
    width,
    height: box.y + box.h + 44,
    layout,
    paint(pen, theme) {
      const names = spec.xNames;
      const apart = names ? Math.max(0, ...names.map((name) => textWidth(short(name, 10), 11))) + 8 : 110;
      axes(pen, theme, layout, ticks(x0, x1, Math.max(names ? 1 : 3, Math.floor((names ? box.w : width) / apart)), steps), yTicks, spec.xTitle, spec.yTitle, names);
      spec.curves.forEach((c, k) => {
        const [lx, ly] = [box.x + (k % per) * column, 12 + Math.floor(k / per) * 18];
        pen.strokeStyle = OKABE_ITO[k % 8];
        pen.setLineDash([...DASHES[(k + Math.floor(k / 8)) % 8]]); // a ninth curve has the first one's colour, and so another dash
        pen.lineWidth = 2;
        pen.beginPath();
        pen.moveTo(lx, ly);
        pen.lineTo(lx + 26, ly);
        pen.stroke();
        pen.fillStyle = theme.ink;
        pen.font = FONT;
        pen.textAlign = "left";
        pen.textBaseline = "middle";
        pen.fillText(short(c.name, Math.min(40, Math.floor((column - 40) / 6.5))), lx + 32, ly);
        const beta = spec.smooth ?? 0;
        if (beta > 0 && c.x.length > 2) {
          pen.globalAlpha = 0.25;
          polyline(pen, c.x, c.y, layout, usable);
          pen.globalAlpha = 1;
        }
        polyline(pen, c.x, beta > 0 ? smoothed(c.y, beta) : c.y, layout, usable);
        pen.setLineDash([]);
        if (c.x.length <= 24) dots(pen, c, layout, usable, OKABE_ITO[k % 8]);
      });
    },
  };
}

function logTicks(low: number, high: number): number[] {
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
    for (const m of [1, 2, 5]) if (m * 10 ** e >= low && m * 10 ** e <= high) out.push(m * 10 ** e);
  return out.length >= 2 ? out : ticks(low, high);
}

function polyline(pen: Pen, x: ArrayLike<number>, y: ArrayLike<number>, L: CurvesLayout, usable: (v: number) => boolean): void {
  pen.beginPath();
  let on = false;
  for (let i = 0; i < x.length; i++) {
    if (!usable(y[i])) {
      on = false;
      continue;
    }
    if (on) pen.lineTo(L.toX(x[i]), L.toY(y[i]));
    else pen.moveTo(L.toX(x[i]), L.toY(y[i]));
    on = true;
  }
  pen.stroke();
}

function dots(pen: Pen, c: Curve, L: CurvesLayout, usable: (v: number) => boolean, colour: string): void {
  pen.fillStyle = colour;
  for (let i = 0; i < c.x.length; i++) {
    if (!usable(c.y[i])) continue;
    pen.beginPath();
    pen.arc(L.toX(c.x[i]), L.toY(c.y[i]), 3, 0, 2 * Math.PI);
    pen.fill();
  }
}

function axes(pen: Pen, theme: Theme, L: CurvesLayout, xs: number[], ys: number[], xTitle: string, yTitle: string, names?: readonly string[]): void {
  const { box } = L;
  pen.font = SMALL;
  pen.lineWidth = 1;
  pen.setLineDash([]);
  pen.strokeStyle = theme.faint;
  pen.fillStyle = theme.soft;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const v of ys) {
    pen.beginPath();
    pen.moveTo(box.x, L.toY(v));
    pen.lineTo(box.x + box.w, L.toY(v));
    pen.stroke();
    pen.fillText(brief(v), box.x - 6, L.toY(v));
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const v of xs) pen.fillText(names ? short(names[v] ?? "", 10) : brief(v), L.toX(v), box.y + box.h + 6);
  pen.fillStyle = theme.ink;
  pen.fillText(xTitle, box.x + box.w / 2, box.y + box.h + 24);
  pen.save();
  pen.translate(12, box.y + box.h / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(yTitle, 0, -6);
  pen.restore();
}

export interface ScatterSpec {
  points: ArrayLike<number>; // N × 2
  names: readonly string[];
  xTitle?: string;
  yTitle?: string;
  selected?: number | null;
  near?: readonly number[];
  groups?: readonly number[];
  arrows?: Arrow[];
}
/** From one point to another; those of a second kind are dashed. */
export interface Arrow {
  from: number;
  to: number;
  dashed?: boolean;
}

export interface ScatterLayout {
  at(i: number): { x: number; y: number };
}

export function drawScatter(spec: ScatterSpec, room = 720): Drawing & { layout: ScatterLayout } {
  const width = between(320, room, 900);
  const tallest = between(320, width * 0.72, 620);
  const N = spec.names.length;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < N; i++) {
    x0 = Math.min(x0, spec.points[2 * i]);
    x1 = Math.max(x1, spec.points[2 * i]);
    y0 = Math.min(y0, spec.points[2 * i + 1]);
    y1 = Math.max(y1, spec.points[2 * i + 1]);
  }
  // One unit is as long across as up, so that distances in the picture are those of the two axes.
  const unit = Math.min((width - 90) / (x1 - x0 || 1), (tallest - 60) / (y1 - y0 || 1));
  const height = between(290, (y1 - y0) * unit + 90, tallest); // room for the title of the axis
  const at = (i: number) => ({
    x: width / 2 + (spec.points[2 * i] - (x0 + x1) / 2) * unit,
    y: height / 2 - 8 - (spec.points[2 * i + 1] - (y0 + y1) / 2) * unit,
  });
  return { width, height, layout: { at }, paint: (pen, theme) => paintScatter(pen, theme, spec, at, width, height) };
}

function paintScatter(pen: Pen, theme: Theme, spec: ScatterSpec, at: ScatterLayout["at"], width: number, height: number): void {
  const N = spec.names.length;
  const near = new Set(spec.near ?? []);
  const picked = spec.selected ?? null;
  pen.setLineDash([]);
  pen.font = SMALL;
  pen.fillStyle = theme.soft;
  pen.textAlign = "center";
  pen.textBaseline = "bottom";
  pen.fillText(`${spec.xTitle ?? ""} →`, width / 2, height - 2);
  pen.save();
  pen.translate(12, height / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(`${spec.yTitle ?? ""} →`, 0, 0);
  pen.restore();
  for (const arrow of spec.arrows ?? []) paintArrow(pen, theme, at(arrow.from), at(arrow.to), arrow.dashed ?? false);
  if (picked !== null) {
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 1;
    for (const i of near) {
      pen.beginPath();
      pen.moveTo(at(picked).x, at(picked).y);
      pen.lineTo(at(i).x, at(i).y);
      pen.stroke();
    }
  }
  for (let i = 0; i < N; i++) {
    const { x, y } = at(i);
    pen.globalAlpha = picked === null || i === picked || near.has(i) ? 0.9 : 0.45;
    pen.fillStyle = i === picked ? theme.accent : spec.groups || !theme.dark ? OKABE_ITO[(spec.groups?.[i] ?? 0) % 8] : OKABE_ITO[5];
    pen.beginPath();
    pen.arc(x, y, i === picked ? 5 : N > 2000 ? 1.6 : 2.8, 0, 2 * Math.PI);
    pen.fill();
  }
  pen.globalAlpha = 1;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  const taken: { x: number; y: number; w: number }[] = [];
  const order = [...new Set([...(picked === null ? [] : [picked]), ...near, ...Array.from({ length: N }, (_, i) => i)])];
  for (const i of order.slice(0, 4000)) {
    if (taken.length >= 160) break;
    const { x, y } = at(i);
    const name = short(spec.names[i]);
    const w = textWidth(name, 11) + 4;
    const spot = places(x, y, w).find((p) => p.x > 0 && p.x + w < width && !taken.some((t) => Math.abs(t.y - p.y) < 12 && p.x < t.x + t.w && t.x < p.x + w));
    if (!spot) continue;
    taken.push({ ...spot, w });
    pen.fillStyle = i === picked ? theme.accent : picked === null || near.has(i) ? theme.ink : theme.soft;
    pen.font = i === picked ? BOLD : SMALL;
    pen.fillText(name, spot.x, spot.y);
  }
}

/** Where the name of a point may stand: right of it, left, above, below. */
function places(x: number, y: number, w: number): { x: number; y: number }[] {
  return [{ x: x + 6, y }, { x: x - w - 3, y }, { x: x - w / 2, y: y - 11 }, { x: x - w / 2, y: y + 12 }];
}

function paintArrow(pen: Pen, theme: Theme, from: { x: number; y: number }, to: { x: number; y: number }, dashed: boolean): void {
  const length = Math.hypot(to.x - from.x, to.y - from.y);
  if (length < 14) return;
  const [ux, uy] = [(to.x - from.x) / length, (to.y - from.y) / length];
  const [x0, y0, x1, y1] = [from.x + 6 * ux, from.y + 6 * uy, to.x - 7 * ux, to.y - 7 * uy]; // the points stay free
  pen.strokeStyle = dashed ? theme.soft : theme.accent;
  pen.lineWidth = dashed ? 1.2 : 2;
  pen.setLineDash(dashed ? [5, 4] : []);
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
  pen.setLineDash([]);
  pen.beginPath();
  pen.moveTo(x1 - 9 * ux + 4 * uy, y1 - 9 * uy - 4 * ux);
  pen.lineTo(x1, y1);
  pen.lineTo(x1 - 9 * ux - 4 * uy, y1 - 9 * uy + 4 * ux);
  pen.stroke();
}

export interface BarRow {
  label: string;
  value: number;
  note?: string;
  kept?: boolean;
  chosen?: boolean;
}

/** Where bars stand, in shares of their room: `zero`, and the start and length of each; a missing value has none. */
export function barScale(values: readonly number[]): { zero: number; signed: boolean; bar(value: number): { start: number; length: number } | null } {
  const [low, high] = values.reduce(([a, b], v) => (Number.isFinite(v) ? [Math.min(a, v), Math.max(b, v)] : [a, b]), [0, 0]);
  const span = high - low || 1;
  const zero = -low / span;
  const bar = (value: number) => {
    const end = between(0, zero + value / span, 1);
    return Number.isNaN(value) ? null : { start: Math.min(zero, end), length: Math.abs(end - zero) };
  };
  return { zero, signed: low < 0, bar };
}

/** Bars from zero on: to the left if they are below it. */
export function drawBars(rows: readonly BarRow[], room = 560, format: (v: number) => string = percent): Drawing {
  const width = between(320, room, 720);
  const left = between(60, longest(rows.map((r) => r.label)) + 16, 150);
  const { zero, signed, bar } = barScale(rows.map((r) => r.value));
  const across = width - left - 80;
  const x = left + zero * across;
  return {
    width,
    height: rows.length * 22 + 10,
    paint(pen, theme) {
      pen.font = FONT;
      pen.textBaseline = "middle";
      rows.forEach((row, i) => {
        const y = 6 + i * 22;
        pen.fillStyle = row.chosen ? theme.accent : theme.ink;
        pen.textAlign = "right";
        pen.fillText(short(row.label) + (row.chosen ? " ◂" : ""), left - 6, y + 9);
        pen.fillStyle = row.kept === false ? theme.faint : theme.dark ? "#4b97cc" : "#2463a8";
        const long = Math.max(1, (bar(row.value)?.length ?? 0) * across);
        if (bar(row.value)) pen.fillRect(row.value < 0 ? x - long : x, y, long, 17);
        pen.fillStyle = theme.ink;
        pen.textAlign = "left";
        pen.fillText(format(row.value), (row.value > 0 ? x + long : x) + 6, y + 9);
      });
      if (!signed) return;
      pen.strokeStyle = theme.soft;
      pen.lineWidth = 1;
      pen.setLineDash([]);
      pen.beginPath();
      pen.moveTo(x, 3);
      pen.lineTo(x, rows.length * 22 + 4);
      pen.stroke();
    },
  };
}
