// What the server offers, by docs/studio-api.md: types, calls, and the hooks that pages use.
import { halves } from "./figures/packed";
import { call, get, post, queried } from "./http";
import { useResource, type Resource } from "./resource";
import { parseOff, parseSub, place, str, whole } from "./url";

export type ModelRow = {
  id: string; source: string; run?: string | null; kind: string | null; family: string | null; params: number | null;
  tasks: string[]; loaded: boolean; error: string | null;
};
export type Group = {
  name: string; layers: string[]; heads: number[]; kind: "softmax" | "effective"; causal: boolean; cross: boolean; title: string;
};
/** Whose tokens name rows or columns: the source's or only ones, those a target reads, or the words it writes. */
export type Side = "tokens" | "target" | "written";
export type TraceGroup = Group & { shape: number[]; queries: Side; keys: Side; windows: (number | null)[]; leaves_out: string; divides_by_root: boolean[]; sink: boolean };
/** How tokens reach each other in a stack: by attention, recurrence … */
export type Mixer = { stack: string; by: string; window: number | null; paths: string[] };
export type Recurrent = {
  path: string; cell: string; gates: string[]; states: string[]; hidden: number; side: string; reverse: boolean;
};
export type Caps = {
  id: string; source: string; family: string; kind: string; params: number; dim: number; vocab: number; reads: "text" | "images";
  context: Record<string, number | null>; attention: Group[]; position: { type: string }; recurrent: Recurrent[]; mixing: Mixer[];
  head: string; predicts: string | null; labels: string[] | null; embeddings: string[]; norm: string | null; kv_cache: boolean;
  chat: boolean; mask_token: string | null; tasks: string[]; topics: string[]; stacks: string[]; layers: number;
  tokenizer: { kind: string; size: number; merges: boolean; special: Record<string, string> } | null;
  run: string | null; card: string | null; measured: { metric: string; score: number | string } | null; python: string; counts?: boolean; output?: boolean;
};
export type Token = { id: number; text: string; shown: string; start: number | null; end: number | null; special: boolean; word?: number };
export type Top = { id: number; text: string; shown: string; logit?: number; p: number };
export type PredictionAt = {
  kind: "words" | "labels" | "tags" | "spans" | "vectors"; position: number; top: Top[];
  tags?: { token: number; label: string; p: number }[]; start?: number[]; end?: number[];
};
export type Trace = {
  id: string; model: string; tokens: Token[]; target: Token[] | null; written: Token[] | null; second?: number | null; prompt: number; warnings: string[]; cut: number;
  groups: TraceGroup[]; shapes: Record<string, number[]>; note: string; prediction: PredictionAt;
  generated: { text: string; logprobs: number[] } | null; look?: { group: string; layer: number; head: number; row: number } | null;
  change: { kl: number[]; kl_last: number; position: number; token: string; before: Top[]; after: Top[] } | null; edited: boolean; ms: number; python: string;
};
export type Scores = {
  name: string; head: number; entropy: number | null; distance: number | null; previous: number | null; first: number | null;
  induction: number | null; diagonal: number | null; special: number | null;
};
export type Tensor = { shape: number[]; values: Float32Array };
export type Examples = { sentences: { id: string; text: string; look: string }[]; exercises: { id: string; about: string }[] };

const enc = encodeURIComponent;
export const modelPath = (id: string) => `/api/models/${enc(id)}`;

export function useModels(): Resource<{ models: ModelRow[]; default: string }> {
  return useResource("models", () => get("/api/models"));
}

export function useCaps(id: string | null): Resource<Caps> {
  return useResource(id ? `caps ${id}` : null, () => get(modelPath(id!)));
}

export function useExamples(): Resource<Examples> {
  return useResource("examples", () => get("/api/examples"));
}

/** What is asked of a trace: everything that changes what the model computes. */
export type Asked = {
  model: string; text: string; pair?: string; target?: string; generate?: number;
  sampling?: { temperature: number; seed: number };
  edit?: { heads?: Record<string, number[]>; mean?: boolean; reference?: string; tokens?: Record<string, string> };
};

export function useTrace(asked: Asked | null): Resource<Trace> {
  const key = asked && `trace ${JSON.stringify(asked)}`;
  return useResource(key, () => post("/api/trace", asked));
}

/** The text to start with where the address has none. */
export function startText(caps: Caps): string {
  if (caps.reads === "images") return "2026"; // it is drawn
  if (caps.kind === "vectors") return "king queen man woman";
  if (caps.mask_token && caps.predicts === "words") return `The cat sat on the ${caps.mask_token}.`;
  return caps.kind === "decoder" ? "The cat sat on the" : "The cat sat on the mat.";
}

/** The question of the address, as every page reads it. */
export function asked(caps: Caps): Asked {
  const { params } = place.value;
  const out: Asked = { model: caps.id, text: params.x ?? startText(caps) };
  if (params.y && caps.kind === "encoder-decoder") out.target = params.y;
  if (params.y && caps.kind === "encoder") out.pair = params.y;
  const written = whole("gen", 0, 0, 64);
  if (written > 0 && caps.kind !== "encoder" && caps.kind !== "vectors") out.generate = written;
  const off = parseOff(str("off"));
  if (Object.keys(off).length) out.edit = { heads: off, ...(str("abl") === "mean" ? { mean: true, reference: str("ref") || undefined } : {}) };
  const sub = parseSub(str("sub"));
  if (Object.keys(sub).length) out.edit = { ...out.edit, tokens: sub };
  return out;
}

/** Whether a layer that attends is the alignment of a recurrent decoder: a recurrence stands inside it. */
export function aligns(caps: Caps, layer: string): boolean {
  return caps.recurrent.some((r) => r.path.startsWith(`${layer}.`));
}

/** What can be worked out; where attention is alignment alone, it is worked out as that. */
export function topicsOf(caps: Caps): string[] {
  const alone = caps.topics.includes("alignment") && caps.attention.every((g) => g.layers.every((l) => aligns(caps, l)));
  return alone ? caps.topics.filter((k) => k !== "attention") : caps.topics;
}

/** Whether a vocabulary has a word, alone or as the start of one. */
export function knows(vocabulary: Vocabulary, word: string): boolean {
  return [word, `Ġ${word}`, `▁${word}`].some((form) => vocabulary.tokens.includes(form));
}

function decode(bytes: ArrayBuffer, dtype: string, least: number, step: number): Float32Array {
  if (dtype === "f32") return new Float32Array(bytes);
  if (dtype === "f16") return halves(new Uint8Array(bytes));
  return Float32Array.from(new Uint8Array(bytes), (v) => least + v * step);
}

export async function tensor(path: string, query: Record<string, string | number | undefined> = {}): Promise<Tensor> {
  const answer = await call(path + queried(query));
  const head = (name: string, otherwise: string) => answer.headers.get(name) ?? otherwise;
  const shape = head("X-Shape", "").split(",").filter(Boolean).map(Number);
  const bytes = await answer.arrayBuffer();
  return { shape, values: decode(bytes, head("X-Dtype", "f32"), Number(head("X-Min", "0")), Number(head("X-Scale", "1"))) };
}

export function useTensor(trace: Trace | undefined, query: Record<string, string | number | undefined> | null): Resource<Tensor> {
  const path = trace && `/api/trace/${enc(trace.id)}/tensor`;
  const key = path && query ? `tensor ${path}${queried(query)}` : null;
  return useResource(key, () => tensor(path!, query!));
}

/** A part of a trace in JSON: scores, lens, states … */
export function useOf<T>(trace: Trace | undefined, what: string | null, query: Record<string, string | number | undefined> = {}): Resource<T> {
  const path = trace && what ? `/api/trace/${enc(trace.id)}/${what}${queried(query)}` : null;
  return useResource(path && `of ${path}`, () => get(path!));
}

export function useNumbersOf(trace: Trace | undefined, what: string | null, query: Record<string, string | number | undefined> = {}): Resource<Tensor> {
  const path = trace && what ? `/api/trace/${enc(trace.id)}/${what}` : null;
  return useResource(path && `numbers ${path}${queried(query)}`, () => tensor(path!, query));
}

export type Vocabulary = { tokens: string[]; shown: string[] };
export function useVocabulary(id: string | null): Resource<Vocabulary> {
  return useResource(id && `vocabulary ${id}`, () => get(`${modelPath(id!)}/vocabulary`));
}
