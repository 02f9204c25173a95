// The tour's page: the picture of the sentence in the address, step by step, and the form for one's own sentence.
import { useCaps, type Caps } from "../api";
import { AskPicture, usePicture, useReads } from "../picture";
import { Tour } from "../tour/Tour";
import { t } from "../strings";
import { Await, Panel, Title } from "../ui";
import { str } from "../url";

export function TourPage({ caps: chosen }: { caps: Caps | undefined }) {
  const { drawn } = usePicture(str("m"), useReads());
  const caps = useCaps(drawn.data ? drawn.data.data.name : null);
  if (chosen?.kind === "vectors") return <><Title name="tour" /><Panel><p>{t("tour.vectors")}</p></Panel></>;
  return (
    <>
      <div class="title first"><h1>{t("pages.tour")}</h1><p class="lede">{t("ledes.tour")}</p></div>
      <Await of={drawn} wait={t("picture.wait")}>{(figure) => (
        <>
          <Await of={caps}>{(caps) => <Tour key={figure.path} figure={figure} caps={caps} />}</Await>
          <div class="panel"><AskPicture model={figure.data.name} text={figure.data.texts[0]} /></div>
        </>
      )}</Await>
    </>
  );
}
