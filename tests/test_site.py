"""The site: pages that are made from the source are right, and all of it builds without a broken link."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from heedful.models import FAMILIES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    found = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_the_lines_of_use_of_a_system_run(family: object, pages: ModuleType) -> None:
    code = pages.usage(family)
    assert len(code.splitlines()) <= 10
    exec(compile(code, "<page>", "exec"), {})


def test_the_tree_of_a_system_has_its_parts_and_their_equations(pages: ModuleType) -> None:
    text = pages.tree_text(FAMILIES["llama"])
    assert re.search(r"attn: Attention   .*softmax", text)


def test_what_changed_is_a_list(pages: ModuleType) -> None:
    text = "From GPT-2:  learned positions → rotary   no biases\n             SwiGLU\nMistral:     a window"
    assert pages.changes_list(text) == (
        "- **From GPT-2**: learned positions → rotary; no biases; SwiGLU\n- **Mistral**: a window"
    )


def test_a_link_to_a_file_outside_the_site_is_written_as_its_path(pages: ModuleType) -> None:
    assert pages.on_page_markdown("see [the map](../README.md#map).") == "see the map (`README.md`)."


def test_the_reference_has_every_public_name(pages: ModuleType) -> None:
    text = "\n".join(page for _, page in pages.reference_pages())
    names = (ROOT / "tests" / "public_names.txt").read_text("utf-8").split()
    missing = [
        n
        for n in names
        if re.fullmatch(r"heedful\.\w+", n) and "__" not in n and f"::: {n}\n" not in text + "\n"
    ]
    assert not missing


def test_an_example_in_a_docstring_becomes_a_block_of_code() -> None:
    pytest.importorskip("griffe")
    found = importlib.util.spec_from_file_location("examples", ROOT / "docs" / "docstring_examples.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    text = "Add.\n\n>>> add(1)[0]\n['a']\n\nArgs:\n    x: A number."
    fenced = "Add.\n\n```pycon\n>>> add(1)[0]\n['a']\n```\n\nArgs:\n    x: A number."
    assert module.fence_examples(text) == fenced


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"{page.name}\n" not in listed] == []


@pytest.mark.slow
def test_the_site_builds_with_no_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "systems" / "llama.html").read_text("utf-8")
    assert "<svg" in page
    outside = re.findall(r'(?:src|href)="(https?://[^"]+)"', page)
    assert not [link for link in outside if link.rstrip("/").endswith((".js", ".css", ".woff2"))]
