// Interventions: switch heads off, put another token in the place of one, and see what the model predicts then.
import { useState } from "preact/hooks";
import type { Caps, Trace } from "../api";
import { t } from "../strings";
import { figure, Panel, Select, TextField, TopList, useDraft } from "../ui";
import { formatOff, formatSub, parseOff, parseSub, place, set, str } from "../url";
import type { At } from "./attention";

/** The heading of a prediction, with the token it was read at: after it, in the place of a mask, or at a token that is seen. */
export function predictedWhere(trace: Pick<Trace, "tokens" | "target" | "prediction">, causal: boolean, mask: string | null): string {
  const token = (trace.target ?? trace.tokens).at(trace.prediction.position);
  if (trace.prediction.kind !== "words" || !token) return t("attention.predicts");
  return t(`attention.${causal ? "predictsAfter" : token.text === mask ? "predictsMasked" : "predictsAt"}`, { token: `“${token.shown}”` });
}

/** Switch heads off and see what the model says then. */
export function Switch({ at, trace, caps }: { at: At; trace: Trace; caps: Caps }) {
  const off = parseOff(str("off"));
  const mine = off[at.path] ?? [];
  const flip = (heads: number[]) => set({ off: formatOff({ ...off, [at.path]: heads }) });
  const isOff = mine.includes(at.head);
  const layer = Array.from({ length: at.group.heads[at.layer] }, (_, i) => i);
  return (
    <Panel title={t("attention.switchTitle")}>
      <div class="row">
        <button type="button" aria-pressed={isOff} onClick={() => flip(isOff ? mine.filter((h) => h !== at.head) : [...mine, at.head])} data-switch>
          {t(isOff ? "attention.on" : "attention.off", { head: at.head })}
        </button>
        <button type="button" onClick={() => flip(mine.length === layer.length ? [] : layer)}>{t(mine.length === layer.length ? "attention.layerOn" : "attention.layerOff")}</button>
      </div>
      <Instead />
      {Object.entries(off).length ? <ul class="small">{Object.entries(off).map(([path, heads]) => <li key={path}>{path}: {heads.join(", ")}</li>)}</ul> : <p class="muted small">{t("attention.switchLede")}</p>}
      {trace.change ? (
        <>
          <p>{t(trace.target ? "attention.klAt" : "attention.kl", { kl: figure(trace.change.kl[trace.change.position] ?? trace.change.kl_last), token: trace.change.token })}</p>
          <TopList before={trace.change.before} top={trace.change.after} />
        </>
      ) : trace.prediction.top?.length ? <><h3>{predictedWhere(trace, caps.kind !== "encoder", caps.mask_token)}</h3><TopList top={trace.prediction.top.slice(0, 8)} /></> : null}
    </Panel>
  );
}

/** What takes the place of a head that is off: nothing, or what it says on average. */
function Instead() {
  const [draft, setDraft] = useDraft(str("ref"));
  const by = str("abl") !== "mean" ? "zero" : place.value.params.ref === undefined ? "mean" : "ref";
  const choose = (v: string) => set({ abl: v === "zero" ? null : "mean", ref: v === "ref" ? draft || t("attention.someText") : null });
  return (
    <div class="stack tight">
      <Select label={t("attention.instead")} value={by} onChange={choose} choices={["zero", "mean", "ref"].map((v) => ({ value: v, label: t(`attention.insteads.${v}`) }))} />
      {by === "ref" ? (
        <form class="row" onSubmit={(e) => { e.preventDefault(); set({ ref: draft }); }}>
          <TextField label={t("attention.reference")} value={draft} onInput={setDraft} rows={2} send={() => set({ ref: draft })} />
          <button type="submit">{t("attention.useReference")}</button>
        </form>
      ) : null}
      {by === "zero" ? null : <p class="muted small">{t("attention.meanNote")}</p>}
    </div>
  );
}

/** Put another token in the place of one. */
export function Replace({ trace }: { trace: Trace }) {
  const [at, setAt] = useState("0");
  const [token, setToken] = useState("");
  const send = () => token && set({ sub: formatSub({ ...parseSub(str("sub")), [at]: token.replace(/^·/, " ") }) }); // typed as it is shown
  return (
    <Panel title={t("attention.replaceTitle")}>
      <form class="row" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <Select label={t("attention.replace")} value={at} onChange={setAt} choices={trace.tokens.map((x, i) => ({ value: String(i), label: `${i} ${x.shown}` }))} />
        <TextField label={t("attention.by")} value={token} onInput={setToken} rows={1} send={send} />
        <button type="submit">{t("attention.put")}</button>
      </form>
    </Panel>
  );
}
