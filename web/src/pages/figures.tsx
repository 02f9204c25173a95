// Figures: whatever heedful.view draws of this model and text, from the figure's own JSON. A new one needs no code here.
import { asked, modelPath, useTrace, type Caps, type Trace } from "../api";
import type { FigureJson } from "../figures";
import { unpackAll } from "../figures";
import { FigureView } from "../figures/FigureView";
import { get } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Ask, Await, Panel, Select, Title, Warnings } from "../ui";
import { choice, set } from "../url";

type Listed = { figures: { name: string; about: string }[] };

export function FiguresPage({ caps }: { caps: Caps }) {
  const question = asked(caps);
  const trace = useTrace(question);
  const listed = useResource<Listed>(`figures ${caps.id}`, () => get(`${modelPath(caps.id)}/figures`));
  return (
    <>
      <Title name="figures" />
      <Ask caps={caps} text={question.text} />
      <Await of={listed}>{({ figures }) => {
        const names = figures.map((f) => f.name);
        const name = choice("figure", names, names[0]);
        return (
          <>
            <div class="row"><Select label={t("figures.which")} value={name} onChange={(figure) => set({ figure }, "replace")} choices={names.map((n) => ({ value: n, label: n.replaceAll("_", " ") }))} /></div>
            <p class="muted">{figures.find((f) => f.name === name)?.about}</p>
            <Await of={trace}>{(found) => (
              <>
                <Warnings of={found.warnings} />
                <OneFigure key={`${found.id} ${name}`} trace={found} name={name} />
              </>
            )}</Await>
          </>
        );
      }}</Await>
    </>
  );
}

function OneFigure({ trace, name }: { trace: Trace; name: string }) {
  const path = `/api/trace/${encodeURIComponent(trace.id)}/figures/${name}`;
  const found = useResource<FigureJson>(`figure ${path}`, async (signal) => {
    const figure = await get<FigureJson>(path, {}, signal);
    return { ...figure, data: (await unpackAll(figure.data)) as Record<string, unknown> };
  });
  return (
    <Panel>
      <Await of={found}>{(figure) => (
        <>
          <FigureView figure={figure} />
          <p class="muted small">{t("figures.files")} {["html", "svg", "csv"].map((format) => <><a href={`${path}?format=${format}`} download>{`.${format}`}</a>{" "}</>)}</p>
        </>
      )}</Await>
    </Panel>
  );
}
