"""Results as files and as a page; curves; tokenizers from the command line."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import heedful.classroom.experiments.ledger as ledger
from heedful.classroom.experiments.report import Report, Section
from heedful.classroom.figures import panels
from heedful.core.errors import CorruptFile
from heedful.text import load_tokenizer
from heedful.train.recipes.folder import draw_curves, interpolate
from tests.tasks.finetune.conftest import Heed

ROOT = Path(__file__).parents[3]


def test_a_result_is_recorded_once_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "results" / "toy.json"
    row = ledger.row("loss of a toy", 1.23456, "heed train toy", seed=0, published=1.5, source="a paper")
    ledger.record_rows(path, [row | {"figure": 9.0}])
    ledger.record_rows(path, [row])
    assert [r["figure"] for r in ledger.read_rows(path)] == [1.23456]
    page = ledger.page(path.parent)
    assert "| loss of a toy | 1.235 | 1.5 (a paper) | 0 |" in page
    assert "heed train toy" in page


def test_a_result_without_a_command_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([{"claim": "?"}]))
    with pytest.raises(CorruptFile, match="lacks figure"):
        ledger.page(tmp_path)
    with pytest.raises(ValueError, match="a result has no colour"):
        ledger.row("a", 1, "b", colour="red")


def test_the_page_in_docs_is_the_one_made_from_results() -> None:
    if (ROOT / "docs" / "results.md").is_file():
        assert (ROOT / "docs" / "results.md").read_text() == ledger.page(ROOT / "results")


def test_a_curve_goes_through_its_points() -> None:
    assert interpolate([(0, 0.0), (10, 1.0)], 0, 10, 11) == [(i, i / 10) for i in range(11)]
    drawn = draw_curves({"train": [(0, 4.0), (10, 2.0)], "eval": [(5, 3.0)]}, "loss", width=40, colour=False)
    assert drawn.splitlines()[0] == "loss   ⠶ train   ⠶ eval"
    assert drawn.splitlines()[1].split()[0] == "4"
    assert len(drawn.splitlines()) == 18


def test_curves_are_drawn_and_written(heed: Heed, tmp_path: Path) -> None:
    run = tmp_path / "r"
    run.mkdir()
    rows = [{"train/global_step": i, "train/loss": 1 / i} for i in range(1, 9)]
    (run / "metrics.jsonl").write_text(
        "\n".join(map(json.dumps, [*rows, {"train/global_step": 8, "eval/loss": 0.5}]))
    )
    assert "⠶ train   ⠶ eval" in heed("plot", "training", run)[1]
    assert heed("plot", "training", run, "-o", "c.csv")[:2] == (0, "c.csv\n")
    assert len(list(csv.reader(Path("c.csv").read_text().splitlines()))) == 10
    assert heed("plot", "training", run, "-o", "c.svg")[0] == 0
    assert "<svg" in Path("c.svg").read_text()
    assert heed("plot", "training", run, "-o", "c.doc")[0] == 3
    assert heed("plot", "training", run, "--metric", "color")[0] == 3
    assert heed("plot", "training", tmp_path / "nowhere")[0] == 3
    pytest.importorskip("matplotlib")
    assert heed("plot", "training", run, "-o", "c.pdf")[0] == 0
    assert Path("c.pdf").read_bytes().startswith(b"%PDF")


def test_a_tokenizer_is_trained_from_the_command_line(heed: Heed, files: dict[str, Path]) -> None:
    code, out, _ = heed("tokenizer", "train", files["text"], "--kind", "wordpiece", "--vocab", 80, "-o", "t")
    assert (code, out.splitlines()[-1]) == (0, "t")
    found = load_tokenizer(Path("t"), {})
    assert found is not None
    assert found.mask is not None
    assert (
        "did you mean 'wordpiece'"
        in heed("tokenizer", "train", files["text"], "--kind", "wordpeace", "-o", "u")[2]
    )
    assert heed("tokenizer", "train", files["text"], "-o", "t")[0] == 3


def test_several_processes_can_report_into_one_folder(tmp_path: Path) -> None:
    curve = panels.lines("loss", [[0.0, 1.0]], ["gpt"], [1, 2])
    one = Report("A race", "heed race", {}, [Section("loss", "Loss", ["It rises."], [curve])])
    before = [one.save(tmp_path / "r")]
    with ThreadPoolExecutor(8) as pool:  # flock also keeps two open files of one process apart
        assert list(pool.map(lambda _: one.save(tmp_path / "r"), range(64))) == before * 64
    assert not list(tmp_path.rglob("*.part"))
