"""What pages say of the source is so: files that they name exist, functions are where the walks say."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "heedful"
FOLDERS = ("src/heedful", "tests", "benchmarks", "bundle", "examples")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
ARCHITECTURE = ROOT / "docs" / "architecture.md"

# `path.py`, or `path.py:name`: the path may leave out folders before it.
REFERENCE = re.compile(r"`(?P<path>[\w/.]*\w\.py)(?::(?P<name>[A-Za-z_][\w.]*))?[^`]*`")
NAME = re.compile(r"`(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*)?`")
WALKS = ("load", "generate", "train", "finetune", "pipeline", "studio", "serve", "word2vec")


class Reference(NamedTuple):
    line: int
    path: str
    name: str | None

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}{f':{self.name}' if self.name else ''}"


def references(page: Path) -> list[Reference]:
    """Return every file that a page names in backticks, and the name behind it."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [Reference(n, m["path"], m["name"]) for n, s in enumerate(lines, 1) for m in REFERENCE.finditer(s)]


@cache
def files() -> dict[str, Path]:
    """Return the Python files of the repository by their paths below the folders that pages leave out."""
    return {
        str(path.relative_to(ROOT)): path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py")
    }


def matches(path: str) -> list[Path]:
    """Return the files whose path ends so."""
    return [file for name, file in files().items() if f"/{name}".endswith(f"/{path}")]


@cache
def definitions(file: Path) -> frozenset[str]:
    """Return what a file defines at its top and in its classes: "fit", "Watch.see", "COMMANDS"."""
    return frozenset(_defined(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def _defined(body: list[ast.stmt], owner: str) -> list[str]:
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(owner + node.name)
            if isinstance(node, ast.ClassDef):
                names += _defined(node.body, f"{node.name}.")
        elif isinstance(node, ast.Assign):
            names += [owner + target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(owner + node.target.id)
    return names


@cache
def words() -> frozenset[str]:
    """Return every identifier in the source of the package."""
    return frozenset(
        word for file in SOURCE.rglob("*.py") for word in re.findall(r"[A-Za-z_]\w*", file.read_text("utf-8"))
    )


def walk_lines() -> list[tuple[int, str]]:
    """Return the lines of the numbered steps of docs/architecture.md, each with its number in the file."""
    found, inside = [], False
    for number, line in enumerate(ARCHITECTURE.read_text(encoding="utf-8").splitlines(), 1):
        inside = bool(re.match(r"\d+\. ", line)) or (inside and line.startswith("   "))
        if inside:
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_file_that_a_page_names_exists(page: Path) -> None:
    stale = [f"{page.name}, {found}" for found in references(page) if not matches(found.path)]
    assert not stale, "no such file:\n" + "\n".join(stale)


def test_every_function_of_the_architecture_is_in_the_file_it_is_said_to_be_in() -> None:
    stale = [
        f"{ARCHITECTURE.name}, {found}"
        for found in references(ARCHITECTURE)
        if found.name and not any(found.name in definitions(file) for file in matches(found.path))
    ]
    assert not stale, "not defined there:\n" + "\n".join(stale)


def test_every_name_in_a_walk_occurs_in_the_source() -> None:
    stale = [
        f"{ARCHITECTURE.name}, line {number}: {found['name']}"
        for number, line in walk_lines()
        for found in NAME.finditer(line)
        if not set(found["name"].split(".")) <= words()
    ]
    assert not stale, "nowhere in the source:\n" + "\n".join(stale)


@pytest.mark.parametrize("door", WALKS)
def test_the_walk_through_every_door_is_written_down(door: str) -> None:
    headings = re.findall(r"^\*\*(.+)\*\*$", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    assert any(door in heading for heading in headings), headings


def test_the_tree_shows_every_module_and_package_of_the_source() -> None:
    tree = re.search(
        r"^src/heedful/\n(.*?)^tests/", ARCHITECTURE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert tree is not None
    shown = set(re.findall(r"^  ([\w.]+/?)", tree[1], re.MULTILINE))
    there = {path.name for path in SOURCE.glob("*.py")}
    there |= {f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert shown ^ (there - {"__main__.py"}) == set()
