// Figures: whatever heedful.view draws of this model and text, from the figure's own JSON. A new one needs no code here.
import { asked, modelPath, useTrace, type Caps, type Trace } from "../api";
import type { FigureJson } from "../figures";
import { unpackAll } from "../figures";
import { FigureView } from "../figures/FigureView";
import { get, queried } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Ask, Await, NumberField, Panel, Select, Title, Warnings } from "../ui";
import { choice, num, set } from "../url";

/** `numbers` are parameters of a figure with their least and greatest value; one that the address leaves out is chosen by the server. */
type Listed = { figures: { name: string; about: string; numbers: Record<string, [number, number]> }[] };

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
        const { about, numbers } = figures.find((f) => f.name === name)!;
        const query = Object.fromEntries(Object.keys(numbers).map((key) => [key, num(key, -1)]).filter(([, value]) => Number(value) >= 0)) as Record<string, number>;
        return (
          <>
            <div class="row">
              <Select label={t("figures.which")} value={name} onChange={(figure) => set({ figure }, "replace")} choices={names.map((n) => ({ value: n, label: n.replaceAll("_", " ") }))} />
              {Object.entries(numbers).map(([key, [min, max]]) => <NumberField key={key} label={t(`figures.${key}`)} value={query[key] ?? ""} min={min} max={max} step={1} onChange={(value) => set({ [key]: String(value) }, "replace")} />)}
            </div>
            <p class="muted">{about}</p>
            <Await of={trace}>{(found) => (
              <>
                <Warnings of={found.warnings} />
                <OneFigure key={`${found.id} ${name}`} trace={found} name={name} query={query} />
              </>
            )}</Await>
          </>
        );
      }}</Await>
    </>
  );
}

function OneFigure({ trace, name, query }: { trace: Trace; name: string; query: Record<string, number> }) {
  const path = `/api/trace/${encodeURIComponent(trace.id)}/figures/${name}`;
  const found = useResource<FigureJson>(`figure ${path}${queried(query)}`, async (signal) => {
    const figure = await get<FigureJson>(path, query, signal);
    return { ...figure, data: (await unpackAll(figure.data)) as Record<string, unknown> };
  });
  return (
    <Panel>
      <Await of={found}>{(figure) => (
        <>
          <FigureView figure={figure} />
          <p class="muted small">{t("figures.files")} {["html", "svg", "csv"].map((format) => <><a href={path + queried({ ...query, format })} download>{`.${format}`}</a>{" "}</>)}</p>
        </>
      )}</Await>
    </Panel>
  );
}
