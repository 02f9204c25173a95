import { h, render } from "preact";
import { describe, expect, it } from "vitest";
import { Bars } from "./Bars";
import { diverging, greatest, index, ink, level, ramp, rgb, css } from "./colour";
import { moved, said } from "./Matrix";
import { ordered } from "./HeadGrid";
import { fromBase64, halves, unpack, unpackAll } from "./packed";
import { drawMatrix, legendTicks, cellAt } from "./paint";
import { arranged, edges, groupNames, isCausal, maskOf, pool, rank, unmasked, withoutFirst } from "./patterns";
import { LIGHT, svg } from "./pen";
import { drawBars, drawCurves, drawScatter, smoothed, ticks } from "./plots";
import { chain, draw, uniform } from "./sampling";
import { expression, written } from "./StepsView";
import { csv, number, percent, short, shown } from "./text";
import { drawTree, pathOf, stepped, type Branch } from "./tree";
import type { Pattern } from "./types";

describe("colours", () => {
  it("start at the background and end far from it", () => {
    expect([...ramp("blue").slice(0, 3)]).toEqual([255, 255, 255]);
    expect([...ramp("blue", true).slice(0, 3)]).toEqual(rgb("#14171c"));
    expect([...ramp("blue").slice(-3)]).toEqual(rgb("#08306b"));
  });
  it("have zero in the middle of the signed table", () => {
    const table = diverging();
    expect(index(0, 1, "linear", true)).toBe(128);
    expect(Math.min(...table.slice(3 * 127, 3 * 129))).toBeGreaterThan(250);
    expect(index(1, 1, "linear", true)).toBe(255);
    expect(index(-1, 1, "linear", true)).toBe(0);
  });
  it("are placed by the scale", () => {
    expect(level(0.25, 1, "linear")).toBe(0.25);
    expect(level(0.25, 1, "sqrt")).toBe(0.5);
    expect(level(0.01, 1, "log")).toBeCloseTo(0.5, 12);
    expect(level(1e-6, 1, "log")).toBe(0);
    expect(legendTicks(1, false, "log").map(([, v]) => +v.toPrecision(6))).toEqual([0.0001, 0.001, 0.01, 0.1, 1]);
  });
  it("carry letters that can be read", () => {
    expect(ink([255, 255, 255])).toBe("#000000");
    expect(ink([8, 48, 107])).toBe("#ffffff");
    expect(css([8, 48, 107])).toBe("#08306b");
    expect(greatest([0.1, -0.7, NaN])).toBe(0.7);
  });
});

describe("packed arrays", () => {
  it("read float16 with its small numbers and its infinities", () => {
    // 1, −2, the smallest number above 0, 65504, ∞
    expect([...halves(new Uint8Array([0, 0x3c, 0, 0xc0, 1, 0, 0xff, 0x7b, 0, 0x7c]))]).toEqual([1, -2, 2 ** -24, 65504, Infinity]);
  });
  it("read bytes as squares", async () => {
    const found = await unpack({ dtype: "u8", shape: [3], data: btoa("\x00\x80\xff"), scale: 0.5 });
    expect(found.values[0]).toBe(0);
    expect(found.values[1]).toBeCloseTo((128 / 255) ** 2 / 2, 6);
    expect(found.values[2]).toBe(0.5);
  });
  it("are found anywhere in a tree", async () => {
    const tree = { a: [{ dtype: "f32", shape: [1], data: btoa("\x00\x00\x80\x3f") }], names: ["x"], n: 3 };
    expect(await unpackAll(tree)).toEqual({ a: [{ shape: [1], values: new Float32Array([1]) }], names: ["x"], n: 3 });
    expect(fromBase64("AQI=")).toEqual(new Uint8Array([1, 2]));
  });
});

// The numbers below are what heedful.decode.sampling gives for the same seeds and logits.
describe("sampling", () => {
  const logits = new Float32Array([2, 1, 0.5, -1, 3, 0.25, 1, -2]);
  const asked = { temperature: 0.7, topK: 5, topP: 0.9, minP: 0.05 };
  it("draws Python's random numbers", () => {
    const known: [number, number, number][] = [
      [0, 0.041287939655185735, 0.869572641543436],
      [1, 0.9875844254789672, 0.5991964931598779],
      [7, 0.3599088437558461, 0.4013946817819286],
      [123456789, 0.1145679914544242, 0.7981398967875883],
      [2 ** 40 + 5, 0.688973985082153, 0.02055213204270323],
    ];
    for (const [seed, first, fourth] of known) {
      expect(uniform(seed)).toBe(first);
      expect(uniform(seed, 3)).toBe(fourth);
    }
    expect(uniform(3, 0, 2, 1)).toBe(0.9451587988369303);
  });
  it("narrows as Python does", () => {
    const found = chain(logits, asked);
    const close = (a: Float64Array, b: number[]) => b.forEach((v, i) => expect(a[i]).toBeCloseTo(v, 6));
    close(found.heated, [0.17040125, 0.04083683, 0.01999133, 0.00234537, 0.71103893, 0.01398739, 0.04083683, 0.00056207]);
    close(found.topK, [0.17332962, 0.04153862, 0.02033489, 0, 0.72325825, 0, 0.04153862, 0]);
    close(found.final, [0.17692742, 0.04240084, 0, 0, 0.7382709, 0, 0.04240084, 0]);
    expect(found.kept).toBe(4);
  });
  it("chooses Python's tokens", () => {
    const tokens = (s: Parameters<typeof chain>[1]) => Array.from({ length: 24 }, (_, seed) => draw(chain(logits, s).final, uniform(seed)));
    expect(tokens(asked)).toEqual([0, 6, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 4, 4, 0, 4, 4, 4, 4]);
    expect(tokens({ temperature: 1.5, topK: null, topP: null, minP: null })).toEqual([0, 7, 6, 4, 4, 2, 4, 2, 4, 1, 2, 4, 5, 4, 4, 1, 4, 2, 6, 0, 5, 4, 4, 4]);
    expect(tokens({ ...asked, temperature: 0 }).every((t) => t === 4)).toBe(true);
  });
});

describe("patterns", () => {
  const values = new Float32Array([1, 0, 0, 0.6, 0.4, 0, 0.5, 0.2, 0.3]);
  const pattern: Pattern = { name: "a", kind: "softmax", cross: false, queries: ["x", "y", "z"], keys: ["x", "y", "z"], values };
  it("lose the first token and keep their sums", () => {
    const left = withoutFirst(values, 3, 3);
    [0, 0, 1, 0, 0.4, 0.6].forEach((v, i) => expect(left[i]).toBeCloseTo(v, 6));
  });
  it("are summed over the pieces of a word and averaged over its rows", () => {
    const found = arranged(values, 3, 3, { words: true, queryWords: [0, 1, 1], keyWords: [0, 1, 1] });
    expect(found.rows).toEqual([[0], [1, 2]]);
    [1, 0, 0.55, 0.45].forEach((v, i) => expect(found.values[i]).toBeCloseTo(v, 6));
    expect(groupNames(["the", "un", "##able"], found.rows)).toEqual(["the", "unable"]);
  });
  it("are cut to one text on the other, weights as they are", () => {
    const found = arranged(values, 3, 3, { between: "ba", second: 1 });
    expect(found.rows).toEqual([[1], [2]]);
    expect(found.columns).toEqual([[0]]);
    [0.6, 0.5].forEach((v, i) => expect(found.values[i]).toBeCloseTo(v, 6));
    expect(arranged(values, 3, 3, {}).values).toBe(values);
    const hidden = arranged(values, 3, 3, { hideFirst: true, between: "bb", second: 1, words: true, queryWords: [0, 1, 1], keyWords: [0, 1, 1] });
    expect(hidden.values[0]).toBeCloseTo(1, 6);
    expect(hidden.columns).toEqual([[1, 2]]);
  });
  it("know ranks, edges and masks", () => {
    expect(rank(values, 3, { row: 2, column: 2 })).toBe(2);
    const found = edges(values, 3, 3, 1);
    expect(found.edges.length).toBe(3);
    expect(found.total).toBe(6);
    expect(found.mass).toBeCloseTo(2.1 / 3, 6);
    expect(isCausal(pattern)).toBe(true);
    expect(isCausal({ ...pattern, values: Float32Array.from(values, (v, i) => (i === 1 ? 0.1 : v)) })).toBe(false);
  });
  it("shrink to the greatest entries, with their signs", () => {
    expect([...pool([1, 2, -5, 0], 2, 2, 1).values]).toEqual([-5]);
  });
  it("order heads by a score", () => {
    const layer = { name: "l", heads: 3, rows: 1, columns: 1, values: [0, 0, 0], signed: false };
    const score = (head: number, entropy: number) => ({ name: "l", head, entropy, distance: null, previous: null, first: null });
    expect(ordered([layer], [score(0, 1), score(1, 3), score(2, 2)], "entropy")).toEqual([[1, 2, 0]]);
    expect(ordered([layer], [], "entropy")).toEqual([[0, 1, 2]]);
  });
});

describe("the matrix", () => {
  it("is walked with the keys of a grid", () => {
    const at = { row: 4, column: 4 };
    const go = (key: string, ctrl = false) => moved(at, key, ctrl, 20, 10);
    expect(go("ArrowUp")).toEqual({ row: 3, column: 4 });
    expect(go("Home")).toEqual({ row: 4, column: 0 });
    expect(go("End", true)).toEqual({ row: 19, column: 9 });
    expect(go("PageDown")).toEqual({ row: 14, column: 4 });
    expect(go("PageUp")).toEqual({ row: 0, column: 4 });
    expect(go("x")).toBeNull();
  });
  it("says where one is", () => {
    const props = { rows: ["it", "b"], columns: ["cat", "d"], values: new Float32Array([0.40625, 0.1, 0.5, 0.5]) };
    expect(said(props, { row: 0, column: 0 })).toBe("row 'it', column 'cat', 0.4063, rank 1");
    expect(said({ ...props, masked: Uint8Array.of(0, 1) }, { row: 0, column: 1 })).toBe("row 'it', column 'd', hidden by the mask");
  });
  it("hides what a mask hides, in pieces and in words", () => {
    const each = [[0], [1], [2], [3]];
    expect([...maskOf(each, each, { causal: true })!]).toEqual([0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
    expect([...maskOf(each, each, { causal: true, window: 2 })!]).toEqual([0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0]);
    expect([...maskOf([[0], [1, 2], [3]], [[1, 2], [3]], { causal: true })!]).toEqual([1, 1, 0, 1, 0, 0]); // by words, the first hidden
    expect(maskOf(each, each, { causal: false })).toBeUndefined();
    const values = unmasked(new Float32Array([1, 2]), Uint8Array.of(0, 1));
    expect(values[0]).toBe(1);
    expect(said({ rows: ["a"], columns: ["a", "b"], values }, { row: 0, column: 1 })).toContain("hidden by the mask");
  });
  it("ranks scores by their value and weights by their size", () => {
    const values = new Float32Array([-0.5, -2, 0.1]);
    const cells = [0, 1, 2].map((column) => ({ row: 0, column }));
    expect(cells.map((c) => rank(values, 3, c))).toEqual([2, 1, 3]);
    expect(cells.map((c) => rank(values, 3, c, true))).toEqual([2, 3, 1]);
  });
  it("hatches a cell without a value, masked or not", () => {
    const strokes = (values: number[], masked?: Uint8Array) => {
      const page = new DOMParser().parseFromString(svg(drawMatrix({ rows: ["a"], columns: ["b", "c", "d"], values, masked }), LIGHT, "t"), "image/svg+xml");
      return [...page.querySelectorAll("path")].map((p) => p.getAttribute("d")!.split("M").length - 1).reduce((a, b) => a + b, 0);
    };
    expect(strokes([0, 1, 0])).toBe(0);
    expect(strokes([NaN, 1, 0])).toBe(1);
    expect(strokes([NaN, 1, 0], Uint8Array.of(0, 0, 1))).toBe(2);
  });
  it("finds the cell under a point", () => {
    const { layout } = drawMatrix({ rows: ["a", "b"], columns: ["c", "d"], values: [0, 1, 1, 0] }, 400);
    expect(cellAt(layout, 2, 2, layout.left + 1, layout.top + 1)).toEqual({ row: 0, column: 0 });
    expect(cellAt(layout, 2, 2, layout.left - 1, layout.top + 1)).toBeNull();
  });
});

describe("bars", () => {
  const rows = [{ label: "up", value: 1 }, { label: "down", value: -2 }, { label: "missing", value: NaN }];
  const of = (given: typeof rows) => {
    const page = new DOMParser().parseFromString(svg(drawBars(given, 560, String), LIGHT, "t"), "image/svg+xml");
    const read = (shape: Element, name: string) => Number(shape.getAttribute(name));
    return { bars: [...page.querySelectorAll("rect[x]")].map((b) => ({ from: read(b, "x"), to: read(b, "x") + read(b, "width") })), lines: page.querySelectorAll("path").length };
  };
  it("below zero end at a line where those above it begin", () => {
    const { bars: [up, down, ...more], lines } = of(rows);
    expect(down.to).toBeCloseTo(up.from, 1);
    expect(down.to - down.from).toBeCloseTo(2 * (up.to - up.from), 1);
    expect([more.length, lines]).toEqual([0, 1]); // a missing value has no bar
  });
  it("above zero need no line", () => {
    const { bars, lines } = of(rows.slice(0, 1));
    expect([bars.length, lines]).toEqual([1, 0]);
  });
  it("stand in a table as in a picture", () => {
    const page = document.createElement("div");
    render(h(Bars, { rows, title: "t", format: String }), page);
    const [up, down, ...more] = [...page.querySelectorAll<HTMLElement>(".fig-bar")].map((b) => [b.style.left, b.style.width].map(parseFloat));
    expect(down[0] + down[1]).toBeCloseTo(up[0], 6);
    expect(down[1]).toBeCloseTo(2 * up[1], 6);
    expect(more).toEqual([]);
    expect([...page.querySelectorAll<HTMLElement>(".fig-bar-zero")].map((line) => parseFloat(line.style.left))).toEqual([up[0], up[0], up[0]]);
    expect(page.querySelectorAll(".fig-bar-number")[1].textContent).toBe("-2");
  });
});

describe("the beam tree", () => {
  const branch = (name: string, parent: number, step: number, rank: number, fate: Branch["fate"], best = false): Branch =>
    ({ name, token: 0, parent, step, group: 0, rank, logprob: -1, score: -step, final: fate === "finished" ? -0.5 : null, fate, lives: best, best });
  const tree = [branch("a", -1, 1, 0, "runs", true), branch("b", -1, 1, 1, "pruned"), branch("c", 0, 2, 0, "finished", true), branch("<d>", 0, 2, 1, "pruned")];
  it("is walked along a text and between ranks", () => {
    expect(pathOf(tree, 2)).toEqual([0, 2]);
    expect(stepped(tree, null, "ArrowDown")).toBe(0);
    expect(stepped(tree, 0, "ArrowRight")).toBe(2);
    expect(stepped(tree, 2, "ArrowDown")).toBe(3);
    expect(stepped(tree, 3, "ArrowDown")).toBe(3);
    expect(stepped(tree, 3, "ArrowLeft")).toBe(0);
    expect(stepped(tree, 0, "ArrowLeft")).toBe(0);
  });
  it("is drawn with its pruned branches dashed", () => {
    const page = new DOMParser().parseFromString(svg(drawTree(tree), LIGHT, "t"), "image/svg+xml");
    expect(page.querySelectorAll("path").length).toBe(2); // two branches continue another
    expect(page.querySelectorAll("[stroke-dasharray]").length).toBe(1);
    expect([...page.querySelectorAll("text")].map((t) => t.textContent)).toContain("= −0.5");
  });
});

describe("SVG", () => {
  const parsed = (text: string) => new DOMParser().parseFromString(text, "image/svg+xml");
  it("is XML whatever the tokens are", () => {
    const hostile = ["<script>alert(1)</script>", 'a"b&c\u0007', "\u202eabc"];
    const file = svg(drawMatrix({ rows: hostile, columns: hostile, values: [1, 0, 0, 0, 1, 0, 0, 0, 1], masked: Uint8Array.of(0, 1, 1, 0, 0, 1, 0, 0, 0) }), LIGHT, "<t>", "d & e");
    const page = parsed(file);
    expect(page.querySelector("parsererror")).toBeNull();
    expect(page.querySelector("script")).toBeNull();
    expect(page.querySelector("title")?.textContent).toBe("<t>");
    expect(page.querySelectorAll("rect").length).toBeGreaterThan(3);
  });
  it("holds curves and maps too", () => {
    const curve = { name: "train", x: [1, 2, 3], y: [3, 2, NaN] };
    expect(parsed(svg(drawCurves({ curves: [curve], xTitle: "step", yTitle: "loss", logY: true, smooth: 0.5 }), LIGHT, "c")).querySelectorAll("path").length).toBeGreaterThan(2);
    expect(parsed(svg(drawScatter({ points: [0, 0, 1, 1], names: ["a", "b"], selected: 0, near: [1] }), LIGHT, "s")).querySelector("parsererror")).toBeNull();
  });
});

describe("words and numbers", () => {
  it("show what cannot be seen", () => {
    expect(shown("Ġcat")).toBe("·cat");
    expect(shown("▁▁x")).toBe("··x");
    expect(shown("\n")).toBe("⏎");
    expect(shown("\u202e\u0000")).toBe("<202E><00>");
    expect(shown("")).toBe("∅");
    expect(short("a".repeat(1_000_000))).toHaveLength(14);
  });
  it("write numbers as Python's arithmetic does", () => {
    expect([1, 0.5, 1 / 3, 1e-5, -2, 0].map((v) => number(v))).toEqual(["1", "0.5", "0.3333", "1e-5", "−2", "0"]);
    expect(number(-Infinity)).toBe("−∞");
  });
  it("write tables that spreadsheets read", () => {
    expect(csv([["a,b", 'c"d', null], [1, 2.5, "x\ny"]])).toBe('"a,b","c""d",\r\n1,2.5,"x\ny"\r\n');
  });
  it("smooth without pulling the start to zero", () => {
    expect([...smoothed([2, 2, 2], 0.9)].every((v) => Math.abs(v - 2) < 1e-12)).toBe(true);
    expect([1, 0.99999, 0.9997, 0.224, 0.0356, 0.00014, 6.1e-5, 1e-8, 0].map(percent)).toEqual(["100 %", "> 99.99 %", "99.97 %", "22.4 %", "3.56 %", "0.01 %", "0.006 %", "< 0.001 %", "0"]);
    expect(ticks(0, 10)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticks(0, 4, 8)).toContain(0.5);
    expect(ticks(0, 4, 8, 1)).toEqual([0, 1, 2, 3, 4]); // tokens are counted in whole ones
  });
  it("write expressions with the parentheses they need", () => {
    const tree = { op: "/", of: [{ op: "+", of: [1, 2] }, { op: "√", of: [4] }] };
    expect(expression(tree, 4, 12)).toBe("(1 + 2) / √(4)");
    expect(expression({ op: "-", of: [1, -2] }, 4, 12)).toBe("1 − (−2)");
    expect(written([1, 2, 3, 4, 5, 6], 4, 4)).toBe("[1 2 … 6](6)");
    expect(written("-inf", 4, 4)).toBe("−∞");
    const cut = [1, 2, 3, "… 120 more …", 4, 5]; // what the server did not send is counted, and is no number
    expect(written(cut, 4, 4)).toBe("[1 2 … 5](125)");
    expect(written(cut, 4, Infinity)).toBe("[1 2 3 … 120 more … 4 5](125)");
    expect(expression({ op: "+", of: [1, 2, "… 3 more …"] }, 4, 4)).toBe("1 + 2 + … 3 more …");
  });
});
