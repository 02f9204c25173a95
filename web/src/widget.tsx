// A figure of heedful.view, in a notebook (anywidget) or in a page of one file.
//
//   mount(el, figure)            draws the JSON that Figure.to_json() gives
//   default.render({model, el})  what anywidget calls; model.get("figure") is that JSON
//
// In a page of one file the JSON stands in <script id="heedful-figure" type="application/json">.
import { render } from "preact";
import { FigureView } from "./figures/FigureView";
import css from "./figures/figures.css?inline";
import { theme } from "./figures/hooks";
import { unpack, unpackAll, type Tensor } from "./figures/packed";
import { say } from "./figures/say";
import type { FigureJson, Packed } from "./figures/types";

export async function mount(el: Element | ShadowRoot, figure: FigureJson, drawn?: () => void): Promise<() => void> {
  try {
    for await (const data of unpacking(figure)) {
      render(<FigureView figure={{ ...figure, data }} />, el);
      drawn?.();
    }
  } catch (fault) {
    render(<p role="alert">{say("failed", { why: String(fault) })}</p>, el);
  }
  return () => render(null, el);
}

/** The figure's data, the layer that is shown first at once and all of it when it is there. */
async function* unpacking(figure: FigureJson): AsyncGenerator<Record<string, unknown>> {
  const { patterns, ...rest } = figure.data as { patterns?: { values: Packed }[]; pattern?: number };
  const data = (await unpackAll(rest)) as Record<string, unknown>;
  if (!patterns) return yield data;
  const empty = { shape: [0], values: new Float32Array() };
  const found = patterns.map((p) => ({ ...p, values: empty as Tensor }));
  const first = rest.pattern ?? 0;
  found[first] = { ...patterns[first], values: await unpack(patterns[first].values) };
  yield { ...data, patterns: [...found] };
  for (let i = 0; i < patterns.length; i++) {
    if (i === first) continue;
    await new Promise((done) => setTimeout(done)); // the page stays quick while the rest is read
    found[i] = { ...patterns[i], values: await unpack(patterns[i].values) };
  }
  if (patterns.length > 1) yield { ...data, patterns: [...found] };
}

interface Model {
  get(name: string): unknown;
  on(event: string, act: () => void): void;
  off?(event: string, act: () => void): void;
}

function notebook({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const root = el.shadowRoot ?? el.attachShadow({ mode: "open" });
  el.dataset.theme = theme().dark ? "dark" : "light";
  const style = document.createElement("style");
  style.textContent = css + ":host { display: block; padding: 8px; background: var(--fig-background); }";
  const place = document.createElement("div");
  root.replaceChildren(style, place);
  const show = () => void mount(place, JSON.parse(model.get("figure") as string) as FigureJson);
  show();
  model.on("change:figure", show);
  return () => {
    model.off?.("change:figure", show);
    render(null, place);
  };
}

const embedded = document.getElementById("heedful-figure");
if (embedded) {
  const style = document.createElement("style");
  style.textContent = css + "body { margin: 0; padding: 16px; background: var(--fig-background); }";
  document.head.append(style);
  const place = document.getElementById("heedful-place") ?? document.body.appendChild(document.createElement("main"));
  const root = document.documentElement.dataset;
  void mount(place, JSON.parse(embedded.textContent ?? "") as FigureJson, () => (root.ready = "yes")).then(() => (root.whole = "yes"));
}

export default { render: notebook };
