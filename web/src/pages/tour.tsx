// The start of the tour: what it leads through.
import { useModels, type Caps } from "../api";
import { t } from "../strings";
import { guide, STOPS } from "../tour";
import { Await, Go, Panel, Title } from "../ui";

export function TourPage({ caps }: { caps: Caps | undefined }) {
  const models = useModels();
  return (
    <>
      <Title name="tour" />
      <Await of={models}>{({ models }) => {
        const model = guide(models, caps?.id ?? "");
        if (!model) return <Panel><p>{t("home.noModels")}</p></Panel>;
        return (
          <>
            <p><Go to={STOPS[0].page} with={{ ...STOPS[0].with, m: model, tour: 1 }} class="button primary">{t("tour.start")}</Go></p>
            <ol class="stack">
              {STOPS.map((stop, i) => (
                <li key={i}>
                  <Go to={stop.page} with={{ ...stop.with, m: model, tour: i + 1 }}>{t(`tour.stops.${i + 1}.title`)}</Go>
                  <p class="muted">{t(`tour.stops.${i + 1}.text`)}</p>
                </li>
              ))}
            </ol>
          </>
        );
      }}</Await>
    </>
  );
}
