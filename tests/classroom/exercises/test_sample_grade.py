"""docs/exercises.md prints a grade: it is the one that `heed grade` prints today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heedful.cli import main

PAGE = Path(__file__).parents[3] / "docs" / "exercises.md"
UNSCALED = """
def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2)
    return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1) @ v
"""


@pytest.mark.slow
def test_the_sample_grade_is_the_one_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("solution.py").write_text(UNSCALED)
    with pytest.raises(SystemExit):
        main(["grade", "solution.py", "attention"])
    block = re.search(r"```text\n(✗ attention.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert block[1].strip() in capsys.readouterr().out
