"""The student's process: runs a whole submission in an empty folder, and writes its results to a file.

`serve` is the nursery (sandbox.py): it forks for each job, a line of JSON in stdin. The forked process tries
every function on the inputs of its exercise, then in its place in a real model, and writes a record at the
beginning of each function and for each value. If it ends early, the records say how far it came.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch.overrides import TorchFunctionMode

from heedful.classroom.exercises.code_exercises import CodeExercise, code_exercises
from heedful.classroom.exercises.sandbox_protection import (
    PRINT_FILE,
    RefusedError,
    end_with_parent,
    limit_files,
    protect_process,
    refuse_by_hook,
    set_limits,
)

PACKAGE = str(Path(__file__).parents[2])
MAX_PRINTED = 4096  # how much of what is printed is kept
# After one of these the other inputs are not tried: the same would happen again.
LAST_ERRORS = (
    "NotImplementedError", "MemoryError", "FileLimit", "RefusedError", "SystemExit", "MessageError",
)  # fmt: skip


class Runner:
    """One submission in this process."""

    def __init__(self, job: dict[str, Any], results: IO[bytes], watchdog: IO[str]) -> None:
        self.job, self.results, self.watchdog = job, results, watchdog
        self.refused_actions: list[str] = []
        self.module = types.ModuleType("solution")
        self.student_dtype = torch.float32

    def write(self, **record: Any) -> None:
        """Append a record; a result may be larger than what a solution may print."""
        content = pack_record(record | {"refused": self.refused_actions[-8:]})
        limit_files(self.job["limits"]["result_bytes"])
        self.results.write(content)
        self.results.flush()
        limit_files(self.job["limits"]["file_bytes"])

    def attempt(self, subject: str, phase: str, action: Callable[[], dict[str, Any]]) -> str | None:
        """Write a record with what an action gives, or with its error, whose kind is returned.

        An action that takes too long ends the process, and where it was is written to stderr.
        """
        faulthandler.dump_traceback_later(self.job["seconds"][phase], exit=True, file=self.watchdog)
        try:
            self.write(**action())
            sys.stdout.flush()
            if os.fstat(1).st_size > MAX_PRINTED:  # one call may not print more than the limit; many may
                os.ftruncate(1, MAX_PRINTED)
                os.lseek(1, MAX_PRINTED, os.SEEK_SET)
        except BaseException as error:  # also SystemExit: one function that ends must not end the others
            description = self.describe_error(error, subject)
            self.write(error=description)
            return description["kind"]
        finally:
            faulthandler.cancel_dump_traceback_later()
        return None

    def describe_error(self, error: BaseException, subject: str) -> dict[str, str]:
        """Return the kind of an error in the student's code, one line that says where it was, and a hint."""
        kind, hint, lines = type(error).__name__, "", self.job["source"].splitlines()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == self.job["name"]]
        number = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
        where = f" in line {number}" if number else ""
        code = f": {lines[number - 1].strip()[:120]}" if number and number <= len(lines) else ""
        text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())[:200]
        if isinstance(error, RefusedError):
            message = f"{subject} tried to {text}{where}, which is refused while grading"
            hint = "no exercise needs it: leave it out"
        elif isinstance(error, OSError) and error.errno == errno.EFBIG:
            kind, size = "FileLimit", f"{self.job['limits']['file_bytes'] / 1e6:.1f} MB"
            message = f"{subject} printed or wrote more than {size}{where}"
            hint = "take the print out of the loop"
        elif isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
            kind, size = "MemoryError", f"{self.job['limits']['memory'] / (1 << 30):.1f} GiB"
            message = f"{subject} asked for more than {size} of memory{where}{code}"
            hint = "the inputs are small: a few kilobytes are enough"
        elif isinstance(error, SystemExit):
            message = f"{subject} called exit{where}{code}"
            hint = "return a value instead: the grader goes on"
        elif isinstance(error, MessageError):
            message = f"{subject} returned {text}"
        elif isinstance(error, SyntaxError):
            message = f"the file is not Python{where}: {text}{code}"
        else:
            message = f"{subject} raised {kind}{': ' if text else ''}{text}{where}{code}"
            if isinstance(error, ModuleNotFoundError):
                hint = "the file is graded alone: write everything into it"
        return {"kind": kind, "message": message, "hint": hint}

    def load(self) -> dict[str, Any]:
        """Run the file; return the functions it defines, up to a line that went wrong."""
        sys.modules["solution"] = self.module
        error = None
        try:
            code = compile(self.job["source"], self.job["name"], "exec", dont_inherit=True)
            exec(code, self.module.__dict__)  # the student's own file, in the process that is there for it
        except BaseException as problem:  # also SystemExit: what was defined before it can be graded
            error = self.describe_error(problem, "the file")
        self.student_dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        functions = [n for n, value in list(vars(self.module).items()) if callable(value)]
        return {"functions": functions, "error": error}

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a student's function as if it were alone: on copies, with gradients, with its default type."""

        def shield(ours: Callable[..., Any]) -> Callable[..., Any]:
            def shielded(*values: Any) -> Any:
                with watch_python(None), torch._C.DisableTorchFunction():
                    return copy_value(ours(*copy_value(values)))

            return shielded

        with torch.inference_mode(False), torch.enable_grad():
            copies = [
                shield(argument) if callable(argument) else copy_value(argument) for argument in arguments
            ]
            torch.set_default_dtype(self.student_dtype)
            try:
                return copy_value(vars(self.module)[name](*copies))
            finally:
                self.student_dtype = torch.get_default_dtype()
                torch.set_default_dtype(torch.float32)

    def run(self, exercise: CodeExercise) -> None:
        """Try one function on its inputs, then in a model."""
        name, copies = exercise.name, set[str]()
        self.write(begin=name, phase="call")
        for case in exercise.cases():

            def try_case(arguments: Sequence[Any] = case.arguments) -> dict[str, Any]:
                with watch_calls(self.job["name"], exercise.ready_made, copies):
                    return {"value": self.call(name, *arguments)}

            if self.attempt(name, "call", try_case) in LAST_ERRORS:
                return
        self.write(copies=sorted(copies))

        def place() -> dict[str, Any]:
            output = exercise.place_in_model(lambda *arguments: self.call(name, *arguments))
            return {"text": output.text, "numbers": output.numbers}

        if self.job["inside"]:
            self.write(begin=name, phase="inside")
            self.attempt(name, "inside", place)


@contextlib.contextmanager
def watch_python(function: Any) -> Iterator[None]:
    """Let Python tell `function` of every call of a function written in Python, for a while."""
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def watch_calls(student_file: str, ready_made: Sequence[str], copies: set[str]) -> Iterator[None]:
    """Collect calls of ready-made functions, and of heedful's, by any name that the student uses.

    torch reports calls of its functions, and Python those of functions that are written in Python.
    """
    seen: set[types.CodeType] = set()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            words = getattr(func, "__name__", "").split(".")
            copies.update({word.lstrip("_") for word in words} & set(ready_made))
            return func(*args, **(kwargs or {}))

    def see(frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code in seen or code.co_filename == student_file:
            return
        seen.add(code)  # libraries call the same functions very often
        copies.update(set(code.co_qualname.split(".")) & set(ready_made))
        if code.co_filename.startswith(PACKAGE) and "sandbox_" not in code.co_filename:
            copies.add(f"heedful.{code.co_qualname}")

    with Watch(), watch_python(see):
        yield


def serve() -> None:
    """Run the jobs in stdin one after the other, each in a forked process, and print how each ended.

    A system without fork runs one job in this process, which ends with it.
    """
    for name in ("code_cases", "code_models"):  # once: every submission is forked from here
        import_module(f"heedful.classroom.exercises.{name}")
    code_exercises()
    torch.set_num_threads(1)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        process = os.fork() if hasattr(os, "fork") else 0
        if process == 0:
            run_job(job)
        print(json.dumps(wait_for(process, job["limits"]["seconds"])), flush=True)


def wait_for(process: int, seconds: float) -> tuple[int, bool]:
    """Return the exit code of a forked process, and whether it had to be ended because it took too long."""
    deadline, ended, status = time.monotonic() + seconds, 0, 0
    while not ended and time.monotonic() < deadline:
        time.sleep(0.002)
        ended, status = os.waitpid(process, os.WNOHANG)
    for kill in (os.killpg, os.kill):  # with everything that it may have started
        with contextlib.suppress(OSError):
            kill(process, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), not ended


def run_job(job: dict[str, Any]) -> None:
    """Run one submission in this process, and end it."""
    results = open(job["results"], "wb")  # noqa: SIM115  both stay open until the process ends
    watchdog = open(job["trace"], "w", encoding="utf-8")  # noqa: SIM115
    os.chdir(job["home"])
    os.environ.update({"HOME": job["home"], "TMPDIR": job["home"]})
    tempfile.tempdir = None  # the nursery may have looked for another one
    prints = os.open(PRINT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (prints, 1), (prints, 2)):
        os.dup2(old, new)
    if hasattr(os, "setsid"):
        os.setsid()
    end_with_parent()
    # A forked process has one thread, so that the system's protections hold for all that are started later.
    active = protect_process(job["protections"])
    runner, exercises = Runner(job, results, watchdog), code_exercises()
    if set_limits(**job["limits"]):
        active.append("limits")
    if "hook" in job["protections"]:
        refuse_by_hook(os.path.realpath(os.getcwd()), runner.refused_actions)
        active.append("hook")
    runner.write(active=active)
    for name in job["names"]:  # before the student's file: it cannot change what ours gives
        if job["inside"] and name in job["source"]:
            output = exercises[name].place_in_model(exercises[name].solution)
            runner.write(ours=name, text=output.text, numbers=output.numbers)
    runner.write(begin="the file", phase="call")
    runner.attempt("the file", "call", runner.load)
    for name in job["names"]:
        if callable(vars(runner.module).get(name)):
            runner.run(exercises[name])
    runner.write(begin="the end")
    os._exit(0)  # nothing that the student registered runs after it


# Results as bytes: JSON and safetensors, never pickle, as the process that writes them is not trusted.
#
# A record is two lengths of eight bytes, a JSON document and a safetensors block with its tensors:
#
#     1.5, "a", None      as JSON has them
#     [1], (1,), {1: 2}   {"list": [1]}, {"tuple": [1]}, {"dict": [[1, 2]]}
#     a tensor, an array  {"tensor": "0"}, {"array": "1"}: its name in the block
#     anything else       {"other": "a module"}: what it is, in words


MAX_BYTES = 64 << 20
MAX_DEPTH = 12
LENGTHS = struct.Struct("<QQ")
TENSOR_TYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


class MessageError(Exception):
    """Bytes that are not a record, or a value too large for one."""


class Other:
    """A value that cannot travel: `kind` says what it was."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def pack_value(value: Any, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """Return a value as JSON; its tensors are put into the block."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        small = isinstance(value, float) or abs(value) < 1 << 63
        return value if small else {"other": "a whole number of more than 64 bits"}
    if isinstance(value, Other):
        return {"other": value.kind}
    if depth > MAX_DEPTH:
        return {"other": f"a {type(value).__name__} nested more than {MAX_DEPTH} deep"}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack_value(item, tensors, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[pack_value(part, tensors, depth + 1) for part in pair] for pair in value.items()]
        return {"dict": pairs}
    if isinstance(value, np.generic):
        return pack_value(value.item(), tensors, depth + 1)
    array = isinstance(value, np.ndarray)
    if array:
        try:
            value = torch.tensor(value)
        except TypeError:
            return {"other": f"a NumPy array of {value.dtype}"}
    if not isinstance(value, torch.Tensor):
        return {"other": f"a {type(value).__name__}"}
    if value.dtype not in TENSOR_TYPES or value.layout != torch.strided:
        return {"other": f"a tensor of {value.dtype}, {value.layout}".replace("torch.", "")}
    name = str(len(tensors))
    tensors[name] = value.detach().cpu().contiguous().clone()
    return {"array" if array else "tensor": name}


def unpack_value(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that `pack_value` packed."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in ("list", "tuple"):
        items = [unpack_value(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {unpack_value(key, tensors): unpack_value(item, tensors) for key, item in content}
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind == "other":
        return Other(str(content)[:200])
    raise MessageError(f"a record holds a {kind!r:.40}")


def copy_value(value: Any) -> Any:
    """Return a copy that shares nothing with a value, as if it had travelled."""
    tensors: dict[str, torch.Tensor] = {}
    return unpack_value(pack_value(value, tensors), tensors)


def pack_record(record: dict[str, Any]) -> bytes:
    """Return a dictionary of strings to values as bytes."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps({name: pack_value(value, tensors) for name, value in record.items()}).encode()
    block = save(tensors) if tensors else b""
    if len(text) + len(block) > MAX_BYTES:
        raise MessageError(f"a value of {len(text) + len(block):,} bytes is larger than {MAX_BYTES:,}")
    return LENGTHS.pack(len(text), len(block)) + text + block


def read_records(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, up to one that its writer did not finish."""
    while len(header := file.read(LENGTHS.size)) == LENGTHS.size:
        lengths = LENGTHS.unpack(header)
        if sum(lengths) > MAX_BYTES:
            raise MessageError("a record is longer than any")
        text, block = (file.read(length) for length in lengths)
        if len(text) + len(block) < sum(lengths):
            return
        try:
            tensors = load(block) if block else {}
            yield {name: unpack_value(value, tensors) for name, value in json.loads(text).items()}
        except MessageError:
            raise
        except Exception as error:  # whatever those bytes were, they are not a record
            raise MessageError(f"a record cannot be read: {type(error).__name__}") from None
