import { expect, test } from "vitest";
import { mathml } from "./formula";

const inside = (formula: string) => mathml(formula).replace(/^<math[^>]*><mstyle[^>]*>/, "").replace(/<\/mstyle><\/math>$/, "");

test("a product stands over the one factor after the stroke", () => {
  expect(inside("q k^T / sqrt(d_k)")).toBe(
    '<mfrac><mrow><mi>q</mi><mspace width="0.17em"/><msup><mi>k</mi><mrow><mo>⊤</mo></mrow></msup></mrow><msqrt><mrow><msub><mi>d</mi><mrow><mi>k</mi></mrow></msub></mrow></msqrt></mfrac>',
  );
});

test("words are upright, letters italic, Greek letters go by name", () => {
  expect(inside("tanh(x)")).toContain('<mi mathvariant="normal">tanh</mi><mo>&#x2061;</mo>');
  expect(inside("sigma")).toBe("<mi>σ</mi>");
});

test("scripts of several signs stand in braces", () => {
  expect(inside("h_{t-1}")).toBe("<msub><mi>h</mi><mrow><mrow><mrow><mi>t</mi><mo>−</mo><mn>1</mn></mrow></mrow></mrow></msub>");
});

test("a sum takes the product behind it, as a denominator too", () => {
  expect(inside("exp(s) / Σ exp(s)")).toMatch(/^<mfrac><mrow><mi mathvariant="normal">exp.*<mrow><mo largeop="false">∑<\/mo>.*<\/mfrac>$/);
  expect(inside("∂L/∂u")).toMatch(/^<mfrac>.*∂.*<\/mfrac>$/);
});

test("norms stand side by side", () => {
  expect(inside("a·b / (‖a‖ ‖b‖)").match(/‖/g)).toHaveLength(4);
});

test("nothing of a formula is read as HTML", () => {
  expect(mathml('"<img src=x>"')).not.toContain("<img");
  expect(mathml("a < b")).toContain("&lt;");
});

test.each(["", "a +", "x_", "(a", "a)", "a / / b"])("%j is no formula", (formula) => {
  expect(() => mathml(formula)).toThrow(SyntaxError);
});
