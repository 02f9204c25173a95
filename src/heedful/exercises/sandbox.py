"""A student's functions, called in a separate process with limits; every failure is one clear line.

    with Sandbox(source) as solution:
        solution.functions                        the names it defines
        solution.call("attention", q, k, v)       what it returns, or SolutionError

A call that runs too long ends the process; the next call starts another one, so that one function cannot
spoil the others. What the limits are worth stands in sandbox_runner.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from heedful.errors import HeedfulError
from heedful.exercises.sandbox_messages import MessageError, receive, send

RUNNER = Path(__file__).with_name("sandbox_runner.py")
START_SECONDS = 60.0  # to import torch on a busy machine
INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of a solution: memory, time and output."""

    seconds: float = 10.0  # of one call, and of running the file
    memory_bytes: int = 1 << 30  # beyond what torch takes
    printed_bytes: int = 1 << 20  # of any one file, and so of all that is printed
    cpu_seconds: int = 120  # of the whole process


class SolutionError(HeedfulError):
    """Something that a student's code did instead of giving a value; `kind` is the name of the error."""

    def __init__(self, message: str, kind: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.kind = kind


class Sandbox:
    """A solution in a process of its own, for a `with`."""

    def __init__(self, source: str, name: str = "solution.py", limits: SandboxLimits | None = None) -> None:
        self.source, self.name, self.limits = source, name, limits or SandboxLimits()
        self.functions: list[str] = []
        self.load_error: SolutionError | None = None  # where the file stopped
        self.refused_actions: list[str] = []  # of all calls
        self.process: subprocess.Popen[bytes] | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self._loaded = False

    def __enter__(self) -> Sandbox:
        self.folder = tempfile.TemporaryDirectory(prefix="heed-grade-")
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self.folder is not None:
            self.folder.cleanup()

    def load(self) -> list[str]:
        """Run the file, if it was not yet, and return the names of its functions."""
        if not self._loaded or self.process is None:
            if self.process is None:
                self._start()
            self._exchange(None, "the student's process", {}, START_SECONDS)  # it imports torch
            message = {"load": self.source, "name": self.name}
            reply = self._exchange(message, "the file", {})
            self.functions, problem = reply["functions"], reply["problem"]
            if problem is not None:
                self.load_error = describe_failure(problem, "the file", self.limits, self.refused_actions)
            self._loaded = True
        return self.functions

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what the student's function gives for these arguments, functions among them."""
        self.load()
        functions = {f"argument {i}": a for i, a in enumerate(arguments) if callable(a)}
        message = {"call": name, "count": len(arguments)}
        message |= {f"argument {i}": argument for i, argument in enumerate(arguments)}
        return self._exchange(message, name, functions).get("value")

    def read_prints(self) -> str:
        """Return the first of what the solution printed since its process started."""
        path = Path(self.folder.name if self.folder else ".", "printed.txt")
        with contextlib.suppress(OSError), path.open("rb") as file:
            return file.read(2000).decode("utf-8", errors="replace")
        return ""

    def _start(self) -> None:
        assert self.folder is not None, "a Sandbox is used by `with`"
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        home = self.folder.name
        private = {"HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(RUNNER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=home, env=inherited | private, start_new_session=True,
        )  # fmt: skip
        self._loaded = False
        limits = self.limits
        assert self.process.stdin is not None
        sizes = {"memory": limits.memory_bytes, "seconds": limits.cpu_seconds}
        send(self.process.stdin, sizes | {"file_bytes": limits.printed_bytes})

    def _stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _exchange(
        self,
        message: dict[str, Any] | None,
        subject: str,
        functions: dict[str, Callable[..., Any]],
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request and return its reply; calls of `functions` are made on the way."""
        process, late = self.process, threading.Event()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        seconds = self.limits.seconds if seconds is None else seconds

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            if message is not None:
                send(process.stdin, message, functions)
            while (reply := receive(process.stdout)) is not None and "ask" in reply:
                send(process.stdin, call_back(reply, functions))
        except (MessageError, OSError) as error:
            self._stop()
            unread = f"{subject} gave nothing that can be read ({str(error)[:80]})"
            raise SolutionError(unread, "MessageError") from None
        finally:
            timer.cancel()
        if reply is None:
            raise self._describe_exit(subject, late.is_set(), seconds)
        self.refused_actions += [a for a in reply.pop("refused", []) if a not in self.refused_actions]
        if "error" in reply:
            if reply["error"]["kind"] in ("FileLimit", "MemoryError"):
                self._stop()  # what it holds may spoil the next call
            raise describe_failure(reply["error"], subject, self.limits, self.refused_actions)
        return reply

    def _describe_exit(self, subject: str, late: bool, seconds: float) -> SolutionError:
        """Return the error of a process that is gone, and forget it."""
        assert self.process is not None
        for _ in range(100):  # it closed its pipe: it is about to end
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        code = self.process.returncode
        self._stop()
        if late:
            limit = f"{seconds:g} seconds"
            return SolutionError(
                f"{subject} did not end within {limit}", "Timeout", hint="does one of its loops never end?"
            )
        ending = f"with exit code {code}" if code is not None and code >= 0 else f"by signal {-(code or 0)}"
        return SolutionError(
            f"{subject} ended the whole process {ending}", "Exit", hint="return a value instead"
        )


def call_back(request: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Call a function that was handed over, for the student's process; an error is its reply, not raised."""
    name = request["ask"]
    if name not in functions:
        return {"refusal": "there is no such function here"}
    try:
        return {"value": functions[name](*request["arguments"])}
    except (HeedfulError, ValueError, TypeError, IndexError, KeyError) as error:
        return {"refusal": str(error)[:200]}


def describe_failure(
    error: dict[str, Any], subject: str, limits: SandboxLimits, refused_actions: list[str]
) -> SolutionError:
    """Return an error inside the student's code as one line that says where it happened."""
    kind, text = error["kind"], error["text"]
    where = f" in line {error['line']}" if error["line"] else ""
    code = f": {error['code']}" if error["code"] else ""
    if kind == "RefusedError":
        action = refused_actions[-1] if refused_actions else text
        message = f"{subject} tried to {action}{where}, which is refused while grading"
        return SolutionError(message, "Refused", hint="no exercise needs it: leave it out")
    if kind == "FileLimit":
        size = f"{limits.printed_bytes / 1e6:.1f} MB"
        message = f"{subject} printed or wrote more than {size}{where}"
        return SolutionError(message, kind, hint="take the print out of the loop")
    if kind == "MemoryError":
        size = f"{limits.memory_bytes / (1 << 30):.1f} GiB"
        message = f"{subject} asked for more than {size} of memory{where}{code}"
        return SolutionError(message, kind, hint="the inputs are small: a few kilobytes are enough")
    if kind == "SystemExit":
        return SolutionError(
            f"{subject} called exit{where}{code}", kind, hint="return a value instead: the grader goes on"
        )
    if kind == "MessageError":
        return SolutionError(f"{subject} returned {text}", kind)
    if kind == "SyntaxError":
        return SolutionError(f"the file is no Python{where}: {text}{code}", kind)
    text = f": {text}" if text else ""
    hint = "the file is graded alone: write everything into it" if kind == "ModuleNotFoundError" else None
    return SolutionError(f"{subject} raised {kind}{text}{where}{code}", kind, hint=hint)
