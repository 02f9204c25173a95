// Find the head where A looks at B: a search over all heads of all layers.
import { useOf, type Trace } from "../api";
import { t } from "../strings";
import { Await, CopyPython, figure, Go, Scroll, TextField, useDraft } from "../ui";
import { set, str } from "../url";

type Found = { heads: { name: string; head: number; weight: number; chance: number; query: number; key: number }[]; python: string };

/** Where a part stands on this page: its group and the number of its layer. */
function locate(trace: Trace, path: string): { group: string; layer: number } | null {
  for (const group of trace.groups) {
    const layer = group.layers.indexOf(path);
    if (layer >= 0) return { group: group.name, layer };
  }
  return null;
}

export function FindHeads({ trace }: { trace: Trace }) {
  const [from, to] = [str("fa"), str("fb")];
  const [a, setA] = useDraft(from);
  const [b, setB] = useDraft(to);
  const send = () => set({ fa: a.trim(), fb: b.trim() });
  const found = useOf<Found>(from && to ? trace : undefined, from && to ? "find" : null, { query: from, key: to, count: 8 });
  return (
    <details class="panel" open={Boolean(from && to)} data-find>
      <summary>{t("find.title")}</summary>
      <div class="stack tight">
        <form class="row" onSubmit={(e) => { e.preventDefault(); send(); }}>
          <TextField label={t("find.query")} value={a} onInput={setA} rows={1} required send={send} />
          <TextField label={t("find.key")} value={b} onInput={setB} rows={1} required send={send} />
          <button type="submit">{t("find.search")}</button>
        </form>
        {from && to ? (
          <Await of={found}>{({ heads, python }) => (
            <>
              <Scroll label={t("find.title")}><table>
                <thead><tr><th>{t("find.head")}</th><th class="n">{t("attention.of.pattern")}</th><th class="n">{t("find.even")}</th></tr></thead>
                <tbody>{heads.map((h) => {
                  const at = locate(trace, h.name);
                  return (
                    <tr key={`${h.name} ${h.head}`}>
                      <td>{at ? <Go to="attention" with={{ g: at.group, l: at.layer, h: h.head, q: h.query, fa: from, fb: to, view: "matrix" }}>{t("find.at", { layer: at.layer, head: h.head })}</Go> : `${h.name} ${h.head}`} {trace.groups.length > 1 ? <span class="muted small">{h.name}</span> : null}</td>
                      <td class="n">{figure(h.weight, 3)}</td><td class="n">{figure(h.chance, 2)}</td>
                    </tr>
                  );
                })}</tbody>
              </table></Scroll>
              <CopyPython python={python} />
            </>
          )}</Await>
        ) : <p class="muted small">{t("find.lede")}</p>}
      </div>
    </details>
  );
}
