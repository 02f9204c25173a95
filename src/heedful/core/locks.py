"""One process at a time: a file that says who works in a folder, noticed when its owner is gone.

    {"pid": 4711, "host": "anna", "started": "…", "since": "2026-01-31 12:00:00"}

A process is known by its number and its start, so that a reused number is not mistaken for it. On another
host nobody can ask; there the owner is gone if it has not touched the file for STALE_SECONDS.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError
from heedful.core.files import read_json, write_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TOUCH_SECONDS, STALE_SECONDS = 30, 600


class FileLock:
    """A lock file, held from `acquire` to `release` or for a `with`.

    What this process holds already it may acquire again; the first holder releases. `name` is what is
    locked, for errors, and `hint` says what to do if another process has it.
    """

    def __init__(self, path: Path, name: str, hint: str) -> None:
        self.path, self.name, self.hint = path.absolute(), name, hint
        self._released: threading.Event | None = None

    def acquire(self) -> None:
        """Take the lock, or raise one line that names the process that has it."""
        try:
            with lock_folder(self.path.parent):
                owner = self._owner()
                if owner == this_process():
                    return
                if owner is not None:
                    here = owner["host"] == socket.gethostname()
                    where = "" if here else f" on {owner['host']}, as {self.path} says"
                    used = f"{self.name} is in use by process {owner['pid']}{where}"
                    raise ConfigError(used, hint=self.hint)
                write_json(self.path, this_process() | {"since": time.strftime("%Y-%m-%d %H:%M:%S")})
        except OSError as error:
            reason = error.strerror or str(error)
            raise HeedfulError(f"{self.name} cannot be locked: {self.path}: {reason}") from None
        self._released = threading.Event()
        threading.Thread(target=self._touch, args=(self._released,), daemon=True).start()

    def release(self) -> None:
        """Give the lock up, if it is held."""
        if self._released is None:
            return
        self._released.set()
        self._released = None
        if self._owner() == this_process():
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def is_free(self) -> bool:
        """Return whether no other process holds the lock."""
        return self._owner() in (None, this_process())

    def _owner(self) -> dict[str, Any] | None:
        """Return who holds the lock, without the time; None if nobody does, or nobody that still lives."""
        try:
            record = read_json(self.path)
            age = time.time() - self.path.stat().st_mtime
        except (FileNotFoundError, CorruptFile):  # records appear whole, so that a damaged one is nobody's
            return None
        owner = {name: record.get(name) for name in ("pid", "host", "started")}
        if owner["host"] != socket.gethostname() or sys.platform == "win32":
            return None if age > STALE_SECONDS else owner
        start = process_start(owner["pid"])
        return owner if start is not None and start == owner["started"] else None

    def _touch(self, end: threading.Event) -> None:
        while not end.wait(TOUCH_SECONDS):
            try:
                os.utime(self.path)
            except OSError:  # somebody removed it
                return


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Wait until no other process of this machine is inside this block for the same folder, then enter it."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def this_process() -> dict[str, Any]:
    """Return how a lock file calls this process."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": process_start(os.getpid())}


def process_start(pid: Any) -> str | None:
    """Return when a process of this host began, as a mark of no other meaning; None if it is gone."""
    if not isinstance(pid, int) or pid <= 0:
        return None
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = status.rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return None if state in "ZX" else f"{boot} {rest[18]}"
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)  # asks whether it is there; no signal is sent
    except ProcessLookupError:
        return None
    except OSError:
        return "unknown"
    return "unknown"
