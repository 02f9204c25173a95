// Reports: what `heed race` and `heed scale` measured, as sentences and figures, from the files they wrote.
import type { FigureJson } from "../figures";
import { unpackAll } from "../figures";
import { FigureView } from "../figures/FigureView";
import { get } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Await, Panel, Select, Title } from "../ui";
import { choice, set } from "../url";

type Section = { name: string; title: string; text: string[]; figure: FigureJson };
type Report = { id: string; title: string; command: string; about: Record<string, string>; sections: Section[]; path: string | null; example: boolean };

export function ReportsPage() {
  const listed = useResource<{ reports: string[] }>("reports", () => get("/api/reports"));
  return (
    <>
      <Title name="reports" />
      <Await of={listed}>{({ reports }) => {
        const id = choice("report", reports, reports[0]);
        return (
          <>
            {reports.length > 1 ? <div class="row"><Select label={t("reports.which")} value={id} onChange={(report) => set({ report }, "replace")} choices={reports.map((name) => ({ value: name, label: name }))} /></div> : null}
            <OneReport key={id} id={id} />
          </>
        );
      }}</Await>
    </>
  );
}

function OneReport({ id }: { id: string }) {
  const found = useResource<Report>(`report ${id}`, async (signal) => {
    const report = await get<Report>(`/api/reports/${encodeURIComponent(id)}`, {}, signal);
    const unpacked = async (s: Section) => ({ ...s, figure: { ...s.figure, note: "", about: {}, data: (await unpackAll(s.figure.data)) as Record<string, unknown> } });
    return { ...report, sections: await Promise.all(report.sections.map(unpacked)) };
  });
  return (
    <Await of={found}>{(report) => (
      <>
        {report.example ? <Panel><p>{t("reports.example")}</p><pre>heed race --quick{"\n"}heed scale --quick</pre></Panel> : null}
        <Panel title={report.title}>
          <p class="muted">{Object.entries(report.about).map(([name, value]) => `${name}: ${value}`).join(" · ")}</p>
          <pre>{report.command}</pre>
          {report.path ? <p class="muted small">{t("reports.files")} <code>{report.path}</code></p> : null}
        </Panel>
        {report.sections.map((section) => (
          <Panel key={section.name} title={section.title}>
            {section.text.map((line) => <p key={line}>{line}</p>)}
            <FigureView figure={section.figure} />
          </Panel>
        ))}
      </>
    )}</Await>
  );
}
