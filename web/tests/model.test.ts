import { expect, it } from "vitest";
import { quoted } from "../src/figures/model";

it("isolates a token that is written from right to left, and leaves others as they are", () => {
  expect(quoted("Ġit")).toBe("“it”");
  expect(quoted("القطة")).toBe("“\u2068القطة\u2069”");
  expect(quoted("שלום")).toBe("“\u2068שלום\u2069”");
});
