// A picture of one text in a model (heedful/classroom/figures/model_picture.py): its types, and what is told of it in words.
import { say } from "./say";
import { brief, number, percent, short, shown } from "./text";
import type { Tensor } from "./packed";

export type Side = "tokens" | "target" | "written" | "text";
export interface Vectors { label: string; name: string; side: Side; numbers: Tensor; lengths: Tensor; size: number; head: number | null }
export interface Look { name: string; unit: string; head: number; heads: number; kind: "softmax" | "effective"; values: Tensor; scores: Tensor | null; queries: Side; keys: Side; every_head: Tensor; group: number; leaves_out: string }
export interface Experts { router: Tensor; chosen: Tensor; weights: Tensor }
export interface Answer { kind: "words" | "labels" | "tags" | "spans" | "vectors"; follows: boolean; rows: string[]; names: string[][]; chances: Tensor; position: number; filled_names: string[]; filled_chances: number[] }
export interface PartSize { path: string; title: string; equations: string[]; lengths: Tensor }
export interface Stage {
  kind: string; title: string; path: string; side: Side; equations: string[]; note: string; vectors: Vectors[]; pattern: Look | null;
  experts: Experts | null; prediction: Answer | null; parts: PartSize[]; page: string; params: Record<string, string | number>; row_param: string;
}
export interface Picture {
  family: string; tokens: string[]; target: string[]; written: string[]; stack: string; layer: number; path: string; head: number | null;
  row: number; row_side: Side; stages: Stage[];
}
export interface ModelData { name: string; texts: string[]; labels: string[]; pictures: Picture[] }

/** Row `i` of a table of numbers. */
export function rowOf(of: Tensor, i: number): Float32Array {
  const wide = of.shape[1] ?? 1;
  return (of.values as Float32Array).subarray(i * wide, (i + 1) * wide);
}

export const names = (picture: Picture, side: Side): string[] => (side === "text" ? [say("wholeText")] : picture[side]);

/** Whether the rows of a stage are those of the stack that is unfolded: its tokens, or the words it writes. */
const own = (picture: Picture, side: Side) => (side === "written" ? "target" : side) === (picture.row_side === "written" ? "target" : picture.row_side);

/** The token that a stage is told for: the chosen row; of a source, the token that the row looks at most. */
export function rowAt(picture: Picture, side: Side, row: number): number {
  const last = names(picture, side).length - 1;
  if (own(picture, side)) return Math.min(row, last);
  const look = picture.stages.find((s) => s.kind === "attention" && s.path === picture.path)?.pattern;
  if (!look || look.keys !== side) return last;
  return strongest(rowOf(look.values, row), 1)[0];
}

/** The places of the largest numbers by size, the largest first. */
export function strongest(values: ArrayLike<number>, count: number): number[] {
  return Array.from(values, (_, i) => i).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, count);
}

/** A weight in two digits, as cells have it: .51, −.08; in full where all of its row are small. */
export function weight(value: number, most = 1): string {
  if (most < 0.05) return brief(value);
  return Math.abs(value) < 0.005 ? "0" : value.toFixed(2).replace("0.", ".").replace("-", "−");
}

/** What stands before and after the words in which two texts differ; nothing where they differ in several places. */
export function wordsAround([first, second]: string[], [word, other]: string[]): [string, string] | null {
  for (let at = first.indexOf(word); word && at >= 0; at = first.indexOf(word, at + 1)) {
    const [before, after] = [first.slice(0, at), first.slice(at + word.length)];
    if (before + other + after === second) return [before, after];
  }
  return null;
}

/** A token in quotation marks. */
export function quoted(token: string): string {
  const text = shown(token).replace(/^·/, "");
  return RIGHT_TO_LEFT.test(text) ? `“\u2068${text}\u2069”` : `“${text}”`;
}

// Letters of scripts that are written from right to left. In our own sentences each such token is isolated (first strong
// isolate … pop), or the arrows and numbers after it would be drawn before it.
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** A vector in words: its length, and the numbers it begins with. */
export function vectorSaid(of: Vectors, row: number, count = 6): string {
  const numbers = [...rowOf(of.numbers, row).subarray(0, count)].map((x) => number(x, 3)).join("  ");
  return `${numbers}${of.size > count ? " …" : ""}  (${say("vectorSize", { n: of.size, length: brief(of.lengths.values[row]) })})`;
}

/** What a stage comes to at a row, in one short line. */
export function told(picture: Picture, stage: Stage, row: number): string {
  const at = rowAt(picture, stage.side, row);
  const last = stage.vectors[stage.vectors.length - 1];
  switch (stage.kind) {
    case "tokens":
      return say("nTokens", { n: names(picture, stage.side).length });
    case "attention": {
      const look = stage.pattern!;
      const values = rowOf(look.values, at);
      const keys = names(picture, look.keys);
      const places = strongest(values, 2);
      const best = places.map((s) => `${quoted(keys[s])} ${weight(values[s], Math.abs(values[places[0]]))}`);
      return `${quoted(names(picture, look.queries)[at])} → ${best.join(", ")}`;
    }
    case "experts":
      return say("expertsChosen", { experts: [...rowOf(stage.experts!.chosen, at)].join(", ") });
    case "embedding":
    case "memory":
    case "recurrence":
    case "state":
      return last ? say("numbersEach", { n: last.size }) : "";
    default:
      return "";
  }
}

/** The answers at a row with their chances, and what is asked there. */
export function answersAt(picture: Picture, stage: Stage, row: number): { title: string; names: string[]; chances: number[] }[] {
  const answer = stage.prediction!;
  const at = own(picture, stage.side) ? row : answer.position;
  const line = (i: number, title: string) => ({ title, names: answer.names[i], chances: [...rowOf(answer.chances, i)] });
  if (answer.kind === "labels") return [line(0, say("answerLabels"))];
  if (answer.kind === "spans") return [line(0, say("answerStart")), line(1, say("answerEnd"))];
  if (answer.kind === "vectors") return [];
  const token = quoted(answer.rows[at]);
  if (answer.kind === "tags") return [line(at, say("answerTag", { token }))];
  const filled = answer.filled_names.length && at === answer.position ? [{ title: say("answerFilled", { token }), names: answer.filled_names, chances: answer.filled_chances }] : [];
  return [...filled, line(at, say(answer.follows ? "answerNext" : "answerAt", { token }))];
}

/** Rows of the CSV: every number that the picture has. */
export function modelRows(data: ModelData): (string | number)[][] {
  const out: (string | number)[][] = [["text", "stage", "value", "row", "column", "number"]];
  data.pictures.forEach((picture, text) => {
    for (const stage of picture.stages) {
      const add = (value: string, of: Tensor, rows: string[], columns: (i: number, j: number) => string | number) => {
        for (let i = 0; i < of.shape[0]; i++) rowOf(of, i).forEach((x, j) => out.push([text, stage.title, value, shown(rows[i] ?? ""), columns(i, j), x]));
      };
      for (const v of stage.vectors) add(v.name, v.numbers, names(picture, v.side), (_, j) => j);
      const look = stage.kind === "attention" ? stage.pattern : null;
      if (look) add(look.name, look.values, names(picture, look.queries), (_, j) => shown(names(picture, look.keys)[j]));
      if (stage.prediction) add("probability", stage.prediction.chances, stage.prediction.rows, (i, j) => shown(stage.prediction!.names[i][j]));
    }
  });
  return out;
}

export { percent };

export const LETTERS = 8; // of a token above its column

/** How wide the column of each token is beside the others: as its label, and never narrower than a number. */
export function columnShares(tokens: string[]): number[] {
  return tokens.map((token) => Math.max(4, [...short(token, LETTERS)].length + 1));
}

/** The middle of each column, between 0 and 1. */
export function columnCentres(tokens: string[]): number[] {
  const shares = columnShares(tokens);
  const all = shares.reduce((sum, share) => sum + share, 0);
  let before = 0;
  return shares.map((share) => ((before += share) - share / 2) / all);
}
