"""Start several processes of one run on this machine. torchrun does the same over several machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

GRACE_SECONDS = 30.0  # for the other processes to end after one has failed


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `heed train` in `count` processes; return the exit code of the first that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared = os.environ | place | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "heedful.train.recipes.train", *arguments]
    # In sessions of their own, so that Ctrl-C reaches them once: from here.
    processes = [
        subprocess.Popen(command, env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)}, start_new_session=True)
        for r in range(count)
    ]

    def forward(number: int, frame: Any) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(processes)
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
