"""`heed grade solution.py`: a student's functions, graded in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from heedful.classroom.exercises.code.catalogue import stubs
from heedful.classroom.exercises.student_record import (
    count_done,
    next_exercise,
    read_progress,
    record_verdicts,
)
from heedful.cli.output import as_json

if TYPE_CHECKING:
    from heedful.classroom.exercises.code.grading import ExerciseGrade

MARKS = {"right": "✓", "wrong": "✗", "unfinished": "·", "missing": "·"}


def grade_code(path: Path, names: Sequence[str] = (), *, json: bool = False) -> None:
    """Grade a file, keep the progress, and leave with exit code 1 if a function is wrong."""
    from heedful.classroom.exercises.code.grading import grade_solution

    result = grade_solution(path, names or None)
    tried = {grade.name: grade.verdict for grade in result.grades if grade.verdict in ("right", "wrong")}
    try:
        record_verdicts(tried)
    except OSError as error:
        print(f"warning: progress could not be kept: {error.filename}: {error.strerror}", file=sys.stderr)
    if json:
        as_json(result.to_dict())
    else:
        for grade in result.grades:
            if grade.verdict != "missing" or names:
                print("\n".join(grade_lines(grade)))
        for note in result.notes:
            print(f"note: {note}")
        print(f"protected by: {', '.join(result.protections)}")
        progress = read_progress(list(stubs()))
        following = next_exercise(progress)
        left = f"; next: {following}" if following else ""
        print(
            f"\n{result.right} right in {path}, {count_done(progress.values())} of {len(progress)} done{left}"
        )
    if any(grade.verdict == "wrong" for grade in result.grades):
        raise typer.Exit(1)


def grade_lines(grade: ExerciseGrade) -> list[str]:
    """Return what the terminal says of one function."""
    lines = [f"{MARKS[grade.verdict]} {grade.name}: {grade.message}"]
    if grade.shown:
        lines.append(f"    {grade.shown}")
    if grade.inside is not None:
        inside = grade.inside
        if inside.same:
            how = "as ours" if grade.verdict == "right" else "it does not show"
            lines.append(f"    inside {inside.model} {how}: {inside.yours}")
        else:
            lines += [f"    inside {inside.model}: {inside.yours}", f"    with ours it is: {inside.ours}"]
    return lines + [f"    note: {note}" for note in grade.notes]
