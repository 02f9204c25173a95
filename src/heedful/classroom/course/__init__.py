"""The course: a chapter for each step of the history, as Markdown with Python, notebooks and slides.

A chapter is a file NN_name.md in this folder. Its blocks of Python run from top to bottom in one namespace;
a block that ends in an expression shows it, as a cell of a notebook does. outputs/NN_name has what each cell
shows, by its number: text or SVG. The answers follow the heading INSTRUCTOR and are only for the teacher.
A quoted line ("> …") is the point of its section: slides show it next to the figure.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from heedful.classroom.text_files import notebook
from heedful.core.errors import InputError, NotFound, find_named
from heedful.core.files import write_text
from heedful.core.lazy import import_optional

FENCE = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
INSTRUCTOR = "\n## For the instructor\n"
TYPES = {".txt": "text/plain", ".svg": "image/svg+xml"}
FOLDER = files("heedful.classroom.course")
MAX_SLIDE_LINES, SLIDE_COLUMNS = 14, 130  # of an output on a slide


@dataclass(frozen=True)
class Chapter:
    """One chapter: its number and name as in its file, its heading, its Markdown, the teacher's part."""

    number: int
    name: str
    title: str
    text: str
    answers: str = ""

    @property
    def stem(self) -> str:
        """The name of its file without an ending."""
        return f"{self.number:02}_{self.name}"

    def cells(self) -> list[tuple[str, str]]:
        """Return the chapter as cells in order: ("markdown" or "code", text)."""
        parts = FENCE.split(self.text)
        kinds = ("markdown", "code")
        return [(kinds[i % 2], part.strip("\n")) for i, part in enumerate(parts) if part.strip()]

    def outputs(self) -> dict[int, dict[str, str]]:
        """Return what the cells show when they run: by the cell's number, content by its type."""
        shown: dict[int, dict[str, str]] = {}
        folder = FOLDER / "outputs" / self.stem
        for file in sorted(folder.iterdir(), key=lambda one: one.name) if folder.is_dir() else ():
            number, suffix = file.name[:3], file.name[3:]
            shown.setdefault(int(number), {})[TYPES[suffix]] = file.read_text(encoding="utf-8")
        return shown

    def to_notebook(self, *, instructor: bool = False) -> str:
        """Return the chapter as a Jupyter notebook with its outputs."""
        cells, outputs = [], self.outputs()
        for at, (kind, text) in enumerate(self.cells()):
            cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{at}", "metadata": {}}
            cell["source"] = text.splitlines(keepends=True)
            shown = [
                {"output_type": "display_data", "metadata": {}, "data": {content_type: content}}
                for content_type, content in outputs.get(at, {}).items()
            ]
            cells.append(cell | ({"execution_count": None, "outputs": shown} if kind == "code" else {}))
        if instructor:
            cells.append(
                {"cell_type": "markdown", "id": "answers", "metadata": {}, "source": self.answers.strip()}
            )
        return notebook(cells)

    def to_markdown(self) -> str:
        """Return the chapter as a page: the outputs stand below their cells."""
        parts, outputs = [], self.outputs()
        for at, (kind, text) in enumerate(self.cells()):
            parts.append(f"```python\n{text}\n```" if kind == "code" else text)
            for content_type, content in outputs.get(at, {}).items():
                parts.append(content if "svg" in content_type else f"```text\n{content.rstrip()}\n```")
        return "\n\n".join(parts) + "\n"

    def to_slides(self, *, instructor: bool = False) -> str:
        """Return the chapter as Markdown for slides: headings, points, lists, and an output on each.

        For the instructor, the answers are the last slide.
        """
        parts, heading, full, outputs = [f"% {self.title}"], "", False, self.outputs()
        for at, (_, text) in enumerate(self.cells()):
            for block in re.findall(r"^(?:## .*|(?:(?:> |- |\d\. ).*\n?)+)", text, re.MULTILINE):
                parts.append(block)
                if block.startswith("## "):
                    heading, full = block, False
            for content_type, content in outputs.get(at, {}).items():
                lines = [line[:SLIDE_COLUMNS] for line in content.rstrip().splitlines()]
                cut = "\n".join([*lines[:MAX_SLIDE_LINES], *["…"] * (len(lines) > MAX_SLIDE_LINES)])
                parts += [heading] * full
                parts.append(content if "svg" in content_type else f"~~~\n{cut}\n~~~")
                full = True
        return "\n\n".join([*parts, *([self.answers.strip()] if instructor else [])]) + "\n"


def chapters() -> list[Chapter]:
    """Return all chapters in their order."""
    listed = []
    for file in FOLDER.iterdir():
        if named := re.fullmatch(r"(\d+)_(\w+)\.md", file.name):
            text, _, answers = file.read_text(encoding="utf-8").partition(INSTRUCTOR)
            title = text.partition("\n")[0].removeprefix("# ")
            listed.append(Chapter(int(named[1]), named[2], title, text, INSTRUCTOR + answers))
    return sorted(listed, key=lambda chapter: chapter.number)


def find_chapter(name: str) -> Chapter:
    """Return the chapter of a number ("4") or a name ("transformer")."""
    by_name = {key: chapter for chapter in chapters() for key in (str(chapter.number), chapter.name)}
    return find_named(by_name, name, f"no chapter is called {name!r}", NotFound)


def write_notebooks(
    folder: Path, selection: list[Chapter], *, overwrite: bool = False, instructor: bool = False
) -> list[Path]:
    """Write chapters as NN_name.ipynb into a folder, which is made; a file that is there is kept."""
    paths = new_paths(folder, selection, ".ipynb", overwrite)
    for path, chapter in zip(paths, selection, strict=True):
        write_text(path, chapter.to_notebook(instructor=instructor))
    return paths


def new_paths(folder: Path, selection: list[Chapter], suffix: str, overwrite: bool) -> list[Path]:
    """Return the file of each chapter in a folder, which is made; a file that is there may hold edits."""
    paths = [folder / f"{chapter.stem}{suffix}" for chapter in selection]
    there = [path.name for path in paths if path.exists()]
    if there and not overwrite:
        raise InputError(
            f"{folder} has {', '.join(there)} already", hint="name another folder, or use --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return paths


def write_slides(
    folder: Path, selection: list[Chapter], *, overwrite: bool = False, instructor: bool = False
) -> list[Path]:
    """Write the slides of chapters as HTML by pandoc, and as PDF if Chromium is installed."""
    pandoc, browser = find_pandoc(), next(filter(None, map(shutil.which, BROWSERS)), None)
    paths = []
    for page, chapter in zip(new_paths(folder, selection, ".html", overwrite), selection, strict=True):
        style = f"--include-in-header={FOLDER / 'slides.html'}"
        command = [pandoc, "-f", "markdown-smart", "-t", "html5", "--standalone", "--section-divs", style]
        slides = chapter.to_slides(instructor=instructor)
        subprocess.run([*command, "-o", page], input=slides, text=True, check=True)
        paths.append(page)
        if browser is not None:
            pdf = page.with_suffix(".pdf")
            with tempfile.TemporaryDirectory() as profile:
                flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
                flags += ["--no-pdf-header-footer", f"--print-to-pdf={pdf.resolve()}"]
                subprocess.run([browser, *flags, page.resolve().as_uri()], check=True, capture_output=True)
            paths.append(pdf)
    return paths


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_pandoc() -> str:
    """Return the program pandoc: that of the system, or that of the package pypandoc-binary."""
    if program := shutil.which("pandoc"):
        return program
    return str(import_optional("pypandoc", "making slides", "install pandoc").get_pandoc_path())
