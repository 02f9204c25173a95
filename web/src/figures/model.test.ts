import { expect, test } from "vitest";
import { answersAt, modelRows, rowAt, told, weight, type Picture, type Stage } from "./model";

const table = (rows: number[][]) => ({ shape: [rows.length, rows[0].length], values: Float32Array.from(rows.flat()) });
const bare = { path: "decoder.0.cross", equations: [], note: "", vectors: [], experts: null, parts: [], page: "", params: {}, row_param: "" };
const look: Stage = {
  ...bare, kind: "attention", title: "Cross-attention", side: "target", prediction: null,
  pattern: { name: "p", unit: "head", head: 0, heads: 2, kind: "softmax", values: table([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]]), scores: null, queries: "written", keys: "tokens", every_head: { shape: [1, 2], values: new Float32Array(2) }, group: 1, leaves_out: "" },
};
const head: Stage = {
  ...bare, kind: "head", title: "Head", side: "target", pattern: null, path: "head",
  prediction: { kind: "words", follows: true, rows: ["<s>", "der"], names: [["der"], ["Mann"]], chances: table([[0.9], [0.8]]), position: 0, filled_names: [], filled_chances: [] },
};
const picture: Picture = {
  family: "t", tokens: ["the", "old", "man"], target: ["<s>", "der"], written: ["der", "Mann"], stack: "decoder", layer: 0, path: look.path, head: 0, row: 0, row_side: "written",
  stages: [look, head],
};

test("a source is told for the token that the row looks at most", () => {
  expect(rowAt(picture, "tokens", 0)).toBe(1);
  expect(rowAt(picture, "tokens", 1)).toBe(0);
  expect(rowAt(picture, "target", 1)).toBe(1);
});

test("a look is told by the word written and its strongest keys", () => {
  expect(told(picture, look, 0)).toBe("“der” → “old” .70, “man” .20");
});

test("an answer is that of the row", () => {
  expect(answersAt(picture, head, 1)[0]).toMatchObject({ title: "The next word after “der”", names: ["Mann"] });
});

test("a small weight is written out where all of its row are small", () => {
  expect([weight(0.5046), weight(0.001), weight(-0.25)]).toEqual([".50", "0", "−.25"]);
  expect(weight(0.0005, 0.0005)).toBe("5e-4");
});

test("the table has every weight under the names of its row and its column", () => {
  expect(modelRows({ name: "", texts: [""], labels: [""], pictures: [picture] })).toContainEqual([0, "Cross-attention", "p", "Mann", "the", expect.closeTo(0.6)]);
});
