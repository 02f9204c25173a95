// One head with and without the division by √d_k: the same queries and keys, two softmaxes.
import { useTensor, type Trace } from "../api";
import { drawMatrix, Matrix } from "../figures";
import { Figure, heat, matrixCsv } from "../figure";
import { t } from "../strings";
import { Await, figure, Panel, Scroll } from "../ui";
import { axes, layerNumber, names, type At } from "./attention";

/** Bits of the mean row: how widely a head divides its attention. */
export function meanEntropy(values: ArrayLike<number>, columns: number): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > 0) sum -= values[i] * Math.log2(values[i]);
  return (sum * columns) / values.length;
}

function largest(values: Float32Array, row: number, columns: number): number {
  return Math.max(...values.subarray(row * columns, (row + 1) * columns));
}

export function WithAndWithout({ at, trace, row, onRow, masked }: { at: At; trace: Trace; row: number | null; onRow: (row: number | null) => void; masked?: Uint8Array }) {
  const with_ = useTensor(trace, { name: `${at.path}.pattern`, head: at.head });
  const without = useTensor(trace, { name: `${at.path}.unscaled`, head: at.head });
  const [rows, columns] = [names(trace, at.group.queries), names(trace, at.group.keys)];
  const [rowTitle, columnTitle] = axes(at.group);
  const size = trace.shapes[`${at.path}.q`]?.at(-1) ?? 0;
  return (
    <Panel title={t("scaled.title", { layer: layerNumber(at.path, at.layer), head: at.head, d: size })}>
      <p class="muted">{t("scaled.lede")}</p>
      <Await of={with_}>{(a) => <Await of={without}>{(b) => {
        const both = [a.values, b.values].map((values, i) => ({ values, title: t(i ? "scaled.without" : "scaled.with") }));
        return (
          <>
            <div class="cols half">
              {both.map(({ values, title }) => (
                <Figure key={title} title={title} name={`scaled-${at.path}-${at.head}`} model={trace.model} python={trace.python}
                  drawing={() => drawMatrix({ rows, columns, values, masked, rowTitle, columnTitle, limit: 1 })} csv={() => matrixCsv(rows, columns, values)}
                  html={heat(title, rows, columns, values, false, rowTitle, columnTitle)}>
                  <Matrix rows={rows} columns={columns} values={values} title={title} masked={masked} limit={1} rowTitle={rowTitle} columnTitle={columnTitle} pinned={row} onPin={onRow} />
                </Figure>
              ))}
            </div>
            <Scroll label={t("scaled.numbers")}><table data-scaled>
              <thead><tr><td /><th class="n">{t("scaled.with")}</th><th class="n">{t("scaled.without")}</th></tr></thead>
              <tbody>
                {row === null ? null : <tr><th scope="row">{t("scaled.largest", { token: rows[row] })}</th>{both.map((x) => <td class="n" key={x.title}>{figure(largest(x.values, row, columns.length))}</td>)}</tr>}
                <tr><th scope="row">{t("scaled.entropy")}</th>{both.map((x) => <td class="n" key={x.title}>{figure(meanEntropy(x.values, columns.length))}</td>)}</tr>
              </tbody>
            </table></Scroll>
          </>
        );
      }}</Await>}</Await>
    </Panel>
  );
}
