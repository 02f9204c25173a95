"""One thread that owns a model: requests wait in line, and a page's newer run ends its older one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from heedful.serve.guard import RequestRefused

T = TypeVar("T")


class Ticket:
    """Whether somebody still waits for a piece of work."""

    def __init__(self) -> None:
        self._off = threading.Event()

    def cancel(self) -> None:
        self._off.set()

    @property
    def off(self) -> bool:
        return self._off.is_set()

    def check(self) -> None:
        """Called between steps: a thread cannot be stopped from outside."""
        if self.off:
            raise RequestRefused(409, "cancelled", "a newer run of this page took its place")


class Clients:
    """The run that each open page waits for; its next one cancels it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Ticket] = {}

    def ticket(self, client: str | None) -> Ticket:
        """A ticket for a new run of this page; one without a name cancels nothing."""
        new = Ticket()
        if client:
            with self._lock:
                old = self._running.pop(client, None)
                self._running[client] = new
                while len(self._running) > 256:  # pages that were closed long ago
                    self._running.pop(next(iter(self._running)))
            if old is not None:
                old.cancel()
        return new

    def stop(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            for ticket in self._running.values():
                ticket.cancel()


class Worker:
    """A thread and its line."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"studio-{name}")
        self._lock = threading.Lock()
        self.waiting = 0

    def submit(self, function: Callable[[], T], ticket: Ticket | None = None) -> Future[T]:
        """Put work into the line; it is dropped when its turn comes and nobody waits."""

        def turn() -> T:
            try:
                if ticket is not None:
                    ticket.check()
                return function()
            finally:
                with self._lock:
                    self.waiting -= 1

        with self._lock:
            self.waiting += 1
        return self._pool.submit(turn)

    def run(self, function: Callable[[], T], ticket: Ticket | None = None) -> T:
        """Wait for it, here."""
        return self.submit(function, ticket).result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
