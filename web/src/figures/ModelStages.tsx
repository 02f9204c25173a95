// What each stage of a model's picture shows: tokens, vectors, one head, a sum, a recurrence, experts, an answer.
import type { ComponentChildren } from "preact";
import { answersAt, columnCentres, columnShares, LETTERS, names, percent, quoted, rowAt, rowOf, strongest, vectorSaid, weight, type Picture, type Stage, type Vectors } from "./model";
import { greatest, Patch } from "./Patch";
import type { Theme } from "./pen";
import { say } from "./say";
import { number, short, shown } from "./text";

export interface StageProps {
  picture: Picture;
  beside: Picture | null; // the other text, whose weights are drawn as marks
  other: string; // what that text is called
  stage: Stage;
  row: number;
  narrow: boolean; // too little room for a column of each token
  theme: Theme;
  onRow: (row: number) => void;
}

/** One column for each token, wider for longer ones so that no two labels touch; or as many side by side as find room. */
function Columns({ tokens, narrow, children }: { tokens: string[]; narrow: boolean; children: ComponentChildren }) {
  const template = columnShares(tokens).map((share) => `minmax(0, ${share}fr)`).join(" ");
  return <div class={narrow ? "mp-wrap" : "mp-columns"} style={narrow ? undefined : { gridTemplateColumns: template }}>{children}</div>;
}

export function StageBody(props: StageProps) {
  switch (props.stage.kind) {
    case "tokens":
      return <Tokens {...props} />;
    case "attention":
      return <Attention {...props} />;
    case "sum":
      return <WeightedSum {...props} />;
    case "embedding":
    case "recurrence":
    case "state":
    case "memory":
      return <EveryToken {...props} />;
    case "head":
      return <Answers {...props} />;
    default:
      return <OneToken {...props} />;
  }
}

function Tokens({ picture, stage, row, narrow }: StageProps) {
  const tokens = names(picture, stage.side);
  const at = rowAt(picture, stage.side, row);
  return (
    <Columns tokens={tokens} narrow={narrow}>
      {tokens.map((token, i) => <span class={`mp-token ${i === at ? "mp-on" : ""}`} data-tip={say("tokenAt", { token: shown(token), i })} dir="auto">{short(token, narrow ? 20 : LETTERS)}</span>)}
    </Columns>
  );
}

/** The vectors of every token, a line for each kind: what is added up, or what is carried along. */
function EveryToken({ picture, stage, row, narrow, theme }: StageProps) {
  const carried = stage.kind === "recurrence" || stage.kind === "state";
  const at = rowAt(picture, stage.side, row);
  return (
    <div class="mp-lines">
      {stage.vectors.map((of, k) => {
        const tokens = names(picture, of.side);
        const limit = greatest(of.numbers);
        const sign = stage.kind === "embedding" ? (k === 0 ? "" : k === stage.vectors.length - 1 ? "= " : "+ ") : "";
        return (
          <div class="mp-line" key={of.label}>
            <span class="mp-label">{sign}{of.label}</span>
            <Columns tokens={tokens} narrow={narrow}>
              {tokens.map((token, i) => (narrow && !carried && i !== at ? null : (
                <span class={`mp-cell ${i === at ? "mp-on" : ""} ${carried && of.label.startsWith("state") && i ? "mp-carried" : ""}`}>
                  <Patch of={of.numbers} row={i} limit={limit} theme={theme} label={`${quoted(token)} ${of.label}: ${vectorSaid(of, i)}`} />
                </span>
              )))}
            </Columns>
          </div>
        );
      })}
    </div>
  );
}

/** The first vector of a stage and the last one of another, for the line into which they and what is between are folded. */
export function FromTo({ picture, row, theme, from, to }: { picture: Picture; row: number; theme: Theme; from: Stage; to: Stage }) {
  const shown = (of: Vectors) => <Labelled of={of} row={rowAt(picture, of.side, row)} theme={theme} token={names(picture, of.side)[rowAt(picture, of.side, row)]} />;
  const [first, last] = [from.vectors[0], to.vectors[to.vectors.length - 1]];
  return first && last ? <div class="mp-row">{shown(first)}<span class="mp-sign">→</span>{shown(last)}</div> : null;
}

/** The vectors of the chosen row, side by side. */
function OneToken({ picture, stage, row, theme }: StageProps) {
  return (
    <div class="mp-row">
      {stage.vectors.map((of) => <Labelled key={of.label} of={of} row={rowAt(picture, of.side, row)} theme={theme} token={names(picture, of.side)[rowAt(picture, of.side, row)]} />)}
      {stage.experts ? <ExpertBars stage={stage} row={rowAt(picture, stage.side, row)} /> : null}
    </div>
  );
}

function Labelled({ of, row, theme, token, caption = of.label, limit }: { of: Vectors; row: number; theme: Theme; token: string; caption?: string; limit?: number }) {
  return (
    <span class="mp-labelled">
      <Patch of={of.numbers} row={row} limit={limit ?? Math.max(...Array.from(rowOf(of.numbers, row), Math.abs), 1e-30)} theme={theme} label={`${quoted(token)} ${of.label}: ${vectorSaid(of, row)}`} />
      <small dir="auto">{caption}</small>
    </span>
  );
}

function ExpertBars({ stage, row }: { stage: Stage; row: number }) {
  const { router, chosen, weights } = stage.experts!;
  const liked = rowOf(router, row);
  const most = Math.max(...liked, 1e-9);
  const taken = [...rowOf(chosen, row)];
  const shares = rowOf(weights, row);
  return (
    <span class="mp-router" role="img" aria-label={taken.map((e, i) => say("expert", { n: e, weight: weight(shares[i]) })).join(", ")}>
      {Array.from(liked, (x, e) => (
        <span class={`mp-expert ${taken.includes(e) ? "mp-on" : ""}`} data-tip={`${say("expertScore", { n: e, score: number(x, 3) })}${taken.includes(e) ? `, ${say("expert", { n: e, weight: number(shares[taken.indexOf(e)], 3) })}` : ""}`}>
          <i style={{ height: `${Math.max(4, (100 * x) / most)}%` }} />
          <small>{e}</small>
        </span>
      ))}
    </span>
  );
}

const [LINE, UPRIGHT] = [28, 40]; // pixels of a line where tokens stand one below another, and up to how many do

/** Keys above, rows below (where there is little room: keys right, rows left), and from the chosen row a line to each key, as wide as its weight. */
function Attention(props: StageProps) {
  const { picture, beside, other: called, stage, row, narrow } = props;
  const look = stage.pattern!;
  const [keys, queries] = [names(picture, look.keys), names(picture, look.queries)];
  const at = rowAt(picture, stage.side, row);
  const values = rowOf(look.values, at);
  const other = beside?.stages.find((s) => s.kind === "attention" && s.path === stage.path)?.pattern;
  const marks = other && other.values.shape.join() === look.values.shape.join() ? rowOf(other.values, at) : null;
  const most = Math.max(...Array.from(values, Math.abs), ...(marks ? Array.from(marks, Math.abs) : []), 1e-9);
  const tip = (s: number) => {
    const score = look.scores ? `${say("score")} ${number(rowOf(look.scores, at)[s], 3)}, ` : "";
    const there = marks ? `; ${say("inOther", { weight: number(marks[s], 4), other: called })}` : "";
    return `${quoted(queries[at])} → ${quoted(keys[s])}: ${score}${say("weight")} ${number(values[s], 4)}${there}`;
  };
  const upright = narrow && Math.max(keys.length, queries.length) <= UPRIGHT;
  const share = (s: number) => Math.abs(values[s]) / most;
  const key = (token: string, s: number) => (
    <span class="mp-key" data-tip={tip(s)}>
      <span class="mp-token" dir="auto">{short(token, narrow && !upright ? 20 : LETTERS)}</span>
      <span class={values[s] < 0 ? "mp-weight mp-below" : "mp-weight"}>
        <i style={{ width: `${100 * share(s)}%` }} />
        {marks && Math.abs(marks[s]) > 0.1 * most ? <b style={{ left: `${(100 * Math.abs(marks[s])) / most}%` }} /> : null}
      </span>
      <small class={share(s) < 0.1 ? "mp-faint" : ""}>{weight(values[s], most)}</small>
    </span>
  );
  const arc = (s: number, path: string) => <path key={s} class={values[s] < 0 ? "mp-below" : ""} d={path} style={{ strokeWidth: `${share(s) < 0.01 ? 0 : 0.6 + 9 * share(s)}px`, opacity: 0.25 + 0.65 * share(s) }} />;
  const rows = <Rows {...props} tokens={queries} at={at} written={look.queries === "written"} upright={upright} />;
  const legend = marks ? <small class="mp-mark">{say("markOther", { other: called })}</small> : null;
  if (upright) {
    const room = LINE * Math.max(keys.length, queries.length);
    const middle = (i: number) => LINE * (i + 0.5);
    return (
      <>
        <div class="mp-attention mp-upright">
          {rows}
          <svg class="mp-arcs" viewBox={`0 0 100 ${room}`} preserveAspectRatio="none" style={{ height: `${room}px` }} aria-hidden="true">
            {keys.map((_, s) => arc(s, `M 0 ${middle(at)} C 55 ${middle(at)}, 45 ${middle(s)}, 100 ${middle(s)}`))}
          </svg>
          <div>{keys.map(key)}</div>
        </div>
        {legend}
      </>
    );
  }
  const [keyCentres, queryCentres] = [columnCentres(keys), columnCentres(queries)];
  return (
    <div class="mp-attention">
      <Columns tokens={keys} narrow={narrow}>{keys.map(key)}</Columns>
      {narrow ? null : (
        <svg class="mp-arcs" viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">
          {keys.map((_, s) => {
            const [from, to] = [1000 * queryCentres[at], 1000 * keyCentres[s]];
            return arc(s, `M ${from} 100 C ${from} 45, ${to} 55, ${to} 0`);
          })}
        </svg>
      )}
      {rows}
      {legend}
    </div>
  );
}

/** The rows to choose from: a group of which one is on; arrow keys move. */
function Rows({ tokens, at, narrow, onRow, written, stage, upright }: StageProps & { tokens: string[]; at: number; written: boolean; upright: boolean }) {
  const move = (e: KeyboardEvent) => {
    const by = e.key === "ArrowRight" || e.key === "ArrowDown" ? 1 : e.key === "ArrowLeft" || e.key === "ArrowUp" ? -1 : 0;
    if (!by) return;
    e.preventDefault();
    const next = (at + by + tokens.length) % tokens.length;
    onRow(next);
    (e.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=radio]")[next]?.focus();
  };
  const label = `${stage.title}: ${say(written ? "chooseWritten" : "chooseRow")}`;
  const buttons = tokens.map((token, i) => (
    <button type="button" role="radio" aria-checked={i === at} tabIndex={i === at ? 0 : -1} class={`mp-token mp-query ${i === at ? "mp-on" : ""}`} onClick={() => onRow(i)} dir="auto">
      {short(token, narrow && !upright ? 20 : LETTERS)}
    </button>
  ));
  return (
    <div role="radiogroup" class={narrow && !upright ? "mp-rows" : ""} aria-label={label} onKeyDown={move}>
      {upright ? buttons : <Columns tokens={tokens} narrow={narrow}>{buttons}</Columns>}
    </div>
  );
}

/** 0.51 × value + 0.19 × value + … = what the head gives. */
function WeightedSum({ picture, stage, row, narrow, theme }: StageProps) {
  const [value, total] = stage.vectors;
  const look = stage.pattern!;
  const at = rowAt(picture, stage.side, row);
  const weights = rowOf(look.values, at);
  const keys = names(picture, look.keys);
  const [largest] = strongest(weights, 1).map((s) => Math.abs(weights[s]));
  const terms = strongest(weights, narrow ? 2 : 4).filter((s, i) => !i || Math.abs(weights[s]) >= 0.005 * (largest < 0.05 ? largest : 1));
  return (
    <div class="mp-row mp-sum">
      {terms.map((s, i) => (
        <>
          {i ? <span class="mp-sign">{weights[s] < 0 ? "−" : "+"}</span> : null}
          <span class="mp-factor">{weight(i ? Math.abs(weights[s]) : weights[s], largest)} ×</span>
          <Labelled of={value} row={s} theme={theme} token={keys[s]} caption={short(keys[s], 9)} limit={greatest(value.numbers)} />
        </>
      ))}
      <span class="mp-sign">{weights.length > terms.length ? "+ … =" : "="}</span>
      <Labelled of={total} row={at} theme={theme} token={names(picture, total.side)[at]} />
    </div>
  );
}

function Answers({ picture, stage, row, theme }: StageProps) {
  const found = answersAt(picture, stage, row);
  return (
    <div class="mp-answers">
      {found.map(({ title, names: listed, chances }) => (
        <div class="mp-answer" key={title}>
          <p class="mp-ask" dir="ltr">{title}</p>
          <ul>
            {listed.map((name, i) => (
              <li data-tip={`${quoted(name)}: ${number(chances[i], 5)}`}>
                <span class="mp-word" dir="auto">{short(name, 14)}</span>
                <span class="mp-chance"><i style={{ width: `${100 * chances[i]}%` }} /></span>
                <span class="mp-percent">{percent(chances[i])}</span>
              </li>
            ))}
          </ul>
        </div>
      ))}
      {found.length ? null : <OneToken {...({ picture, stage, row, theme } as StageProps)} />}
    </div>
  );
}
