// The states of the tour's picture: which tokens, vectors, bars and numbers are seen, and where. An actor that two steps
// share by its key moves from one place to the other; all others fade in and out.
import { answersAt, names, percent, rowAt, rowOf, strongest, type Experts, type Look, type Picture, type Side, type Stage, type Vectors } from "../figures/model";
import type { Tensor } from "../figures/packed";
import { greatest } from "../figures/Patch";
import { textWidth } from "../figures/pen";
import { short, shown } from "../figures/text";
import { t } from "../strings";
import type { Product, Update } from "./steps";

export interface Room { w: number; h: number }
export interface Actor {
  key: string; kind: "text" | "vector" | "bar" | "box" | "grid"; x: number; y: number; w: number; h: number;
  text?: string; of?: Tensor; row?: number; limit?: number; tone?: string; align?: "start" | "center" | "end"; fade?: number;
}
/** What a head's scenes are about: its pattern, the row, and what the keys are called. */
interface Head { look: Look; at: number; keys: string[] }

const TOP = 26; // above the first row, for the names of the columns
const LINE = 18; // a line of text
const GAP = 12;
const SIZE = 14; // of letters

const text = (key: string, x: number, y: number, w: number, said: string, more: Partial<Actor> = {}): Actor => ({ key, kind: "text", x, y, w, h: LINE, text: said, ...more });
const vector = (key: string, x: number, y: number, w: number, h: number, of: Vectors, row: number, more: Partial<Actor> = {}): Actor =>
  ({ key, kind: "vector", x, y, w, h, of: of.numbers, row, limit: greatest(of.numbers), ...more });
const title = (key: string, x: number, w: number, said: string, align: Actor["align"] = "start"): Actor => text(`title:${key}`, x, 0, w, cut(said, w, 12), { tone: "soft small", align });

const fixed = (x: number) => x.toFixed(2).replace(/^-(?!0\.00$)/, "−").replace(/^-/, "");

/** A text that fits a width, cut at its end. */
function cut(said: string, w: number, size = SIZE): string {
  if (textWidth(said, size) <= w) return said;
  let letters = [...said];
  while (letters.length > 1 && textWidth(`${letters.join("")}…`, size) > w) letters = letters.slice(0, -1);
  return `${letters.join("")}…`;
}

/** One line for each token: all of them, or the most important ones in their order. */
interface Rows { shown: number[]; y: (place: number) => number; pitch: number; label: number; tokens: Actor[] }

function rowsOf(room: Room, tokens: string[], chosen: number, weights?: ArrayLike<number>, below = 0, top = TOP): Rows {
  const space = room.h - top - below - (tokens.length * LINE > room.h - top - below ? LINE : 0);
  const most = Math.max(2, Math.floor(space / LINE));
  const wanted = weights ? strongest(weights, most) : Array.from({ length: Math.min(most, tokens.length) }, (_, i) => Math.max(0, Math.min(chosen - (most >> 1), tokens.length - most)) + i);
  const list = (wanted.includes(chosen) || chosen >= tokens.length ? wanted : [...wanted.slice(0, -1), chosen]).sort((a, b) => a - b);
  const pitch = Math.min(44, space / list.length);
  const y = (place: number) => top + place * pitch;
  const label = Math.min(room.w * 0.24, Math.max(...list.map((i) => textWidth(shown(tokens[i]), SIZE))) + 6);
  const actors = list.map((i, place) => text(`token:${i}`, 0, y(place) + pitch / 2 - LINE / 2, label, cut(short(tokens[i], 16), label), { tone: i === chosen ? "on" : "" }));
  if (list.length < tokens.length) actors.push(text("cut", 0, y(list.length) + 2, room.w, t("tour.someTokens", { n: list.length, of: tokens.length }), { tone: "soft" }));
  return { shown: list, y, pitch, label, tokens: actors };
}

/** As many columns side by side as are named, beside the tokens. */
function columns(room: Room, rows: Rows, count: number): { x: (i: number) => number; w: number } {
  const w = (room.w - rows.label - GAP * count) / count;
  return { x: (i) => rows.label + GAP + i * (w + GAP), w };
}

export function sentence(room: Room, picture: Picture, name: string, said: string, head: Stage): Actor[] {
  const [answer] = answersAt(picture, head, picture.row);
  const middle = room.h / 2;
  const lines = wrap(said || picture.tokens.map(shown).join(" "), room.w - 24, 20).slice(0, 4);
  return [
    ...lines.map((line, i) => text(`said:${i}`, 0, middle - 60 - (lines.length - i) * 28, room.w, line, { align: "center", tone: "large" })),
    text("down", 0, middle - 48, room.w, "↓", { align: "center", tone: "soft" }),
    { key: "model", kind: "box", x: room.w / 2 - 110, y: middle - 22, w: 220, h: 44, text: name },
    text("down2", 0, middle + 30, room.w, "↓", { align: "center", tone: "soft" }),
    ...(answer ? [text("top", 0, middle + 64, room.w, `${shown(answer.names[0])}  ${percent(answer.chances[0])}`, { align: "center", tone: "large" }), text("asked", 0, middle + 94, room.w, cut(answer.title, room.w), { align: "center", tone: "soft" })] : []),
  ];
}

/** A text in lines that fit a width; a script without spaces is cut anywhere. */
function wrap(said: string, w: number, size: number): string[] {
  const lines = [""];
  for (const word of said.split(/(?<= )|(?=[\u3000-\u9fff])/)) {
    if (textWidth(lines[lines.length - 1] + word, size) > w && lines[lines.length - 1]) lines.push("");
    lines[lines.length - 1] += word;
  }
  return lines.map((line) => cut(line.trim(), w, size));
}

export function tokens(room: Room, picture: Picture, side: Side, chosen: number): Actor[] {
  let [x, y] = [0, 0];
  const placed: Actor[] = [];
  for (const [i, token] of names(picture, side).entries()) {
    const w = Math.min(room.w, textWidth(short(token, 16), SIZE) + 18);
    if (x + w > room.w) [x, y] = [0, y + 40];
    if (y + 80 > room.h) {
      placed.push(text("cut", 0, room.h - LINE, room.w, t("tour.someTokens", { n: i, of: names(picture, side).length }), { tone: "soft" }));
      break;
    }
    placed.push({ ...text(`token:${i}`, x, y, w, short(token, 16), { tone: i === chosen ? "chip on" : "chip", align: "center" }), h: 28 });
    x += w + 8;
  }
  const down = Math.max(0, (room.h - y - 40) / 2 - 20);
  return placed.map((a) => (a.key === "cut" ? a : { ...a, y: a.y + down }));
}

/** The vectors of every token, a column for each kind; carried ones lead from line to line. */
export function vectors(room: Room, picture: Picture, side: Side, listed: Vectors[], chosen: number, carried = false): Actor[] {
  const rows = rowsOf(room, names(picture, side), chosen);
  const { x, w } = columns(room, rows, listed.length);
  const sum = listed.length > 1 && !carried;
  return [
    ...rows.tokens,
    ...listed.flatMap((of, k) => [
      title(`vector${k}`, x(k), w, `${sum && k ? (k === listed.length - 1 ? "= " : "+ ") : ""}${of.label}`),
      ...rows.shown.map((i, place) => vector(k === listed.length - 1 ? `x:${i}` : `part${k}:${i}`, x(k), rows.y(place) + 3, w, rows.pitch - 6, of, i, { tone: i === chosen ? "on" : carried && place ? "carried" : "" })),
    ]),
  ];
}

/** The query of one row, and a key and a value of every token that it can look at. */
export function heads(room: Room, _: Picture, { look, at, keys }: Head, q: Vectors, k: Vectors, v: Vectors): Actor[] {
  const rows = rowsOf(room, keys, look.keys === look.queries ? at : keys.length, rowOf(look.values, at));
  const { x, w } = columns(room, rows, 3);
  const own = Math.max(0, rows.shown.indexOf(look.keys === look.queries ? at : 0));
  return [
    ...rows.tokens, title("q", x(0), w, t("tour.query")), title("k", x(1), w, t("tour.keys")), title("v", x(2), w, t("tour.values")),
    vector("q", x(0), rows.y(own) + 3, w, rows.pitch - 6, q, at, { tone: "on" }),
    ...rows.shown.flatMap((i, place) => [
      vector(`k:${i}`, x(1), rows.y(place) + 3, w, rows.pitch - 6, k, i), vector(`v:${i}`, x(2), rows.y(place) + 3, w, rows.pitch - 6, v, i),
    ]),
  ];
}

/** Query and key, number by number: the largest of their products, and what all come to. */
export function product(room: Room, q: Vectors, k: Vectors, row: number, key: number, of: Product, word: string, other: string): Actor[] {
  const [x, w] = [0, room.w];
  const cell = w / q.size;
  const limit = Math.max(greatest(q.numbers), greatest(k.numbers));
  const products = Array.from(rowOf(q.numbers, row), (a, j) => a * rowOf(k.numbers, key)[j]);
  const all = { shape: [1, products.length], values: Float32Array.from(products) };
  const [one, two, three] = [LINE, 2.1 * LINE + 34, 3.2 * LINE + 68];
  const left = Math.min(w - Math.max(cell, 14), Math.max(0, of.j * cell + cell / 2 - Math.max(cell, 14) / 2));
  const end = of.rule === "divided" ? `${of.said.dot} / √${of.said.size} = ${of.said.score}` : of.rule === "undivided" ? `${t("tour.score")} ${of.said.score}` : `${of.said.dot} … → ${t("tour.score")} ${of.said.score}`;
  return [
    text("title:q", 0, 0, w, t("tour.queryOf", { word }), { tone: "soft" }), vector("q", x, one, w, 34, q, row, { limit, tone: "on" }),
    text("title:k", 0, two - LINE, w, t("tour.keyOf", { word: other }), { tone: "soft" }), vector(`k:${key}`, x, two, w, 34, k, key, { limit }),
    text("title:products", 0, three - LINE, w, t("tour.products"), { tone: "soft" }), { key: "products", kind: "vector", x, y: three, w, h: 34, of: all, row: 0, limit: greatest(all) },
    { key: "pointer", kind: "box", x: left, y: one - 2, w: Math.max(cell, 14), h: three + 38 - one, tone: "frame" },
    text("one", 0, three + 50, w, `${of.said.a} × ${of.said.b} = ${of.said.p}`, { tone: "large", align: "center" }),
    text("sum", 0, three + 84, w, t("tour.sumOf", { n: q.size, dot: of.said.dot }), { align: "center" }),
    text("score", 0, three + 114, w, end, { tone: "large", align: "center" }),
  ];
}

/** The scores or the weights of a row: a number and a bar for each key. */
export function scores(room: Room, { look, at, keys }: Head, of: Tensor, what: "score" | "weight"): Actor[] {
  const rows = rowsOf(room, keys, look.keys === look.queries ? at : keys.length, rowOf(look.values, at));
  const values = rowOf(of, at);
  const finite = Array.from(values).filter(Number.isFinite);
  const [least, most] = [Math.min(0, ...finite), Math.max(0, ...finite)];
  const span = most - least || 1;
  const left = rows.label + GAP + 66 + GAP;
  const zero = left + ((room.w - left) * -least) / span;
  return [
    ...rows.tokens, title("number", rows.label + GAP, 66, t(`tour.${what}`), "end"),
    ...rows.shown.flatMap((i, place): Actor[] => {
      const y = rows.y(place) + rows.pitch / 2 - LINE / 2;
      if (!Number.isFinite(values[i])) return [text(`number:${i}`, rows.label + GAP, y, 66, t("tour.masked"), { tone: "soft", align: "end" })];
      const w = (Math.abs(values[i]) * (room.w - left)) / span;
      const said = what === "score" || look.kind === "effective" ? fixed(values[i]) : percent(values[i]);
      return [text(`number:${i}`, rows.label + GAP, y, 66, said, { align: "end" }), { key: `bar:${i}`, kind: "bar", x: values[i] < 0 ? zero - w : zero, y: rows.y(place) + 4, w: Math.max(1, w), h: rows.pitch - 8, tone: values[i] < 0 ? "below" : what }];
    }),
  ];
}

/** Every value as strong as its weight, and their sum. */
export function weighted(room: Room, _: Picture, { look, at, keys }: Head, v: Vectors, z: Vectors): Actor[] {
  const weights = rowOf(look.values, at);
  const most = Math.max(...Array.from(weights, Math.abs), 1e-9);
  const rows = rowsOf(room, keys, look.keys === look.queries ? at : keys.length, weights, 54);
  const left = rows.label + GAP + 84;
  const [w, below] = [room.w - left, room.h - 30];
  return [
    ...rows.tokens, title("number", rows.label + GAP, 72, t("tour.weight"), "end"), title("v", left, w, t("tour.timesValue")),
    ...rows.shown.flatMap((i, place) => [
      text(`number:${i}`, rows.label + GAP, rows.y(place) + rows.pitch / 2 - LINE / 2, 66, look.kind === "effective" ? fixed(weights[i]) : percent(weights[i]), { align: "end" }),
      vector(`v:${i}`, left, rows.y(place) + 3, w, rows.pitch - 6, v, i, { fade: 0.12 + 0.88 * Math.min(1, Math.abs(weights[i]) / most) }),
    ]),
    text("title:z", 0, below, left - GAP, cut(`= ${t("tour.weightedSum")}`, left - GAP), { tone: "soft" }), vector("z", left, below - 2, w, 26, z, at, { tone: "on" }),
  ];
}

/** The row in every head, one column each, and what they add to the vector of the row. */
export function everyHead(room: Room, picture: Picture, { look, at, keys }: Head, residual?: Stage): Actor[] {
  const added = residual?.vectors ?? [];
  const below = added.length * 26 + (added.length ? 14 : 0);
  const rows = rowsOf(room, keys, look.keys === look.queries ? at : keys.length, rowOf(look.values, at), below);
  const left = rows.label + GAP;
  const w = Math.min(room.w - left, look.heads * 44);
  const grid = { shape: [rows.shown.length, look.heads], values: Float32Array.from(rows.shown.flatMap((i) => Array.from({ length: look.heads }, (_, h) => rowOf(look.every_head, h)[i]))) };
  return [
    ...rows.tokens, title("heads", left, room.w - left, t("tour.everyHead", { unit: look.unit, n: look.heads })),
    { key: "grid", kind: "grid", x: left, y: rows.y(0), w, h: rows.pitch * rows.shown.length, of: grid, limit: greatest(grid) },
    { key: "pointer", kind: "box", x: left + (w * look.head) / look.heads, y: rows.y(0), w: w / look.heads, h: rows.pitch * rows.shown.length, tone: "frame" },
    ...sums(room, picture, added, at, room.h - below + 12),
  ];
}

/** Vectors of one row below each other, with their names. */
function sums(room: Room, picture: Picture, listed: Vectors[], row: number, y: number, pitch = 26): Actor[] {
  const label = Math.min(room.w * 0.42, Math.max(60, ...listed.map((v) => textWidth(v.label, SIZE) + 8)));
  return listed.flatMap((of, k) => [
    text(`title:${of.name}`, 0, y + k * pitch + pitch / 2 - LINE / 2, label, cut(of.label, label), { tone: k === listed.length - 1 ? "" : "soft" }),
    vector(`${of.name}`, label + 6, y + k * pitch + 3, room.w - label - 6, pitch - 6, of, rowAt(picture, of.side, row), { tone: k === listed.length - 1 ? "on" : "" }),
  ]);
}

/** The values of one part at one row; of a mixture of experts the weights of those that are chosen. */
export function parts(room: Room, picture: Picture, _: Side, listed: Vectors[], row: number, experts: Experts | null = null): Actor[] {
  const named = listed.map((of) => ({ ...of, label: t("tour.vectorSize", { label: of.label, n: of.size }) }));
  const pitch = Math.min(56, (room.h - TOP) / Math.max(4, named.length + (experts ? experts.chosen.shape[1] : 0)));
  const actors = sums(room, picture, named, row, TOP, pitch);
  if (!experts) return actors;
  const y = TOP + named.length * pitch;
  return [...actors, ...[...rowOf(experts.chosen, row)].flatMap((e, i): Actor[] => [
    text(`expert:${i}`, 0, y + i * pitch, room.w * 0.42, t("tour.expert", { n: e, w: percent(rowOf(experts.weights, row)[i]) })),
    { key: `expertBar:${i}`, kind: "bar", x: room.w * 0.45, y: y + i * pitch + 4, w: room.w * 0.55 * rowOf(experts.weights, row)[i], h: 12, tone: "weight" },
  ])];
}

/** One number of a cell or a state: what is kept of the old one, and what comes in. */
export function update(room: Room, of: Update): Actor[] {
  const line = (key: string, y: number, said: string, large = false) => text(key, 0, y, room.w, cut(said, room.w, large ? 18 : SIZE), { align: "center", tone: large ? "large" : "soft" });
  const top = room.h / 2 - 130;
  return [
    line("keepSaid", top, of.after), line("keep", top + 26, `${of.said.f} × ${of.said.c} = ${of.said.p}`, true),
    line("takeSaid", top + 84, t("tour.takes")), line("take", top + 110, `${of.said.i} × ${of.said.g} = ${of.said.s}`, true),
    line("nowSaid", top + 168, t("tour.together", { what: of.before, j: of.j + 1 })), line("now", top + 194, `${of.said.p} + ${of.said.s} = ${of.said.now}`, true),
  ];
}

interface LayerVector { stage: Stage; vector: Vectors; number: string }

/** The last vector of every layer of the stack that is shown. */
export function layersOf(picture: Picture): LayerVector[] {
  const layers = new Map<string, LayerVector>();
  for (const stage of picture.stages) {
    const [stack, layer] = stage.path.split(".");
    const vector = stage.kind === "recurrence" ? stage.vectors.find((v) => v.label === "state h") : stage.vectors[stage.vectors.length - 1];
    if (stack === picture.stack && /^\d+$/.test(layer ?? "") && vector && ["layer", "residual", "recurrence", "mlp"].includes(stage.kind)) layers.set(layer, { stage, vector, number: layer });
  }
  return [...layers.values()];
}

export function layers(room: Room, picture: Picture, listed: LayerVector[], row: number): Actor[] {
  const most = Math.floor((room.h - TOP) / LINE) - 1;
  const some = listed.length <= most ? listed : Array.from({ length: most }, (_, i) => listed[Math.round((i * (listed.length - 1)) / (most - 1))]);
  const label = 70;
  const pitch = Math.min(44, (room.h - TOP - LINE) / some.length);
  return [
    title("layers", 0, room.w, t("tour.afterLayer")),
    ...some.flatMap(({ vector: v, number: n }, i) => [
      text(`layer:${n}`, 0, TOP + i * pitch + pitch / 2 - LINE / 2, label, t("tour.layer", { n }), { tone: Number(n) === picture.layer ? "on" : "" }),
      vector(`after:${n}`, label, TOP + i * pitch + 3, room.w - label, pitch - 6, v, rowAt(picture, v.side, row), { tone: Number(n) === picture.layer ? "on" : "" }),
    ]),
    ...(some.length < listed.length ? [text("cut", 0, room.h - LINE, room.w, t("tour.someLayers", { n: some.length, of: listed.length }), { tone: "soft" })] : []),
  ];
}

export function prediction(room: Room, picture: Picture, said: string, head: Stage): Actor[] {
  const lines = wrap(said || picture.tokens.map(shown).join(" "), room.w - 24, 20).slice(0, 3);
  const above = lines.map((line, i) => text(`said:${i}`, 0, i * 28, room.w, line, { align: "center", tone: "large" }));
  const top = lines.length * 28 + 34;
  const found = answersAt(picture, head, picture.row);
  if (!found.length) return [...above, ...parts({ w: room.w, h: room.h }, picture, "tokens", head.vectors, picture.row).map((a) => ({ ...a, y: a.y + top - TOP }))];
  return [...above, ...found.slice(0, head.prediction!.kind === "spans" ? 2 : 1).flatMap(({ title: asked, names: listed, chances }, k) => {
    const y = top + k * 150;
    const count = Math.min(listed.length, found.length > 1 && head.prediction!.kind === "spans" ? 3 : 5);
    const label = Math.min(room.w * 0.35, 140);
    return [
      text(`asked:${k}`, 0, y, room.w, cut(asked, room.w), { tone: "soft", align: "center" }),
      ...listed.slice(0, count).flatMap((name, i): Actor[] => [
        text(`answer:${k}:${i}`, 0, y + 34 + i * 32, label, cut(short(name), label), { tone: i ? "" : "strong", align: "end" }),
        { key: `chance:${k}:${i}`, kind: "bar", x: label + GAP, y: y + 37 + i * 32, w: Math.max(1, (room.w - label - 90) * chances[i]), h: 14, tone: "weight" },
        text(`percent:${k}:${i}`, room.w - 70, y + 34 + i * 32, 70, percent(chances[i]), { align: "end" }),
      ]),
    ];
  })];
}
