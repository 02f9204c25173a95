import { expect, test } from "vitest";
import formulas from "./formulas.json";
import { mathml } from "../src/figures/formula";

test.each(formulas)("%j is typeset", (formula) => {
  const element = new DOMParser().parseFromString(mathml(formula), "application/xml").documentElement;
  expect(element.nodeName).toBe("math");
  expect(element.querySelector("parsererror")).toBeNull();
});
