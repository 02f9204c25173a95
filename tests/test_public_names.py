"""Public names, commands and their options: one that was there once may not go away.

public_names.txt has one line for each. New lines are added by `python -m tests.test_public_names`, which
keeps the old ones; a line is taken out by hand only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import heedful
from heedful import cli

LIST = Path(__file__).with_name("public_names.txt")


def public_names() -> list[str]:
    """Return every public name of the package, and every command with its arguments and options."""
    names = [f"heedful.{name}" for name in heedful.__all__]
    root = typer.main.get_command(cli.app)
    lines = [*(f"heed {option}" for option in options(root))]
    for command in cli.COMMANDS:
        lines += command_lines(f"heed {command}", cli.load_command(command))
    return sorted(names) + sorted(lines)


def command_lines(path: str, command: Any) -> Iterator[str]:
    """Yield a line for a command and for each of its options; a group's commands follow it."""
    yield path
    yield from (f"{path} {option}" for option in options(command))
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_lines(f"{path} {name}", inner)


def options(command: Any) -> Iterator[str]:
    """Yield what may follow a command: each spelling of an option, and the arguments by their number."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    yield from (f"argument {number}" for number in range(1, len(arguments) + 1))
    for parameter in command.params:
        if parameter not in arguments and not parameter.name.endswith("_completion"):  # Typer's own
            yield from (*parameter.opts, *parameter.secondary_opts)


def test_no_public_name_command_or_option_is_lost() -> None:
    lost = set(LIST.read_text(encoding="utf-8").splitlines()) - set(public_names())
    assert not lost, f"gone: {', '.join(sorted(lost))}"


def test_new_public_names_are_listed() -> None:
    new = set(public_names()) - set(LIST.read_text(encoding="utf-8").splitlines())
    assert not new, f"run python -m tests.test_public_names to list: {', '.join(sorted(new))}"


def test_every_public_name_leads_to_something() -> None:
    assert [name for name in heedful.__all__ if not hasattr(heedful, name)] == []


if __name__ == "__main__":
    old = LIST.read_text(encoding="utf-8").splitlines() if LIST.is_file() else []
    LIST.write_text("\n".join(dict.fromkeys([*old, *public_names()])) + "\n", encoding="utf-8")
