"""The pages of questions and of corrections: what stands below a block of Python is what it prints.

    python -m tests.test_questions

writes the pages again.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.weights.hub import BASES, installed_models

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("questions.md", "corrections.md")
BLOCK = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
needs_bases = pytest.mark.skipif(
    installed_models().keys() != BASES.keys(), reason="the bases are not installed"
)


def printed_by(code: str, names: dict[str, Any]) -> str:
    """Return what a block prints; it sees the names of the blocks before it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<page>", "exec"), names)
    return out.getvalue()


def rewritten(page: str) -> str:
    """Return a page with what its blocks print now."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page"}
    text = (DOCS / page).read_text(encoding="utf-8")
    return BLOCK.sub(lambda b: f"```python\n{b[1]}```\n\n```text\n{printed_by(b[1], names)}```", text)


def split_numbers(text: str) -> tuple[str, list[float]]:
    """Return a text with its numbers taken out, and those numbers: their last digits differ by machine."""
    return NUMBER.sub("#", text), [float(found) for found in NUMBER.findall(text)]


@needs_bases
@pytest.mark.parametrize("page", PAGES)
def test_what_stands_below_a_block_is_what_it_prints(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text.count("```python") == len(BLOCK.findall(text)), "every block has its output below it"
    (words, numbers), (said, measured) = (split_numbers(page_text) for page_text in (text, rewritten(page)))
    assert said == words
    assert measured == pytest.approx(numbers, rel=0.03, abs=0.012)


if __name__ == "__main__":
    for name in PAGES:
        made = rewritten(name)
        (DOCS / name).write_text(made, encoding="utf-8")
