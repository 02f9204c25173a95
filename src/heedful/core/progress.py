"""Progress of a wait, on one line of stderr: whoever waits shows it, whoever loops reports how far it is.

    with show_progress("reading the texts"):
        for number, batch in enumerate(batches, 1):
            …
            report_progress("batches", number, len(batches))

The line, `⠹ reading the texts · 3 of 12 batches · 4 s`, appears after a moment and is erased at the end.
Nothing is shown where stderr is not a terminal, and a report that nobody shows costs next to nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

from heedful.core.errors import count_of

DELAY_SECONDS = 0.5  # before the line appears: what is faster needs none
REDRAW_SECONDS = 0.1
DEFAULT_WIDTH = 80  # columns of a terminal that does not say how wide it is
ERASE = "\r\x1b[K"  # goes to the beginning of the line and deletes the rest
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class ProgressLine(threading.Thread):
    """A thread that draws what is waited for, how far it is and for how long it has taken."""

    def __init__(self, activity: str) -> None:
        super().__init__(daemon=True)
        self.activity = activity
        self.counts: dict[str, tuple[int, int | None]] = {}  # by unit: how many are done, and of how many
        self.started, self.ended = time.monotonic(), threading.Event()
        self.drawn, self.lock = False, threading.Lock()  # who draws, or prints above the line, holds the lock

    def run(self) -> None:
        wait = DELAY_SECONDS
        while not self.ended.wait(wait):
            self.draw()
            wait = REDRAW_SECONDS

    def draw(self) -> None:
        """Draw the line again, cut at the width of the terminal."""
        frame = SPINNER[int((time.monotonic() - self.started) / REDRAW_SECONDS) % len(SPINNER)]
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except (OSError, ValueError):
            width = 0
        line = f"{frame} {self.text()}"[: (width or DEFAULT_WIDTH) - 1]
        with self.lock:
            self.drawn = True
            print(ERASE + line, end="", file=sys.stderr, flush=True)

    def text(self) -> str:
        """Return the line without its spinner."""
        counts = [count_of(done, unit, total=total) for unit, (done, total) in list(self.counts.items())]
        return " · ".join([self.activity, *counts, f"{time.monotonic() - self.started:.0f} s"])

    def close(self) -> None:
        """End the thread and erase the line."""
        self.ended.set()
        self.join()
        self.erase()

    def erase(self) -> None:
        """Erase the line until it is drawn again."""
        if self.drawn:
            print(ERASE, end="", file=sys.stderr, flush=True)
            self.drawn = False


_shown: ContextVar[ProgressLine | None] = ContextVar("heedful_progress", default=None)
_between_steps: ContextVar[Callable[[], None] | None] = ContextVar("heedful_between_steps", default=None)


@contextmanager
def show_progress(activity: str, *, quiet: bool = False) -> Iterator[None]:
    """Show on a terminal what is being done while the block runs; inside another one, in its place."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    outer = _shown.get()
    line = ProgressLine(activity) if outer is None else outer
    before = line.activity, line.counts
    line.activity, line.counts = activity, {}
    token = _shown.set(line)
    if outer is None:
        line.start()
    try:
        yield
    finally:
        _shown.reset(token)
        line.activity, line.counts = before
        if outer is None:
            line.close()


@contextmanager
def call_between_steps(function: Callable[[], None] | None) -> Iterator[None]:
    """Call a function at every report inside the block. It may do other work, or raise to end this one."""
    token = _between_steps.set(function)
    try:
        yield
    finally:
        _between_steps.reset(token)


def report_progress(unit: str, done: int, total: int | None = None) -> None:
    """Report how many units are done, and of how many if that is known. A line that is shown counts them."""
    if (function := _between_steps.get()) is not None:
        function()
    line = _shown.get()
    if line is not None:
        line.counts[unit] = (done, total)


def print_above(text: str) -> None:
    """Print a line on stderr that stays, above the one that is shown."""
    line = _shown.get()
    with nullcontext() if line is None else line.lock:
        if line is not None:
            line.erase()
        print(text, file=sys.stderr, flush=True)
