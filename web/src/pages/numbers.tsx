// Number exercises: the sheet of a seed with its given values, a line to answer for each question, hints, and marks.
import { useState } from "preact/hooks";
import { Formula } from "../figures";
import { get, post, Problem, queried } from "../http";
import { say } from "../live";
import { useResource } from "../resource";
import { t } from "../strings";
import { Await, Panel, Select, TextField, useDraft, Wrong } from "../ui";
import { choice, set, str } from "../url";

type Question = { number: number; prompt: string; formula: string; format: string; hints: string[] };
type Sheet = { name: string; seed: string; task: string; given: [string, string][]; questions: Question[]; command: string };
type Marks = { points: number; total: number; questions: { number: number; verdict: string; points: number; message: string }[] };

export function Numbers() {
  const list = useResource<{ exercises: { name: string; task: string }[] }>("numbers", () => get("/api/exercises/numbers"));
  return (
    <Await of={list}>{({ exercises }) => {
      const name = choice("sheet", exercises.map((e) => e.name));
      return <One key={name} name={name} names={exercises.map((e) => e.name)} />;
    }}</Await>
  );
}

function One({ name, names }: { name: string; names: string[] }) {
  const seed = str("student", "studio");
  const [draft, setDraft] = useDraft(seed);
  const path = `/api/exercises/numbers/${encodeURIComponent(name)}`;
  const sheet = useResource<Sheet>(`sheet ${path} ${seed}`, () => get(path + queried({ seed })));
  return (
    <>
      <form class="panel row" onSubmit={(e) => { e.preventDefault(); set({ student: draft.trim() || null }); }}>
        <Select label={t("numbers.which", { n: names.length })} value={name} onChange={(sheet) => set({ sheet })} choices={names.map((value) => ({ value, label: value }))} />
        <TextField label={t("numbers.student")} value={draft} onInput={setDraft} rows={1} send={() => set({ student: draft.trim() || null })} first />
        <button type="submit">{t("numbers.draw")}</button>
      </form>
      <Await of={sheet}>{(sheet) => <Answers key={`${sheet.name} ${sheet.seed}`} sheet={sheet} path={path} />}</Await>
    </>
  );
}

function Answers({ sheet, path }: { sheet: Sheet; path: string }) {
  const [answers, setAnswers] = useState<Record<number, string>>({});
  const [hints, setHints] = useState<Record<number, number>>({});
  const [marks, setMarks] = useState<Marks>();
  const [error, setError] = useState<Problem>();
  const grade = async () => {
    setError(undefined);
    try {
      const graded = await post<Marks>(path, { seed: sheet.seed, answers });
      setMarks(graded);
      say(t("numbers.points", { n: graded.points, of: graded.total }));
    } catch (problem) {
      setError(problem as Problem);
    }
  };
  return (
    <Panel title={sheet.name}>
      <p>{sheet.task}</p>
      <dl class="facts" data-given>{sheet.given.map(([name, text]) => <><dt class="mono">{name}</dt><dd class="mono">{text}</dd></>)}</dl>
      <form class="stack" onSubmit={(e) => { e.preventDefault(); void grade(); }}>
        <ol class="stack" data-questions>
          {sheet.questions.map((q) => {
            const mark = marks?.questions.find((one) => one.number === q.number);
            const taken = hints[q.number] ?? 0;
            return (
              <li key={q.number} class="stack tight">
                <label for={`answer-${q.number}`}>{q.prompt}: <Formula of={q.formula} /> ({q.format})</label>
                <div class="row">
                  <input id={`answer-${q.number}`} type="text" value={answers[q.number] ?? ""} onInput={(e) => setAnswers({ ...answers, [q.number]: e.currentTarget.value })} />
                  {taken < q.hints.length ? <button type="button" class="quiet" onClick={() => setHints({ ...hints, [q.number]: taken + 1 })}>{t("exercises.hint", { n: taken + 1, of: q.hints.length })}</button> : null}
                  {mark ? <span class={`badge ${mark.points === 1 ? "good" : mark.verdict === "missing" ? "" : "bad"}`} data-verdict={mark.verdict}>{mark.verdict}</span> : null}
                </div>
                {mark?.message && mark.verdict !== "missing" ? <p class="small">{mark.message}</p> : null}
                {q.hints.slice(0, taken).map((hint) => <p key={hint} class="muted small">{hint}</p>)}
              </li>
            );
          })}
        </ol>
        <div class="row">
          <button type="submit" class="primary">{t("exercises.grade")}</button>
          {marks ? <strong data-points>{t("numbers.points", { n: marks.points, of: marks.total })}</strong> : null}
        </div>
      </form>
      {error ? <Wrong error={error} /> : null}
      <p class="muted small">{t("numbers.command")} <code>{sheet.command}</code></p>
    </Panel>
  );
}
