"""What opening a file may cost, whatever is in it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS, BYTES = 5.0, 10**9


@contextmanager
def bounded() -> Iterator[None]:
    """Let nothing inside take more than SECONDS of processor time or BYTES of memory."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"over {SECONDS:g} seconds")

    held = Path("/proc/self/statm")
    pages = int(held.read_text().split()[0]) if held.exists() else 0
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, stop)
    if pages:  # elsewhere the address space cannot be limited
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGVTALRM, before)
