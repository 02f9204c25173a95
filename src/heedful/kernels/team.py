"""Threads that share one step of `rows`.

The caller works itself and waits for nobody to begin: a thread that is late, or does not run at all because
the machine is busy, finds less left to do.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Any

from heedful.kernels import rows


def _help(jobs: SimpleQueue[Any]) -> None:
    while (job := jobs.get()) is not None:
        rows.assist(*job)


def _dismiss(jobs: SimpleQueue[Any], helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)


class Team:
    """The calling thread and `threads` − 1 others, which sleep between steps and end with the team."""

    def __init__(self, threads: int) -> None:
        self.helpers, self.jobs = threads - 1, SimpleQueue[Any]()
        for _ in range(self.helpers):
            threading.Thread(target=_help, args=(self.jobs,), daemon=True, name="heedful-rows").start()
        weakref.finalize(self, _dismiss, self.jobs, self.helpers)

    def run(self, code: Any, reals: Any, now: Any, tokens: Any, first: Any, shared: Any) -> None:
        """One step, shared."""
        shared[rows.TICKET] = rows.BEGIN
        for _ in range(self.helpers):
            self.jobs.put((code, reals, now, first, shared))
        rows.step(code, reals, now, tokens, first, shared)
