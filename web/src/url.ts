// All state of the page lives in its address: the page's name is the path, everything else the query.
import { signal } from "@preact/signals";

export type Params = Record<string, string>;
export type Place = { page: string; params: Params };
export type Patch = Record<string, string | number | boolean | null | undefined>;

/** Text longer than this stays out of the address; the tab keeps it, also when it is loaded again. */
export const LONGEST = 2000;

// What a link to another page takes along: the model, the texts and what was changed about the model.
const CARRIED = ["m", "x", "y", "off", "abl", "ref", "sub"];

const overflow = new Map<string, string>();

function keep(id: string, text: string): void {
  if (overflow.has(id)) return;
  overflow.set(id, text);
  try {
    window.sessionStorage.setItem(id, text);
  } catch {
    // storage is full or closed to this page: the text lives as long as the page
  }
}

function kept(id: string): string | undefined {
  try {
    return overflow.get(id) ?? window.sessionStorage.getItem(id) ?? undefined;
  } catch {
    return overflow.get(id);
  }
}

/** How long the text was that an address from another tab speaks of; 0 where none is missing. */
export const missing = signal(0);

export function read(pathname: string, search: string): Place {
  const params: Params = {};
  missing.value = 0;
  for (const [key, value] of new URLSearchParams(search)) {
    const long = /^~(\d+)-[0-9a-z]+$/.exec(value);
    const text = long ? kept(value) : value;
    if (text === undefined) missing.value = Number(long![1]);
    else params[key] = text;
  }
  return { page: pathname.replace(/^\/+|\/+$/g, "") || "home", params };
}

export function write({ page, params }: Place): string {
  const query = new URLSearchParams();
  for (const key of Object.keys(params).sort()) {
    const value = params[key];
    if (value.length > LONGEST) {
      const id = `~${value.length}-${digest(value)}`;
      keep(id, value);
      query.set(key, id);
    } else if (value !== "") query.set(key, value);
  }
  const text = query.toString();
  return (page === "home" ? "/" : `/${page}`) + (text ? `?${text}` : "");
}

function digest(text: string): string {
  let h = 2166136261;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
  return (h >>> 0).toString(36);
}

export function patched(params: Params, patch: Patch): Params {
  const next = { ...params };
  for (const [key, value] of Object.entries(patch)) {
    if (value === null || value === undefined || value === "" || value === false) delete next[key];
    else next[key] = value === true ? "1" : String(value);
  }
  return next;
}

export const place = signal<Place>(read(window.location.pathname, window.location.search));

window.addEventListener("popstate", () => {
  place.value = read(window.location.pathname, window.location.search);
});

/** Go somewhere: a new entry of the history. */
export function go(next: Place): void {
  const url = write(next);
  if (url !== window.location.pathname + window.location.search) window.history.pushState(null, "", url);
  place.value = next;
}

/** Change part of the state in place. Small moves (a slider, a hovered cell) replace the entry, so that Back is not a crawl. */
export function set(patch: Patch, how: "push" | "replace" = "push"): void {
  const next = { page: place.value.page, params: patched(place.value.params, patch) };
  missing.value = 0;
  if (how === "push") return go(next);
  window.history.replaceState(null, "", write(next));
  place.value = next;
}

/** The address of another page with what is carried there. */
export function link(page: string, patch: Patch = {}): string {
  return write(target(page, patch));
}

export function target(page: string, patch: Patch = {}): Place {
  const { params } = place.value;
  const kept: Params = {};
  for (const key of page === "home" ? ["m"] : CARRIED) if (params[key] !== undefined) kept[key] = params[key];
  return { page, params: patched(kept, patch) };
}

export function num(key: string, otherwise: number): number {
  const value = Number(place.value.params[key]);
  return place.value.params[key] !== undefined && Number.isFinite(value) ? value : otherwise;
}

/** A place, a size or a seed: whole, and within its bounds whatever the address says. */
export function whole(key: string, otherwise: number, least = 0, most = Number.MAX_SAFE_INTEGER): number {
  return Math.max(least, Math.min(most, Math.trunc(num(key, otherwise))));
}

/** One of a few words; another stands for the first of them, or for what is usual. */
export function choice<T extends string>(key: string, of: readonly T[], otherwise: T = of[0]): T {
  return of.find((word) => word === place.value.params[key]) ?? otherwise;
}

export function str(key: string, otherwise = ""): string {
  return place.value.params[key] ?? otherwise;
}

/** `off=blocks.0.attn:1,2;blocks.1.attn:0` as a record, and back. */
export function parseOff(text: string): Record<string, number[]> {
  const out: Record<string, number[]> = {};
  for (const item of text.split(";")) {
    const at = item.lastIndexOf(":");
    const heads = item.slice(at + 1).split(",").map(Number);
    if (at > 0 && heads.every((h) => Number.isInteger(h) && h >= 0)) out[item.slice(0, at)] = heads;
  }
  return out;
}

export function formatOff(off: Record<string, number[]>): string {
  return Object.entries(off)
    .filter(([, heads]) => heads.length)
    .map(([name, heads]) => `${name}:${[...heads].sort((a, b) => a - b).join(",")}`)
    .join(";");
}

/** `sub=2:dog;5:%3B` as a record of positions and tokens put there, and back. */
export function parseSub(text: string): Record<string, string> {
  const out: Record<string, string> = {};
  for (const item of text.split(";")) {
    const [, at, token] = /^(\d+):(.+)$/.exec(item) ?? [];
    if (at !== undefined) out[at] = decoded(token);
  }
  return out;
}

export function formatSub(sub: Record<string, string>): string {
  return Object.entries(sub).map(([at, token]) => `${at}:${encodeURIComponent(token)}`).join(";");
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
