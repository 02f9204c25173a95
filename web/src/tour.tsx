// The tour: a few stops, each an address of an ordinary page. What is shown there is the page itself, nothing staged.
import { useModels, type ModelRow } from "./api";
import { t } from "./strings";
import { Go } from "./ui";
import { place, type Patch } from "./url";

const SENTENCE = "The cat sat on the";

export const STOPS: { page: string; with: Patch }[] = [
  { page: "tokens", with: { x: SENTENCE } },
  { page: "space", with: { w: "cat" } },
  { page: "positions", with: { x: SENTENCE } },
  { page: "attention", with: { x: SENTENCE, view: "matrix" } },
  { page: "attention", with: { x: SENTENCE, view: "grid" } },
  { page: "steps", with: { x: SENTENCE, topic: "attention" } },
  { page: "layers", with: { x: SENTENCE } },
  { page: "predict", with: { x: SENTENCE, T: "0.8" } },
  { page: "play", with: { x: SENTENCE, task: "text-generation" } },
];

/** A model that writes on: the tour needs one that predicts the next word. */
export function guide(models: ModelRow[], chosen: string): string {
  const writes = models.filter((m) => !m.error && m.kind === "decoder");
  return (writes.find((m) => m.id === chosen) ?? writes[0] ?? models.find((m) => !m.error))?.id ?? "";
}

/** The card that walks along, on top of the page it speaks of. */
export function Tour() {
  const { params } = place.value;
  const models = useModels();
  const at = Number(params.tour);
  if (!params.tour || !Number.isInteger(at) || at < 1 || at > STOPS.length) return null;
  const model = guide(models.data?.models ?? [], params.m ?? "") || params.m;
  const to = (n: number) => ({ to: STOPS[n - 1].page, with: { ...STOPS[n - 1].with, m: model, off: null, y: null, tour: n } });
  return (
    <section class="panel stack tour" aria-label={t("tour.label")}>
      <h2>{t("tour.stop", { n: at, of: STOPS.length })} · {t(`tour.stops.${at}.title`)}</h2>
      <p>{t(`tour.stops.${at}.text`)}</p>
      <p class="muted">{t(`tour.stops.${at}.try`)}</p>
      <div class="row between">
        <div class="row">
          {at > 1 ? <Go {...to(at - 1)} class="button">{t("common.previous")}</Go> : null}
          {at < STOPS.length ? <Go {...to(at + 1)} class="button primary">{t("common.next")}</Go> : <Go to="home" class="button primary">{t("tour.end")}</Go>}
        </div>
        <ol aria-label={t("tour.stopsLabel")}>
          {STOPS.map((_, i) => <li key={i}><Go {...to(i + 1)} current={i + 1 === at} label={t(`tour.stops.${i + 1}.title`)}>{i + 1}</Go></li>)}
        </ol>
      </div>
    </section>
  );
}
