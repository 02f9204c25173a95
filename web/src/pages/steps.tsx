// Arithmetic: every operand and every result, one step at a time, checked in float64 against what the model computed.
import { useEffect, useState } from "preact/hooks";
import { asked, knows, topicsOf, useExamples, useTrace, useVocabulary, type Caps, type Token, type Trace } from "../api";
import { BOLD, expression, FONT, shown, StepsView, textWidth, written, type Drawing, type Worked } from "../figures";
import { Figure } from "../figure";
import { get, post, queried } from "../http";
import { say } from "../live";
import { useResource, type Resource } from "../resource";
import { t } from "../strings";
import { Ask, Await, Chips, copy, figure, Panel, Segments, Select, TextField, Title, useDraft, Warnings } from "../ui";
import { choice, set, str, whole } from "../url";
import { layerNumber, located, move, names, side, useNamed } from "./attention";

type Checked = { difference: number; tolerance: number; ok: boolean; source: string };
type Explained = Worked & { checked: Checked | null; text: string; latex: string; markdown: string; python: string };

const ALL = 1_000_000; // the page cuts long vectors itself and shows the rest on demand

export function StepsPage({ caps }: { caps: Caps }) {
  const exercise = str("ex");
  const examples = useExamples();
  const topics = topicsOf(caps);
  const topic = choice("topic", topics, topics[0] ?? "");
  const source = exercise ? `ex:${exercise}` : `topic:${topic}`;
  const choices = [
    ...topics.map((k) => ({ value: `topic:${k}`, label: t(`steps.topics.${k}`) })),
    ...(examples.data?.exercises ?? []).map((e) => ({ value: `ex:${e.id}`, label: t("steps.exercise", { id: e.id }) })),
  ];
  const choose = (value: string) => set(value.startsWith("ex:") ? { ex: value.slice(3), step: null } : { ex: null, topic: value.slice(6), step: null });
  return (
    <>
      <Title name="steps" />
      <div class="row"><Select label={t("steps.what")} value={source} onChange={choose} choices={choices} /></div>
      {exercise ? <Exercise id={exercise} about={examples.data?.exercises.find((e) => e.id === exercise)?.about} />
        : topic === "word2vec" ? <Update caps={caps} />
        : topic ? <OfModel caps={caps} topic={topic} />
        : <Panel><p>{t("steps.nothing")}</p></Panel>}
    </>
  );
}

function Exercise({ id, about }: { id: string; about?: string }) {
  const worked = useResource<Explained>(`exercise ${id}`, () => get(`/api/explain/${encodeURIComponent(id)}`, { wide: ALL }));
  return (
    <>
      {about ? <p class="lede">{about}</p> : null}
      <Steps of={worked} />
    </>
  );
}

/** One update of word2vec, with the model's own vectors. */
function Update({ caps }: { caps: Caps }) {
  const vocabulary = useVocabulary(caps.id);
  const usual = (word: string, place: number) => (vocabulary.data && !knows(vocabulary.data, word) ? (vocabulary.data.tokens[place] ?? word) : word);
  const given = { centre: str("centre", usual("king", 0)), observed: str("observed", usual("queen", 1)), drawn: str("drawn", usual("car", 2)) };
  const [centre, setCentre] = useDraft(given.centre);
  const [observed, setObserved] = useDraft(given.observed);
  const [drawn, setDrawn] = useDraft(given.drawn);
  const words = (text: string) => text.split(/[\s,]+/).filter(Boolean);
  const body = { model: caps.id, topic: "word2vec", centre: given.centre, contexts: words(given.observed), negatives: words(given.drawn), rate: 0.025 };
  const worked = useResource<Explained>(vocabulary.data ? `update ${JSON.stringify(body)}` : null, () => post(`/api/explain${queried({ wide: ALL })}`, body));
  const send = () => set({ centre, observed, drawn, step: null });
  return (
    <>
      <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <div class="row">
          <TextField label={t("steps.centre")} value={centre} onInput={setCentre} rows={1} required send={send} first />
          <TextField label={t("steps.observed")} value={observed} onInput={setObserved} rows={1} required send={send} />
          <TextField label={t("steps.drawn")} value={drawn} onInput={setDrawn} rows={1} required send={send} />
        </div>
        <div class="row"><button type="submit" class="primary">{t("ask.run")}</button></div>
      </form>
      <Steps of={worked} />
    </>
  );
}

function OfModel({ caps, topic }: { caps: Caps; topic: string }) {
  const question = asked(caps);
  const trace = useTrace(question);
  return (
    <>
      <Ask caps={caps} text={question.text} />
      <Await of={trace}>{(trace) => (
        <>
          <Warnings of={trace.warnings} />
          <Chosen caps={caps} trace={trace} topic={topic} />
        </>
      )}</Await>
    </>
  );
}

/** The layers whose arithmetic can be chosen for a topic, by their paths; none where there is nothing to choose. */
function layersOf(caps: Caps, trace: Trace, topic: string): string[] {
  if (topic === "block" || topic === "norm") return [...new Set(trace.groups.flatMap((g) => g.layers).map((path) => path.slice(0, path.lastIndexOf("."))))];
  return topic === "lstm" ? caps.recurrent.filter((r) => r.cell === "LSTM").map((r) => r.path) : [];
}

/** The last of the longest tokens that stand for text. */
function contentWord(tokens: Token[]): number {
  const frequent = t("steps.frequent").split(" ");
  const word = (token: Token) => token.shown.replace(/[^\p{L}]/gu, "");
  const letters = tokens.map((token) => (token.special || frequent.includes(word(token).toLowerCase()) ? 0 : word(token).length));
  return letters.lastIndexOf(Math.max(...letters));
}

function Chosen({ caps, trace, topic }: { caps: Caps; trace: Trace; topic: string }) {
  const soft = trace.groups.filter((g) => g.kind === "softmax"); // worked out as softmax(q·k) v
  const heads = (topic === "attention" || topic === "attention-gradient") && soft.length > 0;
  const at = heads ? located(trace, soft) : null;
  useNamed(trace, at);
  const layers = layersOf(caps, trace, topic);
  const layer = layers.includes(str("part")) ? str("part") : layers[whole("l", 0, 0, Math.max(0, layers.length - 1))];
  const ownSide = trace.target && !layer?.startsWith("encoder") ? "target" : "tokens";
  const which = at ? at.group.queries : topic === "alignment" && trace.written ? "written" : ownSide;
  const rows = names(trace, which);
  const token = whole("q", contentWord(side(trace, which)), 0, rows.length - 1);
  const query = at ? { part: at.path, head: at.head } : layer ? { part: layer } : str("part") ? { part: str("part") } : {};
  const path = `/api/trace/${encodeURIComponent(trace.id)}/explain${queried({ topic, ...query, token, wide: ALL })}`;
  const worked = useResource<Explained>(`explain ${path}`, () => get(path));
  return (
    <>
      <Panel>
        {at ? (
          <div class="row">
            {soft.length > 1 ? <Segments label={t("attention.group")} value={at.group.name} onChange={(g) => set({ g, l: null, h: null, q: null })} choices={soft.map((g) => ({ value: g.name, label: g.title }))} /> : null}
            <Select label={t("attention.layer")} value={String(at.layer)} onChange={(l) => move(at, Number(l), at.head)} choices={at.group.layers.map((path, i) => ({ value: String(i), label: layerNumber(path, i) }))} />
            <Select label={t("attention.head")} value={String(at.head)} onChange={(h) => move(at, at.layer, Number(h))}
              choices={Array.from({ length: at.group.heads[at.layer] }, (_, i) => ({ value: String(i), label: String(i) }))} />
          </div>
        ) : null}
        {layers.length > 1 ? (
          <div class="row">
            <Select label={t("attention.layer")} value={layer} onChange={(path) => set({ l: layers.indexOf(path), part: null, step: null }, "replace")} choices={layers.map((path) => ({ value: path, label: path }))} />
          </div>
        ) : null}
        <p class="label">{t(which === "written" ? "steps.written" : "steps.token")}</p>
        <Chips tokens={side(trace, which)} picked={token} onPick={(q) => set({ q }, "replace")} label={t(which === "written" ? "steps.written" : "steps.token")} />
      </Panel>
      <Steps of={worked} />
    </>
  );
}

/** What is shown at once: a section, or a line that stands in none. */
const parts = (worked: Explained): Worked[] => worked.lines.map((line) => ("lines" in line ? line : { title: "", note: "", check: null, lines: [line] }));

const nameOf = (part: Worked) => (part.title ? shown(part.title) : "") || part.lines.map((l) => ("label" in l ? l.label : l.title)).filter(Boolean).map(shown)[0] || t("steps.given");

function Steps({ of }: { of: Resource<Explained> }) {
  return <Await of={of}>{(worked) => <Stepper worked={worked} />}</Await>;
}

function Stepper({ worked }: { worked: Explained }) {
  const steps = parts(worked);
  const at = whole("step", 0, 0, steps.length - 1);
  const all = str("all") === "1";
  const [spoke, setSpoke] = useState(at);
  useEffect(() => {
    if (spoke !== at) say(nameOf(steps[at]));
    setSpoke(at);
  }, [at]);
  const show = (step: number) => step >= 0 && step < steps.length && set({ step }, "replace");
  const keys = (e: KeyboardEvent) => {
    const by = e.key === "ArrowRight" || e.key === "ArrowDown" ? 1 : e.key === "ArrowLeft" || e.key === "ArrowUp" ? -1 : 0;
    if (!by) return;
    e.preventDefault();
    show(at + by);
  };
  const flat: Worked = { title: worked.title, note: "", check: worked.check, check_source: worked.check_source, lines: worked.lines };
  return (
    <Panel>
      <Figure title={shown(worked.title)} name="arithmetic" python={worked.python} drawing={() => drawn(worked)} csv={() => table(worked)}
        html={{ kind: "steps", data: { worked: { ...flat, note: worked.note } } }}>
        <div class="stack bare">
          <div class="row">
            <CheckBadge check={worked.checked} />
            {worked.note ? <span class="muted">{shown(worked.note)}</span> : null}
          </div>
          <div class="row">
            <button type="button" disabled={all || at === 0} onClick={() => show(at - 1)}>{t("common.previous")}</button>
            <button type="button" class="primary" disabled={all || at === steps.length - 1} onClick={() => show(at + 1)} onKeyDown={keys} data-next>{t("common.next")}</button>
            <span class="muted">{t("steps.count", { n: at + 1, of: steps.length })}</span>
            <button type="button" aria-pressed={all} onClick={() => set({ all: !all }, "replace")}>{t("steps.all")}</button>
            <button type="button" onClick={() => copy(worked.latex)}>{t("steps.latex")}</button>
            <button type="button" onClick={() => copy(worked.markdown)}>{t("steps.markdown")}</button>
          </div>
          {all ? <StepsView worked={flat} /> : (
            <>
              <ol class="chips" aria-label={t("steps.list")} onKeyDown={keys}>
                {steps.map((part, i) => (
                  <li key={i}><button type="button" class="chip" aria-pressed={i === at} onClick={() => show(i)}>{`${i + 1} ${nameOf(part)}`}</button></li>
                ))}
              </ol>
              <StepsView worked={{ ...steps[at], title: nameOf(steps[at]), check: null }} />
            </>
          )}
        </div>
      </Figure>
    </Panel>
  );
}

function CheckBadge({ check }: { check: Checked | null }) {
  if (!check) return <span class="badge">{t("steps.noCheck")}</span>;
  return (
    <span class={`badge ${check.ok ? "good" : "bad"}`} data-checked={check.ok}>
      {check.ok ? "✓ " : "✗ "}
      {t(check.ok ? "steps.checked" : "steps.differs", { difference: figure(check.difference, 2), tolerance: figure(check.tolerance, 1), source: check.source })}
    </span>
  );
}

/** The calculation as a picture: its lines as text. */
function drawn(worked: Worked): Drawing {
  const lines: { text: string; bold: boolean }[] = [];
  const walk = (of: Worked) => {
    if (of.title) lines.push({ text: shown(of.title), bold: true });
    for (const line of of.lines) {
      if ("lines" in line) walk(line);
      else {
        const numbers = line.operands === null ? "" : ` = ${expression(line.operands, 4, 6)}`;
        lines.push({ text: `${shown(line.label)}:  ${line.formula.replaceAll('"', "")}${numbers} = ${written(line.result, 4, 6)}${line.unit ? ` ${line.unit}` : ""}`, bold: false });
      }
    }
  };
  walk(worked);
  return {
    width: Math.min(1600, Math.max(...lines.map((l) => textWidth(l.text, 13))) + 48),
    height: lines.length * 22 + 24,
    paint(pen, theme) {
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillStyle = theme.ink;
      lines.forEach((line, i) => {
        pen.font = line.bold ? BOLD : FONT;
        pen.fillText(line.text, line.bold ? 12 : 24, 22 + i * 22);
      });
    },
  };
}

function table(worked: Explained): (string | number | null)[][] {
  const rows: (string | number | null)[][] = [["section", "label", "formula", "result", "unit"]];
  const walk = (section: string, lines: Worked["lines"]) => {
    for (const line of lines) {
      if ("lines" in line) walk(line.title, line.lines);
      else rows.push([section, line.label, line.formula.replaceAll('"', ""), JSON.stringify(line.result), line.unit ?? ""]);
    }
  };
  walk("", worked.lines);
  return rows;
}
