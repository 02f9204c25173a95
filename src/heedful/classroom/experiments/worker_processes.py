"""Systems of a comparison measured in processes of their own, several at a time, in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from heedful.core.errors import HeedfulError

PAUSE = 0.1  # seconds between two looks at the processes


def run_workers(commands: Mapping[str, Sequence[str]], jobs: int) -> None:
    """Run commands of heed by name, `jobs` at a time; raise an error that names those that failed.

    What one has measured is kept although another fails. Ctrl-C is handed on: all keep what they have.
    """
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    waiting, running = dict(commands), dict[str, subprocess.Popen[bytes]]()
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = next(iter(waiting))
                words = [sys.executable, "-m", "heedful.cli", *waiting.pop(name)]
                # In sessions of their own, so that Ctrl-C reaches them once: from here.
                running[name] = subprocess.Popen(
                    words, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
                )
            for name in [n for n, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode != 0:
                    failed.append(name)
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for process in running.values():
            process.wait()
        raise
    if failed:
        raise HeedfulError(
            f"{', '.join(failed)}: not measured to the end", hint="the same command measures what is missing"
        )
