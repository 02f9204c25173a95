"""Run a `heed` command in several processes on this machine. torchrun does the same over several machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

GRACE_SECONDS = 30.0  # for the other processes to end after one has failed


def is_first() -> bool:
    """Whether this process prints: it is alone, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def launch(count: int, arguments: Sequence[str], *, text: str | None = None, alike: bool = False) -> int:
    """Run `heed` in `count` processes; return the exit code of the first that failed.

    `text` is what each reads from stdin. Processes that are `alike` all print the same: the first is heard,
    and another only if it alone fails.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared = os.environ | place | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "heedful.cli", *arguments]
    with tempfile.TemporaryFile() as errors:
        processes: list[subprocess.Popen[bytes]] = []
        for rank in range(count):
            streams: dict[str, Any] = {} if text is None else {"stdin": subprocess.PIPE}
            if alike and rank:
                streams |= {"stdout": subprocess.DEVNULL, "stderr": errors}
            # In sessions of their own, so that Ctrl-C reaches them once: from here.
            where = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=where, start_new_session=True, **streams))

        def forward(number: int, frame: Any) -> None:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(number)

        old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for stdin in (process.stdin for process in processes):
                with suppress(BrokenPipeError):  # one that has ended already does not read it
                    if stdin is not None and text is not None:
                        stdin.write(text.encode())
                        stdin.close()
            code = _wait(processes)
            if code and processes[0].returncode in (0, -signal.SIGKILL):  # it did not say what failed
                errors.seek(0)
                sys.stderr.write(errors.read().decode(errors="replace"))
            return code
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended and return the exit code. If one fails, the others are ended too."""
    failed: int | None = None
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        codes = [process.returncode for process in processes if process.poll() is not None]
        if failed is None and any(codes):
            failed, deadline = next(code for code in codes if code), time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    codes = [process.returncode for process in processes]
    code = codes[0] or failed or next((c for c in codes if c), 0)
    return code if code >= 0 else 128 - code
