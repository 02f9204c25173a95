"""The page of code exercises in a browser: a hint, a pasted solution graded, progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.classroom.browser.conftest import Visitor

SOLUTION = """import torch

def bpe_merge(words):
    return None

def bahdanau_score(query, memory, W, U, v):
    return torch.tanh((query @ W.T)[:, None] + memory @ U.T) @ v

def skipgram_step(V, U, centre, contexts, negatives, rate):
    raise NotImplementedError
"""


def test_a_pasted_solution_is_graded_and_a_hint_is_remembered(
    visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEED_STATE", str(tmp_path))  # the server is a thread of this process
    page = visitor.go("/exercises?exercise=bpe_merge")
    assert "def bpe_merge(words" in page.inner_text("[data-stub]")
    page.click("text=Hint 1 of 3")
    page.wait_for_selector("[data-hints] li")
    page.fill("#solution", SOLUTION)
    page.click("form button.primary")
    page.wait_for_selector("[data-grades]", timeout=120_000)
    found = {
        row.get_attribute("data-grade"): row.get_attribute("data-verdict")
        for row in page.query_selector_all("[data-grade]")
    }
    assert found == {"bpe_merge": "wrong", "bahdanau_score": "right", "skipgram_step": "unfinished"}
    assert "is a return missing?" in page.inner_text("[data-grade=bpe_merge]")
    # A function, as the rules of the page allow no text to be run.
    done = "() => document.querySelector('[data-progress]').textContent.startsWith('1 of 15')"
    page.wait_for_function(done)
    assert "tried" in page.inner_text("[data-exercise=bpe_merge]")
    page.reload()
    page.wait_for_selector("[data-hints] li")
    assert visitor.faults == []
