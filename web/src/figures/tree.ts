// Beam search as a tree: steps across, what each step weighed down, best first.
import { longest } from "./paint";
import { BOLD, FONT, SMALL, textWidth, type Drawing, type Theme } from "./pen";
import { brief, short } from "./text";

/** One text that was weighed, by its last token; `parent` is the place of the text it continues, −1 at the start. */
export interface Branch {
  name: string;
  token: number;
  parent: number;
  step: number;
  group: number;
  rank: number;
  logprob: number;
  score: number; // log P of the text so far
  final: number | null; // of a text that ended: what it is ranked by
  fate: "runs" | "pruned" | "finished" | "beaten" | "left";
  lives: boolean; // it leads to a text that was found
  best: boolean;
}

export interface BeamTexts {
  width: number;
  length_penalty: number;
  branches: Branch[];
  texts: { at: number; text: string; tokens?: string; score: number; final: number }[]; // tokens: how the text was cut
}

const ROW = 34;

/** The places from the first token to this one. */
export function pathOf(branches: readonly Branch[], at: number): number[] {
  const out: number[] = [];
  for (let i = at; i >= 0; i = branches[i].parent) out.unshift(i);
  return out;
}

/** The branch an arrow key leads to: along the text to the left and right, between ranks up and down. */
export function stepped(branches: readonly Branch[], at: number | null, key: string): number | null {
  if (at === null) return branches.length ? 0 : null;
  const here = branches[at];
  if (key === "ArrowLeft") return here.parent < 0 ? at : here.parent;
  if (key === "ArrowRight") {
    const next = branches.findIndex((b) => b.parent === at);
    return next < 0 ? at : next;
  }
  const by = key === "ArrowDown" ? 1 : -1;
  const near = branches[at + by];
  return near && near.step === here.step && near.group === here.group ? at + by : at;
}

export interface TreeLayout {
  at(i: number): { x: number; y: number };
  column: number;
}

export function drawTree(branches: readonly Branch[], selected: number | null = null): Drawing & { layout: TreeLayout } {
  const column = Math.max(86, longest(branches.map((b) => b.name)) + 34);
  const most = branches.reduce((m, b) => Math.max(m, b.rank + 1), 1);
  const steps = branches.reduce((m, b) => Math.max(m, b.step), 1);
  const rows = branches.reduce((m, b) => Math.max(m, b.group * most + b.rank + 1), 1);
  const at = (i: number) => ({ x: 12 + (branches[i].step - 1) * column, y: 34 + ROW * (branches[i].group * most + branches[i].rank) });
  const shownPath = new Set(selected === null ? branches.flatMap((b, i) => (b.best ? [i] : [])) : pathOf(branches, selected));
  return {
    width: 12 + steps * column,
    height: 34 + ROW * rows,
    layout: { at, column },
    paint(pen, theme: Theme) {
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.font = SMALL;
      pen.fillStyle = theme.soft;
      for (let t = 0; t < steps; t++) pen.fillText(String(t + 1), 12 + t * column, 10);
      branches.forEach((b, i) => {
        const { x, y } = at(i);
        const on = shownPath.has(i);
        const ink = on ? theme.accent : b.lives ? theme.ink : theme.soft;
        pen.strokeStyle = ink;
        if (b.parent >= 0) {
          const from = at(b.parent);
          const start = from.x + 1.1 * textWidth(short(branches[b.parent].name)) + 5;
          pen.lineWidth = on ? 2.2 : b.lives ? 1.2 : 0.9;
          pen.globalAlpha = on || b.lives ? 1 : 0.6;
          pen.setLineDash(on || b.lives ? [] : [3, 3]);
          const bend = (x - 5 - start) / 2;
          pen.beginPath();
          pen.moveTo(start, from.y);
          pen.bezierCurveTo(start + bend, from.y, x - 5 - bend, y, x - 5, y);
          pen.stroke();
          pen.globalAlpha = 1;
          pen.setLineDash([]);
        }
        const said = b.final === null ? brief(b.score) : `= ${brief(b.final)}`;
        pen.lineWidth = 1;
        if (b.fate === "finished") pen.strokeRect(x - 5, y - 10, Math.max(1.1 * textWidth(short(b.name)), textWidth(said, 11)) + 10, 31);
        pen.fillStyle = ink;
        pen.font = on ? BOLD : FONT;
        pen.fillText(short(b.name), x, y);
        pen.font = SMALL;
        pen.fillText(said, x, y + 13);
      });
    },
  };
}
