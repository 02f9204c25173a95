// Code exercises: the list, the stub to copy, hints, and grading of a text or a file in a process of its own.
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { Caps } from "../api";
import { get, post, Problem } from "../http";
import { say } from "../live";
import { forget, useResource } from "../resource";
import { t } from "../strings";
import { Await, Busy, copy, CopyPython, Panel, Scroll, Segments, Title, Warnings, Wrong } from "../ui";
import { choice, set } from "../url";
import { Numbers } from "./numbers";

type Exercise = {
  name: string; title: string; equation: string; model: string; stub: string; file: string; state: "done" | "next" | "tried" | "open";
  tries: number; hints: string[]; levels: number; verdict: string | null;
};
type Exercises = { exercises: Exercise[]; next: string | null; file: string };
type Inside = { model: string; same: boolean; ours: string; yours: string };
type Grade = {
  name: string; verdict: "right" | "wrong" | "unfinished" | "missing"; message: string; mistakes: string[]; shown: string;
  inside: Inside | null; notes: string[];
};
type Result = { grades: Grade[]; notes: string[]; seconds: number; right: number; count: number; python: string };

const TONES = { done: "good", next: "accent", tried: "warn", open: "", right: "good", wrong: "bad", unfinished: "", missing: "" };
const KINDS = ["text", "path"] as const;
const SORTS = ["code", "numbers"] as const;
/** What was typed stays while one looks at other pages. */
const draft = signal("");
const path = signal("");
const result = signal<Result | undefined>(undefined);

export function ExercisesPage(_: { caps: Caps | undefined }) {
  const sort = choice("sort", SORTS);
  const [turn, setTurn] = useState(0);
  const list = useResource<Exercises>(`exercises ${turn}`, () => get("/api/exercises"));
  const renew = () => {
    forget("exercises");
    setTurn((n) => n + 1);
  };
  return (
    <>
      <Title name="exercises" />
      <Segments label={t("exercises.sort")} value={sort} onChange={(v) => set({ sort: v === "code" ? null : v })} choices={SORTS.map((v) => ({ value: v, label: t(`exercises.sorts.${v}`) }))} />
      {sort === "numbers" ? <Numbers /> : <Await of={list}>{(found) => {
        const name = choice("exercise", found.exercises.map((e) => e.name), found.next ?? found.exercises[0].name);
        const chosen = found.exercises.find((e) => e.name === name)!;
        return (
          <>
            <List found={found} chosen={name} />
            <One key={name} exercise={chosen} renew={renew} />
            <Grading chosen={chosen} found={found} renew={renew} />
          </>
        );
      }}</Await>}
    </>
  );
}

function List({ found, chosen }: { found: Exercises; chosen: string }) {
  const done = found.exercises.filter((e) => e.state === "done").length;
  return (
    <Panel title={t("exercises.list")}>
      <p class="muted" data-progress>{t("exercises.progress", { done, of: found.exercises.length })}</p>
      <Scroll label={t("exercises.list")}><table class="tasks">
        <thead><tr><th>{t("exercises.function")}</th><th>{t("exercises.state")}</th><th>{t("exercises.what")}</th></tr></thead>
        <tbody>
          {found.exercises.map((e) => (
            <tr key={e.name} data-exercise={e.name}>
              <td><button type="button" class="quiet" aria-pressed={e.name === chosen} onClick={() => set({ exercise: e.name })}><code>{e.name}</code></button></td>
              <td><span class={`badge ${TONES[e.state]}`}>{t(`exercises.states.${e.state}`)}</span></td>
              <td>{e.title}</td>
            </tr>
          ))}
        </tbody>
      </table></Scroll>
    </Panel>
  );
}

function One({ exercise, renew }: { exercise: Exercise; renew: () => void }) {
  const [error, setError] = useState<Problem>();
  const hint = async () => {
    try {
      const found = await post<{ hint: string }>(`/api/exercises/${encodeURIComponent(exercise.name)}/hint`, {});
      say(found.hint);
      renew();
    } catch (problem) {
      setError(problem as Problem);
    }
  };
  const taken = exercise.hints.length;
  return (
    <Panel title={<code>{exercise.name}</code>}>
      <p>{t("exercises.place", { model: exercise.model })}</p>
      <pre tabIndex={0} aria-label={t("exercises.stub")} data-stub>{exercise.stub}</pre>
      <div class="row">
        <button type="button" onClick={() => copy(exercise.file)}>{t("exercises.copyStub")}</button>
        {taken < exercise.levels ? <button type="button" onClick={() => void hint()}>{t("exercises.hint", { n: taken + 1, of: exercise.levels })}</button> : null}
      </div>
      {taken ? <ol data-hints>{exercise.hints.map((text) => <li key={text}>{text}</li>)}</ol> : null}
      {error ? <Wrong error={error} /> : null}
    </Panel>
  );
}

function Grading({ chosen, found, renew }: { chosen: Exercise; found: Exercises; renew: () => void }) {
  const kind = choice("from", KINDS, "text");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Problem>();
  const given = kind === "text" ? draft.value : path.value;
  const grade = async () => {
    setBusy(true);
    setError(undefined);
    try {
      result.value = await post<Result>("/api/exercises/grade", kind === "text" ? { text: given } : { path: given });
      say(t("exercises.right", { n: result.value.right, of: graded(result.value).length }));
      renew();
    } catch (problem) {
      setError(problem as Problem);
    } finally {
      setBusy(false);
    }
  };
  const start = (text: string) => {
    draft.value = text;
    set({ from: null }, "replace");
  };
  return (
    <Panel title={t("exercises.grade")}>
      <p class="muted">{t("exercises.gradeLede")}</p>
      <form class="stack" onSubmit={(e) => { e.preventDefault(); void grade(); }}>
        <Segments label={t("exercises.from")} value={kind} onChange={(v) => set({ from: v })} choices={KINDS.map((v) => ({ value: v, label: t(`exercises.${v}`) }))} />
        {kind === "text" ? (
          <div class="field grow">
            <label for="solution">{t("exercises.solution")}</label>
            <textarea id="solution" class="code" rows={14} data-input required spellcheck={false} value={draft.value} onInput={(e) => (draft.value = e.currentTarget.value)} />
          </div>
        ) : (
          <div class="field grow">
            <label for="solution">{t("exercises.file")}</label>
            <input id="solution" type="text" data-input required spellcheck={false} placeholder="solution.py" value={path.value} onInput={(e) => (path.value = e.currentTarget.value)} />
          </div>
        )}
        <div class="row">
          <button type="submit" class="primary" disabled={busy}>{t("exercises.grade")}</button>
          {kind === "text" && !draft.value.trim() ? (
            <>
              <button type="button" onClick={() => start(chosen.file)}>{t("exercises.startOne", { name: chosen.name })}</button>
              <button type="button" onClick={() => start(found.file)}>{t("exercises.startAll", { n: found.exercises.length })}</button>
            </>
          ) : null}
        </div>
      </form>
      {busy ? <Busy>{t("exercises.grading")}</Busy> : null}
      {error ? <Wrong error={error} /> : null}
      {result.value && !busy ? <Grades of={result.value} /> : null}
    </Panel>
  );
}

const graded = (of: Result) => of.grades.filter((g) => g.verdict !== "missing");

function Grades({ of }: { of: Result }) {
  const shown = graded(of);
  return (
    <div class="stack" data-grades>
      <p><strong>{t("exercises.right", { n: of.right, of: shown.length })}</strong></p>
      <Warnings of={of.notes} />
      <ul class="plain stack">
        {shown.map((g) => (
          <li key={g.name} class="stack tight" data-grade={g.name} data-verdict={g.verdict}>
            <p><span class={`badge ${TONES[g.verdict]}`}>{t(`exercises.verdicts.${g.verdict}`)}</span> <code>{g.name}</code>: {g.message}</p>
            {g.shown ? <p class="muted">{g.shown}</p> : null}
            {g.inside ? <InsideModel inside={g.inside} right={g.verdict === "right"} /> : null}
            {g.notes.map((note) => <p class="muted" key={note}>{note}</p>)}
          </li>
        ))}
      </ul>
      <CopyPython python={of.python} />
    </div>
  );
}

function InsideModel({ inside, right }: { inside: Inside; right: boolean }) {
  if (inside.same) return <p class="muted">{t(right ? "exercises.same" : "exercises.hidden", { model: inside.model, text: inside.yours })}</p>;
  return (
    <>
      <p>{t("exercises.yours", { model: inside.model, text: inside.yours })}</p>
      <p class="muted">{t("exercises.ours", { text: inside.ours })}</p>
    </>
  );
}
