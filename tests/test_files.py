"""Paths that lead nowhere."""

from __future__ import annotations

from pathlib import Path

from heedful.files import missing_file


def test_the_nearest_file_is_proposed_and_never_a_lock(tmp_path: Path) -> None:
    (tmp_path / "reviews.lock").touch()
    assert "lock" not in missing_file(tmp_path / "reviews.csv").hint
    (tmp_path / "review.csv").touch()
    assert "'review.csv'" in missing_file(tmp_path / "reviews.csv").hint


def test_a_folder_in_the_place_of_a_file_is_called_a_folder(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    error = missing_file(tmp_path / "texts")
    assert error.message == f"{tmp_path / 'texts'} is a folder"
    assert error.hint == "name a file in it"
