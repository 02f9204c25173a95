"""One thread that owns the models, and a bounded line before it: first come, first served.

Work is an iterator; between two of its items the thread looks whether somebody still waits. Items go to the
event loop, which never waits for the thread, nor the thread for a client.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum
from typing import Any, Generic, TypeVar

from heedful.errors import HeedfulError
from heedful.serve.openai_errors import as_openai_error, queue_full, shutting_down, slow_reader

T = TypeVar("T")
UNREAD = 16_384  # items that may wait for a client before its work is given up
log = logging.getLogger("heedful.serve")


class Mark(Enum):
    """What comes out of a line beside items."""

    END = "end"
    QUIET = "quiet"  # nothing for a while


class EngineJob(Generic[T]):
    """One request's work. Everything that ends it comes through one line of items: the last of them, a
    failure, a client that left, a time that is up.
    """

    def __init__(self, function: Callable[[], Iterator[T]], label: str, leave: Callable[[Any], None]) -> None:
        self.function, self.label, self._leave = function, label, leave
        self.off = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | Exception | Mark] = asyncio.Queue()
        self._told = self._taken = 0  # the first is counted by the thread, the second by the loop

    def run(self) -> None:
        """In the engine's thread."""
        try:
            for item in self.function():
                if self.off.is_set():
                    return
                if self._told - self._taken > UNREAD:
                    raise slow_reader()
                self._notify(item)
            self._notify(Mark.END)
        except Exception as error:  # whatever it is, the next request must not suffer from it
            if not isinstance(error, HeedfulError):
                log.exception("%s failed", self.label)
            self._notify(as_openai_error(error))

    def _notify(self, item: T | Exception | Mark) -> None:
        self._told += 1
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop was closed: nobody waits any more
            self.off.set()

    def end(self, error: Exception | None = None) -> None:
        """Nobody waits any more, or only for this error. In the event loop."""
        self.off.set()
        self._leave(self)
        if error is not None:
            self._items.put_nowait(error)

    async def next(self, seconds: float | None = None) -> T | Mark:
        """The next item, END behind the last, QUIET if there is none for that long; failures are raised."""
        try:
            async with asyncio.timeout(seconds):
                found = await self._items.get()
        except TimeoutError:
            return Mark.QUIET
        self._taken += 1
        if isinstance(found, Exception):
            raise found
        return found

    async def __aiter__(self) -> AsyncIterator[T]:
        while (item := await self.next()) is not Mark.END:
            if item is not Mark.QUIET:
                yield item


class Engine:
    """The thread and its line."""

    def __init__(self, max_queue: int = 64) -> None:
        self.most = max_queue
        self.draining = False
        self.running: EngineJob[Any] | None = None
        self._line: deque[EngineJob[Any]] = deque()
        self._turn = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run_jobs, name="heed-engine", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Iterator[T]], label: str = "request") -> EngineJob[T]:
        """Put work into the line, in the event loop; refused if it is full or the server ends."""
        job = EngineJob(function, label, self._forget)
        with self._turn:
            if self.draining:
                raise shutting_down()
            if len(self._line) >= self.most:
                raise queue_full(len(self._line))
            self._line.append(job)
            self._turn.notify_all()
        return job

    def _forget(self, job: EngineJob[Any]) -> None:
        with self._turn:
            if job in self._line:
                self._line.remove(job)

    def _run_jobs(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._line or self._closed)
                if self._closed:
                    return
                job = self.running = self._line.popleft()
            try:
                job.run()
            finally:
                with self._turn:
                    self.running = None

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def is_idle(self) -> bool:
        with self._turn:
            return self.running is None and not self._line

    def abandon(self) -> None:
        """End what runs and what waits, and say so to those who wait. In the event loop."""
        with self._turn:
            left = [*([self.running] if self.running is not None else []), *self._line]
        for job in left:
            job.end(shutting_down())

    def close(self, seconds: float = 5.0) -> None:
        """Stop after the token that is being computed."""
        with self._turn:
            self._closed = self.draining = True
            if self.running is not None:
                self.running.off.set()
            self._turn.notify_all()
        self._thread.join(seconds)
