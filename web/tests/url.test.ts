import { beforeEach, describe, expect, it } from "vitest";
import { choice, formatOff, formatSub, go, link, LONGEST, missing, parseOff, parseSub, patched, place, read, set, whole, write } from "../src/url";

describe("the address", () => {
  beforeEach(() => go({ page: "home", params: {} }));

  it("is read back as it was written, whatever the text", () => {
    for (const x of ["The cat", "a&b=c?d#e", "“”\n\t", "سلام", "<script>", "100 %", "~", "+ +", "\u0000\u202e", "😀"]) {
      const there = { page: "attention", params: { x, l: "3" } };
      const [path, search] = write(there).split(/(?=\?)/);
      expect(read(path, search)).toEqual(there);
    }
  });

  it("keeps a long text out of itself and still finds it again in this visit", () => {
    const x = "word ".repeat(LONGEST);
    const url = write({ page: "tokens", params: { x } });
    expect(url.length).toBeLessThan(100);
    const [path, search] = url.split(/(?=\?)/);
    expect(read(path, search).params.x).toBe(x);
  });

  it("drops what is empty, so that the same state has one address", () => {
    expect(patched({ a: "1", b: "2" }, { a: null, b: undefined, c: "", d: false, e: true, f: 0 })).toEqual({ e: "1", f: "0" });
    expect(write({ page: "home", params: {} })).toBe("/");
  });

  it("carries the model and the texts to another page and leaves the rest", () => {
    go({ page: "attention", params: { m: "gpt", x: "hi", l: "2", off: "a:1", view: "grid" } });
    expect(link("predict")).toBe("/predict?m=gpt&off=a%3A1&x=hi");
    expect(link("home")).toBe("/?m=gpt");
  });

  it("goes back where one was, but not through every move of a slider", async () => {
    go({ page: "predict", params: { m: "gpt" } });
    const before = window.history.length;
    set({ T: 0.5 }, "replace");
    set({ T: 0.7 }, "replace");
    expect(window.history.length).toBe(before);
    expect(place.value.params.T).toBe("0.7");
  });

  it("keeps what an address counts whole and within bounds, and knows only the words there are", () => {
    go({ page: "attention", params: { l: "1.7", h: "-3", q: "1e9", gen: "abc", view: "upside-down", scale: "log" } });
    expect([whole("l", 0, 0, 5), whole("h", 0, 0, 5), whole("q", 0, 0, 5), whole("gen", 2)]).toEqual([1, 0, 5, 2]);
    expect(choice("view", ["grid", "matrix"], "matrix")).toBe("matrix");
    expect(choice("scale", ["linear", "log"])).toBe("log");
  });

  it("remembers a long text in its tab, and says where another's is missing", () => {
    const text = "long ".repeat(1000);
    const address = write({ page: "tokens", params: { x: text } });
    const [path, query] = address.split("?");
    expect(query.length).toBeLessThan(40);
    expect(read(path, query).params.x).toBe(text);
    expect(missing.value).toBe(0);
    expect(window.sessionStorage.length).toBeGreaterThan(0);
    expect(read(path, "x=~7777-zz").params.x).toBeUndefined();
    expect(missing.value).toBe(7777);
  });

  it("names heads that are off, and ignores what is no head", () => {
    const off = { "blocks.0.attn": [2, 1], "decoder.1.cross": [0] };
    expect(parseOff(formatOff(off))).toEqual({ "blocks.0.attn": [1, 2], "decoder.1.cross": [0] });
    expect(parseOff("junk;:1;a:x;b:-1")).toEqual({});
    expect(formatOff({ a: [] })).toBe("");
  });

  it("names tokens put in the place of others, whatever they hold", () => {
    const sub = { "2": "dog", "5": ";:%" };
    expect(parseSub(formatSub(sub))).toEqual(sub);
    expect(parseSub("x:y;3;:z;4:%")).toEqual({ "4": "%" });
  });
});
