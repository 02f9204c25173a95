"""The committed page: small, current, and alone."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "src" / "heedful" / "classroom" / "studio" / "static"


def test_the_page_is_at_most_150_kilobytes_compressed() -> None:
    size = sum(len(gzip.compress(p.read_bytes(), 9)) for p in STATIC.iterdir())
    assert size <= 150 * 1024


def test_the_page_names_no_other_host() -> None:
    for path in STATIC.iterdir():
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[\w./-]*", path.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML",
                         "http://www.w3.org/1999/xlink"}, path.name  # fmt: skip


def test_the_page_has_no_inline_script_and_evaluates_nothing() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert not re.search(r"\son\w+=|style=", page)
    code = (STATIC / "studio.js").read_text(encoding="utf-8")
    assert not re.search(r"\beval\(|new Function\(", code)


def test_no_text_is_ever_put_into_the_page_as_markup() -> None:
    sources = [p for p in (ROOT / "web" / "src").rglob("*.ts*") if not p.name.endswith(".test.ts")]
    assert len(sources) > 20
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser", text), (
            path.name
        )


def test_the_committed_files_are_those_the_sources_give(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or not (ROOT / "web" / "node_modules").is_dir():
        pytest.skip(
            "web/node_modules is not there: npm ci in web/, which only those who change the page need"
        )
    subprocess.run(
        [npm, "run", "--silent", "build:studio", "--", "--outDir", str(tmp_path)],
        cwd=ROOT / "web", check=True, capture_output=True,
    )  # fmt: skip
    for path in STATIC.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), (
            f"{path.name} is not current: make web"
        )
