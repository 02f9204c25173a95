import { afterEach, expect, it, vi } from "vitest";
import { call, epoch, events, online, Problem, queried } from "../src/http";

afterEach(() => vi.unstubAllGlobals());

function streamed(...chunks: string[]): Response {
  const bytes = new TextEncoder();
  return new Response(new ReadableStream({
    start(control) {
      for (const chunk of chunks) control.enqueue(bytes.encode(chunk));
      control.close();
    },
  }));
}

it("reads events however they are cut on the way", async () => {
  const text = 'event: token\ndata: {"text": "a\\n"}\n\n: a comment\n\nevent: done\r\ndata: {"text": "ab"}\r\n\r\n';
  for (let at = 1; at < text.length; at += 7) {
    const found = [];
    for await (const event of events(streamed(text.slice(0, at), text.slice(at)))) found.push(event);
    expect(found).toEqual([{ event: "token", data: { text: "a\n" } }, { event: "done", data: { text: "ab" } }]);
  }
});

it("says what the server said, with its hint", async () => {
  vi.stubGlobal("fetch", async () => new Response('{"error": {"code": "cannot", "message": "no words", "hint": "take another"}}', { status: 422 }));
  const error = await call("/api/x").catch((e) => e);
  expect(error).toBeInstanceOf(Problem);
  expect([error.message, error.hint, error.status]).toEqual(["no words", "take another", 422]);
});

it("says the status where the answer is no JSON", async () => {
  vi.stubGlobal("fetch", async () => new Response("<html>", { status: 502 }));
  expect((await call("/api/x").catch((e) => e)).message).toContain("502");
});

it("counts a lost trace once, however many ask for it", async () => {
  vi.stubGlobal("fetch", async () => new Response('{"error": {"code": "trace_gone", "message": "gone"}}', { status: 410 }));
  const before = epoch.value;
  await Promise.allSettled(["tensor", "lens", "scores"].map((what) => call(`/api/trace/old-1/${what}`)));
  expect(epoch.value).toBe(before + 1);
});

it("knows that the server is gone, and that it is back", async () => {
  vi.useFakeTimers();
  vi.stubGlobal("fetch", async () => Promise.reject(new TypeError("refused")));
  await call("/api/models").catch(() => undefined);
  expect(online.value).toBe(false);
  const before = epoch.value;
  vi.stubGlobal("fetch", async () => new Response("{}"));
  await vi.advanceTimersByTimeAsync(600);
  expect([online.value, epoch.value]).toEqual([true, before + 1]);
  vi.useRealTimers();
});

it("leaves out of a query what is not there", () => {
  expect(queried({ a: 1, b: undefined, c: "", d: "x y" })).toBe("?a=1&d=x+y");
  expect(queried({})).toBe("");
});
