// The glossary page: every term with its definition, its equation and the page that shows it.
import { useEffect, useRef } from "preact/hooks";
import type { Caps } from "../api";
import { Definition, GLOSSARY } from "../glossary";
import { t } from "../strings";
import { Go, Title } from "../ui";
import { set, str } from "../url";

export function GlossaryPage({ caps }: { caps: Caps | undefined }) {
  const wanted = str("term");
  const chosen = useRef<HTMLLIElement>(null);
  const search = str("find").toLowerCase();
  useEffect(() => chosen.current?.scrollIntoView({ block: "center" }), [wanted]);
  const terms = GLOSSARY.filter((e) => !search || [e.text, ...e.names].some((text) => text.toLowerCase().includes(search)));
  const sorted = [...terms].sort((a, b) => a.names[0].localeCompare(b.names[0], "en", { sensitivity: "base" }));
  return (
    <>
      <Title name="glossary" />
      <div class="field">
        <label for="find">{t("glossary.find")}</label>
        <input id="find" type="search" data-input value={str("find")} onInput={(e) => set({ find: e.currentTarget.value, term: null }, "replace")} />
      </div>
      <ul class="plain cards terms" aria-label={t("pages.glossary")}>
        {sorted.map((entry) => (
          <li key={entry.id} ref={entry.id === wanted ? chosen : undefined} class={`panel stack tight ${entry.id === wanted ? "pointed" : ""}`} data-term={entry.id}>
            <p><Definition entry={entry} /></p>
            {entry.page ? <p class="small"><Go to={entry.page}>{t("glossary.see", { page: t(`pages.${entry.page}`) })}</Go></p> : null}
          </li>
        ))}
      </ul>
      {sorted.length ? null : <p>{t("glossary.none", { model: caps?.id ?? "" })}</p>}
    </>
  );
}
