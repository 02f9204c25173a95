// One text on its way through a model: stages from top to bottom, each with its real numbers, its equation and its page.
import { useMemo, useRef, useState } from "preact/hooks";
import { Frame, type Exports } from "./Canvas";
import { Formula } from "./formula";
import { useHeld, useTheme, useWidth } from "./hooks";
import { modelRows, names, quoted, rowAt, rowOf, strongest, told, vectorSaid, wordsAround, type ModelData, type Picture, type Stage } from "./model";
import { FromTo, StageBody } from "./ModelStages";
import { say } from "./say";
import { brief, csv, number, shown } from "./text";
import type { FigureJson } from "./types";

const ROOM = 46; // pixels that a column needs

export interface ModelViewProps {
  figure: FigureJson;
  text?: number; // which of two texts is shown
  onText?: (text: number) => void;
  row?: number;
  onRow?: (row: number) => void;
  onHead?: (path: string, head: number | null, row: number | null) => void; // another layer or head, where somebody can compute it
  linkTo?: (stage: Stage, row: number, text: number) => { href: string; onClick: (e: MouseEvent) => void } | null;
  exports?: Partial<Exports>;
}

export function ModelView({ figure, text: shownText, onText, row: shownRow, onRow, onHead, linkTo, exports }: ModelViewProps) {
  const data = figure.data as unknown as ModelData;
  const [text, setText] = useHeld(shownText, 0, onText);
  const picture = data.pictures[text] ?? data.pictures[0];
  const [row, setRow] = useHeld(shownRow, picture.row, onRow);
  const theme = useTheme();
  const [ref, width] = useWidth();
  const groups = useMemo(() => grouped(picture.stages), [picture]);
  const tip = useTip();
  return (
    <Frame title={figure.title} note={figure.note} exports={{ name: "model", python: figure.python, csv: () => csv(modelRows(data)), ...exports }}>
      <div class="mp" ref={ref} {...tip.events}>
        <Sentence data={data} text={text} onText={setText} />
        <ol class="mp-flow">
          {groups.map((stages) => (
            <Group key={stages[0].path + stages[0].kind + stages[0].side} stages={stages} picture={picture} beside={data.pictures[1 - text] ?? null} other={data.labels[1 - text] ?? ""} row={row} onRow={setRow} onHead={onHead}
              narrow={(width - (width > 700 ? 200 : 110)) / Math.max(picture.tokens.length, picture.target.length) < ROOM} theme={theme} link={linkTo ? (stage) => linkTo(stage, rowAt(picture, stage.side, row), text) : undefined} />
          ))}
        </ol>
        <div class="mp-tip" ref={tip.ref} hidden aria-hidden="true" />
      </div>
    </Frame>
  );
}

/** The sentence on one line. Of two texts, the words in which they differ are a switch, in their place where that is possible. */
function Sentence({ data, text, onText }: { data: ModelData; text: number; onText: (text: number) => void }) {
  const { texts, labels, pictures } = data;
  if (pictures.length < 2) return texts[0] ? <p class="mp-sentence" dir="auto">{texts[0]}</p> : null;
  const around = wordsAround(texts, labels);
  const label = say(around ? "chooseWord" : "chooseText");
  const toggle = (
    <span class="mp-toggle" role="group" aria-label={label}>
      {labels.map((name, i) => <button type="button" aria-pressed={i === text} onClick={() => onText(i)} dir="auto">{name}</button>)}
    </span>
  );
  return (
    <div class="mp-sentence">
      <small>{label}</small>
      {around ? <p dir="auto">{around[0]}{toggle}{around[1]}</p> : toggle}
    </div>
  );
}

const QUIET = ["norm", "residual", "mlp"]; // stages that are folded into one line

/** Layers that are folded stand together, and so do the norms, sums and MLP of a layer; everything else alone. */
function grouped(stages: Stage[]): Stage[][] {
  const out: Stage[][] = [];
  const together = (a: Stage, b: Stage) => (a.kind === "layer" && b.kind === "layer") || (QUIET.includes(a.kind) && QUIET.includes(b.kind));
  for (const stage of stages) {
    const last = out[out.length - 1];
    if (last && together(last[0], stage)) last.push(stage);
    else out.push([stage]);
  }
  return out;
}

/** A station, or the line into which several quiet stages are folded. */
function Group(props: StationProps) {
  const { stages } = props;
  const [open, setOpen] = useState(false);
  if (stages.length < 2 || stages[0].kind === "layer") return <Station {...props} />;
  const [first, last] = [stages[0], stages[stages.length - 1]];
  return (
    <>
      <li class="mp-stage mp-is-rest" data-stage="rest">
        <div class="mp-side"><button type="button" class="mp-title" aria-expanded={open} onClick={() => setOpen(!open)}>{stages.map((s) => s.title).join(", ")}</button></div>
        <div class="mp-body">{open ? null : <FromTo {...props} from={first} to={last} />}</div>
      </li>
      {open ? stages.map((stage) => <Station {...props} key={stage.path + stage.kind} stages={[stage]} />) : null}
    </>
  );
}

type StationProps = {
  stages: Stage[]; picture: Picture; beside: Picture | null; other: string; row: number; narrow: boolean; theme: ReturnType<typeof useTheme>; onRow: (row: number) => void;
  onHead?: ModelViewProps["onHead"]; link?: (stage: Stage) => { href: string; onClick: (e: MouseEvent) => void } | null;
};

function Station(props: StationProps) {
  const { stages, picture, row, onHead } = props;
  const [open, setOpen] = useState(false);
  const stage = stages[0];
  const folded = stage.kind === "layer";
  const number = (s: Stage) => s.path.split(".")[1];
  const title = folded && stages.length > 1 ? say("layersFromTo", { from: number(stage), to: number(stages[stages.length - 1]) }) : stage.title;
  const brief_ = folded ? "" : told(picture, stage, row);
  return (
    <li class={`mp-stage mp-is-${stage.kind} ${open ? "mp-open" : ""}`} data-stage={stage.kind} data-path={stage.path}>
      <div class="mp-side">
        <button type="button" class="mp-title" aria-expanded={open} onClick={() => setOpen(!open)} data-tip={titleTip(picture, stage, row)}>{title}</button>
        {brief_ ? <span class="mp-brief" dir="ltr">{brief_}</span> : null}
        {onHead && stage.kind === "attention" && stage.pattern!.heads > 1 ? <HeadSteps stage={stage} onHead={(head) => onHead(stage.path, head, rowAt(picture, stage.side, row))} /> : null}
      </div>
      <div class="mp-body">
        {folded ? <Folded stages={stages} picture={picture} row={row} onLayer={onHead && ((path) => onHead(path, null, null))} /> : <StageBody {...props} stage={stage} />}
      </div>
      {open ? <More stage={stage} picture={picture} row={row} link={props.link?.(stage) ?? null} /> : null}
    </li>
  );
}

/** The numbers that a stage comes to at the row, for its title. */
function titleTip(picture: Picture, stage: Stage, row: number): string {
  const last = stage.vectors[stage.vectors.length - 1];
  if (!last) return say("unfold");
  const at = rowAt(picture, last.side, row);
  return `${quoted(names(picture, last.side)[at])} ${last.label}: ${vectorSaid(last, at)}`;
}

/** To the head before and the head after. */
function HeadSteps({ stage, onHead }: { stage: Stage; onHead: (head: number) => void }) {
  const { head, heads, unit } = stage.pattern!;
  const step = (by: number, label: string, sign: string) => <button type="button" class="mp-step" aria-label={`${stage.title}: ${label}`} onClick={() => onHead((head + by + heads) % heads)}>{sign}</button>;
  return <span class="mp-steps">{step(-1, say("headBefore", { unit }), "‹")}<small>{say("headOf", { unit, head, last: heads - 1 })}</small>{step(1, say("headAfter", { unit }), "›")}</span>;
}

/** Layers as small bars: how long the vector is that each of their parts gives at the row. */
function Folded({ stages, picture, row, onLayer }: { stages: Stage[]; picture: Picture; row: number; onLayer?: (path: string) => void }) {
  const at = rowAt(picture, stages[0].side, row);
  const most = Math.max(...stages.flatMap((s) => s.parts.map((p) => p.lengths.values[at])), 1e-9);
  return (
    <div class="mp-row mp-folded">
      {stages.map((stage) => {
        const said = `${stage.title}: ${stage.parts.map((p) => `${p.title} ${brief(p.lengths.values[at])}`).join(", ")}`;
        const bars = <>
          <small>{stage.path.split(".")[1]}</small>
          <span class="mp-bars" aria-hidden="true">{stage.parts.map((p) => <i style={{ height: `${Math.max(6, (100 * p.lengths.values[at]) / most)}%` }} />)}</span>
        </>;
        const tip = `${said} (${say("partLengths")})`;
        return onLayer
          ? <button type="button" class="mp-layer-pill" onClick={() => onLayer(stage.path)} aria-label={`${say("unfoldLayer")} ${said}`} data-tip={tip}>{bars}</button>
          : <span class="mp-layer-pill" role="img" aria-label={said} data-tip={tip}>{bars}</span>;
      })}
      <small class="mp-brief">{stages[0].parts.map((p) => p.title).join(", ")}</small>
    </div>
  );
}

/** The equations, what the stage is, its numbers at the row, and the way to its page. */
function More({ stage, picture, row, link }: { stage: Stage; picture: Picture; row: number; link: { href: string; onClick: (e: MouseEvent) => void } | null }) {
  const at = rowAt(picture, stage.side, row);
  const look = stage.kind === "attention" ? stage.pattern : null;
  const parts = stage.parts.flatMap((p) => p.equations);
  return (
    <div class="mp-more">
      <div class="mp-equations" tabIndex={0} role="group" aria-label={say("equationsOf", { title: stage.title })}>{[...stage.equations, ...parts].map((line) => <Formula key={line} of={line} block />)}</div>
      <div class="mp-numbers" tabIndex={0} role="group" aria-label={say("numbersOf", { title: stage.title })}>
        {stage.note ? <p>{stage.note}{look?.leaves_out ? ` ${say("leavesOut", { what: look.leaves_out })}` : ""}</p> : null}
        <table class="fig-table">
          <caption class="fig-hidden">{stage.title}</caption>
          <tbody>
            {stage.vectors.map((of) => <tr key={of.name + of.label}><th scope="row">{of.label} {quoted(names(picture, of.side)[rowAt(picture, of.side, row)])}</th><td class="fig-mono">{vectorSaid(of, rowAt(picture, of.side, row), 5)}</td></tr>)}
            {look ? strongest(rowOf(look.values, at), 5).map((s) => (
              <tr key={s}><th scope="row" dir="ltr">{quoted(names(picture, look.queries)[at])} → {quoted(names(picture, look.keys)[s])}</th>
                <td class="fig-mono">{look.scores ? `${say("score")} ${number(rowOf(look.scores, at)[s], 3)}   ` : ""}{say("weight")} {number(rowOf(look.values, at)[s], 4)}</td></tr>
            )) : null}
            {stage.experts ? [...rowOf(stage.experts.chosen, at)].map((e, i) => <tr key={e}><th scope="row">{say("expertN", { n: e })}</th><td class="fig-mono">{say("weight")} {number(rowOf(stage.experts!.weights, at)[i], 4)}</td></tr>) : null}
          </tbody>
        </table>
        {stage.kind === "tokens" ? <p class="fig-mono" dir="auto">{names(picture, stage.side).map(shown).join(" | ")}</p> : null}
        {link ? <p><a class="mp-link" href={link.href} onClick={link.onClick}>{say("openPage")}</a></p> : null}
      </div>
    </div>
  );
}

/** What the pointer or the focus is on, in words beside it. */
function useTip() {
  const ref = useRef<HTMLDivElement>(null);
  const show = (e: Event) => {
    const at = (e.target as Element).closest?.("[data-tip]");
    const box = ref.current;
    if (!box) return;
    box.hidden = !at;
    if (!at) return;
    box.textContent = at.getAttribute("data-tip");
    const [place, room] = [at.getBoundingClientRect(), box.parentElement!.getBoundingClientRect()];
    const beside = at.classList.contains("mp-title") && room.width > 700; // a title has its stage below it
    box.style.left = `${Math.max(0, Math.min((beside ? place.right + 8 : place.left) - room.left, room.width - box.offsetWidth))}px`;
    box.style.top = `${beside ? place.top - room.top : place.bottom - room.top + 6}px`;
  };
  const hide = () => ref.current && (ref.current.hidden = true);
  return { ref, events: { onPointerOver: show, onFocusIn: show, onPointerLeave: hide, onFocusOut: hide } };
}
