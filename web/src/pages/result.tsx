// The answer of a task, drawn by its shape.
import { Figure, heat, matrixCsv } from "../figure";
import { drawMatrix, type BeamTexts, type FigureJson } from "../figures";
import { t } from "../strings";
import { Bar, figure, percent, Scroll } from "../ui";

/** A search, and the Python that makes it again. */
export type Searched = BeamTexts & { python: string };
export type Answer = {
  result?: unknown; text?: string; warnings: string[]; ms?: number; seconds?: number; tokens?: number; finish?: string; python?: string; trees?: Searched[];
  figure?: FigureJson; // of where a model looked in an image
};
type Scored = { label?: string; text?: string; token_str?: string; sequence?: string; score: number };
type Entity = { entity_group?: string; entity?: string; score: number; word: string; start: number; end: number };

export function Result({ task, answer, values, writing }: { task: string; answer: Answer; values: Record<string, string>; writing: boolean }) {
  const { result } = answer;
  if (result === undefined) return <p class={`answer ${writing ? "caret" : ""}`} dir="auto" aria-live="off" data-answer>{answer.text}</p>;
  if (task === "token-classification") return <Marked text={values.x} entities={result as Entity[]} />;
  if (task === "question-answering") return <Found context={values.x} answer={result as { answer: string; score: number; start: number; end: number }} />;
  if (task === "sentence-similarity") {
    const lines = (values.list ?? "").split("\n").map((l) => l.trim()).filter(Boolean);
    return <Ranked rows={(result as number[]).map((score, i) => ({ name: lines[i] ?? String(i), score }))} plain />;
  }
  if (task === "zero-shot-classification") {
    const { labels, scores } = result as { labels: string[]; scores: number[] };
    return <Ranked rows={labels.map((name, i) => ({ name, score: scores[i] }))} />;
  }
  if (task === "feature-extraction") return <Vectors of={(result as number[][][])[0]} python={answer.python} />;
  const list = Array.isArray(result) ? result : [result];
  if (task === "fill-mask" && list.every(Array.isArray)) {
    return (
      <>
        {(list as Scored[][]).map((guesses, i) => (
          <div key={i} class="stack tight">
            <h3>{t("play.maskOf", { n: i + 1, of: list.length })}</h3>
            <Ranked rows={guesses.map((g) => ({ name: g.token_str ?? "", score: g.score }))} />
          </div>
        ))}
      </>
    );
  }
  if (list.every((r) => typeof r?.score === "number")) {
    return <Ranked plain={task === "neighbours" || task === "analogy"} rows={(list as Scored[]).map((r) => ({ name: r.sequence ?? r.label ?? r.text ?? r.token_str ?? "", score: r.score }))} />;
  }
  return (
    <>
      {list.map((r, i) => <p key={i} class="answer" dir="auto" data-answer>{written(r)}</p>)}
    </>
  );
}

/** A row of numbers for each token: the first and the last; the files have all of them. */
function Vectors({ of, python }: { of: number[][]; python: string | undefined }) {
  const [rows, columns] = [of.map((_, i) => String(i)), of[0].map((_, j) => String(j))];
  const values = Float32Array.from(of.flat());
  const title = t("play.vectors", { n: rows.length, size: columns.length });
  return (
    <div data-answer>
      <Figure title={title} name="vectors" python={python} drawing={() => drawMatrix({ rows, columns, values, signed: true })} csv={() => matrixCsv(rows, columns, values)}
        html={heat(title, rows, columns, values, true, t("predict.token"), t("positions.dimension"))}>
        <Scroll label={title}>
          <table>
            <thead><tr><th scope="col" class="n">{t("predict.token")}</th><th scope="col">{t("play.numbers")}</th><th scope="col" class="n">‖x‖</th></tr></thead>
            <tbody>{of.map((vector, i) => (
              <tr key={i}><th scope="row" class="n">{i}</th><td class="mono">{vector.slice(0, 6).map((v) => v.toFixed(4)).join(" ")} … {vector[vector.length - 1].toFixed(4)}</td><td class="n">{figure(Math.hypot(...vector))}</td></tr>
            ))}</tbody>
          </table>
        </Scroll>
      </Figure>
    </div>
  );
}

function written(result: unknown): string {
  if (typeof result === "string") return result;
  const record = result as Record<string, unknown>;
  for (const key of ["generated_text", "translation_text", "summary_text", "content"]) if (typeof record?.[key] === "string") return record[key] as string;
  return JSON.stringify(result, null, 1);
}

/** Places in a text count characters as Python does, not UTF-16 units. */
const cut = (text: string, from: number, to?: number) => Array.from(text).slice(from, to).join("");

function Ranked({ rows, plain }: { rows: { name: string; score: number }[]; plain?: boolean }) {
  const most = Math.max(1e-9, ...rows.map((r) => Math.abs(r.score)));
  return (
    <Scroll label={t("play.answer")}>
      <table data-answer>
        <tbody>
          {rows.map((r, i) => (
            <tr key={i}>
              <th scope="row" dir="auto">{r.name}</th>
              <td><span class="spark"><Bar share={plain ? Math.max(0, r.score) / most : r.score} /></span></td>
              <td class="n">{plain ? r.score.toFixed(4) : percent(r.score)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Marked({ text, entities }: { text: string; entities: Entity[] }) {
  const chars = [...entities].sort((a, b) => a.start - b.start);
  const out = [];
  let at = 0;
  for (const e of chars) {
    if (e.start < at) continue;
    out.push(cut(text, at, e.start));
    out.push(
      <mark key={e.start}>
        {cut(text, e.start, e.end)} <small>{e.entity_group ?? e.entity} {percent(e.score)}</small>
      </mark>,
    );
    at = e.end;
  }
  out.push(cut(text, at));
  return (
    <>
      <p class="answer" dir="auto" data-answer>{out}</p>
      {entities.length ? null : <p class="muted">{t("play.noEntities")}</p>}
    </>
  );
}

function Found({ context, answer }: { context: string; answer: { answer: string; score: number; start: number; end: number } }) {
  return (
    <>
      <p class="answer" data-answer><strong dir="auto">{answer.answer || t("play.noAnswer")}</strong> <span class="badge">{percent(answer.score)}</span></p>
      <p dir="auto">{cut(context, 0, answer.start)}<mark>{cut(context, answer.start, answer.end)}</mark>{cut(context, answer.end)}</p>
    </>
  );
}
