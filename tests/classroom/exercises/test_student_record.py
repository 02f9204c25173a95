"""Progress: done stays done, hints are counted, and no killed write loses what was there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.classroom.exercises.student_record import (
    FILE,
    count_done,
    describe_states,
    next_exercise,
    read_progress,
    record_hint,
    record_verdicts,
    state_folder,
)

NAMES = ["softmax", "attention", "layer_norm"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_nothing_is_done_at_first_and_nothing_is_written(folder: Path) -> None:
    assert describe_states(read_progress(NAMES)) == {
        "softmax": "next",
        "attention": "open",
        "layer_norm": "open",
    }
    assert not folder.exists()


def test_done_stays_done_and_the_next_one_follows() -> None:
    record_verdicts({"softmax": "right", "layer_norm": "wrong"})
    record_verdicts({"softmax": "wrong"})
    progress = read_progress(NAMES)
    assert describe_states(progress) == {"softmax": "done", "attention": "next", "layer_norm": "tried"}
    assert (progress["softmax"].tries, progress["softmax"].verdict) == (2, "wrong")
    assert count_done(progress.values()) == 1
    record_verdicts(dict.fromkeys(NAMES, "right"))
    assert next_exercise(read_progress(NAMES)) is None


def test_hints_come_one_level_after_another_and_the_last_one_again() -> None:
    assert [record_hint("attention", 3) for _ in range(4)] == [1, 2, 3, 3]
    assert read_progress(NAMES)["attention"].hints == 3


def test_a_write_that_is_killed_leaves_the_file_as_it_was(folder: Path) -> None:
    record_verdicts({"softmax": "right"})
    before = (folder / FILE).read_bytes()
    killed = (
        "import os, pathlib\n"
        "pathlib.Path.replace = lambda *a: os._exit(9)\n"  # before the new file takes the old one's place
        "from heedful.classroom.exercises.student_record import record_verdicts\n"
        "record_verdicts({'attention': 'right'})\n"
    )
    assert subprocess.run([sys.executable, "-c", killed]).returncode == 9
    assert (folder / FILE).read_bytes() == before
    record_verdicts({"attention": "right"})  # what the killed one left behind is no obstacle
    assert count_done(read_progress(NAMES).values()) == 2


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", '{"exercises": 3}', '{"exercises": {"softmax": [1]}}'])
def test_a_damaged_file_begins_anew(folder: Path, damage: str) -> None:
    folder.mkdir()
    (folder / FILE).write_text(damage)
    assert count_done(read_progress(NAMES).values()) == 0
    record_verdicts({"softmax": "right"})
    assert count_done(read_progress(NAMES).values()) == 1


def test_entries_of_another_version_are_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE).write_text('{"exercises": {"future": {"done": "2030-01-01"}}, "more": 1}')
    record_hint("softmax", 3)
    table = json.loads((folder / FILE).read_text())
    assert table["exercises"]["future"] == {"done": "2030-01-01"}
    assert table["more"] == 1


def test_the_state_folder_follows_the_usual_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HEED_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if sys.platform != "win32":
        assert state_folder() == tmp_path / "heedful"
