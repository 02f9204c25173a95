// Something fetched, by key: asked for once, kept for the other pages, asked again when the server came back.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { epoch, Problem } from "./http";

export type Resource<T> = { data?: T; error?: Problem; loading: boolean };

/** How many answers are on their way: the page is busy while any is. */
export const pending = signal(0);

const KEPT = 60;
const kept = new Map<string, Promise<unknown>>();

function remember<T>(key: string, fetcher: () => Promise<T>): Promise<T> {
  const found = kept.get(key) as Promise<T> | undefined;
  if (found) return found;
  const promise = fetcher();
  pending.value++;
  kept.set(key, promise);
  promise.catch(() => kept.delete(key)).finally(() => pending.value--);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value!);
  return promise;
}

export function forget(prefix = ""): void {
  for (const key of [...kept.keys()]) if (key.startsWith(prefix)) kept.delete(key);
}

let known = 0;

/** `key` null asks for nothing. While a new key loads, the old data stays so that nothing jumps. */
export function useResource<T>(key: string | null, fetcher: () => Promise<T>): Resource<T> {
  const at = epoch.value;
  const [state, setState] = useState<Resource<T> & { key?: string }>({ loading: key !== null });
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
    setState((old) => ({ data: old.data, loading: true, key: old.key }));
    remember(key, fetcher).then(
      (data) => alive && setState({ data, loading: false, key }),
      (error) => alive && setState({ error: wrapped(error), loading: false, key }),
    );
    return () => {
      alive = false;
    };
  }, [key, at]);
  return state;
}

function wrapped(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(error instanceof Error ? error.message : String(error), -1);
}
