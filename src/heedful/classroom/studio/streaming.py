"""Work that is told about while it is done, as server-sent events; who stops listening stops the work."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import StreamingResponse

from heedful.classroom.studio.error_responses import error_response
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.workers import Ticket
from heedful.serve.guard import Json

T = TypeVar("T")
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LISTEN_SECONDS = 0.5  # how often a silent stream writes a comment, which keeps it open

Event = dict[str, Any]
Report = Callable[[Event], None]


def stream_job(
    loaded_model: LoadedModel, function: Callable[[Report], Event], ticket: Ticket
) -> StreamingResponse:
    """Run `function` in the model's thread. It reports events, each with its name under "event", and returns
    the last one, "done". When the client leaves, the ticket is cancelled, which `function` checks between
    steps.
    """
    return StreamingResponse(
        events(loaded_model, function, ticket), media_type="text/event-stream", headers=HEADERS
    )


async def run_while_connected(request: Request, ticket: Ticket, function: Callable[[], T]) -> T:
    """Return what `function` gives, which may wait for models. When the client leaves, the ticket is
    cancelled: `function` checks it between steps.
    """
    job = asyncio.ensure_future(to_thread.run_sync(function))
    while not (await asyncio.wait({job}, timeout=LISTEN_SECONDS))[0]:
        if await request.is_disconnected():
            ticket.cancel()
    return job.result()


async def events(
    loaded_model: LoadedModel, function: Callable[[Report], Event], ticket: Ticket
) -> AsyncIterator[str]:
    """The model's thread writes into a line; this coroutine reads it until the client leaves."""
    line: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def turn() -> None:
        try:
            ticket.check()
            line.put(function(line.put))
        except Exception as error:  # whatever it is, the page must hear of it: the answer has begun
            line.put({"event": "error", **error_response(error)[1]})

    loaded_model.worker.submit(turn)
    take = lambda: line.get(timeout=LISTEN_SECONDS)
    try:
        while True:
            try:
                item = await to_thread.run_sync(take, abandon_on_cancel=True)
            except queue.Empty:
                yield ": still there\n\n"
                continue
            yield f"event: {item['event']}\ndata: {Json({}).render(item).decode()}\n\n"
            if item["event"] in ("done", "error"):
                return
    finally:
        ticket.cancel()
