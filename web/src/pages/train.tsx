// Training: curves of runs as they are written, samples, and the checkpoints that any other page can look into.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Caps } from "../api";
import { Curves, drawCurves, type Curve } from "../figures";
import { Figure, plotted } from "../figure";
import { epoch, get, online } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Await, copy, CopyPython, count, figure, Go, Panel, Segments, Select, Slider, Title } from "../ui";
import { choice, num, set, str, whole } from "../url";

export type Run = { id: string; path: string; steps: number; updated: number; live: boolean; example: boolean; last: Record<string, number> };
type Series = { step: number[]; value: number[]; tokens: (number | null)[] | null; seconds: (number | null)[] | null };
type RunData = {
  id: string; metrics: Record<string, Series>; samples: { step: number; text: string }[]; checkpoints: { step: number; model: string }[];
  config: string; live: boolean; example: boolean; skipped: number; command: string; python: string;
};

export function TrainPage(_: { caps: Caps | undefined }) {
  const runs = useResource<{ runs: Run[] }>("runs", () => get("/api/runs"));
  return (
    <>
      <Title name="train" />
      <Await of={runs}>{({ runs }) => {
        if (!runs.length) return <Own />;
        const id = runs.some((r) => r.id === str("run")) ? str("run") : runs[0].id;
        return (
          <>
            <div class="row">
              <Select label={t("train.run")} value={id} onChange={(v) => set({ run: v })} choices={runs.map((r) => ({ value: r.id, label: r.live ? `${r.id} (${t("train.live")})` : r.id }))} />
              <Select label={t("train.other")} value={str("run2")} onChange={(v) => set({ run2: v })} choices={[{ value: "", label: t("tokens.noCompare") }, ...runs.filter((r) => r.id !== id).map((r) => ({ value: r.id, label: r.id }))]} />
            </div>
            {runs.find((r) => r.id === id)?.example ? <Own example /> : null}
            <OneRun key={id} id={id} other={str("run2")} />
          </>
        );
      }}</Await>
    </>
  );
}

const COMMAND = "heed train shakespeare-char-cpu input.txt --steps 500";

/** How to start a run of one's own, and that the one below is an example. */
function Own({ example }: { example?: boolean }) {
  return (
    <Panel title={t("train.own")} part="own">
      <p>{t(example ? "train.example" : "train.none")}</p>
      <pre tabIndex={0} aria-label={t("train.command")}>{COMMAND}</pre>
      <div class="row"><button type="button" onClick={() => copy(COMMAND)}>{t("common.copy")}</button></div>
    </Panel>
  );
}

/** A run and what is added to it while one looks. */
function useRun(id: string): { data?: RunData; fault?: string; read: boolean } {
  const [data, setData] = useState<RunData>();
  const [fault, setFault] = useState<string>();
  const at = epoch.value;
  const seen = useRef<RunData>(undefined);
  useEffect(() => {
    if (!id) return;
    let source: EventSource | undefined;
    let alive = true;
    const path = `/api/runs/${encodeURIComponent(id)}`;
    const read = async () => {
      try {
        const run = await get<RunData>(path);
        if (!alive) return;
        seen.current = run;
        setData(run);
        setFault(undefined);
      } catch (error) {
        if (alive) setFault(error instanceof Error ? error.message : String(error));
      }
    };
    const listen = () => {
      source = new EventSource(`${path}/live`);
      let due = 0;
      // New points are read from the run itself, at most twice a second: one way to read a run is enough.
      const soon = () => {
        if (!due) due = window.setTimeout(() => ((due = 0), void read()), 500);
      };
      for (const name of ["metrics", "checkpoint", "reset"]) source.addEventListener(name, soon);
    };
    void read().then(() => {
      if (alive && seen.current?.live) listen();
    });
    return () => {
      alive = false;
      source?.close();
    };
  }, [id, at]);
  return { data, fault, read: data !== undefined };
}

function OneRun({ id, other }: { id: string; other: string }) {
  const run = useRun(id);
  const second = useRun(other);
  if (run.fault && !run.data) return <div class="note bad" role="alert"><p>{run.fault}</p></div>;
  if (!run.data) return <p class="busy" role="status">{t("common.working")}</p>;
  const { data } = run;
  const metrics = Object.keys(data.metrics);
  const groups = [...new Set(metrics.map((m) => m.split("/")[0]))];
  return (
    <>
      <div class="row">
        {data.live && online.value ? <span class="badge good" data-live-run>{t("train.live")}</span> : <span class="badge">{t("train.finished")}</span>}
        {data.skipped ? <span class="badge warn">{t("train.skipped", { n: data.skipped })}</span> : null}
      </div>
      <Checkpoints run={data} />
      {metrics.length ? <Plots run={data} second={other ? second.data : undefined} metrics={metrics} groups={groups} /> : <Panel><p>{t("train.empty")}</p></Panel>}
      {data.samples.length ? <Samples run={data} /> : null}
      <Panel title={t("train.setting")}>
        {data.command ? <pre tabIndex={0} aria-label={t("train.command")}>{data.command}</pre> : null}
        {data.config ? <details><summary>{t("train.config")}</summary><pre tabIndex={0} aria-label={t("train.config")}>{data.config}</pre></details> : null}
        <CopyPython python={data.python} />
      </Panel>
    </>
  );
}

/** A checkpoint is a model: choosing one takes every other page to that moment. */
function Checkpoints({ run }: { run: RunData }) {
  const all = run.checkpoints;
  if (!all.length) return null;
  const now = Math.max(0, all.findIndex((c) => c.model === str("m")));
  const chosen = all.some((c) => c.model === str("m"));
  return (
    <Panel title={t("train.checkpoints")}>
      <div class="row">
        <Slider label={t("train.step")} value={now} min={0} max={Math.max(1, all.length - 1)} shown={chosen ? count(all[now].step) : "–"} onChange={(i) => set({ m: all[Math.min(i, all.length - 1)].model }, "replace")} />
        {chosen ? (
          <>
            {["attention", "predict", "layers", "space"].map((page) => <Go key={page} to={page} class="button">{t(`pages.${page}`)}</Go>)}
            <Go to="compare" with={{ a: all[0].model, b: all[now].model }} class="button">{t("train.compareFirst")}</Go>
          </>
        ) : <span class="muted">{t("train.choose")}</span>}
      </div>
    </Panel>
  );
}

const XS = ["step", "tokens", "seconds"] as const;

function Plots({ run, second, metrics, groups }: { run: RunData; second?: RunData; metrics: string[]; groups: string[] }) {
  const metric = choice("metric", metrics, metrics.find((x) => /loss/.test(x)) ?? metrics[0]);
  const there = XS.filter((v) => v === "step" || run.metrics[metric][v]?.some((at) => at !== null));
  const x = there.find((v) => v === str("by")) ?? "step";
  const family = metric.replace(/^[^/]*\//, "");
  const together = groups.map((g) => `${g}/${family}`).filter((name) => metrics.includes(name));
  const shown = together.length ? together : [metric];
  const of = (r: RunData, label: (m: string) => string): Curve[] => shown.filter((m) => r.metrics[m]).map((m) => curve(r.metrics[m], x, label(m)));
  const curves = second ? [...of(run, (m) => `${run.id} ${m}`), ...of(second, (m) => `${second.id} ${m}`)] : of(run, (m) => m);
  const logY = str("logy") === "1";
  const smooth = num("smooth", 0);
  const title = family;
  const spec = { curves, xTitle: t(`train.by.${x}`), yTitle: family, logY, smooth };
  return (
    <Panel>
      <div class="row">
        <Select label={t("train.metric")} value={metric} onChange={(v) => set({ metric: v })} choices={metrics.map((m) => ({ value: m, label: m }))} />
        {there.length > 1 ? <Segments label={t("train.over")} value={x} onChange={(v) => set({ by: v })} choices={there.map((v) => ({ value: v, label: t(`train.by.${v}`) }))} /> : null}
        <span class="muted">{t("train.last", { value: figure(run.metrics[metric]?.value.at(-1)), step: count(run.metrics[metric]?.step.at(-1)) })}</span>
      </div>
      <Figure title={title} name={`run-${run.id}-${family}`} model={run.id} python={run.python} drawing={() => drawCurves(spec)} html={plotted(family, curves)} csv={() => [["name", x, "value"], ...curves.flatMap((c) => Array.from(c.x, (v, i) => [c.name, v, c.y[i]]))]}>
        <Curves {...spec} title={title} onView={(v) => set({ logy: v.logY, smooth: v.smooth || null }, "replace")} />
      </Figure>
    </Panel>
  );
}

function curve(series: Series, by: (typeof XS)[number], name: string): Curve {
  const xs = by === "step" ? series.step : series[by];
  if (!xs) return { name, x: series.step, y: series.value };
  const kept = xs.map((v, i) => [v, series.value[i]] as const).filter(([v]) => v !== null);
  return { name, x: kept.map(([v]) => v as number), y: kept.map(([, y]) => y) };
}

function Samples({ run }: { run: RunData }) {
  const last = run.samples.length - 1;
  const at = whole("sample", last, 0, last);
  return (
    <Panel title={t("train.samples")}>
      {last > 0 ? <Slider label={t("train.step")} value={at} min={0} max={last} shown={count(run.samples[at].step)} onChange={(i) => set({ sample: i }, "replace")} /> : null}
      <p class="answer" dir="auto">{run.samples[at].text}</p>
    </Panel>
  );
}
