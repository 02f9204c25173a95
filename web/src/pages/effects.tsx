// Which heads matter here: each switched off alone, told while it is done; who leaves stops it.
import { useEffect, useState } from "preact/hooks";
import type { Trace } from "../api";
import { call, events, Problem, queried } from "../http";
import { pending } from "../resource";
import { t } from "../strings";
import { CopyPython, figure, Scroll, Wrong } from "../ui";
import { set, str } from "../url";

type Found = { effects: Record<string, number[]>; python: string };
type State = { done: number; of: number; found?: Found; error?: Problem };

/** The stream of effects while this is on the page; taken off it, or asked for something else, it is closed. */
function useEffects(path: string | null): State {
  const [state, setState] = useState<State>({ done: 0, of: 0 });
  useEffect(() => {
    setState({ done: 0, of: 0 });
    if (!path) return;
    const leave = new AbortController();
    const follow = async () => {
      pending.value++;
      try {
        for await (const { event, data } of events(await call(path, { signal: leave.signal }))) {
          if (event === "progress") setState(data as { done: number; of: number });
          else if (event === "done") setState({ done: 0, of: 0, found: data as Found });
          else if (event === "error") throw wrong(data);
        }
      } catch (error) {
        if (!leave.signal.aborted) setState({ done: 0, of: 0, error: error instanceof Problem ? error : new Problem(String(error), -1) });
      } finally {
        pending.value--;
      }
    };
    void follow();
    return () => leave.abort();
  }, [path]);
  return state;
}

function wrong(data: unknown): Problem {
  const { error } = data as { error: { message: string; hint: string | null } };
  return new Problem(error.message, 422, error.hint ?? "");
}

export function Effects({ group, trace }: { group: string; trace: Trace }) {
  const wanted = str("fx") === "1";
  const mean = str("abl") === "mean";
  const path = `/api/trace/${encodeURIComponent(trace.id)}/effects${queried({ group, mean: mean ? "true" : undefined })}`;
  const { done, of, found, error } = useEffects(wanted ? path : null);
  if (!wanted) return <div class="row"><button type="button" onClick={() => set({ fx: true })}>{t("attention.effects")}</button><span class="muted small">{t("attention.effectsCost")}</span></div>;
  if (error) return <Wrong error={error} />;
  if (!found) return <Progress done={done} of={of} />;
  const rows = Object.entries(found.effects).flatMap(([path, values]) => values.map((kl, head) => ({ path, head, kl }))).sort((a, b) => b.kl - a.kl);
  return (
    <div class="stack tight">
      <h3>{t("attention.effectsTitle")}{mean ? ` · ${t("attention.insteads.mean")}` : ""}</h3>
      <Scroll label={t("attention.effectsTitle")}><table>
        <thead><tr><th>{t("attention.layer")}</th><th class="n">{t("attention.head")}</th><th class="n">{t("attention.klMean")}</th></tr></thead>
        <tbody>{rows.slice(0, 8).map((r) => (
          <tr key={`${r.path}${r.head}`}><td>{r.path}</td><td class="n">{r.head}</td><td class="n">{figure(r.kl)}</td></tr>
        ))}</tbody>
      </table></Scroll>
      <CopyPython python={found.python} />
    </div>
  );
}

function Progress({ done, of }: { done: number; of: number }) {
  const said = of ? t("attention.effectsDone", { done, of }) : t("common.working");
  return (
    <div class="row">
      <progress max={of || 1} value={done} aria-label={t("attention.effectsTitle")} />
      <span class="busy">{said}</span>
      <button type="button" onClick={() => set({ fx: null })}>{t("common.cancel")}</button>
    </div>
  );
}
