"""Every chapter of the course runs and shows its lessons, and its notebook holds the same cells.

    python -m tests.classroom.course.test_chapters [NAME]...

runs the chapters and stores what their cells show.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pprint
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.classroom import course
from heedful.classroom.arithmetic.worked import Derivation
from heedful.classroom.course import FENCE, Chapter, chapters, find_chapter, write_notebooks, write_slides
from heedful.classroom.exercises.code_exercises import code_exercises
from heedful.classroom.exercises.number_exercises import EXERCISES
from heedful.classroom.figures import Figure
from heedful.core.errors import InputError, NotFound
from heedful.weights.hub import BASES, installed_models
from tests.classroom.browser.chromium import chromium
from tests.classroom.course.lessons import LESSONS
from tests.refusal import refused

CHAPTERS = chapters()
needs_bases = pytest.mark.skipif(
    installed_models().keys() != BASES.keys(), reason="the bases are not installed"
)


def run_chapter(chapter: Chapter) -> tuple[dict[str, Any], dict[int, list[Any]]]:
    """Run the code of a chapter as a notebook would; return its names, and what each cell shows."""
    names: dict[str, Any] = {"__name__": "chapter"}
    shown: dict[int, list[Any]] = {}
    for at, (kind, text) in enumerate(chapter.cells()):
        if kind != "code":
            continue
        tree = ast.parse(text, filename=f"{chapter.name}, cell {at}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"{chapter.name}, cell {at}", "exec"), names)
            if last is not None:
                code = compile(ast.Expression(last.value), f"{chapter.name}, cell {at}", "eval")
                value = eval(code, names)
        shows = [one for one in (printed.getvalue(), value) if one is not None and one != ""]
        if shows:
            shown[at] = shows
    return names, shown


LONG = {"gpt", "scaling", "t5_bart", "recurrent", "looking_inside"}  # they train, or write many times


@needs_bases
@pytest.mark.parametrize(
    "chapter",
    [pytest.param(c, id=c.name, marks=[pytest.mark.slow] if c.name in LONG else []) for c in CHAPTERS],
)
def test_a_chapter_runs_and_shows_its_lessons(
    chapter: Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products: more threads only wait for each other
    try:
        names, shown = run_chapter(chapter)
        untrue = [sentence for sentence, holds in LESSONS[chapter.name].items() if not holds(names)]
    finally:
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)
    assert untrue == []
    figures = [value for shows in shown.values() for value in shows if isinstance(value, Figure)]
    assert figures, "a chapter has a figure"
    assert set(chapter.outputs()) == set(shown), "python -m tests.classroom.course.test_chapters stores them"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.name)
def test_a_chapter_has_goals_points_exercises_and_answers(chapter: Chapter) -> None:
    prose = FENCE.sub("", chapter.text)
    words = len(re.findall(r"[A-Za-z][\w’'-]*", prose))
    assert 800 <= words <= 1500, words
    assert prose.count("\n> ") >= 3
    commands = re.findall(r"`heed exercise (code )?([\w -]+?)(?: --seed|`)", prose)
    named = [name for is_code, names in commands for name in names.split()]
    assert len(commands) >= 2
    assert set(named) <= {*EXERCISES, *code_exercises()}
    asked, answered = (len(re.findall(r"^\d\. ", part, re.M)) for part in (prose, chapter.answers))
    assert asked == answered >= 3
    assert chapter.name in LESSONS


def test_the_answers_stay_with_the_instructor(tmp_path: Path) -> None:
    student, instructor = (
        write_notebooks(tmp_path / str(flag), CHAPTERS[:1], instructor=flag)[0].read_text("utf-8")
        for flag in (False, True)
    )
    assert "For the instructor" not in student
    assert "For the instructor" in instructor
    assert "For the instructor" not in CHAPTERS[0].to_markdown() + CHAPTERS[0].to_slides()
    assert CHAPTERS[0].to_slides(instructor=True).endswith(CHAPTERS[0].answers.strip() + "\n")


def test_slides_that_are_there_are_kept(tmp_path: Path) -> None:
    (tmp_path / "01_words.html").write_text("mine")
    with refused(InputError, "01_words.html", hint="--force"):
        write_slides(tmp_path, CHAPTERS)
    assert (tmp_path / "01_words.html").read_text() == "mine"


@pytest.mark.slow
def test_slides_of_every_chapter_are_html_and_pdf_without_a_download(tmp_path: Path) -> None:
    pytest.importorskip("pypandoc", reason="pypandoc-binary is not installed")
    chromium()
    paths = write_slides(tmp_path, CHAPTERS)
    assert len(paths) == 2 * len(CHAPTERS)
    for page, pdf in zip(paths[::2], paths[1::2], strict=True):
        html = page.read_text("utf-8")
        assert html.count("<section") >= 6
        assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", html)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) >= 6


def test_chapters_are_numbered_from_one_and_have_headings() -> None:
    assert [chapter.number for chapter in CHAPTERS] == list(range(1, len(CHAPTERS) + 1))
    assert all(chapter.text.startswith("# ") and chapter.title for chapter in CHAPTERS)


def test_a_notebook_has_the_cells_of_its_chapter_and_their_outputs(tmp_path: Path) -> None:
    for path, chapter in zip(write_notebooks(tmp_path / "new", CHAPTERS), CHAPTERS, strict=True):
        notebook = json.loads(path.read_text("utf-8"))
        assert [(c["cell_type"], "".join(c["source"])) for c in notebook["cells"]] == chapter.cells()
        assert notebook["nbformat"] == 4
        with_output = {n for n, cell in enumerate(notebook["cells"]) if cell.get("outputs")}
        assert with_output == set(chapter.outputs())


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


def store_outputs(chapter: Chapter) -> None:
    """Write what the cells of a chapter show into the package."""
    folder = Path(course.__file__).parent / "outputs" / chapter.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        _, shown = run_chapter(chapter)
    for at, shows in shown.items():
        texts = []
        for value in shows:
            if isinstance(value, Figure):
                (folder / f"{at:03}.svg").write_text(value.to_svg(), encoding="utf-8")
            elif isinstance(value, Derivation):
                texts.append(value.text())
            else:
                texts.append(value if isinstance(value, str) else pprint.pformat(value, width=100))
        if texts:
            (folder / f"{at:03}.txt").write_text("\n".join(texts).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    for one in CHAPTERS:
        if not sys.argv[1:] or one.name in sys.argv[1:]:
            store_outputs(one)
