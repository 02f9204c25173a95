// Doors: views that are worth opening, each already set. On Home they are links; on the page they open, a card says what is shown.
import { Explained } from "./glossary";
import { Guide } from "./guide";
import { get } from "./http";
import { useResource, type Resource } from "./resource";
import { t } from "./strings";
import { Await, brief, Go, Panel } from "./ui";
import { place, set, type Patch } from "./url";

export type Door = {
  id: string; title: string; caption: string; notice: string; question: boolean; page: string; part: string; text: string; with: Record<string, string>;
};

export function useDoors(): Resource<{ doors: Door[] }> {
  return useResource("doors", () => get("/api/doors"));
}

/** The address of a door: what it sets, and nothing of what was there before. */
export function addressOf(door: Door): Patch {
  return { x: null, y: null, off: null, abl: null, ref: null, sub: null, ...door.with, door: door.id };
}

/** The doors on Home: first the questions, then the sentences. */
export function Doors() {
  const doors = useDoors();
  return (
    <Await of={doors}>{({ doors }) => (
      <>
        <section class="stack" aria-label={t("doors.questions")}>
          <h2>{t("doors.questions")}</h2>
          <ul class="plain cards doors">
            {doors.filter((d) => d.question).map((door) => (
              <li key={door.id}>
                <Go to={door.page} with={addressOf(door)} class="panel door">
                  <h3>{door.title}</h3>
                  <span class="muted small">{[t(`pages.${door.page}`), door.with.ex ? "" : door.with.m].filter(Boolean).join(" · ")}</span>
                </Go>
              </li>
            ))}
          </ul>
        </section>
        <Panel title={t("doors.sentences")}>
          <ul class="plain twice">
            {doors.filter((d) => !d.question).map((door) => (
              <li key={door.id}>
                <Go to={door.page} with={addressOf(door)}>{door.title}</Go>
                <span class="muted small"> <span dir="auto">{brief(door.text, 60)}</span></span>
              </li>
            ))}
          </ul>
        </Panel>
      </>
    )}</Await>
  );
}

// What may be changed without leaving the view that the caption speaks of: the row and the cell one looks at.
const FREE = ["q", "k", "go"];

/** What the door that was opened shows, on top of its page, until it is dismissed. */
export function DoorCard() {
  const { page, params } = place.value;
  const doors = useDoors();
  const door = doors.data?.doors.find((d) => d.id === params.door);
  if (!params.door || !door || door.page !== page) return null;
  const other = ["m", "x", "y"].some((key) => (params[key] ?? "") !== (door.with[key] ?? ""));
  const moved = other || Object.entries(door.with).some(([key, value]) => !FREE.includes(key) && params[key] !== value);
  const close = <button type="button" class="quiet" onClick={() => set({ door: null }, "replace")}>{t("common.close")}</button>;
  return (
    <Guide name={`door ${door.id}`} label={t("doors.label")} title={door.title} actions={close} selector={door.part ? `main [data-part=${door.part}]` : undefined}>
      {other ? null : <p class="small"><Explained text={door.caption} /> <strong>{t("doors.notice")}</strong> <Explained text={door.notice} /></p>}
      {moved ? <p class="muted small">{t("doors.moved")} <Go to={door.page} with={addressOf(door)}>{t("doors.back")}</Go></p> : null}
    </Guide>
  );
}
