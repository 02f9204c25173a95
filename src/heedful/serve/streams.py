"""From the engine to the client: events with pings, and an end when the client leaves or time is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heedful.serve.engine import EngineJob, Mark
from heedful.serve.generation_jobs import TokenResult
from heedful.serve.guard import Json, json_bytes
from heedful.serve.openai_errors import Gone, OpenAIError, timeout
from heedful.serve.openai_responses import ResponseBuilder

PING_SECONDS = 15.0  # of silence that proxies bear
STALLED_SECONDS = 30.0  # that a client may take to read what was sent
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
log = logging.getLogger("heedful.serve")


@asynccontextmanager
async def following(job: EngineJob, receive: Receive, seconds: float) -> AsyncIterator[None]:
    """While inside, a client that leaves and a time that is up end the job; leaving ends it in any case."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.end(Gone("the client went away"))

    watcher = asyncio.create_task(watch())
    timer = asyncio.get_running_loop().call_later(seconds, lambda: job.end(timeout(seconds)))
    try:
        yield
    finally:
        timer.cancel()
        watcher.cancel()
        job.end()


class Events(Response):
    """Server-sent events. A failure before the first token is still an HTTP status; later it is an event."""

    def __init__(
        self, job: EngineJob, builder: ResponseBuilder, seconds: float, count: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.job, self.builder, self.seconds, self.count = job, builder, seconds, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with following(self.job, receive, self.seconds):
            try:
                items = await self.job.next(PING_SECONDS)
            except OpenAIError as error:
                await Json(error.body, error.status, error.headers)(scope, receive, send)
                return
            except Gone:
                return
            reason = "abort"
            try:
                reason = await self.write(items, send)
            except (Gone, OSError):
                return
            except TimeoutError:
                log.warning(
                    "%s: the client read nothing for %g s and was given up", self.job.label, STALLED_SECONDS
                )
            finally:
                self.count(reason)

    async def write(self, items: list[Any], send: Send) -> str:
        """Send the events from the first items on; return how they ended. What is there goes together."""
        reason = "error"
        raw = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await self.send_events(send, map(json_bytes, self.builder.opening()))
        try:
            while True:
                if not items:
                    await self.send_bytes(send, b": ping\n\n")  # keeps proxies from hanging up
                elif any(isinstance(item, TokenResult) for item in items):  # a whole prompt with its scores
                    await self.send_events(send, await asyncio.to_thread(self.render_events, items))
                else:
                    await self.send_events(send, self.render_events(items))
                if items and items[-1] is Mark.END:
                    break
                items = await self.job.next(PING_SECONDS)
            await self.send_events(send, [*map(json_bytes, self.builder.closing()), b"[DONE]"])
            reason = self.builder.finish_reason
        except OpenAIError as error:
            await self.send_events(send, [json_bytes(error.body), b"[DONE]"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return reason

    def render_events(self, items: list[Any]) -> list[bytes]:
        return [json_bytes(chunk) for chunk in self.builder.chunks(i for i in items if i is not Mark.END)]

    async def send_events(self, send: Send, events: Iterable[bytes]) -> None:
        body = b"".join([b"data: " + event + b"\n\n" for event in events])
        if body:
            await self.send_bytes(send, body)

    async def send_bytes(self, send: Send, body: bytes) -> None:
        async with asyncio.timeout(STALLED_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": True})
