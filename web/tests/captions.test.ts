// A caption says where a prediction was read, and speaks of a next word only where the model predicts one.
import { expect, test } from "vitest";
import { predictedWhere } from "../src/pages/switch";
import { t } from "../src/strings";

const token = (text: string) => ({ id: 0, text, shown: text, start: null, end: null, special: false });
const trace = (texts: string[], position: number) => ({ tokens: texts.map(token), target: null, prediction: { kind: "words" as const, position, top: [] } });

test("the prediction of a decoder is after a token", () => {
  expect(predictedWhere(trace(["the", "cat"], 1), true, null)).toBe("It predicts, after “cat”");
});

test("the prediction of an encoder is in the place of its mask", () => {
  expect(predictedWhere(trace(["the", "[MASK]", "."], 1), false, "[MASK]")).toBe("It predicts, for “[MASK]”");
});

test("an encoder without a mask says at which token it was read", () => {
  expect(predictedWhere(trace(["the", "cat", "."], 2), false, "[MASK]")).toBe("It predicts, at “.”, which is not masked");
});

test("captions of an encoder speak of no next word", () => {
  for (const key of ["layers.about.wordsAt", "predict.titleAt", "predict.unmasked"]) expect(t(key)).not.toMatch(/next (word|token)/);
});

test("the end of the tour, at temperature 0, speaks of no sampled token", () => {
  expect(t("tour.stops.9.text")).not.toContain("sampled");
});
