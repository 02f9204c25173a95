"""`heed verify`: a row of the ledger run again, compared, refused in one line where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heedful.classroom.experiments import ledger
from heedful.classroom.experiments.verify import (
    CommandFailed,
    Unavailable,
    Verdict,
    command_line,
    last_object,
    read_number,
    verify_row,
)
from heedful.core.errors import CorruptFile
from tests.tasks.finetune.conftest import Heed

SCRIPT = """import json, sys
print("warming up")
print(json.dumps({"test": {"accuracy": float(sys.argv[1])}}))
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with a script beside it that prints the number it is given."""
    monkeypatch.delenv("HEED_DATA", raising=False)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "toy.py").write_text(SCRIPT)
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def put(results: Path, stored: Any, printed: str, **more: Any) -> None:
    steps = [["python", "benchmarks/toy.py", printed]]
    check = {"steps": steps, "read": "test.accuracy", "tolerance": 0.5} | more
    row = ledger.row("accuracy of a toy", stored, "python benchmarks/toy.py", seed=0, check=check)
    ledger.record_rows(results / "toy.json", [row])


def test_a_figure_within_its_tolerance_is_the_same(results: Path, heed: Heed) -> None:
    put(results, 90.0, "89.5")
    code, out, err = heed("verify", "toy")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["accuracy of a toy", "stored 90   now 89.5   may differ by 0.5", "the same"]


def test_a_figure_outside_of_it_is_exit_1_and_both_are_shown(results: Path, heed: Heed) -> None:
    put(results, 90.0, "89.4")
    code, out, err = heed("verify", "toy")
    assert (code, err) == (1, "")
    assert "stored 90   now 89.4" in out
    assert out.splitlines()[-1] == "differs by -0.6"


def test_fail_under_asks_for_more_than_the_same(results: Path, heed: Heed) -> None:
    put(results, 90.0, "90")
    assert heed("verify", "toy", "--fail-under", 90)[0] == 0
    code, out, _ = heed("verify", "toy", "--fail-under", 91, "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["schema"], found["same"], found["ok"]) == ("heed/1", True, False)
    assert (found["stored"], found["now"]) == (90.0, 90.0)


def test_one_of_several_figures_is_compared(results: Path) -> None:
    put(results, {"accuracy": 70.0, "seconds": 3}, "70.2", figure="accuracy")
    assert verify_row(results, "toy").same
    put(results, {"accuracy": 70.0, "seconds": 3}, "70.2", figure="colour")
    with pytest.raises(CorruptFile, match="row 'toy' has no 'colour'"):
        verify_row(results, "toy")


def test_a_number_that_is_none_is_never_the_same() -> None:
    assert not Verdict("r", "c", 1.0, float("nan"), 9.0, 0.0).same
    assert Verdict("r", "c", 0.3, 0.1 + 0.1, 0.1, 0.0).same  # at the very edge


def test_missing_data_is_one_line_and_exit_3(
    results: Path, heed: Heed, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(results, 90.0, "90", data=["toys/test.csv"])
    code, out, err = heed("verify", "toy")
    assert (code, out) == (3, "")
    assert err.splitlines()[0] == "error: row 'toy' needs toys/test.csv"
    monkeypatch.setenv("HEED_DATA", str(results))
    assert "which is not there" in heed("verify", "toy")[2]


def test_other_data_than_then_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEED_DATA", str(results.parent))
    file = results.parent / "test.csv"
    file.write_text("a\n")
    put(results, 90.0, "90", data=["test.csv"])
    rows = ledger.read_rows(results / "toy.json")
    ledger.record_rows(results / "toy.json", [rows[0] | {"data_sha256": ledger.sha256([file])}])
    assert verify_row(results, "toy").same
    file.write_text("b\n")
    with pytest.raises(Unavailable, match="not what it was measured on"):
        verify_row(results, "toy")


def test_a_row_of_a_gpu_says_so_where_there_is_none(
    results: Path, heed: Heed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    put(results, 90.0, "90", device="cuda")
    code, _, err = heed("verify", "toy")
    assert code == 3
    assert err.startswith("error: row 'toy' needs a GPU and there is none here\nhint: run it on ")


def test_a_row_without_a_check_names_the_command_it_came_from(results: Path, heed: Heed) -> None:
    ledger.record_rows(results / "old.json", [ledger.row("a claim", 1.0, "python old.py")])
    code, _, err = heed("verify", "old")
    assert code == 3
    assert "hint: its figure came from: python old.py" in err


def test_an_unknown_row_is_answered_with_the_nearest(results: Path, heed: Heed) -> None:
    put(results, 90.0, "90")
    code, _, err = heed("verify", "toi")
    assert code == 3
    assert "did you mean 'toy'" in err
    assert heed("verify")[0] == 3
    assert heed("verify", "toy", "--results", "nowhere")[0] == 3


@pytest.mark.parametrize(
    "step", [["sh", "-c", "true"], ["python", "-c", "1"], ["python", "../x.py"], ["python", "-m", "os"]]
)
def test_only_code_of_heedful_is_run(step: list[str], tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="is not run"):
        command_line(step, {}, tmp_path)


def test_a_step_is_words_and_no_shell_reads_them(tmp_path: Path) -> None:
    step = ["heed", "eval", "{data}/a b; rm", "--out", "{work}/$x"]
    words = command_line(step, {"{data}": "/d", "{work}": "/w"}, tmp_path)
    assert words[1:] == ["-m", "heedful.cli", "eval", "/d/a b; rm", "--out", "/w/$x"]
    with pytest.raises(Unavailable, match="in a checkout"):
        command_line(["python", "benchmarks/none.py"], {}, tmp_path)


def test_a_command_that_fails_is_told(results: Path) -> None:
    put(results, 90.0, "no number")
    with pytest.raises(CommandFailed, match="ended with code 1"):
        verify_row(results, "toy")
    with pytest.raises(CommandFailed, match="no JSON"):
        last_object("done\n{broken\n", "toy")
    with pytest.raises(CorruptFile, match="is True, not a number"):
        read_number({"a": True}, "a", "it")


def test_a_check_that_says_something_else_is_refused(results: Path) -> None:
    put(results, 90.0, "90", colour="red")
    with pytest.raises(CorruptFile, match="may have"):
        verify_row(results, "toy")
    put(results, 90.0, "90", steps="rm -r x")
    with pytest.raises(CorruptFile, match="lists of words"):
        verify_row(results, "toy")


def test_rows_are_listed_by_name(results: Path, heed: Heed) -> None:
    put(results, 90.0, "90")
    ledger.record_rows(results / "two.json", [ledger.row("first", 1, "x"), ledger.row("second", 2, "x")])
    out = heed("verify", "--list")[1]
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["toy", "✓"],
        ["two:1", "–"],
        ["two:2", "–"],
    ]
    found = json.loads(heed("verify", "--list", "--json")[1])["rows"]
    assert found[2] == {"row": "two:2", "claim": "second", "figure": 2, "again": False}
    assert "| `toy` ✓ | accuracy of a toy | 90 |" in ledger.page(results)


def test_a_row_measured_again_keeps_its_place(results: Path) -> None:
    path = results / "two.json"
    ledger.record_rows(path, [ledger.row("first", 1, "x"), ledger.row("second", 2, "x")])
    ledger.record_rows(path, [ledger.row("first", 3, "x")])
    assert [(r["claim"], r["figure"]) for r in ledger.read_rows(path)] == [("first", 3), ("second", 2)]


def test_every_check_in_the_ledger_can_be_read() -> None:
    from heedful.classroom.experiments.verify import read_check

    root = Path(__file__).parents[3]
    for name, row in ledger.rows_by_name(root / "results").items():
        if row.get("check"):
            check = read_check(row, name)
            read_number(row["figure"], check.figure, name)
            for step in check.steps:
                command_line(step, {"{data}": "d", "{work}": "w"}, root)
