// Home: one text on its way through a model; then the doors, which models there are, what is in the one chosen, runs.
import { useModels, type Caps, type ModelRow } from "../api";
import { Doors } from "../doors";
import { get } from "../http";
import { FirstPicture, useReads } from "../picture";
import { useResource } from "../resource";
import { t } from "../strings";
import { Await, count, CopyPython, Facts, Go, Measured, Panel, Warnings } from "../ui";
import { str } from "../url";
import type { Run } from "./train";

export function HomePage({ caps }: { caps: Caps | undefined }) {
  const models = useModels();
  const runs = useResource<{ runs: Run[] }>("runs", () => get("/api/runs"));
  const id = str("m") || models.data?.default;
  return (
    <>
      <div class="title first">
        <h1>{t("home.title")}</h1>
        <div class="row">
          <Go to="tour" class="button primary">{t("home.startTour")}</Go>
          <Go to="play" class="button">{t("home.startPlay")}</Go>
        </div>
        <p class="lede">{t("ledes.home")}</p>
      </div>
      {useReads() ? <FirstPicture model={str("m")} /> : null}
      <Doors />
      <section class="stack">
        <h2>{t("home.models")}</h2>
        <Await of={models}>{({ models }) => (
          models.length ? <div class="cards models">{models.map((m) => <Card key={m.id} model={m} on={m.id === id} />)}</div> : <p>{t("home.noModels")}</p>
        )}</Await>
        <p class="foot">{t("home.addYours")} <code>heed studio PATH</code></p>
      </section>
      {caps ? <Inside caps={caps} /> : null}
      <div class="stack">
        <Panel title={t("home.runs")}>
          <Await of={runs}>{({ runs }) => (
            runs.length ? (
              <ul class="plain">
                {runs.map((run) => (
                  <li key={run.id}>
                    <Go to="train" with={{ run: run.id }}>{run.id}</Go>{" "}
                    <span class="muted small">{t("home.steps", { n: count(run.steps) })}</span>{" "}
                    {run.live ? <span class="badge good">{t("train.live")}</span> : null}
                  </li>
                ))}
              </ul>
            ) : <p class="muted">{t("home.noRuns")}</p>
          )}</Await>
        </Panel>
      </div>
    </>
  );
}

function Card({ model, on }: { model: ModelRow; on: boolean }) {
  if (model.error) {
    return (
      <div class="panel model">
        <h3>{model.id}</h3>
        <Warnings of={[model.error]} />
      </div>
    );
  }
  return (
    <Go to="home" with={{ m: model.id }} class={`panel model ${on ? "on" : ""}`} current={on}>
      <h3>{model.id}</h3>
      <span class="muted small">
        {[model.family, model.kind && t(`kinds.${model.kind}`), model.params ? t("home.params", { n: short(model.params) }) : ""].filter(Boolean).join(" · ")}
      </span>
      <span class="row">{(model.tasks ?? []).slice(0, 3).map((task) => <span class="badge" key={task}>{t(`tasks.${task}`)}</span>)}</span>
    </Go>
  );
}

export function short(n: number): string {
  return n >= 1e9 ? `${(n / 1e9).toFixed(1)} B` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : n >= 1e3 ? `${(n / 1e3).toFixed(0)} k` : String(n);
}

/** "What is in this model": the capability record in words. */
function Inside({ caps }: { caps: Caps }) {
  const heads = caps.attention.map((g) => t(g.kind === "effective" ? "home.effective" : "home.group", { title: g.title, layers: g.layers.length, heads: [...new Set(g.heads)].join("/") }));
  const rows: [string, string][] = [
    [t("facts.family"), caps.family],
    [t("facts.kind"), t(`kinds.${caps.kind}`)],
    [t("facts.params"), count(caps.params)],
    [t("facts.dim"), count(caps.dim)],
    [t("facts.vocab"), count(caps.vocab)],
    [t("facts.attention"), heads.join("; ") || t("facts.none")],
    [t("facts.recurrent"), caps.recurrent.map((r) => `${r.cell} ${r.hidden}`).join("; ") || t("facts.none")],
    [t("facts.position"), t(`positions.types.${caps.position.type}`)],
    [t("facts.context"), Object.values(caps.context ?? {}).map((n) => (n === null ? t("facts.nolimit") : count(n))).join(" / ") || "–"],
    [t("facts.tokenizer"), caps.tokenizer ? `${caps.tokenizer.kind}, ${count(caps.tokenizer.size)}` : t("facts.none")],
    [t("facts.tasks"), caps.tasks.map((k) => t(`tasks.${k}`)).join(", ") || t("facts.none")],
  ];
  return (
    <Panel title={t("home.inside", { model: caps.id })}>
      <Facts rows={rows} />
      <Measured caps={caps} />
      {caps.card ? (
        <details>
          <summary>{t("home.card")}</summary>
          <pre tabIndex={0} aria-label={t("home.card")}>{caps.card}</pre>
        </details>
      ) : null}
      <CopyPython python={caps.python} />
    </Panel>
  );
}
