// Calls to the server that served this page, and what to say when one fails.
import { signal } from "@preact/signals";
import { t } from "./strings";

/** Whether the server answers; a page that lost it says so and looks again until it is back. */
export const online = signal(true);
/** Counts how often the server came back: what was fetched before belongs to the one that is gone. */
export const epoch = signal(0);

export class Problem extends Error {
  readonly status: number;
  readonly hint: string;
  constructor(message: string, status: number, hint = "") {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/** This tab, so that a new run of it may take the place of its last one. */
const client = Math.random().toString(36).slice(2);

let waiting = 0;
const gone = new Set<string>();

function lost(): void {
  online.value = false;
  if (waiting) return;
  const look = async () => {
    try {
      const answer = await fetch("/api/status", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      waiting = 0;
      online.value = true;
      epoch.value++;
    } catch {
      waiting = window.setTimeout(look, 1000);
    }
  };
  waiting = window.setTimeout(look, 500);
}

async function problem(answer: Response): Promise<Problem> {
  const message = t("errors.status", { status: answer.status });
  try {
    const { error } = await answer.json();
    if (typeof error?.message === "string") return new Problem(error.message, answer.status, error.hint ?? "");
  } catch {
    // an answer that is no JSON has nothing better to say than its status
  }
  return new Problem(message, answer.status);
}

let leave: AbortSignal | undefined;

/** What `start` asks of the server before it first waits can be given up by the signal. */
export function givenUpBy<T>(signal: AbortSignal, start: () => T): T {
  leave = signal;
  try {
    return start();
  } finally {
    leave = undefined;
  }
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, signal: init.signal ?? leave, headers: { ...init.headers, "X-Client": client } });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    lost();
    throw new Problem(t("errors.offline"), 0);
  }
  if (answer.status === 410 && !gone.has(path.split("/")[3])) {
    gone.add(path.split("/")[3]); // a trace is lost once: everyone who reads of it runs again
    epoch.value++;
  }
  if (!answer.ok) throw await problem(answer);
  return answer;
}

export async function get<T>(path: string, query: Record<string, string | number | undefined> = {}, signal?: AbortSignal): Promise<T> {
  return (await call(path + queried(query), { signal })).json();
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  return (await call(path, init)).json();
}

export function queried(query: Record<string, string | number | undefined>): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined && value !== "") params.set(key, String(value));
  const text = params.toString();
  return text ? `?${text}` : "";
}

/** The events of a stream: each with its name and its data as JSON, as it comes. */
export async function* events(answer: Response): AsyncGenerator<{ event: string; data: unknown }> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop()!;
      for (const part of parts) {
        const lines = part.split(/\r?\n/);
        const event = lines.find((l) => l.startsWith("event:"))?.slice(6).trim() ?? "message";
        const data = lines.filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trimStart()).join("\n");
        if (data) yield { event, data: JSON.parse(data) };
      }
    }
  } catch (error) {
    if (error instanceof TypeError) {
      lost();
      throw new Problem(t("errors.offline"), 0);
    }
    throw error;
  } finally {
    reader.releaseLock();
  }
}
