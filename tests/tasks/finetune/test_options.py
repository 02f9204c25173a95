"""A command's options come from the dataclass that they fill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from heedful.cli.commands import as_typer_command, command_words
from heedful.core.checks import Option


@dataclass(frozen=True)
class WalkRequest:
    """A walk."""

    places: Annotated[Sequence[str], Option("Where to.", metavar="PLACE…")]
    speed: Annotated[float, Option("Kilometres an hour.", minimum=1, variable="WALK_SPEED")] = 4.0
    back: Annotated[bool | None, Option("Return or stay.", ("--back/--stay",))] = None
    company: int = 0  # no option: only Python gives it


def walk(arguments: list[str], **environment: str) -> tuple[int, list[Any], str]:
    """Run a command with these options; return its code, the requests it got, and what it printed."""
    got: list[Any] = []

    def command(request: WalkRequest, quiet: bool = False) -> None:
        """Walk."""
        got.append(request)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(as_typer_command(command))
    done = CliRunner().invoke(app, arguments, env=environment)
    return done.exit_code, got, done.output


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["Bern"], WalkRequest(["Bern"])),
        (["Bern", "Thun", "--speed", "5"], WalkRequest(["Bern", "Thun"], 5.0)),
        (["Bern", "--stay"], WalkRequest(["Bern"], back=False)),
        (["Bern", "--back", "--quiet"], WalkRequest(["Bern"], back=True)),
    ],
)
def test_a_command_gets_the_dataclass_that_its_options_fill(
    arguments: list[str], request_: WalkRequest
) -> None:
    assert walk(arguments)[:2] == (0, [request_])


def test_a_variable_stands_for_an_option_and_the_option_wins() -> None:
    assert walk(["Bern"], WALK_SPEED="6")[1] == [WalkRequest(["Bern"], 6.0)]
    assert walk(["Bern", "--speed", "7"], WALK_SPEED="6")[1] == [WalkRequest(["Bern"], 7.0)]


def test_help_and_bounds_are_those_of_the_field() -> None:
    out = walk(["--help"])[2]
    assert "Kilometres an hour." in out
    assert "WALK_SPEED" in out
    assert "company" not in out
    assert walk(["Bern", "--speed", "0"])[0] == 2
    assert walk([])[0] == 2


@pytest.mark.parametrize("command", ["train", "finetune", "eval"])
def test_help_of_a_command_with_such_options_imports_nothing_heavy(command: str) -> None:
    code = (
        f"import sys\nfrom heedful.cli import main\ntry: main([{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'tokenizers', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_words_of_a_command_can_be_given_again() -> None:
    got: list[list[str]] = []

    def command(context: typer.Context, request: WalkRequest, quiet: bool = False, times: int = 1) -> None:
        got.append(command_words(context, leave_out=("times",)))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(as_typer_command(command))
    given = ["Bern", "-x.txt", "--speed", "5", "--stay", "--quiet", "--times", "3"]
    once = CliRunner().invoke(app, ["--", "Bern"], env={"WALK_SPEED": "6"})
    assert (once.exit_code, got.pop()) == (0, ["--", "Bern"])
    assert CliRunner().invoke(app, [*given[2:], "--", *given[:2]]).exit_code == 0
    words = got.pop()
    assert words == ["--speed", "5.0", "--stay", "--quiet", "--", "Bern", "-x.txt"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert got.pop() == words
