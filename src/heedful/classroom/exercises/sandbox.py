"""A whole submission, run in one limited process: the grader writes a job, and reads a file of results.

    result = run_submission(source, ["attention"])
    result.runs["attention"].outputs       what it returned on each input, or a SolutionError
    result.runs["attention"].inside        what a real model made of it

Importing torch takes seconds, so it is done once: a nursery, a process without any student's code, imports
everything and forks for each submission. What holds the forked process stands in sandbox_protection.py, what
it does in sandbox_runner.py. A function that takes too long or ends the process costs the functions after it
nothing: a second process runs those.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.classroom.exercises.code_exercises import Output
from heedful.classroom.exercises.sandbox_protection import PRINT_FILE, PROTECTIONS
from heedful.core.errors import HeedfulError

FILE, END = "the file", "the end"  # what the process is at, besides functions
RESULT_BYTES = 128 << 20
GRACE_SECONDS = 60.0  # until a nursery that does not answer is ended: it may import torch on a busy machine
INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
START = """
import sys
sys.path.insert(0, sys.argv[1])  # the same heedful as the grader's: -I leaves out PYTHONPATH
from heedful.classroom.exercises.sandbox_runner import serve
serve()
"""


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of a solution: memory, time and output, and what holds it."""

    seconds: float = 10.0  # of one call, and of running the file
    inside_seconds: float = 20.0  # of a function in a model; a right one that is slower stays right
    memory_bytes: int = 1 << 30  # beyond what torch takes
    printed_bytes: int = 1 << 20  # of any one file, and so of all that is printed
    protections: tuple[str, ...] = PROTECTIONS  # those that the system does not have are left out


class SolutionError(HeedfulError):
    """Something that a student's code did instead of giving a value; `kind` is the name of the error."""

    def __init__(self, message: str, kind: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.kind = kind


@dataclass
class FunctionRun:
    """What came of one function: a value or an error for each input, and what a model made of it."""

    outputs: list[Any] = field(default_factory=list)
    inside: Output | SolutionError | None = None
    copies: list[str] = field(default_factory=list)  # ready-made functions that it called


@dataclass
class SubmissionResult:
    """What came of a submission; `protections` are those that held its process."""

    load_error: SolutionError | None = None  # where the file stopped
    runs: dict[str, FunctionRun] = field(default_factory=dict)
    ours: dict[str, Output] = field(default_factory=dict)  # what the models give with our own functions
    refused_actions: list[str] = field(default_factory=list)
    prints: str = ""
    protections: list[str] = field(default_factory=list)


def run_submission(
    source: str, names: Sequence[str], *, name: str = "solution.py", inside: bool = False,
    limits: SandboxLimits | None = None,
) -> SubmissionResult:  # fmt: skip
    """Run the functions `names` of a text of Python on the inputs of their exercises, perhaps in models."""
    limits, result, waiting = limits or SandboxLimits(), SubmissionResult(), list(names)
    while True:
        job = {"source": source, "name": name, "names": waiting, "inside": inside}
        culprit = run_process(job, limits, result)
        waiting = waiting[waiting.index(culprit) + 1 :] if culprit in waiting else []
        if not waiting:
            return result


class Nursery:
    """The process that submissions are forked from; one submission at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process if it is not there; it imports torch while the caller does something else."""
        if self.process is None or self.process.poll() is not None:
            if self.process is None:
                self.errors = tempfile.TemporaryFile()  # noqa: SIM115  open as long as this object is in use
                atexit.register(self.close)
            else:
                self.process.communicate()  # closes the pipes to the one that has ended
            inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
            command = [sys.executable, "-I", "-B", "-c", START, str(Path(__file__).parents[3])]
            self.errors.truncate(0)
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                env=inherited | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, start_new_session=True,
            )  # fmt: skip
        return self.process

    def run(self, job: dict[str, Any]) -> tuple[int, bool]:
        """Run a submission to its end; return its exit code and whether it took too long."""
        with self.lock:
            process = self.start()
            assert process.stdin is not None
            assert process.stdout is not None
            timer = threading.Timer(GRACE_SECONDS + job["limits"]["seconds"], process.kill)
            timer.start()
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(job).encode() + b"\n")
                    process.stdin.flush()
                answer = process.stdout.readline()
            except BaseException:  # Ctrl-C: the submission ends with the nursery, nobody waits for its answer
                process.kill()
                raise
            finally:
                timer.cancel()
            # Without fork it was the nursery itself that ran the submission, and it has ended.
            code, is_late = json.loads(answer) if answer else (process.wait(), False)
            return code, is_late

    def close(self) -> None:
        """End the process: it stops when nobody can write to it any more."""
        assert self.process is not None
        self.process.communicate()
        self.errors.close()


NURSERY = Nursery()


def not_started(errors: bytes) -> HeedfulError:
    """Return an error with the last line that the process wrote."""
    line = errors.decode("utf-8", errors="replace").split("\n")[-2:][0][:200]
    return HeedfulError("the process that grades a file did not start", hint=line or "it gave no reason")


def run_process(job: dict[str, Any], limits: SandboxLimits, result: SubmissionResult) -> str | None:
    """Run one process and add what it wrote to `result`; return the function that ended it, if one did."""
    # The process has its own watchdog for each call: this is for a submission that switched it off.
    seconds = 10 + (1 + len(job["names"])) * (2 * limits.seconds + limits.inside_seconds)
    job["seconds"] = {"call": limits.seconds, "inside": limits.inside_seconds}
    job["protections"] = limits.protections
    job["limits"] = {
        "memory": limits.memory_bytes, "seconds": int(seconds) + 1,
        "file_bytes": limits.printed_bytes, "result_bytes": RESULT_BYTES,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="heed-grade-") as folder:
        paths = {name: Path(folder, name) for name in ("home", "results", "trace")}
        paths["home"].mkdir()
        code, is_late = NURSERY.run(job | {name: str(path) for name, path in paths.items()})
        with contextlib.suppress(OSError), (paths["home"] / PRINT_FILE).open("rb") as file:
            result.prints += file.read(2000).decode("utf-8", errors="replace")
        if not paths["results"].exists():
            NURSERY.errors.seek(0)
            raise not_started(NURSERY.errors.read())
        content = paths["trace"].read_bytes()[:20_000]
        trace = content.decode("utf-8", errors="replace")
        from heedful.classroom.exercises.sandbox_runner import MessageError, read_records  # imports torch

        begin, unreadable = {"begin": ""}, None
        try:
            with paths["results"].open("rb") as results:
                for record in read_records(results):
                    begin = record if "begin" in record else begin
                    add_record(record, begin, result)
        except (MessageError, KeyError, TypeError, ValueError, AttributeError) as error:
            unreadable = str(error)[:80]
    subject, is_inside = begin["begin"], begin.get("phase") == "inside"
    if subject == END and unreadable is None:
        return None
    if not subject:
        raise not_started(content)
    allowed = limits.inside_seconds if is_inside else limits.seconds
    if unreadable is not None:
        ending = SolutionError(
            f"{subject} returned something that cannot be read ({unreadable})", "MessageError"
        )
    elif is_late or "Timeout (" in trace:
        line = re.search(rf'File "{re.escape(job["name"])}", line (\d+)', trace)
        where = f", in line {line[1]}" if line else ""
        ending = SolutionError(
            f"{subject} did not finish within {allowed:g} seconds{where}", "Timeout",
            hint="does one of its loops never end?",
        )  # fmt: skip
    else:
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        ending = SolutionError(
            f"{subject} ended the whole process {how}", "Exit", hint="return a value instead"
        )
    if subject not in result.runs:
        raise ending  # the file itself, before any function
    if is_inside:
        result.runs[subject].inside = ending
    else:
        result.runs[subject].outputs.append(ending)
    return str(subject)


def add_record(record: dict[str, Any], begin: dict[str, Any], result: SubmissionResult) -> None:
    """Add one record of a process to `result`; `begin` is the record of what it was doing."""
    subject, error = begin["begin"], None
    actions = record.get("refused", [])
    result.refused_actions += [action for action in actions if action not in result.refused_actions]
    if record.get("error") is not None:
        kind, message, hint = (str(record["error"][part])[:500] for part in ("kind", "message", "hint"))
        error = SolutionError(message, kind, hint or None)
    if "active" in record:
        result.protections = record["active"]
    elif "ours" in record:
        result.ours[record["ours"]] = Output(record["text"], record["numbers"])
    elif "functions" in record:
        result.load_error = error
    elif "begin" in record:
        if subject not in (FILE, END):
            result.runs.setdefault(subject, FunctionRun())
    elif "copies" in record:
        result.runs[subject].copies = record["copies"]
    elif begin["phase"] == "inside":
        result.runs[subject].inside = error or Output(record["text"], record["numbers"])
    else:
        result.runs[subject].outputs.append(error or record["value"])
