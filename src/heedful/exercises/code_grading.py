"""Grading a student's file: each function beside its definition, then in its place in a real model.

A wrong function is compared with every mistake that is known for it, alone and in pairs: one that gives the
same on all inputs is named. The file runs in a separate process (sandbox.py); only values come back.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from heedful.errors import HeedfulError, InputError
from heedful.exercises.code_compare import LOOSE, find_difference, is_finite
from heedful.exercises.code_exercise import Case, CodeExercise, InsideResult, Mistake, Output
from heedful.exercises.code_exercises import check_names, code_exercises
from heedful.exercises.code_source import function_notes, import_notes, leave_out_broken
from heedful.exercises.sandbox import Sandbox, SandboxLimits, SolutionError
from heedful.files import missing_file

Verdict = Literal["right", "wrong", "unfinished", "missing"]
MAX_SOURCE_BYTES = 1 << 20
INSIDE_SECONDS = 20.0  # of the student's function in a model; a right one that is slower stays right
# After one of these the other inputs are not tried: the same would happen again.
LAST_ERRORS = ("Timeout", "Exit", "MemoryError", "FileLimit", "Refused", "SystemExit", "MessageError")


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


@dataclass(frozen=True)
class SolutionGrade:
    """The grade of a file; `notes` are about the whole of it."""

    grades: tuple[ExerciseGrade, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> int:
        """The number of functions that are right."""
        return sum(grade.verdict == "right" for grade in self.grades)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self) | {"right": self.right, "count": len(self.grades)}


class SlowError(HeedfulError):
    """A function that takes too long to be tried inside a model."""


def grade_solution(
    path: str | Path,
    names: Sequence[str] | None = None,
    *,
    inside: bool = True,
    limits: SandboxLimits | None = None,
) -> SolutionGrade:
    """Grade the functions of a file, or some of them; without `inside` they are not put into a model."""
    path = Path(path)
    if not path.is_file():
        raise missing_file(path)
    if path.stat().st_size > MAX_SOURCE_BYTES:
        raise InputError(
            f"{path} has {path.stat().st_size:,} bytes", hint="a solution is a few kilobytes of Python"
        )
    try:
        source = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8", hint="a solution is a file of Python") from None
    return grade_source(source, names, name=path.name, inside=inside, limits=limits)


def grade_source(
    source: str,
    names: Sequence[str] | None = None,
    *,
    name: str = "solution.py",
    inside: bool = True,
    limits: SandboxLimits | None = None,
) -> SolutionGrade:
    """Grade the functions that a text of Python defines."""
    start, names, notes = time.perf_counter(), check_names(names), []
    source, broken = leave_out_broken(source, name)
    with Sandbox(source, name, limits) as sandbox:  # it imports torch while we do
        exercises = code_exercises()
        functions = sandbox.load()
        if sandbox.load_error is not None:
            notes.append(f"{sandbox.load_error.message}: what stands below it was not read")
        notes += import_notes(source)
        grades = []
        for one in names:
            if one in broken:
                grades.append(ExerciseGrade(one, "wrong", broken[one]))
            elif one not in functions:
                grades.append(ExerciseGrade(one, "missing", "there is no such function in the file"))
            else:
                grades.append(grade_function(exercises[one], sandbox, source, inside))
        notes += [broken[""]] if "" in broken else []
        notes += [
            f"it tried to {action}, which is refused while grading" for action in sandbox.refused_actions
        ]
        if prints := sandbox.read_prints():
            notes.append(f"it printed {' '.join(prints.split())[:80]!r}")
    return SolutionGrade(tuple(grades), tuple(notes), time.perf_counter() - start)


def grade_function(exercise: CodeExercise, sandbox: Sandbox, source: str, inside: bool) -> ExerciseGrade:
    """Grade one function: on the inputs of the exercise, then perhaps inside a model."""
    cases = exercise.cases()
    student_outputs: list[Any] = []
    for case in cases:
        try:
            student_outputs.append(sandbox.call(exercise.name, *case.arguments))
        except SolutionError as error:
            if error.kind == "NotImplementedError":
                return ExerciseGrade(exercise.name, "unfinished", "not written yet")
            student_outputs.append(error)
            if error.kind in LAST_ERRORS:
                break
    reference_outputs = [exercise.definition(*case.arguments) for case in cases]
    first = first_difference(exercise, cases, reference_outputs, student_outputs)
    if first is None:
        grade = ExerciseGrade(exercise.name, "right", f"right on {len(cases)} inputs")
    else:
        about, message = first
        mistakes = find_mistakes(exercise, cases, reference_outputs, student_outputs)
        explanation = "; and ".join(mistake.message for mistake in mistakes)
        grade = ExerciseGrade(
            exercise.name, "wrong", explanation or message, tuple(mistake.name for mistake in mistakes),
            f"on {about}: {message}" if explanation else f"on {about}",
        )  # fmt: skip
        if len(student_outputs) < len(cases):  # the last call broke off
            return grade
    grade = try_inside(exercise, sandbox, grade) if inside else grade
    return replace(grade, notes=function_notes(exercise.name, exercise.ready_made, source))


def first_difference(
    exercise: CodeExercise, cases: Sequence[Case], reference_outputs: list[Any], student_outputs: list[Any]
) -> tuple[str, str] | None:
    """Return the first input on which a function differs from its definition, and how."""
    for case, reference, output in zip(cases, reference_outputs, student_outputs, strict=False):
        if isinstance(output, SolutionError):
            return case.about, str(output).removeprefix(f"{exercise.name} ")
        difference = find_difference(reference, output, exercise.outputs)
        if difference is not None:
            return case.about, difference.message
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
        names = frozenset(mistake.name for mistake in group)
        if explains(exercise, names, cases, reference_outputs, student_outputs, slack):
            return tuple(group)
    return ()


def explains(
    exercise: CodeExercise,
    names: frozenset[str],
    cases: Sequence[Case],
    reference_outputs: list[Any],
    student_outputs: list[Any],
    slack: float = 1.0,
) -> bool:
    """Return whether the definition with these mistakes gives the student's outputs, and other than ours.

    Where the mistakes give an error or no finite numbers, so must the function, in whatever way.
    """
    differs = False
    for case, reference, output in zip(cases, reference_outputs, student_outputs, strict=True):
        failed = isinstance(output, SolutionError)
        try:
            mistaken_output = exercise.mutate(names, *case.arguments)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError, TypeError, OverflowError):
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


@functools.cache
def output_of_ours(name: str) -> Output:
    """Return what the model of an exercise gives with our own function in it."""
    exercise = code_exercises()[name]
    return exercise.place_in_model(exercise.definition)


def try_inside(exercise: CodeExercise, sandbox: Sandbox, grade: ExerciseGrade) -> ExerciseGrade:
    """Put the function in the place of ours in a model, and say what became of it."""
    ours, start = output_of_ours(exercise.name), time.perf_counter()

    def yours(*arguments: Any) -> Any:
        if time.perf_counter() - start > INSIDE_SECONDS:
            raise SlowError(f"too slow to be tried inside a model: over {INSIDE_SECONDS:.0f} seconds")
        return sandbox.call(exercise.name, *arguments)

    try:
        theirs = exercise.place_in_model(yours)
    except SlowError as error:
        return replace(grade, message=f"{grade.message}; {error.message}")
    except (HeedfulError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError) as error:
        if grade.verdict == "wrong":
            return grade
        problem = f"but not inside {exercise.model}: {' '.join(str(error).split())[:200]}"
        return replace(grade, verdict="wrong", message=f"{grade.message}, {problem}")
    same = ours.text == theirs.text
    if ours.numbers is not None:
        same = find_difference(ours.numbers, theirs.numbers) is None
    inside = InsideResult(exercise.model, same, ours.text, theirs.text)
    if grade.verdict == "right" and not same:
        message = f"{grade.message}, but inside {inside.model} it gives something else"
        return replace(grade, verdict="wrong", message=message, inside=inside)
    return replace(grade, inside=inside)
