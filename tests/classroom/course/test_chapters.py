"""Every chapter of the course runs from top to bottom, and its notebook holds the same cells."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.classroom.course import Chapter, chapters, find_chapter, write_notebooks
from heedful.classroom.figures import Figure
from heedful.core.errors import InputError, NotFound
from heedful.weights.hub import BASES, installed_models
from tests.refusal import refused

CHAPTERS = chapters()
needs_bases = pytest.mark.skipif(
    installed_models().keys() != BASES.keys(), reason="the bases are not installed"
)


def run_chapter(chapter: Chapter) -> list[Any]:
    """Run the code of a chapter as a notebook would; return what its cells show."""
    names: dict[str, Any] = {"__name__": "chapter"}
    shown = []
    for at, (kind, text) in enumerate(chapter.cells()):
        if kind == "code":
            tree = ast.parse(text, filename=f"{chapter.name}, cell {at}")
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{chapter.name}, cell {at}", "exec"), names)
            if last is not None:
                shown.append(
                    eval(compile(ast.Expression(last.value), f"{chapter.name}, cell {at}", "eval"), names)
                )
    return shown


LONG = {"gpt"}  # it writes with SmolLM2 many times


@needs_bases
@pytest.mark.parametrize(
    "chapter",
    [pytest.param(c, id=c.name, marks=[pytest.mark.slow] if c.name in LONG else []) for c in CHAPTERS],
)
def test_a_chapter_runs_from_top_to_bottom(
    chapter: Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products: more threads only wait for each other
    try:
        shown = run_chapter(chapter)
    finally:
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)
    figures = [value for value in shown if isinstance(value, Figure)]
    assert figures, "a chapter has a figure"
    assert all("<svg" in figure.to_svg() for figure in figures)


def test_chapters_are_numbered_from_one_and_have_headings() -> None:
    assert [chapter.number for chapter in CHAPTERS] == list(range(1, len(CHAPTERS) + 1))
    assert all(chapter.text.startswith("# ") and chapter.title for chapter in CHAPTERS)


def test_a_notebook_has_the_cells_of_its_chapter_and_no_output(tmp_path: Path) -> None:
    for path, chapter in zip(write_notebooks(tmp_path / "new", CHAPTERS), CHAPTERS, strict=True):
        notebook = json.loads(path.read_text("utf-8"))
        assert [(c["cell_type"], "".join(c["source"])) for c in notebook["cells"]] == chapter.cells()
        assert notebook["nbformat"] == 4
        assert not any(cell.get("outputs") for cell in notebook["cells"])


def test_notebooks_that_are_there_are_kept(tmp_path: Path) -> None:
    (tmp_path / "01_words.ipynb").write_text("mine")
    with refused(InputError, "01_words.ipynb", hint="--force"):
        write_notebooks(tmp_path, CHAPTERS)
    assert (tmp_path / "01_words.ipynb").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "01_words.ipynb"]


def test_a_chapter_is_found_by_number_and_by_name() -> None:
    assert find_chapter("1") == find_chapter("words")
    with refused(NotFound, "word", hint="words"):
        find_chapter("word")


def test_the_course_needs_no_torch_to_be_listed() -> None:
    code = "import sys, heedful.classroom.course as c; c.chapters(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
