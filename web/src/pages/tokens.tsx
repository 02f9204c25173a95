// Tokens: the pieces a text becomes, their ids and places, and how they came to be, merge by merge.
import { startText, useModels, type Caps, type Token } from "../api";
import { post } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Ask, Await, Chips, CopyPython, count, figure, Panel, Select, Slider, Title, Warnings } from "../ui";
import { set, str, whole } from "../url";

type Piece = Token & { bytes?: string; known?: boolean; count?: number; keep?: number; noise?: number };
type Word = { text: string; start: string[]; steps: { rank: number; pair: string[]; pieces: string[] }[]; pieces: string[] };
type LatticePiece = { text: string; start: number; end: number; score: number; chosen: boolean };
type Cut = {
  model: string; kind: string; size: number; tokens: Piece[]; count: number; unknown: number; characters_per_token: number;
  words: Word[] | null; lattice: (LatticePiece[] | { text?: string; pieces: LatticePiece[] })[] | null; note: string | null; python: string;
};

export function TokensPage({ caps }: { caps: Caps }) {
  const text = str("x") || startText(caps);
  const other = str("m2");
  const models = useModels();
  const body = { model: caps.id, other: other || null, text, special: true };
  const cut = useResource<{ tokenizers: Cut[]; warnings: string[] }>(`tokens ${JSON.stringify(body)}`, () => post("/api/tokenize", body));
  const others = (models.data?.models ?? []).filter((m) => m.id !== caps.id && !m.error);
  return (
    <>
      <Title name="tokens" />
      <Ask plain caps={{ ...caps, kind: "decoder" }} text={text} extra={
        <Select label={t("tokens.compare")} value={other} onChange={(v) => set({ m2: v })}
          choices={[{ value: "", label: t("tokens.noCompare") }, ...others.map((m) => ({ value: m.id, label: m.id }))]} />
      } />
      <Await of={cut}>{({ tokenizers, warnings }) => (
        <>
          <Warnings of={caps.reads === "images" ? [...warnings, t("tokens.images")] : warnings} />
          <div class={tokenizers.length > 1 ? "cols half" : "cols"}>
            {tokenizers.map((one) => <Pieces key={one.model} cut={one} />)}
          </div>
        </>
      )}</Await>
    </>
  );
}

function Pieces({ cut }: { cut: Cut }) {
  const picked = whole("i", 0, 0, Math.max(0, cut.tokens.length - 1));
  const token = cut.tokens[picked];
  return (
    <div class="stack">
      <Panel title={t("tokens.of", { model: cut.model, kind: cut.kind })}>
        <p class="muted small">
          {t("tokens.summary", { n: count(cut.count), size: count(cut.size), each: figure(cut.characters_per_token, 3) })}
          {cut.unknown ? ` ${t("tokens.unknown", { n: cut.unknown })}` : ""}
        </p>
        {cut.note ? <p>{cut.note}</p> : null}
        <Chips tokens={cut.tokens} ids picked={picked} onPick={(i) => set({ i }, "replace")} label={t("tokens.pieces")} />
        {token ? <One token={token} place={picked} /> : null}
        <CopyPython python={cut.python} />
      </Panel>
      {cut.words?.length ? <Merges words={cut.words} /> : null}
      {cut.lattice?.length ? <Lattice of={cut.lattice} /> : null}
    </div>
  );
}

function One({ token, place }: { token: Piece; place: number }) {
  const rows: [string, string][] = [
    [t("tokens.place"), String(place)],
    [t("tokens.piece"), token.text],
    [t("tokens.id"), String(token.id)],
  ];
  if (token.start !== null && token.end !== null) rows.push([t("tokens.characters"), `${token.start} … ${token.end}`]);
  if (token.bytes) rows.push([t("tokens.bytes"), token.bytes]);
  if (token.known === false) rows.push([t("tokens.known"), t("tokens.notKnown")]);
  if (token.count !== undefined && token.count !== null) rows.push([t("tokens.seen"), count(token.count)]);
  if (token.keep !== undefined && token.keep !== null) rows.push([t("tokens.keep"), figure(token.keep)]);
  if (token.noise !== undefined && token.noise !== null) rows.push([t("tokens.noise"), figure(token.noise)]);
  if (token.special) rows.push([t("tokens.special"), t("tokens.yes")]);
  return (
    <dl class="facts" aria-live="polite">
      {rows.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd class="mono" dir="auto">{value}</dd>
        </>
      ))}
    </dl>
  );
}

/** One word at a time, one merge a step: the pair that joins is the one learnt earliest. */
function Merges({ words }: { words: Word[] }) {
  const which = whole("w", longest(words), 0, words.length - 1);
  const word = words[which];
  const step = whole("step", word.steps.length, 0, word.steps.length);
  const pieces = step === 0 ? word.start : word.steps[step - 1].pieces;
  return (
    <Panel title={t("tokens.merges")}>
      <div class="row">
        <Select label={t("tokens.word")} value={String(which)} onChange={(w) => set({ w, step: null }, "replace")}
          choices={words.map((w, i) => ({ value: String(i), label: w.text }))} />
        <Slider label={t("tokens.step")} value={step} min={0} max={Math.max(1, word.steps.length)} shown={`${step} / ${word.steps.length}`}
          onChange={(s) => set({ step: Math.min(s, word.steps.length) }, "replace")} />
        <button type="button" disabled={step === 0} onClick={() => set({ step: step - 1 }, "replace")}>{t("common.previous")}</button>
        <button type="button" disabled={step >= word.steps.length} onClick={() => set({ step: step + 1 }, "replace")}>{t("common.next")}</button>
      </div>
      <Chips tokens={pieces.map((p) => ({ shown: p, special: false, id: 0 }))} label={t("tokens.pieces")} />
      <p role="status">
        {step === 0 ? t("tokens.before") : t("tokens.joined", { a: word.steps[step - 1].pair[0], b: word.steps[step - 1].pair[1], rank: count(word.steps[step - 1].rank) })}
      </p>
    </Panel>
  );
}

function longest(words: Word[]): number {
  return words.reduce((best, w, i) => (w.steps.length > words[best].steps.length ? i : best), 0);
}

function Lattice({ of }: { of: NonNullable<Cut["lattice"]> }) {
  const rows = of.flatMap((word) => (Array.isArray(word) ? word : word.pieces));
  return (
    <Panel title={t("tokens.lattice")}>
      <div class="scroll" tabIndex={0} role="group" aria-label={t("tokens.lattice")}>
        <table>
          <thead><tr><th>{t("tokens.piece")}</th><th class="n">{t("tokens.characters")}</th><th class="n">log p</th><th>{t("tokens.chosen")}</th></tr></thead>
          <tbody>
            {rows.slice(0, 300).map((p, i) => (
              <tr key={i} class={p.chosen ? "on" : ""}>
                <td class="mono" dir="auto">{p.text}</td><td class="n">{p.start}–{p.end}</td><td class="n">{figure(p.score)}</td><td>{p.chosen ? "✓" : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
