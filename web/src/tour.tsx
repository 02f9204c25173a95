// The tour: a few stops, each an address of an ordinary page. What is shown there is the page itself, nothing staged.
import { useModels, type ModelRow } from "./api";
import { Explained } from "./glossary";
import { Guide } from "./guide";
import { t } from "./strings";
import { Go } from "./ui";
import { place, set, type Patch } from "./url";

const SENTENCE = "The cat sat on the";

/** Where each stop is, and what it speaks of there: the page's figure, or what the selector names. */
export const STOPS: { page: string; with: Patch; selector?: string }[] = [
  { page: "tokens", with: { x: SENTENCE }, selector: "main .chips" },
  { page: "space", with: { w: "day" } },
  { page: "positions", with: { x: SENTENCE } },
  { page: "attention", with: { x: SENTENCE, view: "matrix" } },
  { page: "attention", with: { x: SENTENCE, view: "grid" } },
  { page: "steps", with: { x: SENTENCE, topic: "attention" } },
  { page: "layers", with: { x: SENTENCE } },
  { page: "predict", with: { x: SENTENCE, T: "0.8" } },
  { page: "play", with: { x: SENTENCE, task: "text-generation", go: true, max: 20 }, selector: "main [data-part=answer]" },
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
  const actions = (
    <>
      {at > 1 ? <Go {...to(at - 1)} class="button">{t("common.previous")}</Go> : null}
      {at < STOPS.length ? <Go {...to(at + 1)} class="button primary">{t("common.next")}</Go> : null}
      <button type="button" class="quiet" onClick={() => set({ tour: null }, "replace")}>{t("tour.end")}</button>
    </>
  );
  return (
    <Guide name={`tour ${at}`} label={t("tour.label")} title={t("tour.stop", { n: at, of: STOPS.length, title: t(`tour.stops.${at}.title`) })} actions={actions} selector={STOPS[at - 1].selector}>
      <p class="small"><Explained text={t(`tour.stops.${at}.text`)} /> <strong>{t("tour.try")}</strong> {t(`tour.stops.${at}.try`)}</p>
    </Guide>
  );
}
