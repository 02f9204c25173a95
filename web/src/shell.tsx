// The frame around every page: models, the list of pages, shortcuts, what is said aloud, and whether the server is there.
import type { ComponentChildren } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { useCaps, useModels, type Caps, type ModelRow } from "./api";
import { online, Problem } from "./http";
import { say, spoken, toast } from "./live";
import { DoorCard } from "./doors";
import { GROUPS, PAGES, allows } from "./pages";
import { pending } from "./resource";
import { t } from "./strings";
import { dark, toggle } from "./theme";
import { Busy, copy, count, Go, Title, Warnings, Wrong } from "./ui";
import { go, missing, place, set, str, target, whole } from "./url";

export function Shell() {
  const models = useModels();
  const id = str("m") || models.data?.default || null;
  const caps = useCaps(id);
  const [help, setHelp] = useState(false);
  const { page } = place.value;
  useShortcuts(caps.data, () => setHelp(true));
  usePageFocus(page);
  return (
    <>
      <a class="skip" href="#main">{t("shell.skip")}</a>
      <div class="shell">
        <header class="head">
          <Go to="home" class="brand">
            <Mark />
            heedful <span>{t("shell.studio")}</span>
          </Go>
          <ModelPicker models={models.data?.models ?? []} id={id} />
          <Checkpoints models={models.data?.models ?? []} id={id} />
          <div class="spread" />
          <button type="button" class="quiet" onClick={() => copy(window.location.href)}>{t("shell.copyLink")}</button>
          <button type="button" class="quiet icon" onClick={toggle} aria-label={t(dark.value ? "shell.toLight" : "shell.toDark")} data-theme-toggle>
            <ThemeMark dark={dark.value} />
          </button>
          <button type="button" class="quiet icon" onClick={() => setHelp(true)} aria-label={t("shell.help")} aria-haspopup="dialog">?</button>
        </header>
        <Navigation caps={caps.data?.id === id ? caps.data : undefined} page={page} />
        <main class="main" id="main" tabIndex={-1} aria-busy={pending.value > 0}>
          <div class="page">
            <DoorCard />
            {missing.value ? <Warnings of={[t("shell.textGone", { n: count(missing.value) })]} /> : null}
            <Guarded key={page}><Body caps={caps.data?.id === id ? caps.data : undefined} /></Guarded>
            {models.error ? <Wrong error={models.error} /> : null}
            {caps.error && page !== "home" ? <Wrong error={caps.error} again={caps.again} /> : null}
            {caps.loading && caps.data?.id !== id && page !== "home" ? <Busy cancel={caps.cancel}>{t("shell.loading", { model: id ?? "" })}</Busy> : null}
          </div>
        </main>
      </div>
      {online.value ? null : (
        <div class="banner" role="alert">
          <span class="busy">{t("shell.offline")}</span>
        </div>
      )}
      {toast.value ? <div class="toast" aria-hidden="true">{toast.value}</div> : null}
      <div class="hidden" role="status" aria-live="polite" data-live>{spoken.value}</div>
      <Help open={help} onClose={() => setHelp(false)} />
    </>
  );
}

/** A page that cannot be drawn says so, and the rest of the studio stays. */
function Guarded({ children }: { children: ComponentChildren }) {
  const [fault, again] = useErrorBoundary();
  if (!fault) return <>{children}</>;
  return (
    <>
      <Wrong error={new Problem(t("shell.fault", { message: String(fault.message ?? fault) }), -1, t("shell.faultHint"))} />
      <p><button type="button" onClick={() => { go(target(place.value.page)); again(); }}>{t("shell.again")}</button></p>
    </>
  );
}

/** The page of the address. Those that need a model wait for it; one it cannot fill says so. */
function Body({ caps }: { caps: Caps | undefined }) {
  const { page } = place.value;
  const found = PAGES[page];
  if (!found) {
    return (
      <div class="title">
        <h1>{t("shell.nowhere")}</h1>
        <p class="lede">{t("shell.nowhereLede")} <Go to="home">{t("pages.home")}</Go></p>
      </div>
    );
  }
  if (found.free) return <found.view caps={caps} />;
  return caps ? <found.view key={caps.id} caps={caps} /> : <Title name={page} />;
}

function ModelPicker({ models, id }: { models: ModelRow[]; id: string | null }) {
  const sources = [...new Set(models.map((m) => m.source))];
  const known = models.some((m) => m.id === id);
  return (
    <div class="pick">
      <label for="model" class="hidden">{t("shell.model")}</label>
      <select id="model" value={id ?? ""} onChange={(e) => set({ m: e.currentTarget.value, l: null, h: null, q: null, k: null, g: null, off: null, abl: null, ref: null, sub: null, part: null, topic: null, task: null, at: null, x2: null, r: null, t: null })}>
        {known || !id ? null : <option value={id} selected>{id}</option>}
        {sources.map((source) => (
          <optgroup key={source} label={t(`sources.${source}`)}>
            {models.filter((m) => m.source === source).map((m) => (
              <option key={m.id} value={m.id} selected={m.id === id} disabled={m.error !== null}>{m.id}</option>
            ))}
          </optgroup>
        ))}
      </select>
    </div>
  );
}

/** Where the model is a checkpoint, a slider leads through the others of its run, on any page. */
function Checkpoints({ models, id }: { models: ModelRow[]; id: string | null }) {
  const run = models.find((m) => m.id === id)?.run;
  const all = run ? models.filter((m) => m.run === run) : [];
  if (all.length < 2) return null;
  const at = all.findIndex((m) => m.id === id);
  return (
    <input type="range" min={0} max={all.length - 1} value={at} aria-label={t("shell.checkpoint")} aria-valuetext={all[at].id}
      onChange={(e) => set({ m: all[Number(e.currentTarget.value)].id }, "replace")} />
  );
}

function Navigation({ caps, page }: { caps: Caps | undefined; page: string }) {
  const ref = useRef<HTMLElement>(null);
  useEffect(() => ref.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [page, caps?.id]); // a narrow page has them in one row
  return (
    <nav class="nav" aria-label={t("shell.pages")} ref={ref}>
      {Object.entries(GROUPS).map(([group, names]) => (
        <>
          <h2>{t(`groups.${group}`)}</h2>
          <ul>
            {names.filter((name) => name === page || !caps || allows(name, caps)).map((name) => (
              <li key={name}><Go to={name} current={name === page}>{t(`pages.${name}`)}</Go></li>
            ))}
          </ul>
        </>
      ))}
    </nav>
  );
}

/** A new page is told and read from its start. */
function usePageFocus(page: string): void {
  const first = useRef(true);
  useEffect(() => {
    document.title = `${t(`pages.${page}`)} · heedful`;
    if (first.current) {
      first.current = false;
      return;
    }
    window.scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
    say(t(`pages.${page}`));
  }, [page]);
}

function useShortcuts(caps: Caps | undefined, help: () => void): void {
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (at.closest("dialog, textarea, select") || (at instanceof HTMLInputElement && !["checkbox", "radio", "range"].includes(at.type))) return;
      if (event.key === "?") help();
      else if (event.key === "/") document.querySelector<HTMLElement>("[data-input]")?.focus();
      else if (!moved(event.key, caps)) return;
      event.preventDefault();
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
}

/** [ ] the layer, , . the head, g the grid: on pages that have them. */
function moved(key: string, caps: Caps | undefined): boolean {
  const { page } = place.value;
  if (!caps || !["attention", "steps"].includes(page) || !caps.attention.length) return false;
  const group = caps.attention.find((g) => g.name === str("g")) ?? caps.attention[0];
  const layer = whole("l", 0, 0, group.layers.length - 1);
  const head = whole("h", 0, 0, group.heads[layer] - 1);
  const wrap = (n: number, size: number) => ((n % size) + size) % size;
  if (key === "[" || key === "]") {
    const next = wrap(layer + (key === "]" ? 1 : -1), group.layers.length);
    set({ l: next, h: Math.min(head, group.heads[next] - 1), part: null }, "replace");
    say(t("attention.layerSaid", { layer: next }));
  } else if (key === "," || key === ".") {
    const next = wrap(head + (key === "." ? 1 : -1), group.heads[layer]);
    set({ l: layer, h: next }, "replace");
    say(t("attention.headSaid", { head: next }));
  } else if (key === "g" && page === "attention") {
    set({ view: str("view") === "grid" ? "matrix" : "grid" });
  } else return false;
  return true;
}

const KEYS = [["[ ]", "layer"], [", .", "head"], ["g", "grid"], ["/", "input"], ["?", "help"], ["← ↑ ↓ →", "cells"], ["Enter", "pin"], ["Esc", "clear"]];

function Help({ open, onClose }: { open: boolean; onClose: () => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open) ref.current?.showModal?.();
  }, [open]);
  return (
    <dialog ref={ref} onClose={onClose} aria-labelledby="help-title">
      <div class="stack">
        <h2 id="help-title">{t("help.title")}</h2>
        <dl class="facts">
          {KEYS.map(([key, name]) => (
            <>
              <dt>{key.split(" ").map((k) => <kbd key={k}>{k}</kbd>)}</dt>
              <dd>{t(`help.${name}`)}</dd>
            </>
          ))}
        </dl>
        <p class="muted small">{t("help.offline")}</p>
        <form method="dialog" class="row end"><button>{t("common.close")}</button></form>
      </div>
    </dialog>
  );
}

function Mark() {
  return (
    <svg width="26" height="26" viewBox="0 0 26 26" aria-hidden="true">
      <rect width="26" height="26" rx="7" fill="var(--accent)" />
      <g stroke="var(--accent-ink)" fill="none" stroke-linecap="round">
        <path d="M8 7 C8 13 18 13 18 19" stroke-width="2.4" />
        <path d="M18 7 L18 19" stroke-width="1.2" opacity="0.75" />
        <path d="M8 7 L8 19" stroke-width="1.2" opacity="0.75" />
      </g>
    </svg>
  );
}

function ThemeMark({ dark }: { dark: boolean }) {
  return (
    <svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true" fill="currentColor">
      {dark ? (
        <g stroke="currentColor" stroke-width="1.6" stroke-linecap="round">
          <circle cx="9" cy="9" r="3.6" stroke="none" />
          <path d="M9 1v2M9 15v2M1 9h2M15 9h2M3.3 3.3l1.5 1.5M13.2 13.2l1.5 1.5M3.3 14.7l1.5-1.5M13.2 4.8l1.5-1.5" />
        </g>
      ) : (
        <path d="M15.5 11.2A7 7 0 0 1 6.8 2.5a7 7 0 1 0 8.7 8.7Z" />
      )}
    </svg>
  );
}
