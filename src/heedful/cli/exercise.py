"""`heed exercise`: exercises with the numbers of one student, and stubs of code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.output import Json, as_json, console, make_table
from heedful.core.errors import InputError


def exercise_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME | code [FUNCTION]...]", help="An exercise, or code and what to write."),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="The student, by name or number: another seed, other numbers.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="text, yaml, json, csv, html or latex; by the name of --out if there is one.",
        ),
    ] = None,
    key: Annotated[bool, typer.Option("--key", help="Write the answers, with the worked solution.")] = False,
    digits: Annotated[int | None, typer.Option(help="Digits after the point that are asked for.")] = None,
    output: Annotated[Path | None, typer.Option("--out", "-o", help="Write it to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    hint: Annotated[bool, typer.Option("--hint", help="Of code: one more hint.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the exercises.")] = False,
    json: Json = False,
) -> None:
    """Write an exercise as a sheet, or ask it here; with code, write stubs of functions to fill in.

    Every exercise is a worked example of `heed explain` with other numbers, which follow from the seed.
    In a terminal, without --out and --format, the questions are asked one by one.

    Examples:

      heed exercise --list

      heed exercise cat-sat --seed alice

      heed exercise cat-sat --seed alice --out alice.html

      heed exercise cat-sat --seed alice --key

      heed exercise code attention softmax
    """
    if names and names[0] == "code":
        from heedful.cli.exercise_code import exercise_code

        return exercise_code(names[1:], list_all=list_all, hint=hint, output=output, force=force, json=json)
    if list_all or not names:
        return _print_exercises(json)
    if len(names) > 1:
        raise InputError(f"{names[1]!r} is one exercise too many", hint="write one at a time")
    if hint:
        raise InputError("--hint is for code", hint="a number exercise gives hints while it asks: type ?")
    _write_or_ask(names[0], seed, format, key, digits, output, force, json)


def _write_or_ask(
    name: str, seed: str | None, format: str | None, key: bool, digits: int | None, output: Path | None,
    force: bool, json: bool,
) -> None:  # fmt: skip
    from heedful.classroom.exercises.numbers.numbers import new_problem
    from heedful.classroom.exercises.numbers.sheets import FORMATS, SUFFIXES

    problem = new_problem(name, "0" if seed is None else seed, digits)
    if format is None and output is not None:
        format = SUFFIXES.get(output.suffix.lower())
        if format is None:
            raise InputError(f"{output} does not say its format", hint=f"end it in {', '.join(SUFFIXES)}")
    if format is None and not key and not json and sys.stdin.isatty() and sys.stdout.isatty():
        from heedful.cli.exercise_quiz import ask_in_terminal

        return ask_in_terminal(problem)
    format = "json" if json else format or "text"
    if format not in FORMATS:
        raise InputError(f"--format {format} is unknown", hint=f"choose {', '.join(FORMATS)}")
    text = FORMATS[format](problem, key)
    if output is None:
        return print(text, end="")
    if output.exists() and not force:
        raise InputError(f"{output} is there already", hint="give another name, or --force")
    from heedful.core.files import write_text

    write_text(output, text)
    print(output)


def _print_exercises(json: bool) -> None:
    from heedful.classroom.exercises.numbers.exercises import EXERCISES
    from heedful.classroom.exercises.student_record import (
        count_done,
        describe_states,
        next_exercise,
        read_progress,
    )

    progress = read_progress(list(EXERCISES))
    states = describe_states(progress)
    if json:
        rows = [
            {"name": n, "task": EXERCISES[n].task, "state": states[n]} | vars(progress[n]) for n in EXERCISES
        ]
        return as_json({"exercises": rows, "next": next_exercise(progress)})
    from rich.text import Text

    table = make_table("exercise", "state", "task", unbroken=("exercise", "state"))
    for name, exercise in EXERCISES.items():
        table.add_row(Text(name), Text(states[name]), Text(exercise.task))
    console().print(table)
    done, following = count_done(progress.values()), next_exercise(progress)
    print(f"\n{done} of {len(EXERCISES)} done" + (f"; next: {following}" if following else ""))
    print("heed exercise code --list names the functions to write.")
