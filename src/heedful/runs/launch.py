"""Several processes of one run on this machine. torchrun does the same over several machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

PATIENCE = 30.0  # seconds that the others have to end after one of them did


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `heed train` with these arguments in `count` processes; the exit code of the first that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared = os.environ | place | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "heedful.runs.train", *arguments]
    # In sessions of their own, so that Ctrl-C reaches them once: from here.
    started = [
        subprocess.Popen(command, env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)}, start_new_session=True)
        for r in range(count)
    ]

    def forward(number: int, frame: Any) -> None:
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(started)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> int:
    """Until all have ended. One that fails would leave the others waiting for it: they are ended too."""
    failed: int | None = None
    deadline = float("inf")
    while any(process.poll() is None for process in started):
        codes = [process.returncode for process in started if process.poll() is not None]
        if failed is None and any(codes):
            failed, deadline = next(code for code in codes if code), time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            for process in started:
                process.kill()
        time.sleep(0.05)
    codes = [process.returncode for process in started]
    code = codes[0] or failed or next((c for c in codes if c), 0)
    return code if code >= 0 else 128 - code
