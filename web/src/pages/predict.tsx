// Prediction: logits → temperature → top-k → top-p → min-p → draw. Recomputed here at every move of a slider, and by Python beside it.
import { useEffect, useMemo, useState } from "preact/hooks";
import { useNumbersOf, useVocabulary, type Caps, type PredictionAt, type Trace } from "../api";
import { chain, draw, drawBars, listed, Prediction, uniform, type Sampling } from "../figures";
import { Figure } from "../figure";
import { post } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Await, Chips, CopyPython, figure, Panel, percent, TopList, Scroll } from "../ui";
import { num, place, set, whole } from "../url";
import { TracePage } from "./trace";

export function PredictPage({ caps }: { caps: Caps }) {
  const usable = caps.kind !== "vectors" && caps.predicts !== null && caps.predicts !== "vectors";
  const kind = caps.predicts !== "words" ? "answers" : caps.kind === "encoder" ? "masked" : "next";
  return (
    <TracePage name="predict" caps={caps} usable={usable} lede={t(`predict.ledes.${kind}`)}>
      {(trace) => (caps.predicts === "words" ? <Words caps={caps} trace={trace} /> : <Panel title={t("predict.answer")}><Other trace={trace} prediction={trace.prediction} /><CopyPython python={trace.python} /></Panel>)}
    </TracePage>
  );
}

/** What the address says about choosing: nothing said is temperature 1 and every token. */
export function samplingOf(): Sampling {
  const has = (key: string) => place.value.params[key] !== undefined;
  const within = (key: string, otherwise: number, least: number, most: number) => Math.min(most, Math.max(least, num(key, otherwise)));
  return {
    temperature: within("T", 1, 0, 100),
    topK: has("topk") ? whole("topk", 1, 1, 1e9) : null,
    topP: has("topp") ? within("topp", 1, 0.001, 1) : null,
    minP: has("minp") ? within("minp", 0, 0, 1) : null,
  };
}

function Words({ caps, trace }: { caps: Caps; trace: Trace }) {
  const rows = trace.target ?? trace.tokens;
  const start = trace.prediction.position ?? rows.length - 1;
  const position = whole("pos", start < 0 ? rows.length - 1 : start, 0, rows.length - 1);
  const logits = useNumbersOf(trace, "logits", { position });
  const vocabulary = useVocabulary(caps.id);
  const causal = caps.kind !== "encoder";
  const mask = caps.mask_token;
  const masked = rows[position]?.text === mask;
  return (
    <>
      <Panel>
        <p class="label">{t(causal ? "predict.after" : "predict.at")}</p>
        <Chips tokens={rows} picked={position} onPick={(pos) => set({ pos }, "replace")} label={t(causal ? "predict.after" : "predict.at")} />
        {!causal && mask && !masked ? <p class="muted small">{t("predict.unmasked", { mask })}</p> : null}
      </Panel>
      <Await of={logits}>{({ values }) => <Await of={vocabulary}>{({ shown }) => <Chosen trace={trace} logits={values} shown={shown} position={position} title={t(causal ? "predict.title" : masked ? "predict.titleMasked" : "predict.titleAt")} />}</Await>}</Await>
    </>
  );
}

function Chosen({ trace, logits, shown, position, title }: { trace: Trace; logits: Float32Array; shown: string[]; position: number; title: string }) {
  const { T, topk, topp, minp } = place.value.params;
  const sampling = useMemo(samplingOf, [T, topk, topp, minp]);
  const seed = whole("seed", 0);
  const steps = useMemo(() => chain(logits, sampling), [logits, sampling]);
  const token = useMemo(() => draw(steps.final, uniform(seed)), [steps, seed]);
  const name = (id: number) => shown[id] ?? `<${id}>`;
  const change = (next: Sampling, nextSeed: number) =>
    set({ T: next.temperature === 1 ? null : next.temperature, topk: next.topK, topp: next.topP, minp: next.minP, seed: nextSeed || null }, "replace");
  const most = () => listed(logits, 20, token);
  return (
    <Panel>
      <Figure title={title} name="prediction" model={trace.model}
        drawing={() => drawBars(most().map((id) => ({ label: name(id), value: steps.final[id], chosen: id === token })))}
        csv={() => [["id", "token", "logit", "p", "temperature", "top_k", "top_p", "final"], ...most().map((id) => [id, name(id), logits[id], steps.p[id], steps.heated[id], steps.topK[id], steps.topP[id], steps.final[id]])]}
        html={{ kind: "next_token", data: { logits, names: shown, sampling: { temperature: sampling.temperature, top_k: sampling.topK, top_p: sampling.topP, min_p: sampling.minP }, seed, count: 20 } }} python={trace.python}>
        <Prediction names={name} logits={logits} sampling={sampling} seed={seed} onChange={change} title={t("predict.table")} />
      </Figure>
      <Python trace={trace} position={position} sampling={sampling} seed={seed} page={token} />
    </Panel>
  );
}

type Predicted = { token: { id: number; text: string; shown: string }; u: number; kept: number; python: string };

/** The same choice made by Python, beside the page's. */
function Python({ trace, position, sampling, seed, page }: { trace: Trace; position: number; sampling: Sampling; seed: number; page: number }) {
  const body = { trace: trace.id, position, temperature: sampling.temperature, top_k: sampling.topK, top_p: sampling.topP, min_p: sampling.minP, seed, count: 1 };
  const key = JSON.stringify(body);
  const [asked, setAsked] = useState(key);
  useEffect(() => {
    const timer = window.setTimeout(() => setAsked(key), 200); // a slider in motion asks when it comes to rest
    return () => window.clearTimeout(timer);
  }, [key]);
  const said = useResource<Predicted>(`predict ${asked}`, () => post("/api/predict", JSON.parse(asked)));
  if (said.error) return <Await of={said}>{() => null}</Await>;
  const fresh = said.data && !said.loading && asked === key ? said.data : undefined;
  const agree = fresh?.token.id === page;
  return (
    <div class="stack tight">
      <p class="row" data-page-token={page} data-python-token={fresh?.token.id ?? ""}>
        {fresh ? (
          <>
            <span class={`badge ${agree ? "good" : "bad"}`}>{t(agree ? "predict.agree" : "predict.disagree")}</span>
            <span>{t("predict.python", { token: fresh.token.shown, u: figure(fresh.u, 6) })}</span>
          </>
        ) : <span class="busy">{t("common.working")}</span>}
      </p>
      <CopyPython python={fresh?.python} />
    </div>
  );
}

/** Labels, tags and spans need no draw. */
export function Other({ trace, prediction }: { trace: Trace; prediction: PredictionAt }) {
  if (prediction.tags) {
    return (
      <Scroll label={t("predict.answer")}><table>
        <thead><tr><th>{t("predict.token")}</th><th>{t("predict.label")}</th><th class="n">p</th></tr></thead>
        <tbody>{prediction.tags.map((tag) => (
          <tr key={tag.token}><td class="mono" dir="auto">{trace.tokens[tag.token]?.shown}</td><td>{tag.label}</td><td class="n">{percent(tag.p)}</td></tr>
        ))}</tbody>
      </table></Scroll>
    );
  }
  if (prediction.start && prediction.end) {
    return (
      <Scroll label={t("predict.answer")}><table>
        <thead><tr><th>{t("predict.token")}</th><th class="n">{t("predict.start")}</th><th class="n">{t("predict.end")}</th></tr></thead>
        <tbody>{trace.tokens.map((token, i) => (
          <tr key={i}><td class="mono" dir="auto">{token.shown}</td><td class="n">{percent(prediction.start![i] ?? 0)}</td><td class="n">{percent(prediction.end![i] ?? 0)}</td></tr>
        ))}</tbody>
      </table></Scroll>
    );
  }
  if (prediction.top?.length) return <TopList top={prediction.top} />;
  return <p class="muted">{t("predict.vectors")}</p>;
}

