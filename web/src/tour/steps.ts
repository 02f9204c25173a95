// The steps of the tour: which there are follows from the stages of a picture, and what each says from their numbers.
import type { Caps } from "../api";
import { answersAt, names, percent, quoted, rowAt, rowOf, strongest, type Look, type ModelData, type Picture, type Stage, type Vectors } from "../figures/model";
import { brief, number } from "../figures/text";
import { t } from "../strings";
import * as scenes from "./scenes";

export interface Step {
  name: string;
  title: string;
  text: string;
  equations: string[];
  stage: Stage | null; // whose page shows more
  draw: (room: scenes.Room) => scenes.Actor[];
}

type Values = Record<string, string | number>;

/** The numbers of one row of a stage's vector by its label. */
const of = (stage: Stage | undefined, label: string) => stage?.vectors.find((v) => v.label === label);
const close = (a: number, b: number, rounding = 1e-3) => Math.abs(a - b) <= rounding * Math.max(1, Math.abs(b));

export function stepsOf(data: ModelData, caps: Caps): Step[] {
  const picture = data.pictures[0];
  const { stages } = picture;
  const own = stages.filter((s) => s.path === picture.path || s.path.startsWith(`${picture.stack}.${picture.layer}.`) || s.path === `${picture.stack}.${picture.layer}`);
  const attention = own.find((s) => s.kind === "attention" && s.path === picture.path);
  const cell = own.find((s) => s.kind === "recurrence");
  const head = stages[stages.length - 1];
  const side = attention ? attention.pattern!.queries : head.side === "text" ? "tokens" : picture.row_side;
  const row = rowAt(picture, side, picture.row);
  const word = quoted(names(picture, side)[row]);
  const steps: Step[] = [];
  const add = (name: string, draw: Step["draw"], values: Values = {}, more: string[] = [], stage: Stage | null = null, equations = stage?.equations ?? []) => {
    const say = (key: string) => t(`tour.say.${key}`, { word, model: data.name, layer: picture.layer, ...values });
    steps.push({ name, title: t(`tour.titles.${name}`), text: [name, ...more].map(say).filter(Boolean).join(" "), equations, stage, draw });
  };

  const source = stages.find((s) => s.kind === "tokens")!;
  const embedding = stages.find((s) => s.kind === "embedding")!;
  const asked = source.side === side || side === "text" ? row : rowAt(picture, source.side, picture.row);
  add("sentence", (room) => scenes.sentence(room, picture, data.name, data.texts[0], head), {}, [], null);
  add("tokens", (room) => scenes.tokens(room, picture, source.side, asked), { n: names(picture, source.side).length, vocabulary: caps.vocab.toLocaleString("en-US") }, [], source);
  if (caps.reads === "images") steps[steps.length - 1].text = t("tour.say.patches", { n: names(picture, source.side).length });
  const added = embedding.vectors.slice(1, -1).map((v) => v.label);
  add("vectors", (room) => scenes.vectors(room, picture, embedding.side, embedding.vectors, asked), { n: embedding.vectors[0].size, added: added.join(t("tour.and")) }, added.length ? ["added"] : [], embedding);
  if (!added.length && embedding.note) steps[steps.length - 1].text += ` ${embedding.note}`;

  const memory = stages.find((s) => s.kind === "memory");
  if (memory) {
    add("memory", (room) => scenes.vectors(room, picture, memory.side, memory.vectors, asked), { n: stages.filter((s) => s.path.startsWith("encoder.") && (s.kind === "layer" || s.kind === "recurrence")).length }, [], memory);
    steps[steps.length - 1].text += ` ${memory.note}`;
    const written = names(picture, "target").slice(1, row + 1).map((w) => quoted(w)).join(" ");
    const target = stages.find((s) => s.kind === "embedding" && s.side === "target")!;
    add("written", (room) => scenes.vectors(room, picture, "target", target.vectors.slice(-1), row), { written, next: quoted(names(picture, "written")[row] ?? "") }, [written ? "writtenSome" : "writtenNone"], target);
  }
  if (cell && !attention) recurrent(add, picture, cell, row);
  if (attention) attentive(add, picture, caps, attention, own, row, word);
  if (cell && attention) add("states", (room) => scenes.parts(room, picture, cell.side, cell.vectors, row), { cell: cell.title }, [], cell);
  const mlp = own.find((s) => s.kind === "mlp" || s.kind === "experts" || s.kind === "convolution");
  if (mlp) {
    const sizes = { dim: embedding.vectors[0].size, hidden: of(mlp, "hidden")?.size ?? 0, kind: mlp.title, chosen: mlp.experts?.chosen.shape[1] ?? 0, experts: mlp.experts?.router.shape[1] ?? 0 };
    const sum = own.slice(own.indexOf(mlp)).find((s) => s.kind === "residual");
    add(mlp.kind, (room) => scenes.parts(room, picture, mlp.side, [...mlp.vectors, ...(sum ? sum.vectors.slice(-1) : [])], row, mlp.experts), sizes, sum ? [normed(sum)] : [], mlp);
  }
  const layers = scenes.layersOf(picture);
  if (layers.length > 1) add("layers", (room) => scenes.layers(room, picture, layers, row), { n: layers.length }, [memory ? "layersWritten" : cell && !attention ? "layersStates" : "layersTokens"], layers[0].stage, []);
  const [answer] = answersAt(picture, head, picture.row);
  const first: Values = answer ? { top: quoted(answer.names[0]), p: percent(answer.chances[0]) } : { n: head.vectors[0]?.size ?? embedding.vectors[0].size };
  const kind = head.prediction!.filled_names.length ? "fill" : head.prediction!.kind === "words" ? (head.prediction!.follows ? "next" : "words") : head.prediction!.kind === "vectors" ? "kindVectors" : head.prediction!.kind;
  const after = quoted(head.prediction!.rows[Math.min(picture.row, head.prediction!.rows.length - 1)] ?? "");
  add("prediction", (room) => scenes.prediction(room, picture, data.texts[0], head), { ...first, after }, [kind], head);
  return steps;
}

/** Whether a sum is normalized afterwards, by the equation of the layer. */
const normed = (residual: Stage) => (/= *norm\(x \+/.test(residual.equations.join()) ? "addNorm" : "add");

type Add = (name: string, draw: Step["draw"], values?: Values, more?: string[], stage?: Stage | null, equations?: string[]) => void;

/** Query, key and value of one head, one multiplication, scores, weights, their sum, all heads. */
function attentive(add: Add, picture: Picture, caps: Caps, stage: Stage, own: Stage[], row: number, word: string): void {
  const look = stage.pattern!;
  const sum = own.find((s) => s.kind === "sum" && s.path === stage.path);
  const at = Math.min(row, look.values.shape[0] - 1);
  const weights = rowOf(look.values, at);
  const keys = names(picture, look.keys);
  const best = strongest(weights, 1)[0];
  const about = { head: look.head, heads: look.heads, unit: look.unit, key: quoted(keys[best]), share: look.kind === "effective" ? brief(weights[best]) : percent(weights[best]), group: look.group };
  const [q, k, v] = [of(stage, "query"), of(stage, "key"), of(sum, "value")];
  const causal = caps.attention.some((g) => g.layers.includes(stage.path) && g.causal);
  const hidden = causal && at < keys.length - 1;
  const base = { look, at, keys };
  const norm = own[own.indexOf(stage) - 1]?.kind === "norm";
  if (q && k && v) add("qkv", (room) => scenes.heads(room, picture, base, q, k, v), { ...about, n: q.size, size: v.size }, [look.keys !== look.queries ? "qkvCross" : "qkvSelf", ...(norm ? ["qkvNorm"] : [])], stage, stage.equations.slice(0, 1));
  const product = q && k && look.scores ? largestProduct(q, k, look, at, best) : null;
  if (product && q && k) add("multiplication", (room) => scenes.product(room, q, k, at, best, product, word, quoted(keys[best])), { ...about, ...product.said }, [product.rule], stage, stage.equations.slice(1));
  if (look.scores) add("scores", (room) => scenes.scores(room, base, look.scores!, "score"), about, [q ? "scoresProduct" : "scoresOther", look.keys !== look.queries ? "source" : hidden ? "hidden" : causal ? "last" : "all"], stage, q ? stage.equations.slice(1) : stage.equations);
  const total = weights.reduce((s, x) => s + x, 0);
  const rule = look.kind === "effective" ? "effective" : Math.abs(total - 1) > 1e-3 ? "sink" : look.scores ? "softmaxRule" : "positive";
  add("softmax", (room) => scenes.scores(room, base, look.values, "weight"), { ...about, total: brief(total) }, [rule], stage);
  const z = of(sum, "weighted sum");
  if (v && z && v.size > 1) add("sum", (room) => scenes.weighted(room, picture, base, v, z), { ...about, n: v.size }, [], sum!);
  const residual = own.slice(own.indexOf(stage)).find((s) => s.kind === "residual");
  const mlp = own.some((s) => ["mlp", "experts", "convolution"].includes(s.kind));
  const more = [look.heads > 1 ? "several" : "single", ...(look.group > 1 ? ["grouped"] : []), ...(residual ? [normed(residual)] : []), ...(mlp || !residual ? [] : ["noMlp"])];
  if (look.heads > 1 || residual) add("heads", (room) => scenes.everyHead(room, picture, base, residual), { ...about, groups: look.heads / look.group }, more, residual ?? stage);
}

export interface Product { j: number; a: number; b: number; dot: number; score: number; rule: string; said: Values }

/** The largest of the products that a score is the sum of, and how the score follows from the sum; null where a vector was cut. */
function largestProduct(q: Vectors, k: Vectors, look: Look, row: number, key: number): Product | null {
  const [a, b] = [rowOf(q.numbers, row), rowOf(k.numbers, key)];
  if (a.length < q.size || b.length < q.size) return null;
  const products = Array.from(a, (x, j) => x * b[j]);
  const j = strongest(products, 1)[0];
  const dot = products.reduce((s, x) => s + x, 0);
  const score = rowOf(look.scores!, row)[key];
  const rule = close(dot / Math.sqrt(q.size), score) ? "divided" : close(dot, score) ? "undivided" : "biased";
  return { j, a: a[j], b: b[j], dot, score, rule, said: { j: j + 1, a: number(a[j], 3), b: number(b[j], 3), p: number(products[j], 3), size: q.size, root: brief(Math.sqrt(q.size)), dot: number(dot, 3), score: number(score, 3) } };
}

/** A recurrent cell: the state that is carried, its gates, one multiplication, the new state. */
function recurrent(add: Add, picture: Picture, cell: Stage, row: number): void {
  const state = of(cell, "state h")!;
  const at = rowAt(picture, cell.side, row);
  const gates = cell.vectors.filter((v) => v.label.endsWith("gate"));
  const carried = cell.vectors.filter((v) => v.label === "cell c" || v.label === "state h");
  add("state", (room) => scenes.vectors(room, picture, cell.side, carried, at, true), { cell: cell.title, n: state.size }, [carried.length > 1 ? "stateCell" : "stateAlone"], cell, []);
  if (gates.length) add("gates", (room) => scenes.parts(room, picture, cell.side, cell.vectors.filter((v) => !carried.includes(v)), at), {}, [carried.length > 1 ? "gatesLstm" : "gatesGru"], cell, cell.equations.slice(0, 1));
  const step = update(cell, at);
  if (step) add("cellProduct", (room) => scenes.update(room, step), { ...step.said, before: step.before, after: step.after }, [], cell, cell.equations.slice(1, 2));
  add("output", (room) => scenes.parts(room, picture, cell.side, [...gates.slice(-1), ...carried], at), { n: state.size }, [carried.length > 1 ? "outputLstm" : "outputOther"], cell, cell.equations.slice(-1));
}

export interface Update { j: number; keep: number; old: number; take: number; fresh: number; now: number; before: string; after: string; said: Values }

/** How one number of a cell or a state changes, by whichever of the equations gives the model's own number; else null. */
function update(cell: Stage, row: number): Update | null {
  const at = (label: string, i = row) => {
    const v = of(cell, label);
    return v && i >= 0 && i < v.numbers.shape[0] ? rowOf(v.numbers, i) : null;
  };
  const lstm = of(cell, "cell c") !== undefined;
  const label = lstm ? "cell c" : "state h";
  const [now, fresh] = [at(label), at("candidate")];
  const [keep, take] = lstm ? [at("forget gate"), at("input gate")] : [at("update gate"), at("update gate")];
  if (!now || !fresh || !keep || !take) return null;
  for (const old of [at(label, row - 1), at(label, row + 1)]) {
    if (!old) continue;
    for (const [f, i] of lstm ? [[keep, take]] : [[keep.map((x) => 1 - x), take], [keep, take.map((x) => 1 - x)]]) {
      const sums = Array.from(now, (_, j) => f[j] * old[j] + i[j] * fresh[j]);
      if (!now.every((x, j) => close(sums[j], x, 2e-2))) continue; // a model in 16 bits rounds in between
      const exact = Array.from(now, (x, j) => (Math.abs(sums[j] - x) < 6e-4 ? f[j] * old[j] : 0));
      const j = strongest(exact, 1)[0];
      if (!exact[j]) continue;
      const say = (x: number) => number(x, 3);
      const said = { j: j + 1, f: say(f[j]), c: say(old[j]), p: say(f[j] * old[j]), i: say(i[j]), g: say(fresh[j]), s: say(i[j] * fresh[j]), now: say(now[j]) };
      return { j, keep: f[j], old: old[j], take: i[j], fresh: fresh[j], now: now[j], before: t(lstm ? "tour.cell" : "tour.stateWord"), after: t(lstm ? "tour.lstmKeep" : "tour.gruKeep"), said };
    }
  }
  return null;
}
