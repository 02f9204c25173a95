import { expect, it } from "vitest";
import { mathml } from "../src/figures/formula";
import { entryOf, GLOSSARY, split } from "../src/glossary";
import strings from "../src/strings.json";

it("typesets every formula and names pages that there are", () => {
  for (const entry of GLOSSARY) {
    if (entry.formula) expect(() => mathml(entry.formula!), entry.id).not.toThrow();
    if (entry.page) expect(Object.keys(strings.pages), entry.id).toContain(entry.page);
    expect(entry.text.endsWith("."), entry.id).toBe(true);
  }
});

it("gives every name to one term", () => {
  const names = GLOSSARY.flatMap((e) => e.names.map((n) => n.toLowerCase()));
  expect(new Set(names).size).toBe(names.length);
  expect(names.length).toBeGreaterThan(60);
});

it("finds whole words, the longest first, each term once", () => {
  const found = split("A query looks at the keys; the query of layer norm, not monkey.").filter((p) => p.entry);
  expect(found.map((p) => [p.text, p.entry!.id])).toEqual([["query", "query"], ["keys", "key"], ["layer norm", "norm"]]);
  expect(split("nothing here").length).toBe(1);
  expect(split("").length).toBe(0);
});

it("explains the controls of the attention page", () => {
  for (const label of ["Layer", "Head", strings.predict.temperature, "top-k", "entropy"]) expect(entryOf(label), label).toBeDefined();
});
