"""Work in the thread that owns a model: requests wait in line, and work ends when nobody waits for it.

A thread cannot be stopped from outside. So each piece of work has a `Ticket`, which is cancelled when the
client leaves, or when the same page asks for something newer. It is checked whenever the work reports its
progress (core/progress.py), as generation, searches and pipelines do between two steps.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import StreamingResponse

from heedful.classroom.studio.responses import error_response
from heedful.core.progress import call_between_steps, report_progress
from heedful.serve.guard import RequestRefused
from heedful.serve.json_response import json_bytes

T = TypeVar("T")
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LISTEN_SECONDS = 0.5  # how often a silent stream writes a comment, which keeps it open
MAX_CLIENTS = 256  # pages whose runs are remembered

Event = dict[str, Any]
Report = Callable[[Event], None]


class Ticket:
    """Whether somebody still waits for a piece of work."""

    def __init__(self) -> None:
        self.off = False

    def cancel(self) -> None:
        self.off = True

    def check(self) -> None:
        """Raise an error if nobody waits any more; called between steps."""
        if self.off:
            raise RequestRefused(409, "cancelled", "a newer run of this page took its place")

    def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function, or end it between two of its steps when nobody waits any more."""
        self.check()
        with call_between_steps(self.check):
            return function()


def check_waiting() -> None:
    """Raise an error if nobody waits any more for the work of this thread."""
    report_progress("steps", 0)


class Clients:
    """The run that each open page waits for; its next one cancels it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Ticket] = {}

    def ticket(self, client: str | None) -> Ticket:
        """Return a ticket for a new run of this page; one without a name cancels nothing."""
        new = Ticket()
        if client:
            with self._lock:
                if (old := self._running.pop(client, None)) is not None:
                    old.cancel()
                self._running[client] = new
                while len(self._running) > MAX_CLIENTS:  # pages that were closed long ago
                    self._running.pop(next(iter(self._running)))
        return new

    def stop(self) -> None:
        """Cancel every run: nobody waits any more."""
        with self._lock:
            for ticket in self._running.values():
                ticket.cancel()


class Worker:
    """A thread and its line."""

    def __init__(self, name: str) -> None:
        self._thread: int | None = None
        self._pool = ThreadPoolExecutor(1, f"studio-{name}", initializer=self._begin)
        self._lock = threading.Lock()
        self.waiting = 0

    def _begin(self) -> None:
        self._thread = threading.get_ident()

    def submit(self, function: Callable[[], T], ticket: Ticket | None = None) -> Future[T]:
        """Put work into the line; it is dropped when its turn comes and nobody waits."""

        def turn() -> T:
            try:
                return function() if ticket is None else ticket.run(function)
            finally:
                with self._lock:
                    self.waiting -= 1

        with self._lock:
            self.waiting += 1
        return self._pool.submit(turn)

    def run(self, function: Callable[[], T], ticket: Ticket | None = None) -> T:
        """Wait for it, here. What the thread itself asks for is done at once: it would wait for ever."""
        if threading.get_ident() == self._thread:
            return function()
        return self.submit(function, ticket).result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def run_while_connected(request: Request, ticket: Ticket, function: Callable[[], T]) -> T:
    """Return what `function` gives, which may wait for models; cancel the ticket when the client leaves."""
    job = asyncio.ensure_future(to_thread.run_sync(function))
    while not (await asyncio.wait({job}, timeout=LISTEN_SECONDS))[0]:
        if await request.is_disconnected():
            ticket.cancel()
    return job.result()


def event_bytes(name: str, data: Any, id: int | None = None) -> bytes:
    """Return one event of a stream, its data as JSON; a page that comes back names the last `id` it got."""
    place = b"" if id is None else b"id: %d\n" % id
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), place, json_bytes(data))


def stream_job(worker: Worker, function: Callable[[Report], Event], ticket: Ticket) -> StreamingResponse:
    """Run `function` in a model's thread and send its events, which have their names under "event".

    It reports events, and returns the last one, "done". When the client leaves, the ticket is cancelled.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def work() -> None:
        try:
            events.put(ticket.run(lambda: function(events.put)))
        except Exception as error:  # whatever it is, the page must hear of it: the answer has begun
            events.put({"event": "error", **error_response(error)[1]})

    async def write() -> AsyncIterator[bytes]:
        worker.submit(work)
        take = lambda: events.get(timeout=LISTEN_SECONDS)
        try:
            while True:
                try:
                    event = await to_thread.run_sync(take, abandon_on_cancel=True)
                except queue.Empty:
                    yield b": still there\n\n"
                    continue
                yield event_bytes(event["event"], event)
                if event["event"] in ("done", "error"):
                    return
        finally:
            ticket.cancel()

    return StreamingResponse(write(), media_type="text/event-stream", headers=STREAM_HEADERS)
