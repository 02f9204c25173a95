"""Grading a student's file: each function next to the solution, then in its place in a real model.

A wrong function is compared with the solution with every known mistake in it, alone and in pairs: a mistake
that gives the same on all inputs is named. The whole file runs in one limited process (sandbox.py); only
values come back.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from heedful.classroom.exercises.code_exercises import (
    Case,
    CodeExercise,
    Function,
    Mistake,
    Output,
    check_names,
    code_exercises,
)
from heedful.classroom.exercises.sandbox import FunctionRun, SandboxLimits, SolutionError, run_submission
from heedful.classroom.exercises.sandbox_runner import Other
from heedful.classroom.text_files import read_submission

Verdict = Literal["right", "wrong", "unfinished", "missing"]
MARKS: dict[Verdict, str] = {"right": "✓", "wrong": "✗", "unfinished": "·", "missing": "·"}
PROTECTION_NAMES = {
    "landlock": "Landlock (files)", "seccomp": "seccomp (programs, network, signals)",
    "limits": "limits of memory, time and file size", "hook": "Python's audit hook",
}  # fmt: skip


@dataclass(frozen=True)
class InsideResult:
    """The outputs of a model with the library's own function, and with the student's in its place."""

    model: str
    same: bool
    ours: str
    yours: str


@dataclass(frozen=True)
class ExerciseGrade:
    """The grade of one function.

    `message` is one line; `mistakes` are the names of the mistakes in it; `shown` is the first difference
    and the input that shows it; `inside` is what a real model made of the function.
    """

    name: str
    verdict: Verdict
    message: str
    mistakes: tuple[str, ...] = ()
    shown: str = ""
    inside: InsideResult | None = None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the grade as lines of text."""
        lines = [f"{MARKS[self.verdict]} {self.name}: {self.message}"]
        if self.shown:
            lines.append(f"    {self.shown}")
        if (inside := self.inside) is not None and inside.same:
            how = "as ours" if self.verdict == "right" else "it does not show"
            lines.append(f"    inside {inside.model} {how}: {inside.yours}")
        elif inside is not None:
            lines += [f"    inside {inside.model}: {inside.yours}", f"    with ours it is: {inside.ours}"]
        return lines + [f"    note: {note}" for note in self.notes]


@dataclass(frozen=True)
class SolutionGrade:
    """The grade of a file; `notes` are about the whole of it, `protections` held its process."""

    grades: tuple[ExerciseGrade, ...]
    notes: tuple[str, ...]
    seconds: float
    protections: tuple[str, ...] = ()

    @property
    def right(self) -> int:
        """The number of functions that are right."""
        return sum(grade.verdict == "right" for grade in self.grades)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self) | {"right": self.right, "count": len(self.grades)}


def grade_solution(
    path: str | Path, names: Sequence[str] | None = None, *, inside: bool = True,
    limits: SandboxLimits | None = None,
) -> SolutionGrade:  # fmt: skip
    """Grade the functions of a file, or some of them; without `inside` they are not put into a model."""
    path = Path(path)
    return grade_source(read_submission(path), names, name=path.name, inside=inside, limits=limits)


def grade_source(
    source: str, names: Sequence[str] | None = None, *, name: str = "solution.py", inside: bool = True,
    limits: SandboxLimits | None = None,
) -> SolutionGrade:  # fmt: skip
    """Grade the functions that a text of Python defines."""
    start, names, notes = time.perf_counter(), check_names(names), []
    source, broken = leave_out_broken(source, name)
    wanted, exercises = [one for one in names if one not in broken], code_exercises()
    result = run_submission(source, wanted, name=name, inside=inside, limits=limits)
    if result.load_error is not None:
        notes.append(f"{result.load_error.message}: what stands below it was not read")
    grades = []
    for one in names:
        if one in broken:
            grades.append(ExerciseGrade(one, "wrong", broken[one]))
        elif one not in result.runs:
            grades.append(ExerciseGrade(one, "missing", "there is no such function in the file"))
        else:
            grades.append(grade_function(exercises[one], result.runs[one], result.ours.get(one)))
    notes += [broken[""]] if "" in broken else []
    notes += [f"it tried to {action}, which is refused while grading" for action in result.refused_actions]
    if result.prints:
        notes.append(f"it printed {' '.join(result.prints.split())[:80]!r}")
    if not {"landlock", "seccomp"} <= set(result.protections):
        notes.append(
            "this system protects against accidents only, not against code that means harm: "
            "grade what you would also run yourself"
        )
    protections = tuple(PROTECTION_NAMES[one] for one in result.protections)
    return SolutionGrade(tuple(grades), tuple(notes), time.perf_counter() - start, protections)


def grade_function(exercise: CodeExercise, run: FunctionRun, ours: Output | None = None) -> ExerciseGrade:
    """Grade one function by what it gave on the inputs of the exercise, and perhaps inside a model."""
    cases, outputs = exercise.cases(), run.outputs
    if any(isinstance(output, SolutionError) and output.kind == "NotImplementedError" for output in outputs):
        return ExerciseGrade(exercise.name, "unfinished", "not written yet")
    reference_outputs = [exercise.solution(*case.arguments) for case in cases]
    first = first_difference(exercise, cases, reference_outputs, outputs)
    if first is None and len(outputs) == len(cases):
        grade = ExerciseGrade(exercise.name, "right", f"right on {len(cases)} inputs")
    else:
        about, message = first or (cases[len(outputs)].about, "it gave nothing")
        mistakes = find_mistakes(exercise, cases, reference_outputs, outputs)
        explanation = "; and ".join(mistake.message for mistake in mistakes)
        grade = ExerciseGrade(
            exercise.name, "wrong", explanation or message, tuple(mistake.name for mistake in mistakes),
            f"on {about}: {message}" if explanation else f"on {about}",
        )  # fmt: skip
    if run.inside is not None and ours is not None:
        grade = grade_inside(exercise, ours, run.inside, grade)
    notes = tuple(f"it calls a ready-made {one}: the exercise is to write it" for one in run.copies)
    return replace(grade, notes=notes)


def first_difference(
    exercise: CodeExercise, cases: Sequence[Case], reference_outputs: list[Any], student_outputs: list[Any]
) -> tuple[str, str] | None:
    """Return the first input on which a function differs from the solution, and how."""
    for case, reference, output in zip(cases, reference_outputs, student_outputs, strict=False):
        if isinstance(output, SolutionError):
            return case.about, str(output).removeprefix(f"{exercise.name} ")
        difference = find_difference(reference, output, exercise.outputs)
        if difference is not None:
            return case.about, difference
    return None


def find_mistakes(
    exercise: CodeExercise, cases: Sequence[Case], reference_outputs: list[Any], student_outputs: list[Any]
) -> tuple[Mistake, ...]:
    """Return the known mistake, or the two, that explain everything a function gave; () if none do."""
    if len(student_outputs) < len(cases):
        return ()
    single = [(mistake,) for mistake in exercise.mistakes]
    exactly = [(group, 1.0) for group in [*single, *combinations(exercise.mistakes, 2)]]
    for group, slack in [*exactly, *((group, LOOSE) for group in single)]:
        mistaken = exercise.with_mistakes(*group)
        if mistaken and explains(exercise, mistaken, cases, reference_outputs, student_outputs, slack):
            return tuple(group)
    return ()


def explains(
    exercise: CodeExercise, mistaken: Function, cases: Sequence[Case], reference_outputs: list[Any],
    student_outputs: list[Any], slack: float = 1.0,
) -> bool:  # fmt: skip
    """Return whether the solution with mistakes in it gives the student's outputs, and other than ours.

    Where the mistakes give an error or no finite numbers, so must the function, in any way.
    """
    differs = False
    for case, reference, output in zip(cases, reference_outputs, student_outputs, strict=True):
        failed = isinstance(output, SolutionError)
        try:
            mistaken_output = mistaken(*case.arguments)
        except Exception:  # whatever the edited text does
            if not failed:
                return False
            continue
        if not is_finite(mistaken_output):
            if not failed and is_finite(output):
                return False
            differs = True
        elif failed or find_difference(mistaken_output, output, exercise.outputs, slack=slack) is not None:
            return False
        elif find_difference(reference, mistaken_output, exercise.outputs, slack=slack) is not None:
            differs = True
    return differs


def grade_inside(
    exercise: CodeExercise, ours: Output, theirs: Output | SolutionError, grade: ExerciseGrade
) -> ExerciseGrade:
    """Add to a grade what became of a model with the function in the place of ours."""
    if isinstance(theirs, SolutionError):
        if grade.verdict == "wrong":
            return grade
        if theirs.kind == "Timeout":
            return replace(grade, message=f"{grade.message}; too slow to be tried inside a model: {theirs}")
        problem = f"but not inside {exercise.model}: {' '.join(str(theirs).split())[:200]}"
        return replace(grade, verdict="wrong", message=f"{grade.message}, {problem}")
    same = ours.text == theirs.text
    if ours.numbers is not None:
        same = find_difference(ours.numbers, theirs.numbers) is None
    inside = InsideResult(exercise.model, same, ours.text, theirs.text)
    if grade.verdict == "right" and not same:
        message = f"{grade.message}, but inside {inside.model} it gives something else"
        return replace(grade, verdict="wrong", message=message, inside=inside)
    return replace(grade, inside=inside)


# What a student's function returned beside what it should have: the first difference, in words.


# A float32 sum in another order differs by far less, a mistake by far more: a test holds both apart.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
LOOSE = 30.0  # a mistake is compared this much more loosely: it may make rounding worse
COARSE = (torch.float16, torch.bfloat16)


def find_difference(
    reference: Any, value: Any, outputs: Sequence[str] = (), name: str = "", slack: float = 1.0
) -> str | None:
    """Return in words how `value` first differs from `reference`; None where they are alike up to rounding.

    Arrays, numbers and nested lists stand for tensors, lists for tuples; float64 is as good as float32.
    `slack` multiplies the tolerance.
    """
    subject = name or "the result"
    if isinstance(reference, tuple) and outputs:
        if not isinstance(value, tuple | list) or len(value) != len(reference):
            names = f"{len(reference)} values, {' and '.join(outputs)}"
            return f"it returns {describe_type(value)} and should return {names}"
        parts = zip(reference, value, outputs, strict=True)
        return next((d for r, v, label in parts if (d := find_difference(r, v, (), label, slack))), None)
    if isinstance(reference, Tensor):
        return _tensor_difference(reference, value, subject, slack)
    if isinstance(reference, float):
        tensor = to_tensor(value)
        if tensor is None or tensor.numel() != 1:
            return f"{subject} is {describe_type(value)} and should be a number"
        number = float(tensor)
        close = math.isclose(number, reference, rel_tol=slack * RELATIVE, abs_tol=slack * ABSOLUTE)
        return None if close else f"{subject} is {number:.4f} and should be {reference:.4f}"
    return _plain_difference(reference, value, subject)


def _tensor_difference(reference: Tensor, value: Any, subject: str, slack: float) -> str | None:
    tensor = to_tensor(value)
    if tensor is None:
        return f"{subject} is {describe_type(value)} and should be a tensor"
    if reference.is_floating_point() and (tensor.dtype in COARSE or not tensor.is_floating_point()):
        kind = str(tensor.dtype).removeprefix("torch.")
        return f"{subject} has the type {kind} and should have float32 or float64"
    if tensor.shape != reference.shape:
        shapes = f"{tuple(tensor.shape)} and should have {tuple(reference.shape)}"
        return f"{subject} has the shape {shapes}"
    actual, target = tensor.double(), reference.double()
    finite = target[target.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    bound = slack * (ABSOLUTE * max(scale, 1e-3) + RELATIVE * target.abs())
    close = (actual - target).abs() <= bound
    close |= (actual == target) | (actual.isnan() & target.isnan())
    if bool(close.all()):
        return None
    index = tuple(int(i) for i in (~close).nonzero()[0])
    element = f"{'' if subject == 'the result' else subject}[{', '.join(map(str, index))}]"
    values = f"{float(actual[index]):.4f} and should be {float(target[index]):.4f}"
    return f"{element if index else subject} is {values}"


def _plain_difference(reference: Any, value: Any, subject: str) -> str | None:
    """The first difference of pieces of text, tokens or counts."""
    content = value.tolist() if isinstance(value, Tensor | np.ndarray) else value
    if isinstance(reference, tuple | list) and isinstance(content, tuple | list):
        content = type(reference)(int(x) if isinstance(x, Tensor) and x.numel() == 1 else x for x in content)
    if type(content) is not type(reference):
        kinds = f"{describe_type(value)} and should be a {type(reference).__name__}"
        return f"{subject} is {kinds}"
    if content == reference:
        return None
    if isinstance(reference, dict) and isinstance(content, dict):
        lost, extra = (
            [k for k in a if b.get(k) != a[k]] for a, b in ((reference, content), (content, reference))
        )
        show = lambda keys, words: f"{keys[0]!r:.60}: {words[keys[0]]!r:.20}" if keys else "nothing else"
        change = f"{show(extra, content)} and should have {show(lost, reference)}"
        return f"{subject} has {change}"
    return f"{subject} is {content!r:.80} and should be {reference!r:.80}"


def to_tensor(value: Any) -> Tensor | None:
    """Return a tensor, an array, a number or nested lists of numbers as a tensor; None for anything else."""
    if isinstance(value, Tensor):
        return value
    if value is None or isinstance(value, str | dict | Other):
        return None
    try:
        if isinstance(value, list | tuple) and any(isinstance(v, Tensor | np.ndarray) for v in value):
            rows = [to_tensor(v) for v in value]
            return torch.stack([row for row in rows if row is not None])
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def describe_type(value: Any) -> str:
    """Describe the type of a value in words."""
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, Other):
        return value.kind
    if isinstance(value, tuple | list):
        return f"{'a tuple' if isinstance(value, tuple) else 'a list'} of {len(value)} values"
    names = {str: "text", dict: "dict", Tensor: "tensor", np.ndarray: "array", float: "number"}
    name = names.get(type(value), type(value).__name__)
    return f"an {name}" if name == "array" else f"a {name}"


def is_finite(value: Any) -> bool:
    """Return whether a value has no infinite number and no NaN in it."""
    if isinstance(value, tuple | list):
        return all(map(is_finite, value))
    if isinstance(value, Tensor | np.ndarray | float):
        return bool(torch.as_tensor(value).double().isfinite().all())
    return True


# The text of a student's file, read without running it: parts that are not Python.


# What the parser raises: no Python, null bytes, or expressions too deep for it.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def leave_out_broken(source: str, name: str) -> tuple[str, dict[str, str]]:
    """Return a file without the parts that are not Python, and what is wrong with each, by its function.

    A part begins at a line without indentation. Left out, it becomes empty lines, so that numbers stay true.
    """
    try:
        compile(source, name, "exec", dont_inherit=True)
        return source, {}
    except UNREADABLE:
        pass
    broken: dict[str, str] = {}
    pieces: list[str] = []
    for part, first in top_level_parts(source):
        try:
            compile("\n" * first + part, name, "exec", dont_inherit=True)
            pieces.append(part)
        except UNREADABLE as error:
            function = re.match(r"(?:async\s+)?def\s+(\w+)", part)
            line = getattr(error, "lineno", None) or first + 1
            message = f"no Python in line {line}: {getattr(error, 'msg', str(error) or 'too deeply nested')}"
            broken.setdefault(function[1] if function else "", message)
            pieces.append("\n" * (part.count("\n")))
    return "".join(pieces), broken


def top_level_parts(source: str) -> Iterator[tuple[str, int]]:
    """Yield the pieces of a file that begin without indentation, with the number of lines before each."""
    lines = source.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z_@]", line)]
    starts = [i for i in starts if not (i and lines[i - 1].startswith("@"))]
    for start, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        if start < end:
            yield "".join(lines[start:end]), start
