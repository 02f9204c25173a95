"""README.md says what is so: its Python runs. On all pages commands and options exist, and links lead on.

A block is left out where the line above it is a comment `<!-- not run: reason -->`.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.core import TyperGroup

from heedful.cli import COMMANDS, load_command, main
from heedful.core.errors import NotFound
from heedful.models import MEDIA_MODULES, MODULES
from heedful.weights.hub import BASES, installed_models

README = Path(__file__).parents[1] / "README.md"
PAGES = [README, *README.parent.glob("C*.md"), *sorted((README.parent / "docs").glob("*.md"))]
TEXT = README.read_text(encoding="utf-8")
needs_bases = pytest.mark.skipif(
    installed_models().keys() != BASES.keys(), reason="the bases are not installed"
)
NOT_RUN = "<!-- not run: "


class Block(NamedTuple):
    line: int  # of its first line of code, counted from 1
    code: str


def blocks(text: str, *languages: str) -> list[Block]:
    """The blocks of some languages ("" for none) that are to be run, in the order of the page."""
    found, lines, start = [], text.splitlines(), 0
    previous = language = ""
    for number, line in enumerate(lines, 1):
        if line.startswith("```") and start:
            if language in languages:
                found.append(Block(start + 1, "\n".join(lines[start : number - 1]) + "\n"))
            start = 0
        elif line.startswith("```"):
            start, language = number, "not run" if previous.startswith(NOT_RUN) else line[3:].strip()
        previous = line
    return found


def commands() -> list[str]:
    """What is typed after `heed`: a prompt before it and a description after two spaces are no part of it."""
    found = (
        block for page in PAGES for block in blocks(page.read_text("utf-8"), "console", "sh", "bash", "")
    )
    lines = (line.removeprefix("$ ") for block in found for line in block.code.splitlines())
    return sorted({re.split(r"\s{2,}|\s#", line)[0] for line in lines if re.match(r"heed\b", line)})


def test_the_python_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    for block in blocks(TEXT, "python"):
        padded = "\n" * (block.line - 1) + block.code  # so that an error names the line of the page
        try:
            exec(compile(padded, README, "exec"), names)
        except NotFound as missing:
            if installed_models().keys() == BASES.keys():
                raise
            pytest.skip(str(missing))


@pytest.mark.parametrize("page", ["answers.md", "generate.md", "start.md", "view.md"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks((README.parent / "docs" / page).read_text("utf-8"), "python"):
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), names)


@pytest.mark.parametrize("line", commands())
def test_every_command_and_option_exists(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, *words = line.split()
    if not words or words[0].startswith("-"):
        path, command = [], None
    else:
        assert words[0] in COMMANDS
        path, command = words[:1], load_command(words[0])
    while isinstance(command, TyperGroup):
        path.append(words[len(path)])
        assert path[-1] in command.commands
        command = command.commands[path[-1]]
    with pytest.raises(SystemExit) as stop:
        main([*path, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out
    if command is not None:
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
        assert {w.split("=")[0] for w in words if w.startswith("-")} <= known


def anchors(page: Path) -> set[str]:
    """The names by which headings of a page can be linked to: lower case, no punctuation, - for a space."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_the_map_has_the_file_of_every_family() -> None:
    files = {module.__name__.replace(".", "/") for module in (*MODULES, *MEDIA_MODULES)}
    assert [file for file in sorted(files) if f"(src/{file}.py)" not in TEXT] == []


def test_every_page_can_be_reached_from_the_first() -> None:
    assert [page.name for page in PAGES if page != README and page.name not in TEXT] == []


@pytest.mark.slow
@needs_bases
def test_the_tour_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(README.parent / "examples/tour.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "The capital of France is Paris." in printed
    assert "174,604,259,328" in printed
