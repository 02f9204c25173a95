// The glossary: one table of terms, and the small button that shows one of them where it is met.
import { useId, useRef } from "preact/hooks";
import { Formula } from "./figures/formula";
import terms from "./glossary.json";
import { t } from "./strings";
import { link } from "./url";

export type Entry = { id: string; names: string[]; text: string; formula?: string; page?: string };

export const GLOSSARY: Entry[] = terms;

const byName = new Map(GLOSSARY.flatMap((entry) => entry.names.map((name) => [name.toLowerCase(), entry] as const)));
const escaped = (text: string) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const longest = [...byName.keys()].sort((a, b) => b.length - a.length);
const ANY = new RegExp(`(?<![\\p{L}\\p{N}_-])(${longest.map(escaped).join("|")})(?![\\p{L}\\p{N}_-])`, "giu");

/** The entry of a word or a label, if it has one. */
export function entryOf(name: string): Entry | undefined {
  return byName.get(name.trim().toLowerCase());
}

type Piece = { text: string; entry?: Entry };

/** A text in pieces, the first mention of each term with its entry. */
export function split(text: string): Piece[] {
  const out: Piece[] = [];
  const seen = new Set<string>();
  let from = 0;
  for (const match of text.matchAll(ANY)) {
    const entry = byName.get(match[0].toLowerCase())!;
    if (seen.has(entry.id)) continue;
    seen.add(entry.id);
    out.push({ text: text.slice(from, match.index) }, { text: match[0], entry });
    from = match.index + match[0].length;
  }
  out.push({ text: text.slice(from) });
  return out.filter((piece) => piece.text);
}

/** A text in which each term shows what it means, a click away. */
export function Explained({ text }: { text: string }) {
  return <>{split(text).map((piece, i) => (piece.entry ? <Term key={i} entry={piece.entry}>{piece.text}</Term> : piece.text))}</>;
}

/** A button beside a label that is a term. */
export function TermMark({ label }: { label: string }) {
  const entry = entryOf(label);
  return entry ? <Term entry={entry} mark>?</Term> : null;
}

function Term({ entry, mark, children }: { entry: Entry; mark?: boolean; children: string }) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const box = useRef<HTMLSpanElement>(null);
  const place = () => {
    if (!button.current || !box.current) return;
    const at = button.current.getBoundingClientRect();
    const width = Math.min(360, window.innerWidth - 24);
    box.current.style.width = `${width}px`;
    box.current.style.left = `${Math.max(12, Math.min(at.left, window.innerWidth - width - 12))}px`;
    const below = at.bottom + 6;
    box.current.style.top = `${below + box.current.offsetHeight > window.innerHeight ? Math.max(12, at.top - box.current.offsetHeight - 6) : below}px`;
  };
  return (
    <>
      <button type="button" ref={button} class={mark ? "term mark" : "term"} popovertarget={id} aria-label={mark ? t("glossary.what", { term: entry.names[0] }) : undefined}>{children}</button>
      <span ref={box} id={id} popover="auto" class="definition" role="note" onToggle={place}>
        <Definition entry={entry} />
        <a href={link("glossary", { term: entry.id })}>{t("glossary.all")}</a>
      </span>
    </>
  );
}

export function Definition({ entry }: { entry: Entry }) {
  return (
    <>
      <strong>{entry.names[0]}</strong> <span>{entry.text}</span>
      {entry.formula ? <span class="formula" tabIndex={0} role="group" aria-label={entry.names[0]}><Formula of={entry.formula} block /></span> : null}
    </>
  );
}
