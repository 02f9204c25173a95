"""From the engine to the client: events with pings, and an end when the client leaves or time is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heedful.decode.loop import Piece
from heedful.serve.engine import EngineJob, Mark
from heedful.serve.generation_jobs import TokenResult
from heedful.serve.openai_errors import Gone, OpenAIError, timeout
from heedful.serve.openai_responses import ResponseBuilder
from heedful.server.json_response import Json, json_bytes

PING = 15.0  # seconds of silence that proxies bear
STALLED = 30.0  # seconds that a client may take to read what was sent
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
log = logging.getLogger("heedful.serve")


@asynccontextmanager
async def following(job: EngineJob[Any], receive: Receive, seconds: float) -> AsyncIterator[None]:
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

    def __init__(self, job: EngineJob[Any], builder: ResponseBuilder, seconds: float) -> None:
        super().__init__()
        self.job, self.answer, self.seconds = job, builder, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with following(self.job, receive, self.seconds):
            try:
                item = await self.job.next(PING)
            except OpenAIError as error:
                await Json(error.body, error.status, error.headers)(scope, receive, send)
                return
            except Gone:
                return
            try:
                await self.write(item, send)
            except (Gone, OSError):
                return
            except TimeoutError:
                log.warning("%s: the client read nothing for %g s and was given up", self.job.label, STALLED)

    async def write(self, item: Any, send: Send) -> None:
        """The events, from the first item on."""
        raw = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        for chunk in self.answer.opening():
            await self.send_event(send, json_bytes(chunk))
        try:
            while item is not Mark.END:
                if item is Mark.QUIET:
                    await self.send_event(send, None)
                else:
                    for event in await self.events(item):
                        await self.send_event(send, event)
                item = await self.job.next(PING)
            for chunk in self.answer.closing():
                await self.send_event(send, json_bytes(chunk))
        except OpenAIError as error:
            await self.send_event(send, json_bytes(error.body))
        await self.send_event(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def events(self, item: Piece | TokenResult) -> list[bytes]:
        """What one item says; a whole prompt with its scores is written out in a thread of its own."""
        work = lambda: [json_bytes(chunk) for chunk in self.answer.chunks(item)]
        return await asyncio.to_thread(work) if isinstance(item, TokenResult) else work()

    async def send_event(self, send: Send, data: bytes | None) -> None:
        """One event; None is a comment, which keeps proxies from hanging up."""
        body = b": ping\n\n" if data is None else b"data: " + data + b"\n\n"
        async with asyncio.timeout(STALLED):
            await send({"type": "http.response.body", "body": body, "more_body": True})
