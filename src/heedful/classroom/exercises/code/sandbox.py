"""A whole submission, run in one limited process: the grader writes a job, and reads a file of results.

    result = run_submission(source, ["attention"])
    result.runs["attention"].outputs       what it returned on each input, or a SolutionError
    result.runs["attention"].inside        what a real model made of it

A function that takes too long or ends the process costs the functions after it nothing: a second process
runs those. What holds the process stands in sandbox_protection.py, what it does in sandbox_runner.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.classroom.exercises.code.exercise import Output
from heedful.classroom.exercises.code.sandbox_protection import PRINT_FILE, PROTECTIONS
from heedful.core.errors import HeedfulError

FILE, END = "the file", "the end"  # what the process is at, besides functions
RESULT_BYTES = 128 << 20
START_SECONDS = 60.0  # to import torch on a busy machine
INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")
# The system's protections begin before anything large is imported: they hold for threads started afterwards.
START = """
import sys
sys.path.insert(0, sys.argv[1])  # the same heedful as the grader's: -I leaves out PYTHONPATH
from heedful.classroom.exercises.code.sandbox_protection import protect_process
active = protect_process(sys.argv[2:])
from heedful.classroom.exercises.code.sandbox_runner import main
main(active, sys.argv[2:])
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


def run_process(job: dict[str, Any], limits: SandboxLimits, result: SubmissionResult) -> str | None:
    """Run one process and add what it wrote to `result`; return the function that ended it, if one did."""
    # The process has a watchdog of its own for each call: this is for a submission that switched it off.
    seconds = START_SECONDS + (1 + len(job["names"])) * (2 * limits.seconds + limits.inside_seconds)
    job["seconds"] = {"call": limits.seconds, "inside": limits.inside_seconds}
    job["limits"] = {
        "memory": limits.memory_bytes, "seconds": int(seconds) + 1,
        "file_bytes": limits.printed_bytes, "result_bytes": RESULT_BYTES,
    }  # fmt: skip
    inherited = {variable: os.environ[variable] for variable in INHERITED_VARIABLES if variable in os.environ}
    command = [sys.executable, "-I", "-B", "-c", START, str(Path(__file__).parents[4]), *limits.protections]
    with (
        tempfile.TemporaryDirectory(prefix="heed-grade-") as home,
        tempfile.TemporaryFile() as results,
        tempfile.TemporaryFile() as watchdog,
    ):
        private = {"HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=results, stderr=watchdog, cwd=home,
            env=inherited | private, start_new_session=True,
        )  # fmt: skip
        is_late = False
        try:
            process.communicate(json.dumps(job).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            with contextlib.suppress(AttributeError, OSError):  # with everything that it may have started
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        with contextlib.suppress(OSError), Path(home, PRINT_FILE).open("rb") as file:
            result.prints += file.read(2000).decode("utf-8", errors="replace")
        results.seek(0)
        watchdog.seek(0)
        trace = watchdog.read(20_000).decode("utf-8", errors="replace")
        from heedful.classroom.exercises.code.sandbox_messages import (  # torch: while it runs
            MessageError,
            read_records,
        )

        begin, unreadable = {"begin": ""}, None
        try:
            for record in read_records(results):
                begin = record if "begin" in record else begin
                add_record(record, begin, result)
        except (MessageError, KeyError, TypeError, ValueError, AttributeError) as error:
            unreadable = str(error)[:80]
    subject, is_inside = begin["begin"], begin.get("phase") == "inside"
    if subject == END and unreadable is None:
        return None
    if not subject:
        hint = (trace.split("\n")[-2:] or ["it gave no reason"])[0][:200]
        raise HeedfulError("the process that grades a file did not start", hint=hint)
    allowed = limits.inside_seconds if is_inside else limits.seconds
    if unreadable is not None:
        ending = SolutionError(f"{subject} gave nothing that can be read ({unreadable})", "MessageError")
    elif is_late or "Timeout (" in trace:
        line = re.search(rf'File "{re.escape(job["name"])}", line (\d+)', trace)
        where = f", in line {line[1]}" if line else ""
        ending = SolutionError(
            f"{subject} did not end within {allowed:g} seconds{where}", "Timeout",
            hint="does one of its loops never end?",
        )  # fmt: skip
    else:
        code = process.returncode
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
