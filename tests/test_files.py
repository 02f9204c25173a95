"""Paths that lead nowhere."""

from __future__ import annotations

from pathlib import Path

from heedful.files import missing_file


def test_the_nearest_file_is_proposed_and_never_a_lock(tmp_path: Path) -> None:
    (tmp_path / "reviews.lock").touch()
    assert "lock" not in missing_file(tmp_path / "reviews.csv").hint
    (tmp_path / "review.csv").touch()
    assert "'review.csv'" in missing_file(tmp_path / "reviews.csv").hint
