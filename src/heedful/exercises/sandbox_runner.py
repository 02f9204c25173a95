"""The student's process: reads a solution, then answers calls of its functions until nobody asks any more.

It is started by its path (`python -I -B sandbox_runner.py`) in an empty folder. Messages go through what were
stdin and stdout; what the solution prints goes to a file. The limits hold against accidents: memory, CPU time
and sizes of files by the system; programs, network and files elsewhere by an audit hook of Python. They are
no jail: who means harm can get around a hook, so grade only what you would also run yourself.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PRINT_FILE, MAX_PRINTED = "printed.txt", 4096  # where prints go, and how much of them is kept
LOAD = importlib.util.spec_from_file_location("messages", Path(__file__).with_name("sandbox_messages.py"))
PROGRAMS = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn")
NETWORK = ("socket.connect", "socket.bind", "socket.send", "socket.getaddrinfo", "socket.gethostby")
CHANGES = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.utime", "shutil.",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RefusedError(PermissionError):
    """Something that no solution needs, and that this process does not do."""


def set_limits(memory: int, seconds: int, file_bytes: int) -> None:
    """Limit further memory, CPU time and sizes of files, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    base = 0
    with contextlib.suppress(OSError):
        base = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = [(resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_CORE, 0)]
    for kind, limit in [*limits, *([(resource.RLIMIT_AS, base + memory)] if base else [])]:
        with contextlib.suppress(ValueError, OSError):  # a stricter limit holds already
            resource.setrlimit(kind, (limit, limit))


def refuse_outside(folder: str, refused_actions: list[str]) -> None:
    """Refuse programs, network, signals, and changes of files outside `folder`, from now on."""
    devices = {os.devnull}

    def is_inside(path: Any) -> bool:
        if isinstance(path, int):  # open already
            return True
        real = os.path.realpath(os.fsdecode(path))
        return real in devices or real == folder or real.startswith(folder + os.sep)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        action = None
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and not is_inside(path):
                action = f"write {os.fsdecode(path)[-80:]!r}"  # the end of a long path tells more
        elif event.startswith(CHANGES):
            if not all(is_inside(p) for p in arguments[:2] if isinstance(p, str | bytes | os.PathLike)):
                action = f"change a file ({event})"
        elif event.startswith(PROGRAMS):
            action = f"start a program ({event})"
        elif event.startswith(NETWORK):
            action = f"use the network ({event})"
        elif event in ("os.kill", "os.killpg"):
            action = "send a signal to a process"
        if action is not None:
            refused_actions.append(action)
            raise RefusedError(action)

    sys.addaudithook(watch)


def describe_error(error: BaseException, source: str, name: str) -> dict[str, Any]:
    """Return the kind, the text and the line of an error, as far as it lies in the student's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    lines = source.splitlines()
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        kind = "FileLimit"
    elif isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        kind = "MemoryError"
    return {
        "kind": kind, "text": " ".join(text.split())[:200], "line": line,
        "code": lines[line - 1].strip()[:120] if line and line <= len(lines) else "",
    }  # fmt: skip


class Runner:
    """One solution in this process."""

    def __init__(self, messages: Any, reading: Any, writing: Any) -> None:
        self.messages, self.reading, self.writing = messages, reading, writing
        self.refused_actions: list[str] = []
        self.module = types.ModuleType("solution")
        self.source, self.name = "", "solution.py"

    def receive(self) -> dict[str, Any] | None:
        message: dict[str, Any] | None = self.messages.receive(self.reading, self.proxy)
        return message

    def proxy(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the one of the other side, which has the model."""

        def call_sender(*arguments: Any) -> Any:
            self.messages.send(self.writing, {"ask": name, "arguments": list(arguments)})
            reply = self.receive()
            if reply is None:
                raise SystemExit
            if "refusal" in reply:
                raise ValueError(reply["refusal"])
            return reply["value"]

        return call_sender

    def load(self, source: str, name: str) -> dict[str, Any]:
        """Run the file; return the functions it defines, up to a line that went wrong."""
        self.source, self.name = source, name
        sys.modules["solution"] = self.module
        problem = None
        try:
            code = compile(source, name, "exec", dont_inherit=True)
            exec(code, self.module.__dict__)  # the student's own file, in the process that is there for it
        except BaseException as error:  # also SystemExit: what was defined before it can be graded
            problem = describe_error(error, source, name)
        functions = [n for n, value in list(vars(self.module).items()) if callable(value)]
        return {"functions": functions, "problem": problem}

    def reply_to(self, message: dict[str, Any]) -> dict[str, Any]:
        """Load or call, and turn whatever happens into a message."""
        self.refused_actions.clear()
        try:
            if "load" in message:
                reply = self.load(message["load"], message["name"])
            else:
                arguments = [message[f"argument {i}"] for i in range(message["count"])]
                reply = {"value": vars(self.module)[message["call"]](*arguments)}
            sys.stdout.flush()
            if os.fstat(1).st_size > MAX_PRINTED:  # one call may not print more than the limit; many may
                os.ftruncate(1, MAX_PRINTED)
                os.lseek(1, MAX_PRINTED, os.SEEK_SET)
        except BaseException as error:  # also SystemExit: one function that ends must not end the others
            reply = {"error": describe_error(error, self.source, self.name)}
        return reply | {"refused": list(self.refused_actions[:8])}


def main() -> None:
    """Answer until the other side is gone."""
    assert LOAD is not None
    assert LOAD.loader is not None
    reading, writing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    messages = importlib.util.module_from_spec(LOAD)
    LOAD.loader.exec_module(messages)
    prints = os.open(PRINT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (prints, 1), (prints, 2)):
        os.dup2(old, new)
    import torch

    torch.set_num_threads(1)
    runner = Runner(messages, reading, writing)
    limits = runner.receive()
    assert limits is not None
    set_limits(**limits)
    refuse_outside(os.path.realpath(os.getcwd()), runner.refused_actions)
    messages.send(writing, {"ready": True})
    while (message := runner.receive()) is not None:
        reply = runner.reply_to(message)
        try:
            messages.send(writing, reply)
        except (messages.MessageError, MemoryError, ValueError) as error:
            messages.send(writing, {"error": describe_error(error, "", "")})


if __name__ == "__main__":
    main()
