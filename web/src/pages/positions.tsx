// Positions: how a model knows the order of its tokens, and what it loses when they are shuffled.
import { asked, modelPath, tensor, useOf, useTrace, type Caps, type Tensor } from "../api";
import { Curves, drawBars, drawCurves, drawMatrix, Matrix } from "../figures";
import { Figure, heat, matrixCsv, plotted } from "../figure";
import { Explained } from "../glossary";
import { get } from "../http";
import { useResource } from "../resource";
import { t } from "../strings";
import { Ask, Await, Chips, CopyPython, figure, Panel, Select, Slider, Title, TopList } from "../ui";
import { set, str, whole } from "../url";

type Positions = {
  type: string; length: number; tensors: Record<string, number[]>; slopes: number[] | null; buckets: unknown; frequencies: number[] | null;
  base: number | null; note: string; formula: string; python: string;
};

export function PositionsPage({ caps }: { caps: Caps }) {
  const length = whole("length", 48, 4, 256);
  const path = `${modelPath(caps.id)}/positions`;
  const positions = useResource<Positions>(`positions ${path} ${length}`, () => get(path, { length }));
  return (
    <>
      <Title name="positions" />
      <Await of={positions}>{(p) => (
        <>
          <Panel title={t(`positions.types.${p.type}`)}>
            {p.formula ? <p class="mono">{p.formula}</p> : null}
            {p.note ? <p>{p.note}</p> : null}
            <p class="muted"><Explained text={t(`positions.about.${p.type}`)} /></p>
            {Object.keys(p.tensors ?? {}).length ? (
              <Slider label={t("positions.length")} value={length} min={4} max={256} onChange={(n) => set({ length: n }, "replace")} />
            ) : null}
            <CopyPython python={p.python} />
          </Panel>
          {Object.keys(p.tensors ?? {}).map((name) => <OneTensor key={name} path={path} name={name} of={p} model={caps.id} />)}
          {p.slopes?.length ? <Slopes slopes={p.slopes} of={p} model={caps.id} /> : null}
        </>
      )}</Await>
      {caps.kind === "vectors" ? <Panel title={t("positions.order")}><p>{t("positions.noOrder")}</p></Panel> : caps.reads === "images" ? null : <Shuffle caps={caps} />}
    </>
  );
}

function OneTensor({ path, name, of, model }: { path: string; name: string; of: Positions; model: string }) {
  const found = useResource<Tensor>(`position ${path} ${name} ${of.length}`, () => tensor(`${path}/tensor`, { name, length: of.length }));
  return <Panel><Await of={found}>{(data) => <Drawn name={name} data={data} of={of} model={model} />}</Await></Panel>;
}

const numbered = (n: number) => Array.from({ length: n }, (_, i) => String(i));

function Drawn({ name, data, of, model }: { name: string; data: Tensor; of: Positions; model: string }) {
  const title = t(`positions.tensors.${name}`);
  const note = t(`positions.notes.${name}`);
  const { shape } = data;
  if (shape.length === 1) {
    const curves = [{ name: title, x: Array.from(data.values.keys()), y: data.values }];
    const spec = { curves, xTitle: t("positions.distance"), yTitle: title };
    return (
      <Figure title={title} note={note} name={`positions-${name}`} model={model} python={of.python} drawing={() => drawCurves(spec)} html={plotted(title, curves)} csv={() => [["distance", name], ...Array.from(data.values, (v, i) => [i, v])]}>
        <Curves {...spec} title={title} controls={false} />
      </Figure>
    );
  }
  const heads = shape.length === 3 ? shape[0] : 1;
  const head = whole("h", 0, 0, heads - 1);
  const [T, S] = shape.slice(-2);
  const values = data.values.subarray(head * T * S, (head + 1) * T * S).map((v) => (Number.isFinite(v) ? v : NaN));
  const rows = numbered(T);
  const columns = numbered(S);
  const signed = values.some((v) => v < 0);
  const sizes = Float32Array.from(values.filter(Number.isFinite), Math.abs).sort();
  const limit = sizes[Math.floor(0.99 * (sizes.length - 1))] || undefined; // a few outliers would leave all others white
  return (
    <>
      {heads > 1 ? <Select label={t("attention.head")} value={String(head)} onChange={(h) => set({ h }, "replace")} choices={numbered(heads).map((h) => ({ value: h, label: h }))} /> : null}
      <Figure title={title} note={note} name={`positions-${name}`} model={model} python={of.python} drawing={() => drawMatrix({ rows, columns, values, signed, limit, compact: name !== "bias" })} csv={() => matrixCsv(rows, columns, values)}
        html={heat(title, rows, columns, values, signed, t("positions.position"))}>
        <Matrix compact={T !== S} rows={rows} columns={columns} values={values} title={title} signed={signed} limit={limit} rowTitle={t("positions.position")}
          columnTitle={t(T === S && name !== "table" ? "positions.position" : "positions.dimension")} />
      </Figure>
    </>
  );
}

function Slopes({ slopes, of, model }: { slopes: number[]; of: Positions; model: string }) {
  const title = t("positions.slopes");
  const rows = slopes.map((value, i) => ({ label: t("attention.headName", { head: i }), value }));
  return (
    <Panel>
      <Figure title={title} name="slopes" model={model} python={of.python} drawing={() => drawBars(rows, 560, (v) => figure(v))} csv={() => [["head", "slope"], ...slopes.map((s, i) => [i, s])]}>
        <TableOf rows={rows} />
      </Figure>
    </Panel>
  );
}

function TableOf({ rows }: { rows: { label: string; value: number }[] }) {
  return <table><tbody>{rows.map((r) => <tr key={r.label}><th scope="row">{r.label}</th><td class="n">{figure(r.value)}</td></tr>)}</tbody></table>;
}

type Order = {
  over: "next" | "token" | "target" | "labels" | "tags" | "spans" | null; positions: number; token: string; shuffled: string[]; before: { shown: string; p: number }[]; after: { shown: string; p: number }[]; kl: number | null; kl_without_positions: number | null; cosine: number | null; python: string;
};

/** The same tokens in another order: what changes is what the model knows of order. */
function Shuffle({ caps }: { caps: Caps }) {
  const question = asked(caps);
  const trace = useTrace(question);
  const seed = whole("seed", 0);
  const order = useOf<Order>(trace.data, str("shuffle") === "0" ? null : "order", { seed });
  return (
    <>
      <h2>{t("positions.order")}</h2>
      <p class="muted"><Explained text={t("positions.orderLede")} /></p>
      <Ask caps={caps} text={question.text} extra={<button type="button" onClick={() => set({ seed: seed + 1 }, "replace")}>{t("positions.again")}</button>} />
      {trace.error ? <Await of={trace}>{() => null}</Await> : (
        <Await of={order}>{(o) => (
          <Panel>
            <Chips tokens={o.shuffled.map((token) => ({ shown: token, special: false, id: 0 }))} label={t("positions.shuffled")} />
            <dl class="facts">
              {o.kl === null || o.over === null ? null : (<><dt>{t(`positions.kl.${o.over}`, { n: o.positions, token: o.token })}</dt><dd>{figure(o.kl)}</dd></>)}
              {o.kl_without_positions === null || o.kl_without_positions === undefined ? null : (<><dt>{t("positions.without")}</dt><dd data-without-positions>{figure(Math.abs(o.kl_without_positions) < 1e-6 ? 0 : o.kl_without_positions)}</dd></>)}
              {o.cosine === null || o.cosine === undefined ? null : (<><dt>{t("positions.cosine")}</dt><dd>{figure(o.cosine)}</dd></>)}
            </dl>
            {o.before?.length && o.over === "target" ? <p>{t("positions.most", { token: o.token })}</p> : null}
            {o.before?.length ? <TopList before={o.before} top={o.after} /> : null}
            <CopyPython python={o.python} />
          </Panel>
        )}</Await>
      )}
    </>
  );
}
