// What a search weighed: the tree, the texts it found, and every branch as a table.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Stage } from "./Canvas";
import { useTheme } from "./hooks";
import { say } from "./say";
import { number, shown } from "./text";
import { drawTree, pathOf, stepped, type BeamTexts } from "./tree";

export interface BeamTreeProps {
  tree: BeamTexts;
  title: string;
}

export const BRANCH = ["step", "rank", "group", "name", "token", "parent", "logprob", "score", "final", "fate"] as const;

/** Every branch, a row each. */
export function branchRows(tree: BeamTexts): (string | number | null)[][] {
  return [["at", ...BRANCH], ...tree.branches.map((b, i) => [i, ...BRANCH.map((k) => b[k])])];
}

export function BeamTree({ tree, title }: BeamTreeProps) {
  const theme = useTheme();
  const [selected, select] = useState<number | null>(null);
  const [table, setTable] = useState(false);
  const { branches, texts } = tree;
  const twice = (text: string) => texts.filter((x) => x.text === text).length > 1;
  const drawing = useMemo(() => drawTree(branches, selected), [branches, selected]);
  const scroll = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = scroll.current;
    if (selected === null || !box) return;
    const { x } = drawing.layout.at(selected);
    if (x < box.scrollLeft || x + drawing.layout.column > box.scrollLeft + box.clientWidth) box.scrollLeft = x - box.clientWidth / 2;
  }, [selected]);
  const pick = ({ x, y }: { x: number; y: number }) => {
    const found = branches.findIndex((_, i) => {
      const at = drawing.layout.at(i);
      return x >= at.x - 6 && x < at.x + drawing.layout.column - 20 && y >= at.y - 12 && y < at.y + 22;
    });
    select(found < 0 || found === selected ? null : found);
  };
  const keyed = (e: KeyboardEvent) => {
    if (e.key === "Escape") select(null);
    else if (e.key.startsWith("Arrow")) select(stepped(branches, selected, e.key));
    else return false;
    return true;
  };
  const b = selected === null ? null : branches[selected];
  const words = b === null ? say("treeHint") : say("branch", {
    text: pathOf(branches, selected!).map((i) => shown(branches[i].name)).join(" "), step: b.step, rank: b.rank + 1,
    logprob: number(b.logprob, 4), score: number(b.score, 4), fate: say(`fate_${b.fate}`),
  });
  return (
    <div class="fig-tree">
      <div class="fig-row">
        <button type="button" class="fig-button" aria-pressed={table} onClick={() => setTable(!table)}>{say(table ? "figure" : "table")}</button>
        <span class="fig-read" role="status" dir="auto">{words}</span>
      </div>
      {table ? (
        <div class="fig-scroll" tabIndex={0} role="group" aria-label={title}>
          <table class="fig-table">
            <thead><tr><th scope="col">{say("token")}</th><th scope="col">{say("step")}</th><th scope="col">{say("rank")}</th><th scope="col">log p</th><th scope="col">{say("score")}</th><th scope="col">{say("final")}</th><th scope="col">{say("fate")}</th></tr></thead>
            <tbody>{branches.map((b) => (
              <tr class={b.lives ? "" : "fig-gone"}><th scope="row" dir="auto">{shown(b.name)}</th><td>{b.step}</td><td>{b.rank + 1}</td><td>{number(b.logprob, 4)}</td><td>{number(b.score, 4)}</td><td>{b.final === null ? "" : number(b.final, 4)}</td><td>{say(`fate_${b.fate}`)}</td></tr>
            ))}</tbody>
          </table>
        </div>
      ) : (
        <Stage scroll={scroll} label={`${title}. ${say("treeHint")}`} drawing={drawing} theme={theme} onKey={keyed} onClick={pick} />
      )}
      {texts.some((x) => twice(x.text)) ? <p class="fig-note">{say("sameText")}</p> : null}
      <div class="fig-scroll" tabIndex={0} role="group" aria-label={say("texts")}>
        <table class="fig-table">
          <thead><tr><th scope="col">{say("texts")}</th><th scope="col">{say("score")}</th><th scope="col">{say("final")}</th></tr></thead>
          <tbody>{texts.map((x) => (
            <tr class={branches[x.at].best ? "fig-chosen" : ""}><th scope="row" dir="auto"><button type="button" class="fig-button" aria-pressed={selected === x.at} onClick={() => select(selected === x.at ? null : x.at)}>{x.text || "∅"}</button>{twice(x.text) && x.tokens ? <div class="fig-note mono">{x.tokens}</div> : null}</th><td>{number(x.score, 4)}</td><td>{number(x.final, 4)}</td></tr>
          ))}</tbody>
        </table>
      </div>
    </div>
  );
}
