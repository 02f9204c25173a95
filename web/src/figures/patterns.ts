// What can be made of attention patterns without asking the model again.
import type { Cell, Numbers, Pattern } from "./types";

/** One head: queries × keys. */
export function head(pattern: Pattern, h: number): Numbers {
  const size = pattern.queries.length * pattern.keys.length;
  return pattern.values.subarray(h * size, (h + 1) * size);
}

export function headCount(pattern: Pattern): number {
  const size = pattern.queries.length * pattern.keys.length;
  return size ? pattern.values.length / size : 0;
}

/** The mean over heads. */
export function mean(pattern: Pattern): Float32Array {
  const size = pattern.queries.length * pattern.keys.length;
  const count = headCount(pattern);
  const out = new Float32Array(size);
  for (let h = 0; h < count; h++) for (let i = 0; i < size; i++) out[i] += pattern.values[h * size + i] / count;
  return out;
}

/** The greatest weight any head gives. */
export function greatestHead(pattern: Pattern): Float32Array {
  const size = pattern.queries.length * pattern.keys.length;
  const out = new Float32Array(size);
  for (let h = 0; h < headCount(pattern); h++)
    for (let i = 0; i < size; i++) {
      const v = pattern.values[h * size + i];
      if (Math.abs(v) > Math.abs(out[i])) out[i] = v;
    }
  return out;
}

/** Without the first key, every row's sum of sizes again what it was; rows that saw only the first are 0. */
export function withoutFirst(values: Numbers, T: number, S: number): Float32Array {
  const out = new Float32Array(T * (S - 1));
  for (let t = 0; t < T; t++) {
    let whole = 0;
    let left = 0;
    for (let s = 0; s < S; s++) whole += Math.abs(values[t * S + s]);
    for (let s = 1; s < S; s++) left += Math.abs(values[t * S + s]);
    if (left < 1e-12) continue;
    for (let s = 1; s < S; s++) out[t * (S - 1) + s - 1] = (values[t * S + s] * whole) / left;
  }
  return out;
}

/** Two texts A and B: which of them asks and which is looked at. */
export const SIDES = ["aa", "ab", "ba", "bb"] as const;

export interface Arrangement {
  hideFirst?: boolean;
  between?: string; // one of SIDES, or "" for all
  second?: number | null; // where B begins
  words?: boolean;
  queryWords?: readonly number[];
  keyWords?: readonly number[];
}

/** A matrix as it is shown, and the tokens each row and column stands for. */
export interface Arranged {
  values: Numbers;
  rows: number[][];
  columns: number[][];
}

/** Without the first key, of one text on the other, by words: in that order, as the reader asks. */
export function arranged(values: Numbers, T: number, S: number, how: Arrangement): Arranged {
  const hide = how.hideFirst && S > 1;
  const all = hide ? withoutFirst(values, T, S) : values;
  const first = hide ? 1 : 0;
  const places = (from: number, to: number, side: string | undefined) =>
    Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i).filter((i) => !side || how.second == null || i < how.second === (side === "a"));
  const rows = grouped(places(0, T, how.between?.[0]), how.words ? how.queryWords : undefined);
  const columns = grouped(places(first, S, how.between?.[1]), how.words ? how.keyWords : undefined);
  if (rows.length === T && columns.length === S - first) return { values: all, rows, columns };
  const out = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) =>
    columns.forEach((column, c) => {
      let sum = 0;
      for (const t of row) for (const s of column) sum += all[t * (S - first) + s - first];
      out[r * columns.length + c] = sum / row.length;
    }),
  );
  return { values: out, rows, columns };
}

/** Neighbours that are pieces of one word, together. */
function grouped(places: number[], words: readonly number[] | undefined): number[][] {
  const out: number[][] = [];
  for (const i of places) {
    const last = out[out.length - 1];
    if (words && last && words[last[0]] === words[i]) last.push(i);
    else out.push([i]);
  }
  return out;
}

/** The names of groups of tokens: pieces put together. */
export function groupNames(names: readonly string[], groups: readonly number[][]): string[] {
  return groups.map((g) => g.map((i, k) => (k ? names[i].replace(/^##/, "") : names[i])).join(""));
}

/** Where a cell stands in its row, 1 the greatest: by size, or, of scores, whose sign counts, by value. */
export function rank(values: ArrayLike<number>, S: number, { row, column }: Cell, byValue = false): number {
  const size = byValue ? (v: number) => v : Math.abs;
  const mine = size(values[row * S + column]);
  let above = 1;
  for (let s = 0; s < S; s++) if (size(values[row * S + s]) > mine) above++;
  return above;
}

export interface Edge extends Cell {
  weight: number;
}

export interface Edges {
  edges: Edge[];
  total: number; // how many there are in all
  mass: number; // the share of all weight that is drawn
}

/** The `top` greatest edges of each query, and what share of the weight they are. */
export function edges(values: ArrayLike<number>, T: number, S: number, top: number): Edges {
  const found: Edge[] = [];
  let total = 0;
  let whole = 0;
  let drawn = 0;
  for (let row = 0; row < T; row++) {
    const columns: number[] = [];
    for (let s = 0; s < S; s++) {
      const size = Math.abs(values[row * S + s]);
      if (size === 0) continue;
      total++;
      whole += size;
      columns.push(s);
    }
    columns.sort((a, b) => Math.abs(values[row * S + b]) - Math.abs(values[row * S + a]));
    for (const column of columns.slice(0, top)) {
      found.push({ row, column, weight: values[row * S + column] });
      drawn += Math.abs(values[row * S + column]);
    }
  }
  return { edges: found, total, mass: whole ? drawn / whole : 1 };
}

/** A matrix made smaller: each cell the entry of greatest size it stands for. */
export function pool(values: ArrayLike<number>, T: number, S: number, size: number): { rows: number; columns: number; values: Float32Array } {
  const rows = Math.min(T, size);
  const columns = Math.min(S, size);
  const out = new Float32Array(rows * columns);
  const place = Int32Array.from({ length: S }, (_, s) => Math.floor((s * columns) / S));
  for (let t = 0; t < T; t++) {
    const start = Math.floor((t * rows) / T) * columns;
    for (let s = 0; s < S; s++) {
      const v = values[t * S + s];
      const at = start + place[s];
      if (Math.abs(v) > Math.abs(out[at])) out[at] = v;
    }
  }
  return { rows, columns, values: out };
}

/** Who may not look at whom: keys that come later, and keys outside a window of so many positions. */
export interface Mask {
  causal: boolean;
  window?: number | null;
}

/** The cells that a mask hides, 1 each: all pairs of the tokens that a row and a column stand for. */
export function maskOf(rows: readonly number[][], columns: readonly number[][], { causal, window }: Mask): Uint8Array | undefined {
  if (!causal && window == null) return undefined;
  const hides = (i: number, j: number) => (causal && j > i) || (window != null && Math.abs(i - j) >= window);
  const out = new Uint8Array(rows.length * columns.length);
  rows.forEach((row, r) => columns.forEach((column, c) => {
    out[r * columns.length + c] = row.every((i) => column.every((j) => hides(i, j))) ? 1 : 0;
  }));
  return out;
}

/** Values with nothing (NaN) where a mask hides them: a score that was never used is no number to show. */
export function unmasked(values: Numbers, masked: Uint8Array | undefined): Numbers {
  if (!masked) return values;
  const out = Float32Array.from(values);
  masked.forEach((hidden, i) => hidden && (out[i] = NaN));
  return out;
}

/** Whether nothing after the diagonal has weight: what a causal mask leaves. */
export function isCausal(pattern: Pattern): boolean {
  const T = pattern.queries.length;
  const S = pattern.keys.length;
  if (pattern.cross || T !== S || T < 2) return false;
  for (let h = 0; h < headCount(pattern); h++)
    for (let t = 0; t < T; t++)
      for (let s = t + 1; s < S; s++) if (pattern.values[(h * T + t) * S + s] !== 0) return false;
  return true;
}
