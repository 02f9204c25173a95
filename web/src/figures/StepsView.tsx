// A worked calculation: every operand, every result, and how far it is from what the model computed.
import { useState } from "preact/hooks";
import { say } from "./say";
import { number } from "./text";
import type { Tree, Value, Worked, WorkedLine } from "./types";

export interface StepsViewProps {
  worked: Worked;
  digits?: number;
  wide?: number;
  heading?: boolean; // whether the title stands above the first line
}

const STRENGTH: Record<string, number> = { "+": 1, "-": 1, "×": 2, "⊙": 2, "·": 2, "/": 2, "⊗": 2, "^": 3 };
const SIGN: Record<string, string> = { "+": " + ", "-": " − ", "·": "·", "^": "^" };

/** How many numbers a mark stands for that the server did not send: “… 552 more …”. */
const unsent = (value: Value) => (typeof value === "string" ? Number(/^… (\d+) more …$/.exec(value)?.[1] ?? 0) : 0);

/** A number, a vector or a matrix; long ones are cut in the middle, and how long they are is said. */
export function written(value: Value, digits: number, wide: number): string {
  if (unsent(value)) return String(value);
  if (!Array.isArray(value)) return number(Number(value === "inf" ? Infinity : value === "-inf" ? -Infinity : value), digits);
  const entries = value.map((v) => written(v, digits, wide));
  const [marks, missing] = [value.filter((v) => unsent(v)).length, value.reduce<number>((n, v) => n + unsent(v), 0)];
  const length = entries.length - marks + missing;
  if (entries.length <= wide) return `[${entries.join(" ")}]${marks ? `(${length})` : ""}`;
  const kept = Math.max(1, Math.floor(wide / 2));
  return `[${[...entries.slice(0, kept), "…", ...entries.slice(-Math.ceil(kept / 2))].join(" ")}](${length})`;
}

/** An expression, with parentheses where the one around it binds more strongly. */
export function expression(tree: Tree, digits: number, wide: number, around = 0, first = true): string {
  if (typeof tree !== "object" || Array.isArray(tree)) {
    const said = written(tree, digits, wide);
    return said.startsWith("−") && !first ? `(${said})` : said;
  }
  if ("name" in tree) return tree.name;
  if (tree.op === "ᵀ") return `${expression(tree.of[0], digits, wide, 4)}ᵀ`;
  if (!(tree.op in STRENGTH)) return `${tree.op}(${expression(tree.of[0], digits, wide)})`;
  const mine = STRENGTH[tree.op];
  const said = tree.of.map((t, i) => expression(t, digits, wide, mine + (i > 0 ? 1 : 0), i === 0)).join(SIGN[tree.op] ?? ` ${tree.op} `);
  return mine < around ? `(${said})` : said;
}

/** Labels name tokens as the vocabulary does; a space before a word is shown as ·. */
const marked = (label: string) => label.replace(/[Ġ▁]/g, "·");

const isWorked = (line: WorkedLine | Worked): line is Worked => "lines" in line;

export function StepsView({ worked, digits = 4, wide = 12, heading = true }: StepsViewProps) {
  const [all, setAll] = useState(false);
  const check = worked.check;
  return (
    <div class="fig-steps">
      <div class="fig-row">
        <span class={check === null ? "fig-badge" : "fig-badge fig-good"}>{check === null ? say("unchecked") : `✓ ${say("checked", { gap: check.toExponential(1) })}`}</span>
        <label class="fig-field"><input type="checkbox" checked={all} onChange={(e) => setAll(e.currentTarget.checked)} />{say("all")} {say("numbers")}</label>
      </div>
      <Section worked={worked} digits={digits} wide={all ? Infinity : wide} level={heading ? 3 : 2} />
    </div>
  );
}

function Section({ worked, digits, wide, level }: { worked: Worked; digits: number; wide: number; level: number }) {
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
      {groups.map((g) => (Array.isArray(g) ? <Rows lines={g} title={worked.title} digits={digits} wide={wide} /> : <Section worked={g} digits={digits} wide={wide} level={level + 1} />))}
      {worked.note && <p class="fig-note">{worked.note}</p>}
    </section>
  );
}

function Rows({ lines, title, digits, wide }: { lines: WorkedLine[]; title: string; digits: number; wide: number }) {
  return (
    <div class="fig-scroll" tabIndex={0} role="group" aria-label={title}>
      <table class="fig-table fig-worked">
        <thead>
          <tr>{(["step", "formula", "numbers", "result"] as const).map((k) => <th scope="col">{say(k)}</th>)}</tr>
        </thead>
        <tbody>
          {lines.map((line) => (
            <tr>
              <th scope="row" dir="auto">{marked(line.label)}</th>
              <td class="fig-formula">{line.formula}</td>
              <td class="fig-mono">{line.operands === null ? <em>{say("given")}</em> : expression(line.operands, digits, wide)}</td>
              <td class="fig-mono" title={typeof line.result === "number" ? String(line.result) : undefined}><strong>{written(line.result, digits, wide)}</strong></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
