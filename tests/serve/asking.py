"""Ways to ask: the events of a stream, an application called by hand, a model that says what it is told."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from heedful.decode.slots import EagerSlots, Slot
from heedful.serve.openai_server import Server

T = TypeVar("T")
LOOP_THREAD = "event-loop"


def run_async(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: a browser of other tests may hold the loop of this one."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(scene))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=LOOP_THREAD)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def events(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as the contract says."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def said(text: str, index: int = 0) -> str:
    """The text of one choice of a stream, of either shape."""
    choices = [c for chunk in events(text) for c in chunk.get("choices", []) if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


class Scripted(EagerSlots):
    """Writes these tokens, whatever was asked."""

    def __init__(self, model: Any, ids: list[int], max_rows: int = 8) -> None:
        super().__init__(model, max_rows)
        self.script, self.at = ids, {}  # type: ignore[var-annotated]

    def logits(self, at: int) -> Tensor:
        logits = torch.zeros(1, self.model.config.vocab)
        logits[:, self.script[min(at, len(self.script) - 1)]] = 50.0
        return logits

    def append_tokens(self, slot: Slot, ids: Sequence[int]) -> Tensor:
        self.at[slot] = self.at.get(slot, -1) + 1
        slot.ids += ids
        return self.logits(self.at[slot])


class Slow:
    """In place of a model: a token every few milliseconds, and how many there were. One text at a time."""

    def __init__(self, pause: float = 0.01) -> None:
        self.pause, self.tokens, self.begun = pause, 0, 0
        self.fails: Exception | None = None
        self.held = threading.Event()
        self.held.set()
        self.stops_at = sys.maxsize  # tokens: there it waits until this is raised

    def slots(self, model: Any, max_rows: int, context: int | None = None) -> Scripted:
        slow = self

        class SlowSlots(Scripted):
            def open(self, ids: Any, length: int) -> Slot:
                slow.begun += 1
                return super().open(ids, length)

            def append_tokens(self, slot: Slot, ids: Any) -> torch.Tensor:
                assert slow.held.wait(60)
                while slow.tokens >= slow.stops_at:
                    time.sleep(0.001)
                time.sleep(slow.pause)
                if slow.fails is not None:
                    raise slow.fails
                slow.tokens += 1
                return super().append_tokens(slot, ids)

        return SlowSlots(model, [5], 1)

    def take_over(self, server: Server) -> None:
        """Stand in for the models of a server that is there already."""
        for served in server.models.values():
            if served.batch is not None:
                served.batch.slots = self.slots(served.model, 1)


class Caller:
    """One request to an application, by hand: what was sent, and ways to stop reading and to hang up."""

    def __init__(self, app: Any, path: str, body: Any, **headers: str) -> None:
        self.app, self.path, self.body = app, path, json.dumps(body).encode()
        self.headers = [(b"host", b"127.0.0.1"), *((k.encode(), v.encode()) for k, v in headers.items())]
        self.sent: list[dict[str, Any]] = []
        self.left, self.reading = asyncio.Event(), asyncio.Event()
        self.reading.set()
        self.whole = True

    async def __call__(self) -> None:
        given: list[dict[str, Any]] = [
            {"type": "http.request", "body": self.body, "more_body": not self.whole}
        ]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            await self.reading.wait()
            self.sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": self.path, "raw_path": self.path.encode(),
            "query_string": b"", "headers": self.headers, "scheme": "http", "server": ("127.0.0.1", 80),
            "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        await self.app(scope, receive, send)

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.sent if m["type"] == "http.response.start"), None)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent).decode()


async def until(true: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.002)
