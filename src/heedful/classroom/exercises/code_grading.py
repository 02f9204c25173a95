"""Grading a student's file: each function beside its definition, then in its place in a real model.

A wrong function is compared with every mistake that is known for it, alone and in pairs: one that gives the
same on all inputs is named. The whole file runs in one limited process (sandbox.py); only values come back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from heedful.classroom.exercises.code_compare import LOOSE, find_difference, is_finite
from heedful.classroom.exercises.code_exercise import Case, CodeExercise, InsideResult, Mistake, Output
from heedful.classroom.exercises.code_exercises import check_names, code_exercises
from heedful.classroom.exercises.code_source import import_notes, leave_out_broken
from heedful.classroom.exercises.sandbox import FunctionRun, SandboxLimits, SolutionError, run_submission
from heedful.core.errors import InputError
from heedful.core.files import missing_file

Verdict = Literal["right", "wrong", "unfinished", "missing"]
MAX_SOURCE_BYTES = 1 << 20
PROTECTION_NAMES = {
    "landlock": "Landlock (files)", "seccomp": "seccomp (programs, network, signals)",
    "limits": "limits of memory, time and file size", "hook": "Python's audit hook",
}  # fmt: skip


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
    with ThreadPoolExecutor(1) as executor:
        wanted = [one for one in names if one not in broken]
        future = executor.submit(run_submission, source, wanted, name=name, inside=inside, limits=limits)
        exercises = code_exercises()  # imports torch while the process does
        result = future.result()
    if result.load_error is not None:
        notes.append(f"{result.load_error.message}: what stands below it was not read")
    notes += import_notes(source)
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
    reference_outputs = [exercise.definition(*case.arguments) for case in cases]
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
