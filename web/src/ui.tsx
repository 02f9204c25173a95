// Small pieces that every page uses.
import type { ComponentChildren, TargetedKeyboardEvent } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { useExamples, type Caps, type Token } from "./api";
import { percent, shown } from "./figures/text";
import { Explained, TermMark } from "./glossary";
import type { Problem } from "./http";
import { tell } from "./live";
import type { Resource } from "./resource";
import { t } from "./strings";
import { go, link, place, set, target, type Patch } from "./url";

/** A link inside the studio: a real address, followed without loading the page again. */
export function Go(props: { to: string; with?: Patch; class?: string; current?: boolean; children: ComponentChildren; label?: string }) {
  const follow = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(target(props.to, props.with));
  };
  return (
    <a href={link(props.to, props.with)} class={props.class} onClick={follow} aria-current={props.current ? "page" : undefined} aria-label={props.label}>
      {props.children}
    </a>
  );
}

export function Title({ name, lede = t(`ledes.${name}`), children }: { name: string; lede?: string; children?: ComponentChildren }) {
  return (
    <div class="title">
      <div class="named"><h1>{t(`pages.${name}`)}</h1><TermMark label={t(`pages.${name}`)} /></div>
      <p class="lede"><Explained text={lede} /></p>
      {children}
    </div>
  );
}

/** `part` names it for what points at it. */
export function Panel({ title, children, class: extra = "", part }: { title?: ComponentChildren; children: ComponentChildren; class?: string; part?: string }) {
  return (
    <section class={`panel stack ${extra}`} data-part={part}>
      {title ? <div class="named"><h2>{title}</h2>{typeof title === "string" ? <TermMark label={title} /> : null}</div> : null}
      {children}
    </section>
  );
}

export function Wrong({ error, again }: { error: Problem; again?: () => void }) {
  return (
    <div class="note bad" role="alert">
      <p>{error.message}</p>
      {error.hint ? <p>{error.hint}</p> : null}
      {again ? <p><button type="button" onClick={again}>{t("common.again")}</button></p> : null}
    </div>
  );
}

/** Seconds since this is on the page, counted from the first whole one. */
function useSeconds(): number {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const began = performance.now();
    const timer = window.setInterval(() => setSeconds(Math.floor((performance.now() - began) / 1000)), 250);
    return () => window.clearInterval(timer);
  }, []);
  return seconds;
}

/** That something is on its way. After a second it says for how long, and can be given up. */
export function Busy({ children, cancel }: { children?: ComponentChildren; cancel?: () => void }) {
  const seconds = useSeconds();
  return (
    <div class="row waits" role="status">
      <span class="busy">{children ?? t("common.working")}</span>
      {seconds < 1 ? null : (
        <>
          <progress aria-label={t("common.progress")} />
          <span class="muted small" aria-hidden="true">{t("common.seconds", { n: seconds })}</span>
          {cancel ? <button type="button" onClick={cancel}>{t("common.cancel")}</button> : null}
        </>
      )}
    </div>
  );
}

/** What was fetched, or why not, or that it is on its way. */
export function Await<T>({ of, children, wait }: { of: Resource<T>; children: (data: T) => ComponentChildren; wait?: string }) {
  if (of.error) return <Wrong error={of.error} again={of.again} />;
  if (of.data === undefined) return of.loading ? <Busy cancel={of.cancel}>{wait}</Busy> : null;
  return <>{of.loading ? <Late cancel={of.cancel} /> : null}{children(of.data)}</>;
}

/** What is shown belongs to the question before: said only where the new answer takes over a second. */
function Late({ cancel }: { cancel?: () => void }) {
  const seconds = useSeconds();
  return seconds < 1 ? null : <Busy cancel={cancel} />;
}

export function Warnings({ of }: { of: string[] | undefined }) {
  return (
    <>
      {(of ?? []).map((text) => (
        <div class="note warn" role="status" key={text}>
          <p>{text}</p>
        </div>
      ))}
    </>
  );
}

export { percent };

type Choice = { value: string; label: string };

/** A few choices side by side. */
export function Segments(props: { label: string; value: string; choices: Choice[]; onChange: (value: string) => void; show?: boolean }) {
  const id = useId();
  return (
    <div class="field">
      <span class={props.show ? "label" : "hidden"} id={id}>{props.label}</span>
      <div class="segments" role="group" aria-labelledby={id}>
        {props.choices.map((c) => (
          <button type="button" key={c.value} aria-pressed={c.value === props.value} onClick={() => props.onChange(c.value)}>
            {c.label}
          </button>
        ))}
      </div>
    </div>
  );
}

export function Select(props: { label: string; value: string; choices: Choice[]; onChange: (value: string) => void; hideLabel?: boolean }) {
  const id = useId();
  return (
    <div class="field">
      <div class="named"><label for={id} class={props.hideLabel ? "hidden" : ""}>{props.label}</label>{props.hideLabel ? null : <TermMark label={props.label} />}</div>
      <select id={id} value={props.value} onChange={(e) => props.onChange(e.currentTarget.value)}>
        {props.choices.map((c) => (
          <option key={c.value} value={c.value} selected={c.value === props.value}>{c.label}</option>
        ))}
      </select>
    </div>
  );
}

export function Check(props: { label: string; checked: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={props.checked} onChange={(e) => props.onChange(e.currentTarget.checked)} />
      {props.label}
    </label>
  );
}

export function Slider(props: { label: string; value: number; min: number; max: number; step?: number; shown?: string; onChange: (value: number) => void }) {
  const id = useId();
  return (
    <div class="field">
      <div class="named"><label for={id}>{props.label} <strong>{props.shown ?? props.value}</strong></label><TermMark label={props.label} /></div>
      <input id={id} type="range" min={props.min} max={props.max} step={props.step ?? 1} value={props.value}
        aria-valuetext={props.shown} onInput={(e) => props.onChange(Number(e.currentTarget.value))} />
    </div>
  );
}

/** A number box that tells only numbers within its bounds; the browser says what is wrong with others. */
export function NumberField(props: { label: string; value: number | ""; min?: number; max?: number; step?: number; onChange: (value: number) => void }) {
  const id = useId();
  return (
    <div class="field">
      <div class="named"><label for={id}>{props.label}</label><TermMark label={props.label} /></div>
      <input id={id} type="number" min={props.min} max={props.max} step={props.step} value={props.value}
        onChange={(e) => e.currentTarget.reportValidity() && Number.isFinite(e.currentTarget.valueAsNumber) && props.onChange(e.currentTarget.valueAsNumber)} />
    </div>
  );
}

/** A text that is told when its form is sent; it follows the address when that changes (Back, an example). */
export function useDraft(value: string): [string, (text: string) => void] {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return [draft, setDraft];
}

export function TextField(props: { label: string; value: string; onInput: (value: string) => void; rows?: number; send?: () => void; first?: boolean; placeholder?: string; required?: boolean }) {
  const id = useId();
  const keys = (e: TargetedKeyboardEvent<HTMLTextAreaElement>) => {
    if (e.key !== "Enter" || e.shiftKey || !props.send || e.isComposing) return;
    e.preventDefault();
    if (e.currentTarget.form) e.currentTarget.form.requestSubmit(); // as the button does: what is missing is said
    else props.send();
  };
  return (
    <div class="field grow">
      <label for={id}>{props.label}</label>
      <textarea id={id} dir="auto" rows={props.rows ?? 2} value={props.value} placeholder={props.placeholder} data-input={props.first ? "" : undefined}
        required={props.required} onInput={(e) => props.onInput(e.currentTarget.value)} onKeyDown={keys} spellcheck={false} />
    </div>
  );
}

/** The question put to the model: its text, a target where there is one, and examples. */
export function Ask({ caps, text, extra, plain }: { caps: Caps; text: string; extra?: ComponentChildren; plain?: boolean }) {
  const [draft, setDraft] = useDraft(text);
  const [aim, setAim] = useDraft(place.value.params.y ?? "");
  const listed = useExamples();
  const drawn = caps.reads === "images";
  const examples = drawn ? t("ask.drawn").split(" ") : listed.data?.sentences.map((s) => s.text);
  const pair = caps.kind === "encoder-decoder" ? t("ask.target") : caps.kind === "encoder" && !drawn ? t("ask.second") : null;
  const hint = t(caps.kind === "encoder" ? "ask.optional" : "ask.ownWriting");
  const send = (patch: Patch = {}) => set({ x: draft, y: pair ? aim : null, q: null, k: null, ...patch });
  return (
    <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
      <div class="row">
        <TextField label={t(drawn ? "ask.draw" : caps.kind === "encoder-decoder" ? "ask.source" : "ask.text")} value={draft} onInput={setDraft} send={() => send()} first required />
        {pair ? <TextField label={pair} value={aim} onInput={setAim} send={() => send()} placeholder={hint} /> : null}
      </div>
      <div class="row between">
        <div class="row">
          <button type="submit" class="primary">{t("ask.run")}</button>
          {examples ? (
            <Select label={t("ask.examples")} hideLabel value="" onChange={(x) => x && send({ x, y: null })}
              choices={[{ value: "", label: t("ask.examples") }, ...examples.map((text) => ({ value: text, label: brief(text, 48) }))]} />
          ) : null}
          {plain ? null : <Modified />}
        </div>
        {extra}
      </div>
    </form>
  );
}

export function brief(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** That something is different from the model as it was loaded, and the way back. */
function Modified() {
  const { off, sub } = place.value.params;
  if (!off && !sub) return null;
  return (
    <>
      <span class="badge warn" data-modified>{t(off ? "attention.modified" : "attention.replaced")}</span>
      <button type="button" onClick={() => set({ off: null, abl: null, ref: null, sub: null })}>{t("attention.reset")}</button>
    </>
  );
}

/** Tokens as chips; with `onPick` they are buttons. */
export function Chips(props: { tokens: Pick<Token, "shown" | "special" | "id">[]; picked?: number | null; onPick?: (i: number) => void; ids?: boolean; label?: string }) {
  return (
    <ul class="chips" aria-label={props.label}>
      {props.tokens.map((token, i) => {
        const kind = `chip c${i % 4}${token.special ? " special" : ""}`;
        const inside = (
          <>
            <span dir="auto">{shown(token.shown)}</span>
            {props.ids ? <small>{token.id}</small> : null}
          </>
        );
        return (
          <li key={i}>
            {props.onPick ? (
              <button type="button" class={kind} aria-pressed={props.picked === i} onClick={() => props.onPick!(i)}>{inside}</button>
            ) : (
              <span class={kind}>{inside}</span>
            )}
          </li>
        );
      })}
    </ul>
  );
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

/** How good a model is, by its card. */
export function Measured({ caps }: { caps: Caps }) {
  if (!caps.measured) return null;
  const { metric, score } = caps.measured;
  return <p class="muted small" data-measured>{t("play.measured", { model: caps.id, metric, score: typeof score === "number" ? figure(score) : score })}</p>;
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // where the clipboard is closed to pages (plain http on another name)
    area.remove();
  }
  tell(t("common.copied"));
}

export function CopyPython({ python }: { python: string | undefined }) {
  if (!python) return null;
  return (
    <details>
      <summary>{t("common.python")}</summary>
      <div class="stack tight">
        <pre tabIndex={0} aria-label={t("common.python")}>{python}</pre>
        <div class="row"><button type="button" onClick={() => copy(python)}>{t("common.copy")}</button></div>
      </div>
    </details>
  );
}

/** What may be wider than its place: it scrolls, and the keyboard can scroll it. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return <div class="scroll" tabIndex={0} role="group" aria-label={label}>{children}</div>;
}

type Chance = { shown: string; p: number };

/** The likeliest, with bars; before and after in one table where something was changed. */
export function TopList({ top, before }: { top: Chance[]; before?: Chance[] }) {
  const most = Math.max(1e-9, ...top.map((r) => r.p), ...(before ?? []).map((r) => r.p));
  const names = [...new Set([...top, ...(before ?? [])].map((r) => r.shown))];
  const find = (rows: Chance[], name: string) => rows.find((r) => r.shown === name)?.p;
  const cells = (p: number | undefined, alt: boolean) => (
    <td>{p === undefined ? <span class="muted">–</span> : <span class="chance"><span class="spark"><Bar share={p / most} alt={alt} /></span> <span>{percent(p)}</span></span>}</td>
  );
  return (
    <Scroll label={t("common.likeliest")}>
      <table class="top">
        {before ? <thead><tr><th scope="col">{t("predict.token")}</th><th scope="col">{t("common.before")}</th><th scope="col">{t("common.after")}</th></tr></thead> : null}
        <tbody>
          {(before ? names : top.map((r) => r.shown)).map((name, i) => (
            <tr key={i}>
              <th scope="row" class="mono" dir="auto">{shown(name)}</th>
              {before ? cells(find(before, name), false) : null}
              {cells(before ? find(top, name) : top[i].p, before !== undefined)}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

export function Bar({ share, alt }: { share: number; alt?: boolean }) {
  const ref = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (ref.current) ref.current.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  }, [share]);
  return <span ref={ref} class={alt ? "bar alt" : "bar"} />;
}

export function figure(x: number | null | undefined, digits = 4): string {
  if (x === null || x === undefined) return "–";
  if (!Number.isFinite(x)) return String(x);
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size >= 1e5 || size < 1e-4 ? x.toExponential(digits - 1) : String(Number(x.toPrecision(digits)));
}

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? "–" : n.toLocaleString("en-US");
}

