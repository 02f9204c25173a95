// A worked calculation: formula and result of every line; its numbers unfold, each with all its digits on hover.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Formula } from "./formula";
import { say } from "./say";
import { number, significant } from "./text";
import type { Tree, Value, Worked, WorkedLine } from "./types";

export interface StepsViewProps {
  worked: Worked;
  digits?: number; // significant ones
  wide?: number;
  heading?: boolean; // whether the title stands above the first line
}

const STRENGTH: Record<string, number> = { "+": 1, "-": 1, "×": 2, "⊙": 2, "·": 2, "/": 2, "⊗": 2, "^": 3 };
const SIGN: Record<string, string> = { "+": " + ", "-": " − ", "·": "·", "^": "^" };

/** How many numbers a mark stands for that the server did not send: “… 552 more …”. */
const unsent = (value: Value) => (typeof value === "string" ? Number(/^… (\d+) more …$/.exec(value)?.[1] ?? 0) : 0);
const scalar = (value: Value) => Number(value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);

/** A number, a vector or a matrix; long ones are cut in the middle, and how long they are is said. */
export function written(value: Value, digits: number, wide: number): string {
  if (unsent(value)) return String(value);
  if (!Array.isArray(value)) return number(scalar(value), digits);
  const entries = value.map((v) => written(v, digits, wide));
  const { length, marks } = lengthOf(value);
  if (entries.length <= wide) return `[${entries.join(" ")}]${marks ? `(${length})` : ""}`;
  const kept = Math.max(1, Math.floor(wide / 2));
  return `[${[...entries.slice(0, kept), "…", ...entries.slice(-Math.ceil(kept / 2))].join(" ")}](${length})`;
}

/** How many entries a vector has, those not sent included, and how many marks stand for them. */
function lengthOf(value: Value[]): { length: number; marks: number } {
  const marks = value.filter((v) => unsent(v)).length;
  return { length: value.length - marks + value.reduce<number>((n, v) => n + unsent(v), 0), marks };
}

/** An expression from its parts: what a leaf is made of, how parts are joined. Parentheses stand where the one around binds more strongly. */
function composed<T>(tree: Tree, leaf: (value: Value) => T, negative: (value: Value) => boolean, join: (...parts: (T | string)[]) => T, around = 0, first = true): T {
  if (typeof tree !== "object" || Array.isArray(tree)) return negative(tree) && !first ? join("(", leaf(tree), ")") : leaf(tree);
  const inner = (t: Tree, strength = 0, at = true) => composed(t, leaf, negative, join, strength, at);
  if ("name" in tree) return join(tree.name);
  if (tree.op === "ᵀ") return join(inner(tree.of[0], 4), "ᵀ");
  if (!(tree.op in STRENGTH)) return join(tree.op, "(", inner(tree.of[0]), ")");
  const mine = STRENGTH[tree.op];
  const sign = SIGN[tree.op] ?? ` ${tree.op} `;
  const parts = tree.of.flatMap((t, i) => [...(i ? [sign] : []), inner(t, mine + (i > 0 ? 1 : 0), i === 0)]);
  return mine < around ? join("(", ...parts, ")") : join(...parts);
}

/** An expression as text. */
export function expression(tree: Tree, digits: number, wide: number): string {
  const leaf = (value: Value) => written(value, digits, wide);
  return composed<string>(tree, leaf, (value) => leaf(value).startsWith("−"), (...parts) => parts.join(""));
}

/** Labels name tokens as the vocabulary does; a space before a word is shown as ·. */
const marked = (label: string) => label.replace(/[Ġ▁]/g, "·");

const isWorked = (line: WorkedLine | Worked): line is Worked => "lines" in line;
const hasUnit = (worked: Worked): boolean => worked.lines.some((line) => (isWorked(line) ? hasUnit(line) : Boolean(line.unit)));
const isGiven = (line: WorkedLine) => line.operands === null || typeof line.operands !== "object" || Array.isArray(line.operands);

interface Shown {
  digits: number;
  wide: number;
  open: boolean;
}

export function StepsView({ worked, digits = 4, wide = 12, heading = true }: StepsViewProps) {
  const [open, setOpen] = useState(false);
  const check = worked.check;
  return (
    <div class="fig-steps">
      <div class="fig-row">
        <span class={check === null ? "fig-badge" : "fig-badge fig-good"}>
          {check === null ? say("unchecked") : `✓ ${say("checked", { gap: check.toExponential(1), source: worked.check_source ?? say("theModel") })}`}
        </span>
        <label class="fig-field"><input type="checkbox" checked={open} onChange={(e) => setOpen(e.currentTarget.checked)} />{say("all")} {say("numbers")}</label>
        {hasUnit(worked) && <span class="fig-about">{say("units")}</span>}
      </div>
      <Section worked={worked} shown={{ digits, wide: open ? Infinity : wide, open }} level={heading ? 3 : 2} />
    </div>
  );
}

function Section({ worked, shown, level }: { worked: Worked; shown: Shown; level: number }) {
  const groups: (WorkedLine[] | Worked)[] = [];
  for (const line of worked.lines) {
    const last = groups[groups.length - 1];
    if (isWorked(line)) groups.push(line);
    else if (Array.isArray(last)) last.push(line);
    else groups.push([line]);
  }
  const Heading = `h${Math.min(level, 6)}` as "h3";
  return (
    <section>
      {level > 2 && <Heading class="fig-subtitle" dir="auto">{marked(worked.title)}</Heading>}
      {groups.map((g) => (Array.isArray(g) ? <ol class="fig-lines">{g.map((line) => <LineView line={line} shown={shown} />)}</ol> : <Section worked={g} shown={shown} level={level + 1} />))}
      {worked.note && <p class="fig-note">{worked.note}</p>}
    </section>
  );
}

/** The rows and columns of a matrix that is too large to stand in a line. */
function largeMatrix(value: Value): [number, number] | null {
  if (!Array.isArray(value) || !Array.isArray(value[0])) return null;
  const [rows, columns] = [lengthOf(value).length, lengthOf(value[0]).length];
  return rows * columns > 16 ? [rows, columns] : null;
}

/** Whether a line shows less than all of its result. */
const isCut = (value: Value, wide: number) => Array.isArray(value) && (largeMatrix(value) !== null || lengthOf(value).length > wide);

/** One line: what it is, by which formula, what comes out. Unfolded: the numbers put in, and all of a long result. */
function LineView({ line, shown }: { line: WorkedLine; shown: Shown }) {
  const size = largeMatrix(line.result);
  const [given, cut] = [isGiven(line), isCut(line.result, shown.wide) || size !== null];
  const whole = (
    <>
      <span class="fig-label" dir="auto">{marked(line.label)}</span>
      <Formula of={line.formula} />
      <span class="fig-result">
        {size ? <span class="fig-unit">{say("matrixSize", { rows: size[0], columns: size[1] })}</span> : <Numbers value={line.result} shown={shown} />}
        {line.unit && <span class="fig-unit"> {line.unit}</span>}
      </span>
    </>
  );
  if (given && !cut) return <li class="fig-line"><div class="fig-line-head">{whole}</div></li>;
  const numbers = (value: Value) => <Numbers value={value} shown={shown} />;
  const negative = (value: Value) => !Array.isArray(value) && scalar(value) < 0;
  return (
    <li class="fig-line">
      <details open={shown.open}>
        <summary class="fig-line-head">{whole}</summary>
        <div class="fig-operands" tabIndex={0} role="group" aria-label={marked(line.label)}>
          <Formula of={line.formula} />
          {!given && <> = {composed<ComponentChildren>(line.operands as Tree, numbers, negative, (...parts) => <>{parts}</>)}</>}
          {cut && <> = <Numbers value={line.result} shown={{ ...shown, wide: Infinity }} /></>}
        </div>
      </details>
    </li>
  );
}

/** Numbers of a few digits, all of them on hover; of a long vector the ends, and how many lie between. */
function Numbers({ value, shown }: { value: Value; shown: Shown }) {
  if (!Array.isArray(value)) {
    if (unsent(value)) return <span class="fig-gone">{String(value)}</span>;
    return <span class="fig-number" title={String(scalar(value))}>{significant(scalar(value), shown.digits)}</span>;
  }
  const { length } = lengthOf(value);
  const rows = Array.isArray(value[0]);
  const kept = Math.max(1, Math.floor(shown.wide / 2));
  const part = (from: number, to?: number) => value.slice(from, to).map((v) => <Numbers value={v} shown={shown} />);
  if (value.length <= shown.wide) return <span class={rows ? "fig-rows" : "fig-vector"}>{part(0)}</span>;
  const ends = Math.ceil(kept / 2);
  return (
    <span class={rows ? "fig-rows" : "fig-vector"}>
      {part(0, kept)}
      <span class="fig-gone">{say("moreNumbers", { n: length - kept - ends })}</span>
      {part(-ends)}
    </span>
  );
}
