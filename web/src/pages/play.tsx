// Play: every task a model can do, run on your own input; what is written appears as it is written.
import { useEffect, useRef, useState } from "preact/hooks";
import { startText, type Caps } from "../api";
import { BeamTree, branchRows, drawTree } from "../figures";
import { Figure } from "../figure";
import { call, events, post, Problem } from "../http";
import { say } from "../live";
import { t } from "../strings";
import { brief, Busy, CopyPython, Go, Measured, NumberField, Panel, Segments, Slider, TextField, Title, useDraft, Warnings, Wrong } from "../ui";
import { choice, num, place, set, whole, type Patch } from "../url";
import { ImageDesk } from "./image";
import { Result, type Answer, type Searched } from "./result";

type Field = { key: string; name: string; rows?: number; start?: (caps: Caps) => string };

const text: Field = { key: "x", name: "text", start: startText };
const FIELDS: Record<string, Field[]> = {
  "question-answering": [
    { key: "qs", name: "question", start: () => "Where did the cat sit?" },
    { key: "x", name: "context", rows: 4, start: () => "The cat sat on the mat. The dog slept under the table." },
  ],
  "next-sentence": [{ key: "x", name: "first", start: () => "The cat sat on the mat." }, { key: "y", name: "second", start: () => "Then it fell asleep." }],
  "sentence-similarity": [
    { key: "x", name: "source", start: () => "The cat sat on the mat." },
    { key: "list", name: "sentences", rows: 4, start: () => "A cat is sitting on a rug.\nThe stock market fell.\nA dog lay on the floor." },
  ],
  "zero-shot-classification": [{ key: "x", name: "text", start: () => "The cat sat on the mat." }, { key: "list", name: "labels", rows: 3, start: () => "animals\nfinance\nsport" }],
  neighbours: [{ key: "w", name: "word", start: () => "king" }],
  analogy: [{ key: "a", name: "a", start: () => "man" }, { key: "b", name: "b", start: () => "king" }, { key: "c", name: "c", start: () => "woman" }],
  conversational: [{ key: "x", name: "message", start: () => "Why is the sky blue?" }],
};
const WRITES = ["text-generation", "conversational", "translation", "summarization", "text2text-generation"];

type Said = { role: string; content: string };

function inputs(task: string, values: Record<string, string>, said: Said[]): Record<string, unknown> {
  const lines = (values.list ?? "").split("\n").map((l) => l.trim()).filter(Boolean);
  if (task === "question-answering") return { question: values.qs, context: values.x };
  if (task === "next-sentence") return { first: values.x, second: values.y };
  if (task === "sentence-similarity") return { source: values.x, sentences: lines };
  if (task === "zero-shot-classification") return { text: values.x, labels: lines };
  if (task === "neighbours") return { word: values.w };
  if (task === "analogy") return { a: values.a, b: values.b, c: values.c };
  if (task === "conversational") return { messages: [...said, { role: "user", content: values.x }] };
  return { text: values.x };
}

export function PlayPage({ caps }: { caps: Caps }) {
  const task = choice("task", caps.tasks);
  if (!task) {
    return (
      <>
        <Title name="play" />
        <Panel><p>{t("play.nothing")}</p></Panel>
      </>
    );
  }
  return (
    <>
      <Title name="play"><Measured caps={caps} /></Title>
      {caps.tasks.length > 1 ? (
        <Segments label={t("play.task")} value={task} onChange={(v) => set({ task: v, go: null })}
          choices={caps.tasks.map((k) => ({ value: k, label: t(`tasks.${k}`) }))} />
      ) : null}
      {caps.reads === "images" ? <ImageDesk key={task} caps={caps} task={task} /> : <Desk key={task} caps={caps} task={task} />}
    </>
  );
}

function Desk({ caps, task }: { caps: Caps; task: string }) {
  const fields = FIELDS[task] ?? [text];
  const writes = WRITES.includes(task);
  const { params } = place.value;
  const values: Record<string, string> = {};
  for (const f of fields) values[f.key] = params[f.key] ?? f.start?.(caps) ?? "";
  const [said, setSaid] = useState<Said[]>([]);
  const runner = useRunner();
  const drafts = Object.fromEntries(fields.map((f) => [f.key, useDraft(values[f.key])]));

  const start = (given: Record<string, string>) => {
    const how = writing();
    const parameters: Record<string, number> = writes ? { max_tokens: how.max, temperature: how.T, seed: how.seed } : {};
    if (writes && how.topk > 0) parameters.top_k = how.topk;
    if (writes && how.topp < 1) parameters.top_p = how.topp;
    const searches = writes && how.beams > 1; // a search is shown when it is over
    if (searches) parameters.beams = how.beams;
    const body = { model: caps.id, task, inputs: inputs(task, given, said), parameters, stream: writes && !searches };
    runner.run(searches ? "/api/beams" : "/api/play", body, (answer) => {
      if (task !== "conversational") return;
      setSaid([...said, { role: "user", content: given.x }, { role: "assistant", content: answer.text ?? "" }]);
      drafts.x[1]("");
    });
  };
  const send = () => {
    const given = Object.fromEntries(fields.map((f) => [f.key, drafts[f.key][0]]));
    set({ ...given, task, go: true } as Patch);
    start(given);
  };
  useEffect(() => {
    // A link to an answer gives the answer, and the page opens on one.
    if (task !== "conversational" && (params.go || fields.every((f) => params[f.key] === undefined))) start(values);
    return runner.stop;
  }, []);

  return (
    <>
      <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
        {said.length ? (
          <div class="chat" role="log" aria-label={t("play.chat")}>
            {said.map((m, i) => <div key={i} class={`said ${m.role === "user" ? "user" : ""}`} dir="auto">{m.content}</div>)}
          </div>
        ) : null}
        <div class="row">
          {fields.map((f, i) => (
            <TextField key={f.key} label={t(`play.fields.${f.name}`)} value={drafts[f.key][0]} onInput={drafts[f.key][1]} rows={f.rows ?? 2} required
              send={f.rows ? undefined : send} first={i === 0} />
          ))}
        </div>
        {task === "fill-mask" && caps.mask_token ? <p class="muted small">{t("play.mask", { mask: caps.mask_token })}</p> : null}
        {writes ? <Writing /> : null}
        <div class="row">
          <button type="submit" class="primary" disabled={runner.busy}>{t("ask.run")}</button>
          {runner.busy ? <button type="button" onClick={runner.stop}>{t("play.stop")}</button> : null}
          {said.length ? <button type="button" onClick={() => { setSaid([]); runner.clear(); }}>{t("play.newChat")}</button> : null}
        </div>
      </form>
      {runner.error ? <Wrong error={runner.error} /> : null}
      {runner.busy && !runner.answer ? <Busy cancel={runner.stop} /> : null}
      {runner.answer ? (
        <Panel title={t("play.answer")} part="answer">
          <Warnings of={runner.answer.warnings} />
          {said.length && !runner.busy ? null : <Result task={task} answer={runner.answer} values={values} writing={runner.busy} />}
          {runner.answer.ms !== undefined ? <p class="muted small">{t("play.took", { ms: Math.round(runner.answer.ms) })}</p> : null}
          {runner.answer.seconds !== undefined ? (
            <p class="muted small">{t("play.wrote", { n: runner.answer.tokens ?? 0, s: runner.answer.seconds.toFixed(1), finish: t(`play.finishes.${runner.answer.finish ?? "end"}`) })}</p>
          ) : null}
          {caps.kind === "vectors" || !values.x ? null : (
            <div class="row">
              <span class="muted">{t("play.inside")}</span>
              {["tokens", "attention", "predict"].filter((page) => page !== "attention" || caps.attention.length).map((page) => <Go key={page} to={page}>{t(`pages.${page}`)}</Go>)}
            </div>
          )}
          <CopyPython python={runner.answer.python} />
        </Panel>
      ) : null}
      {runner.answer?.trees ? <Search model={caps.id} trees={runner.answer.trees} /> : null}
    </>
  );
}

/** The search that found the answer. */
function Search({ model, trees }: { model: string; trees: Searched[] }) {
  return (
    <Panel title={t("play.tree")} part="search">
      {trees.map((tree, i) => {
        const title = t("play.treeOf", { n: tree.width, text: brief(tree.texts[0]?.text ?? "", 80) });
        return (
          <Figure key={i} title={title} name={`beams-${i}`} model={model} note={t("play.treeNote", { penalty: tree.length_penalty })} python={tree.python}
            drawing={() => drawTree(tree.branches)} csv={() => branchRows(tree)} html={{ kind: "beams", data: tree as unknown as Record<string, unknown> }}>
            <BeamTree tree={tree} title={title} />
          </Figure>
        );
      })}
    </Panel>
  );
}

/** How to write, as the address says, within what there is. */
function writing() {
  const between = (key: string, otherwise: number, least: number, most: number) => Math.max(least, Math.min(most, num(key, otherwise)));
  return {
    max: whole("max", 60, 1, 1000), T: between("T", 0, 0, 2), topk: whole("topk", 0), topp: between("topp", 1, 0.01, 1), seed: whole("seed", 0), beams: whole("beams", 1, 1, 16),
  };
}

function Writing() {
  const { max, T, topk, topp, seed, beams } = writing();
  const keep = (key: string, otherwise: number) => (v: number) => set({ [key]: v === otherwise ? null : v }, "replace");
  return (
    <div class="row">
      <NumberField label={t("play.max")} value={max} min={1} max={1000} onChange={keep("max", 60)} />
      <Slider label={t("predict.temperature")} value={T} min={0} max={2} step={0.05} shown={T.toFixed(2)} onChange={keep("T", 0)} />
      <NumberField label="top-k" value={topk} min={0} onChange={keep("topk", 0)} />
      <NumberField label="top-p" value={topp} min={0.01} max={1} step={0.01} onChange={keep("topp", 1)} />
      <NumberField label={t("predict.seed")} value={seed} min={0} onChange={keep("seed", 0)} />
      <NumberField label={t("play.beams")} value={beams} min={1} max={16} onChange={keep("beams", 1)} />
    </div>
  );
}

/** A request of Play and its answer; a new one takes the place of the one before. */
export function useRunner() {
  const [answer, setAnswer] = useState<Answer>();
  const [error, setError] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const control = useRef<AbortController>(undefined);
  const stop = () => {
    control.current?.abort();
    setBusy(false);
  };
  const run = async (path: string, body: { stream: boolean }, done: (answer: Answer) => void) => {
    control.current?.abort();
    const mine = (control.current = new AbortController());
    const current = () => control.current === mine && !mine.signal.aborted;
    setBusy(true);
    setError(undefined);
    setAnswer(undefined);
    try {
      const last = body.stream ? await streamed(body, mine.signal, (a) => current() && setAnswer(a)) : await post<Answer>(path, body, mine.signal);
      if (!current()) return;
      setAnswer(last);
      say(t("play.ready"));
      done(last);
    } catch (fault) {
      if (current()) setError(fault instanceof Problem ? fault : new Problem(String(fault), -1));
    } finally {
      if (current()) setBusy(false);
    }
  };
  return { answer, error, busy, run, stop, clear: () => setAnswer(undefined) };
}

async function streamed(body: unknown, signal: AbortSignal, show: (answer: Answer) => void): Promise<Answer> {
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  let written = "";
  for await (const { event, data } of events(await call("/api/play", init))) {
    if (event === "token") {
      written += (data as { text: string }).text;
      show({ text: written, warnings: [] });
    } else if (event === "done") return data as Answer;
    else if (event === "error") {
      const { error } = data as { error: { message: string; hint?: string } };
      throw new Problem(error.message, 500, error.hint ?? "");
    }
  }
  return { text: written, warnings: [] };
}
