"""`heed grade`: mark a filled sheet of numbers, or a file of code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.output import Json, as_json, console, make_table
from heedful.core.errors import InputError

if TYPE_CHECKING:
    from heedful.classroom.exercises.numbers.grading import SheetGrade


def grade_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A filled sheet, or a .py file.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FUNCTION]...", help="Of a .py file: only these functions.")
    ] = None,
    json: Json = False,
) -> None:
    """Mark a filled sheet of `heed exercise`, or a file of code, and say what went wrong.

    Each question of a sheet counts one point, each of its numbers the same share. A number that follows
    rightly from a wrong one before it counts. The exit code is 0 if all is right, and 1 if not.

    Examples:

      heed grade alice.yaml

      heed grade solution.py attention
    """
    if path.suffix.lower() == ".py":
        from heedful.cli.grade_code import grade_code

        return grade_code(path, names or [], json=json)
    if names:
        raise InputError(
            f"{names[0]!r}: a sheet is marked as a whole", hint="functions are named for a .py file"
        )
    from heedful.classroom.exercises.numbers.grading import grade_answers, is_passed
    from heedful.classroom.exercises.numbers.sheets import read_sheet
    from heedful.cli.exercise_quiz import keep_progress

    grade = grade_answers(*read_sheet(path))
    keep_progress(grade)
    as_json(grade.to_dict()) if json else _print_grade(grade)
    if not is_passed(grade):
        raise typer.Exit(1)


def _print_grade(grade: SheetGrade) -> None:
    from rich.text import Text

    table = make_table("", "step", "points", "", right=("points",))
    for row in grade.questions:
        said = row.verdict + (f": {row.message}" if row.message and row.verdict != "missing" else "")
        table.add_row(str(row.question.number), Text(row.question.prompt), f"{row.points:.2g}", Text(said))
    console().print(table)
    first = grade.first_error
    where = (
        "" if first is None else f"; step {first.question.number}, {first.question.prompt}, went wrong first"
    )
    print(
        f"\n{grade.problem.exercise.name}, {grade.problem.seed}: "
        f"{grade.points:.4g} of {grade.total} points{where}"
    )
