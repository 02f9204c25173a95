// Something fetched, by key: asked for once, kept for the other pages, asked again when the server came back.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { epoch, givenUpBy, Problem } from "./http";
import { t } from "./strings";

/** `cancel` gives up what is loading, `again` asks once more. */
export type Resource<T> = { data?: T; error?: Problem; loading: boolean; cancel?: () => void; again?: () => void };

/** How many answers are on their way: the page is busy while any is. */
export const pending = signal(0);

const KEPT = 60;
type Asked = { answer: Promise<unknown>; leave: AbortController };
const kept = new Map<string, Asked>();

function remember(key: string, fetcher: (signal: AbortSignal) => Promise<unknown>): Asked {
  const found = kept.get(key);
  if (found) return found;
  const leave = new AbortController();
  const asked = { answer: givenUpBy(leave.signal, () => fetcher(leave.signal)), leave };
  pending.value++;
  kept.set(key, asked);
  asked.answer.catch(() => kept.get(key) === asked && kept.delete(key)).finally(() => pending.value--);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value!);
  return asked;
}

export function forget(prefix = ""): void {
  for (const key of [...kept.keys()]) if (key.startsWith(prefix)) kept.delete(key);
}

let known = 0;

/** `key` null asks for nothing. While a new key loads, the old data stays so that nothing jumps. What is `dear` to compute is
 * given up when the page is left before the answer is there; a fetcher hands the signal on to its request. */
export function useResource<T>(key: string | null, fetcher: (signal: AbortSignal) => Promise<T>, dear = false): Resource<T> {
  const at = epoch.value;
  const [state, setState] = useState<Resource<T> & { key?: string }>({ loading: key !== null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (at !== known) {
      known = at;
      forget();
    }
    if (key === null) {
      setState({ loading: false });
      return;
    }
    let alive = true;
    let loading = true;
    const asked = remember(key, fetcher);
    const cancel = () => {
      kept.delete(key);
      asked.leave.abort();
    };
    setState((old) => ({ data: old.data, loading: true, key: old.key, cancel }));
    (asked.answer as Promise<T>).finally(() => (loading = false)).then(
      (data) => alive && setState({ data, loading: false, key }),
      (error) => alive && setState({ error: wrapped(error), loading: false, key, again: () => setTurn((n) => n + 1) }),
    );
    return () => {
      alive = false;
      if (dear && loading) cancel();
    };
  }, [key, at, turn]);
  return state;
}

function wrapped(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof DOMException && error.name === "AbortError") return new Problem(t("common.cancelled"), -2);
  return new Problem(error instanceof Error ? error.message : String(error), -1);
}
