// A figure of the page with everything it can be saved as. Every page uses this one, so that no figure lacks an export.
import type { ComponentChildren } from "preact";
import { csv as csvText, describe, Frame, LIGHT, svg, type About, type Curve, type Drawing, type FigureJson, type Packed } from "./figures";
import { call } from "./http";
import { str } from "./url";

type Rows = (string | number | null)[][];
type Json = { kind: string; data: Record<string, unknown> };

export type FigureProps = {
  title: string;
  name: string;
  model?: string;
  note?: string;
  python?: string;
  drawing?: () => Drawing;
  csv: () => Rows;
  html?: Json; // drawn by the widget; otherwise the file holds the picture and its numbers
  children: ComponentChildren;
};

export function Figure(props: FigureProps) {
  const about: About = { model: props.model ?? null, text: str("x") || null };
  const html = async () => (props.html ? await alive(props, props.html, about) : still(props, about));
  const exports = {
    name: props.name.replace(/[^\w.-]+/g, "-"),
    draw: props.drawing,
    csv: () => csvText(props.csv()),
    html,
    python: props.python,
    link: () => window.location.href,
  };
  return <Frame title={props.title} note={props.note} exports={exports}>{props.children}</Frame>;
}

/** A heat map as the widget takes it. */
export function heat(title: string, rows: string[], columns: string[], values: Float32Array, signed: boolean, rowTitle = "", columnTitle = ""): Json {
  return { kind: "positions", data: { panels: [{ title, note: "", as: "heat", rows, columns, rowTitle, columnTitle, values, signed }] } };
}

/** Curves as the widget takes them. */
export function plotted(metric: string, curves: Curve[]): Json {
  return { kind: "training", data: { metric, curves: curves.map((c) => ({ name: c.name, x: Float32Array.from(c.x), y: Float32Array.from(c.y) })) } };
}

/** Points as the widget takes them; neighbours stay with the server. */
export function points(names: string[], xy: Float32Array, axes: string[]): Json {
  const none = { array: new Float32Array(0), shape: [names.length, 0] };
  return { kind: "embeddings", data: { names, points: { array: xy, shape: [names.length, 2] }, axes, words: [], near: none, cosines: none, selected: null } };
}

/** A number, or nothing where a mask hides it. */
const number = (value: number) => (Number.isNaN(value) ? null : value);

export function matrixCsv(rows: string[], columns: string[], values: ArrayLike<number>): Rows {
  return [["", ...columns], ...rows.map((name, i) => [name, ...columns.map((_, j) => number(values[i * columns.length + j]))])];
}

/** Text as it may stand in HTML. */
function safe(text: string): string {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

const POLICY = (script: string) => `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src ${script}">`;

function head(title: string, script: string): string {
  return `<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n${POLICY(script)}\n<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>${safe(title)}</title>\n`;
}

/** One file without a script: the picture as vectors, the numbers as a table, the Python that gives them. */
function still(props: FigureProps, about: About): string {
  const rows = props.csv();
  const cell = (tag: string) => (v: string | number | null) => `<${tag}>${safe(v === null ? "" : String(v))}</${tag}>`;
  const table = rows.map((row, i) => `<tr>${row.map(cell(i ? "td" : "th")).join("")}</tr>`).join("\n");
  const picture = props.drawing ? svg(props.drawing(), LIGHT, props.title, describe(about)).replace(/^<\?xml[^>]*>\s*/, "") : "";
  const style = "<style>body{font:16px/1.5 system-ui,sans-serif;margin:2rem;max-width:72rem}table{border-collapse:collapse;font-size:.85rem}td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:left}pre{background:#f4f4f4;padding:1rem;white-space:pre-wrap}</style>";
  const python = props.python ? `<pre>${safe(props.python)}</pre>` : "";
  return `${head(props.title, "'none'")}${style}\n</head>\n<body>\n<h1>${safe(props.title)}</h1>\n<p>${safe(describe(about))}</p>\n${picture}\n${python}\n<table>${table}</table>\n</body>\n</html>\n`;
}

/** One file with the widget in it: the same figure, alive, with no network. */
async function alive(props: FigureProps, json: Json, about: About): Promise<string> {
  const widget = await (await call("/static/widget.js")).text();
  const figure: FigureJson = { version: 1, kind: json.kind, title: props.title, note: props.note ?? "", about, python: props.python ?? "", data: packed(json.data) as Record<string, unknown> };
  const text = JSON.stringify(figure).replaceAll("<", "\\u003c"); // no tag can end the script it stands in
  const code = widget.replaceAll("</script", "<\\/script");
  return `${head(props.title, "'unsafe-inline'")}</head>\n<body>\n<main id="heedful-place"></main>\n<script id="heedful-figure" type="application/json">${text}</script>\n<script type="module">${code}</script>\n</body>\n</html>\n`;
}

/** Arrays of numbers as a figure's JSON carries them. */
function packed(value: unknown): unknown {
  if (value instanceof Float32Array) return packedArray(value, [value.length]);
  if (Array.isArray(value)) return value.map(packed);
  if (value && typeof value === "object") {
    const record = value as { array?: Float32Array; shape?: number[] };
    if (record.array instanceof Float32Array) return packedArray(record.array, record.shape ?? [record.array.length]);
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, packed(v)]));
  }
  return value;
}

function packedArray(values: Float32Array, shape: number[]): Packed {
  const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return { dtype: "f32", shape, data: btoa(text) };
}
