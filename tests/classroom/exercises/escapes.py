"""Ways out of the grading process, each tried with each protection.

`python -m tests.classroom.exercises.escapes` prints the table.

The submission below tries them one after the other and prints which got through. It is handed to the
grader as a student's file, so that what holds here also holds against a student.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heedful.classroom.exercises.sandbox import SandboxLimits, run_submission
from heedful.classroom.exercises.sandbox_protection import PROTECTIONS

# Everything is imported first: an escape must not fail because its module cannot be read.
SUBMISSION = """
import ctypes, fcntl, json, os, signal, socket, subprocess, sys, _posixsubprocess
TARGET = json.loads({target!r})
libc = ctypes.CDLL(None, use_errno=True)

def succeeded(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), "refused")

def open_and_write():
    open(TARGET["folder"] + "/open", "w").write("x")

def write_by_folder_descriptor():
    folder = os.open(TARGET["folder"], os.O_RDONLY)
    os.write(os.open("dir_fd", os.O_WRONLY | os.O_CREAT, dir_fd=folder), b"x")

def write_by_libc():
    succeeded(libc.open((TARGET["folder"] + "/libc").encode(), os.O_WRONLY | os.O_CREAT, 0o600))

def delete_by_libc():
    succeeded(libc.unlink((TARGET["folder"] + "/victim").encode()))

def change_mode_by_libc():
    succeeded(libc.chmod((TARGET["folder"] + "/mode").encode(), 0o777))

def read_private_file():
    open(TARGET["folder"] + "/mode").read()

def run_program():
    subprocess.run(["true"], check=True)

def run_program_by_fork_exec():
    read, write = os.pipe()
    program, streams = [b"/bin/true"], [-1] * 6
    more = [read, write, False, False, -1, None, None, None, -1, None, False]
    child = _posixsubprocess.fork_exec(program, program, True, (write,), None, None, *streams, *more)
    succeeded(child)
    if os.waitpid(child, 0)[1]:
        raise OSError("the program did not start")

def run_program_by_libc():
    if libc.system(b"true"):
        raise OSError("the program did not start")

def connect():
    socket.create_connection(("127.0.0.1", TARGET["port"]), timeout=1)

def connect_by_libc():
    descriptor = libc.socket(2, 1, 0)
    succeeded(descriptor)
    port = TARGET["port"].to_bytes(2, "big")
    address = (2).to_bytes(2, sys.byteorder) + port + bytes([127, 0, 0, 1]) + bytes(8)
    succeeded(libc.connect(descriptor, address, 16))

def kill_another():
    os.kill(TARGET["pid"], 0)

def kill_another_by_pidfd():
    signal.pidfd_send_signal(os.pidfd_open(TARGET["pid"]), 0)

def kill_another_by_libc():
    succeeded(libc.kill(TARGET["pid"], 0))

def kill_another_by_a_full_pipe():
    read, write = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, TARGET["pid"])

def limit_another():
    succeeded(libc.prlimit(TARGET["pid"], 0, (ctypes.c_ulong * 2)(2**40, 2**40), None))

def read_memory_of_another():
    open("/proc/%d/mem" % TARGET["pid"], "rb").close()

for name, function in list(globals().items()):
    if callable(function) and getattr(function, "__module__", "") == __name__ and name != "succeeded":
        try:
            function()
            print(name, flush=True)
        except BaseException:
            pass
print("end", flush=True)
"""
ESCAPES = {
    "open_and_write": "`open(path, 'w')` outside its folder",
    "write_by_folder_descriptor": "`os.open(…, dir_fd=…)` outside its folder",
    "write_by_libc": "`ctypes`: `open` for writing",
    "delete_by_libc": "`ctypes`: `unlink`",
    "change_mode_by_libc": "`ctypes`: `chmod`",
    "read_private_file": "read a file of the user",
    "run_program": "`subprocess.run`",
    "run_program_by_fork_exec": "`_posixsubprocess.fork_exec`",
    "run_program_by_libc": "`ctypes`: `system`",
    "connect": "`socket.create_connection`",
    "connect_by_libc": "`ctypes`: `socket`, `connect`",
    "kill_another": "`os.kill`",
    "kill_another_by_pidfd": "`signal.pidfd_send_signal`",
    "kill_another_by_libc": "`ctypes`: `kill`",
    "kill_another_by_a_full_pipe": "`fcntl` with `F_SETOWN`",
    "limit_another": "`ctypes`: `prlimit` of another process",
    "read_memory_of_another": "open `/proc/PID/mem`",
}


@contextmanager
def prepare_target() -> Iterator[dict[str, Any]]:
    """Give a folder, a port and a process that a submission must not reach."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("victim", "mode"):
            Path(folder, name).write_text("mine")
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            yield {"folder": folder, "port": server.getsockname()[1], "pid": sleeper.pid}
        finally:
            sleeper.kill()
            sleeper.communicate()


def successful_escapes(protections: tuple[str, ...]) -> set[str]:
    """Return the escapes that get through these protections."""
    with prepare_target() as target:
        source = SUBMISSION.replace("{target!r}", repr(json.dumps(target)))
        result = run_submission(source, ["softmax"], limits=SandboxLimits(protections=protections))
    lines = result.prints.split()
    assert lines[-1:] == ["end"], (protections, result)
    return set(lines[:-1])


def main() -> None:
    """Print the table of docs/exercises.md."""
    rows: tuple[tuple[str, ...], ...] = ((), ("hook",), ("seccomp",), ("landlock",), PROTECTIONS)
    reached = [successful_escapes(row) for row in rows]
    print("| escape | none | audit hook | seccomp | Landlock | all |\n|---|---|---|---|---|---|")
    for name, words in ESCAPES.items():
        print(f"| {words} | {' | '.join('gets out' if name in row else 'held' for row in reached)} |")
    print(f"\n{os.uname().sysname} {os.uname().release}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
