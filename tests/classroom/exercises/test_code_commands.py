"""`heed exercise code` and `heed grade FILE.py` in the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful import cli

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEED_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def heed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_stubs_are_written_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert heed(capsys, "exercise", "code")[:2] == (0, "solution.py\n")
    code, _, error = heed(capsys, "exercise", "code")
    assert code == 3
    assert "solution.py exists already" in error
    assert "--force" in error
    assert heed(capsys, "exercise", "code", "attention", "--out", "mine.py")[0] == 0
    assert (folder / "mine.py").read_text(encoding="utf-8").count("\ndef ") == 1


def test_the_list_shows_what_is_next_and_hints_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint 1 of 3" in heed(capsys, "exercise", "code", "attention", "--hint")[1]
    assert "hint 2 of 3" in heed(capsys, "exercise", "code", "attention", "--hint")[1]
    found = json.loads(heed(capsys, "exercise", "code", "--list", "--json")[1])
    assert found["next"] == "softmax"
    assert [row["hints"] for row in found["exercises"]] == [0, 2] + [0] * 13
    listing = heed(capsys, "exercise", "code", "--list")[1]
    assert "0 of 15 done; next: softmax" in listing
    assert "softmax(q kᵀ / √d_k) v" in listing


def test_a_hint_is_for_one_exercise(capsys: pytest.CaptureFixture[str]) -> None:
    assert "softmax, hint 1 of 3" in heed(capsys, "exercise", "code", "--hint")[1]  # the next one
    assert heed(capsys, "exercise", "code", "softmax", "attention", "--hint")[0] == 3


def test_a_wrong_function_is_exit_code_1_and_a_right_one_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = heed(capsys, "grade", str(HERE / "mistakes" / "anna.py"), "bpe_merge")
    assert code == 1
    assert "✗ bpe_merge: of equally frequent pairs the one that was met first is taken" in out
    assert "    with ours it is: " in out
    code, out, _ = heed(capsys, "grade", str(HERE / "variants" / "plain.py"), "bpe_merge")
    assert code == 0
    assert "✓ bpe_merge: right on 6 inputs\n    inside a tokenizer of 12 merges as ours: " in out
    assert "1 of 15 done; next: softmax" in out


def test_a_grade_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(HERE / "mistakes" / "anna.py")
    code, out, _ = heed(capsys, "grade", path, "bpe_merge", "--json")
    assert code == 1
    assert json.loads(out)["grades"][0]["mistakes"] == ["first_of_ties"]


@pytest.mark.slow
def test_a_grade_is_told_even_where_progress_cannot_be_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("HEED_STATE", str(folder / "file" / "state"))
    code, out, error = heed(capsys, "grade", str(HERE / "variants" / "plain.py"), "bpe_merge")
    assert code == 0
    assert "✓ bpe_merge" in out
    assert "progress could not be kept" in error
