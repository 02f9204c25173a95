// What the figures are made of. Numbers come as typed arrays, row after row; names as plain strings.

export type Scale = "linear" | "sqrt" | "log";
export type Palette = "blue" | "cividis";
export type Numbers = Float32Array | Float64Array;

/** A place in a matrix. */
export interface Cell {
  row: number;
  column: number;
}

/** One head and its place: layer is an index into the list of layers. */
export interface HeadAt {
  layer: number;
  head: number;
}

/** One layer of heads as the grid draws it: values are heads × rows × columns, thumbnails or whole patterns. */
export interface GridLayer {
  name: string;
  heads: number;
  rows: number;
  columns: number;
  values: ArrayLike<number>;
  signed: boolean;
}

/** Scores of one head; null where a score has no meaning. */
export interface HeadScore {
  name: string;
  head: number;
  entropy: number | null;
  distance: number | null;
  previous: number | null;
  first: number | null;
  induction?: number | null;
}

export type ScoreName = "entropy" | "distance" | "previous" | "first" | "induction";

/** All heads of one attention: values are heads × queries × keys. */
export interface Pattern {
  name: string;
  kind: "softmax" | "effective";
  cross: boolean;
  queries: string[];
  keys: string[];
  values: Numbers;
  query_words?: number[]; // the word each token is a piece of
  key_words?: number[];
  second?: number | null; // where the second of two texts begins
  written?: boolean; // the rows are the words written, not those read
  window?: number | null; // how many positions a query sees, its own included
}

/** A head drawn as lines; several are told apart by colour and dash. */
export interface LineHead {
  label: string;
  values: Numbers; // queries × keys
}

/** Training curves, trajectories by distance, anything with an x and a y. */
export interface Curve {
  name: string;
  x: ArrayLike<number>;
  y: ArrayLike<number>;
}

/** What most figures are made of (heedful/classroom/figures/panels.py). `as` chooses how it is drawn; a table has cells in place of values. */
export interface Panel {
  title: string;
  note: string;
  as: "heat" | "lines" | "bars" | "table";
  rows: string[];
  columns: string[];
  rowTitle: string;
  columnTitle: string;
  values: Numbers;
  cells?: (string | number)[][];
  signed: boolean;
}

/** A worked calculation, as `heedful.explain(...).to_dict()` gives it. */
export interface Worked {
  title: string;
  note: string;
  check: number | null;
  check_source?: string; // what it was compared with
  lines: (WorkedLine | Worked)[];
}
export type Value = number | string | Value[];
/** An expression; a large matrix of an earlier line goes by its name. */
export type Tree = Value | { op: string; of: Tree[] } | { name: string };
export interface WorkedLine {
  label: string;
  formula: string; // in the language of formula.tsx
  operands: Tree | null;
  result: Value;
  unit?: string; // bits, nats
}

/** How the next token is chosen. Temperature 0 takes the likeliest; null keeps every token. */
export interface Sampling {
  temperature: number;
  topK: number | null;
  topP: number | null;
  minP: number | null;
}

/** An array as a figure's JSON carries it. */
export interface Packed {
  dtype: "f16" | "f32" | "f64" | "i32" | "u8";
  shape: number[];
  data: string; // base64, little-endian
  scale?: number; // of u8: value = (byte / 255)² · scale
  deflate?: boolean; // compressed; the low bytes of all numbers stand before their high bytes
}

export type About = Record<string, string | number | null>;

/** A figure's JSON before its arrays are unpacked. */
export interface FigureJson {
  version: number;
  kind: string;
  title: string;
  note: string;
  about: About;
  python: string;
  data: Record<string, unknown>;
  /** SVG, of a figure whose panels hold its numbers and whose drawing is another. */
  drawn?: { light: string; dark: string };
}
