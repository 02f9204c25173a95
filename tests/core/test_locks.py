"""One process at a time: the second is refused in one line, and a lock whose owner is gone is taken over."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.core.errors import ConfigError, HeedfulError
from heedful.core.locks import STALE_SECONDS, FileLock, process_start, this_process
from tests.refusal import refused

HOLD = """
import sys, time
from pathlib import Path
from heedful.core.locks import FileLock
FileLock(Path(sys.argv[1]), "the place", "wait").acquire()
print("held", flush=True)
time.sleep(60)
"""


def lock(path: Path) -> FileLock:
    return FileLock(path, "the place", "wait")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds tmp_path/x.lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "x.lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_lock_that_another_process_holds_names_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        lock(tmp_path / "x.lock").acquire()
    assert str(caught.value) == f"the place is in use by process {holder.pid}; wait"
    assert not lock(tmp_path / "x.lock").is_free()


def test_a_lock_whose_owner_was_killed_is_taken_over(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)  # a zombie until it is waited for
    deadline = time.monotonic() + 60
    while process_start(holder.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    with lock(tmp_path / "x.lock"):
        assert json.loads((tmp_path / "x.lock").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def owned(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps(this_process() | changes))
    return path


def test_a_number_given_anew_is_not_mistaken_for_the_owner(tmp_path: Path) -> None:
    path = owned(tmp_path / "x.lock", pid=os.getppid(), started="long ago")
    with lock(path):
        assert lock(path).is_free()


def test_on_another_host_a_lock_holds_as_long_as_it_is_touched(tmp_path: Path) -> None:
    path = owned(tmp_path / "x.lock", host="elsewhere", pid=7)
    with pytest.raises(ConfigError, match="process 7 on elsewhere"):
        lock(path).acquire()
    old = time.time() - STALE_SECONDS - 1
    os.utime(path, (old, old))
    with lock(path):
        assert json.loads(path.read_text())["host"] == socket.gethostname()


def test_the_process_that_holds_a_lock_may_take_it_again_and_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with lock(path):
        with lock(path):
            assert path.is_file()
        assert path.is_file()
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_lock_file_holds_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(text)
    with lock(tmp_path / "x.lock"):
        assert json.loads((tmp_path / "x.lock").read_text())["host"] == socket.gethostname()


@pytest.mark.parametrize("text", ['{"pid": "x"}', '{"pid": -1}'])
def test_a_lock_file_without_a_host_does_not_hold_for_ever(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text(text)
    old = time.time() - STALE_SECONDS - 1
    os.utime(path, (old, old))
    with lock(path):
        assert path.is_file()


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with refused(HeedfulError, "the place", "No such file"):
        lock(tmp_path / "missing" / "x.lock").acquire()


def test_of_many_processes_at_once_one_gets_a_stale_lock(tmp_path: Path) -> None:
    path = owned(tmp_path / "x.lock", pid=2**22 + 1)
    code = HOLD.replace("time.sleep(60)", "sys.stdin.read()")
    pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    command = [sys.executable, "-c", code, str(path)]
    tries = [subprocess.Popen(command, text=True, **pipes) for _ in range(4)]
    told = [process.stdout.readline() if process.stdout else "" for process in tries]
    for process in tries:
        process.communicate()
    assert sorted(told) == ["", "", "", "held\n"]
