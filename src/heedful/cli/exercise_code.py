"""`heed exercise code`: the code exercises: their list, their stubs in a file, their hints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.classroom.exercises.code.catalogue import HINTS, check_names, stubs, summaries, write_stubs
from heedful.classroom.exercises.student_record import (
    count_done,
    describe_states,
    next_exercise,
    read_progress,
    record_hint,
)
from heedful.cli.output import as_json, console, make_table
from heedful.core.errors import InputError

DEFAULT_FILE = Path("solution.py")


def exercise_code(
    names: Sequence[str] = (),
    *,
    list_all: bool = False,
    hint: bool = False,
    output: Path | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """List the code exercises, give a hint for one, or write a file of their stubs."""
    chosen = check_names(names or None)
    if list_all:
        return print_exercises(json)
    if hint:
        following = next_exercise(read_progress(list(stubs())))
        if len(names) > 1:
            raise InputError(f"a hint is for one exercise, and {len(names)} were named", hint="name one")
        return print_hint(names[0] if names else following or chosen[0], json)
    path = write_stubs(output or DEFAULT_FILE, chosen, force=force)
    if json:
        return as_json({"path": str(path), "exercises": chosen})
    print(path)


def print_exercises(json: bool) -> None:
    """Print the exercises with their equations, and how far the student is."""
    progress = read_progress(list(stubs()))
    states = describe_states(progress)
    if json:
        rows = [
            {"name": name, "equation": summaries()[name], "state": states[name]} | vars(entry)
            for name, entry in progress.items()
        ]
        return as_json({"exercises": rows, "next": next_exercise(progress)})
    from rich.text import Text

    out = console()
    listing = make_table(
        "exercise", "state", "hints", "equation", right=("hints",), unbroken=("exercise", "state")
    )
    for name, entry in progress.items():
        listing.add_row(*map(Text, (name, states[name], str(entry.hints or ""), summaries()[name])))
    out.print(listing)
    following = next_exercise(progress)
    done = f"{count_done(progress.values())} of {len(progress)} done"
    out.print(f"\n{done}" + (f"; next: {following}" if following else ""))


def print_hint(name: str, json: bool) -> None:
    """Print the next hint of an exercise, and remember that it was taken."""
    hints = HINTS[name]
    level = record_hint(name, len(hints))
    if json:
        return as_json({"exercise": name, "level": level, "levels": len(hints), "hint": hints[level - 1]})
    print(f"{name}, hint {level} of {len(hints)}: {hints[level - 1]}")
