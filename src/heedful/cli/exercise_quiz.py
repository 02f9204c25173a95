"""A number exercise in the terminal: `heed exercise NAME`."""

from __future__ import annotations

import sys

from heedful.classroom.exercises.numbers.grading import SheetGrade, is_passed, run_quiz
from heedful.classroom.exercises.numbers.numbers import Problem
from heedful.classroom.exercises.student_record import record_verdicts


def ask_in_terminal(problem: Problem) -> None:
    """Ask the questions on stdin, print the marks, and keep the progress."""

    def ask(prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            return None

    grade, hints = run_quiz(problem, ask, print)
    taken = f", {hints} hint{'s' * (hints != 1)}" if hints else ""
    print(f"\n{grade.points:.4g} of {grade.total} points{taken}")
    keep_progress(grade)


def keep_progress(grade: SheetGrade) -> None:
    """Count a try of the exercise; a folder that cannot be written costs no marks."""
    try:
        record_verdicts({grade.problem.exercise.name: "right" if is_passed(grade) else "wrong"})
    except OSError as error:
        print(f"warning: progress could not be kept: {error.filename}: {error.strerror}", file=sys.stderr)
