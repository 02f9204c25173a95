import { expect, it } from "vitest";
import strings from "../src/strings.json";
import { t } from "../src/strings";

declare global {
  interface ImportMeta {
    glob(pattern: string, options: { query: string; import: string; eager: true }): Record<string, string>;
  }
}
const sources = import.meta.glob("../src/{*.tsx,*.ts,pages/*.tsx}", { query: "?raw", import: "default", eager: true });

it("has every string that the pages name", () => {
  const missing: string[] = [];
  for (const [file, text] of Object.entries(sources)) {
    for (const [, key] of text.matchAll(/\bt\(\s*"([\w.-]+)"/g)) if (t(key) === key) missing.push(`${file}: ${key}`);
    for (const [, yes, no] of text.matchAll(/\bt\([^"`()]*\? "([\w.]+)" : "([\w.]+)"/g))
      for (const key of [yes, no]) if (t(key) === key) missing.push(`${file}: ${key}`);
  }
  expect(Object.keys(sources).length).toBeGreaterThan(20);
  expect(missing).toEqual([]);
});

it("has a name and a line for every page", () => {
  expect(Object.keys(strings.ledes).sort()).toEqual(Object.keys(strings.pages).sort());
});

it("fills in what is given and leaves the rest to be seen", () => {
  expect(t("steps.count", { n: 1, of: 3 })).toBe("step 1 of 3");
  expect(t("steps.count", { n: 1 })).toBe("step 1 of {of}");
  expect(t("no.such.key")).toBe("no.such.key");
});

it("never replaces twice: a text with braces stays as it is", () => {
  expect(t("steps.exercise", { id: "{id} $& {x}" })).toBe("Exercise: {id} $& {x}");
});
