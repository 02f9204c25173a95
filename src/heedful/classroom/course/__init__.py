"""The course: a chapter for each step of the history, as Markdown with Python, and as Jupyter notebooks.

A chapter is a file NN_name.md in this folder. Its blocks of Python run from top to bottom in one namespace;
a block that ends in an expression shows it, as a cell of a notebook does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from heedful.core.errors import InputError, NotFound, nearest
from heedful.core.files import write_text

FENCE = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Chapter:
    """One chapter: its number and name as in its file, its heading, its Markdown."""

    number: int
    name: str
    title: str
    text: str

    def cells(self) -> list[tuple[str, str]]:
        """Return the chapter as cells in order: ("markdown" or "code", text)."""
        parts = FENCE.split(self.text)
        kinds = ("markdown", "code")
        return [(kinds[i % 2], part.strip("\n")) for i, part in enumerate(parts) if part.strip()]

    def to_notebook(self) -> dict[str, Any]:
        """Return the chapter as a Jupyter notebook, format 4.5."""
        cells = []
        for at, (kind, text) in enumerate(self.cells()):
            cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{at}", "metadata": {}}
            cell["source"] = text.splitlines(keepends=True)
            cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        about = {"kernelspec": kernel, "language_info": {"name": "python"}}
        return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def chapters() -> list[Chapter]:
    """Return all chapters in their order."""
    listed = []
    for file in files("heedful.classroom.course").iterdir():
        if named := re.fullmatch(r"(\d+)_(\w+)\.md", file.name):
            text = file.read_text(encoding="utf-8")
            title = text.partition("\n")[0].removeprefix("# ")
            listed.append(Chapter(int(named[1]), named[2], title, text))
    return sorted(listed, key=lambda chapter: chapter.number)


def find_chapter(name: str) -> Chapter:
    """Return the chapter of a number ("4") or a name ("transformer")."""
    by_name = {key: chapter for chapter in chapters() for key in (str(chapter.number), chapter.name)}
    if name not in by_name:
        names = [chapter.name for chapter in chapters()]
        raise NotFound(f"no chapter is called {name!r}", hint=nearest(name, names) or ", ".join(names))
    return by_name[name]


def write_notebooks(folder: Path, selection: list[Chapter], *, overwrite: bool = False) -> list[Path]:
    """Write chapters as NN_name.ipynb into a folder, which is made; a file that is there is kept."""
    paths = [folder / f"{chapter.number:02}_{chapter.name}.ipynb" for chapter in selection]
    there = [path.name for path in paths if path.exists()]
    if there and not overwrite:
        raise InputError(
            f"{folder} has {', '.join(there)} already", hint="name another folder, or use --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, chapter in zip(paths, selection, strict=True):
        write_text(path, json.dumps(chapter.to_notebook(), indent=1, ensure_ascii=False) + "\n")
    return paths
