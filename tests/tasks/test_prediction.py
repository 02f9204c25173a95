"""Predictions for every row of a table: in order, in every format, and going on after a run was killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.core.errors import ConfigError, InputError, MissingPackage
from heedful.tasks import prediction
from heedful.tasks.pipelines.text_generation import read_prompt
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed
from tests.tasks.finetune.conftest import heed as heed

TEXTS = [f"{sentence} {'again ' * (i % 7)}".strip() for i, sentence in enumerate(toy.SENTENCES)]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def classifier(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "verbs"
    rows = [{"note": sentence, "verb": sentence.split()[1]} for sentence in toy.SENTENCES]
    options: dict[str, Any] = {"task": "classify", "text": "note", "label": "verb", "lr": 5e-3}
    return heedful.finetune(bases["encoder"], rows, out=out, quiet=True, **options).folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A table with a row without a text, and a column that is called like a prediction."""
    cells = [(i, text if i != 5 else "", "-") for i, text in enumerate(TEXTS)]
    return toy.table(tmp_path / "rows.csv", ("id", "note", "label"), cells)


def test_rows_keep_their_order_and_get_label_and_score(
    heed: Heed, classifier: Path, rows: Path, tmp_path: Path
) -> None:
    code, out, err = heed("predict", classifier, rows, "--out", tmp_path / "out.csv")
    assert (code, out.strip()) == (0, str(tmp_path / "out.csv"))
    assert "text = 'note'" in err  # which the folder says
    assert "1 row has no text" in err
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["id", "note", "label", "predicted_label", "score"]
    assert [row["id"] for row in found] == [str(i) for i in range(len(TEXTS))]
    assert found[5]["predicted_label"] == found[5]["score"] == ""
    pipe = heedful.pipeline(model=classifier)
    for row, text in zip(found, TEXTS, strict=True):
        if row["note"]:
            expected = pipe(text, truncation=True)[0]
            assert row["predicted_label"] == expected["label"]
            assert float(row["score"]) == pytest.approx(expected["score"], abs=1e-4)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_a_run_that_was_killed_goes_on_and_writes_the_same_bytes(
    ending: str, classifier: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "WINDOW_ROWS", 8)
    whole = heedful.predict(classifier, rows, out=tmp_path / f"whole{ending}")
    write_state, count = prediction.write_text, 0

    def killed_before_the_third(path: Path, text: str) -> None:
        nonlocal count
        count += 1
        if count == 3:  # the rows are written, and that they are is not
            raise KeyboardInterrupt
        write_state(path, text)

    out = tmp_path / f"out{ending}"
    monkeypatch.setattr(prediction, "write_text", killed_before_the_third)
    with pytest.raises(KeyboardInterrupt):
        heedful.predict(classifier, rows, out=out)
    assert not out.exists()
    predicted: list[int] = []
    predict = prediction.RowPredictor.predict
    count_rows = lambda self, some: predicted.append(len(some)) or predict(self, some)
    monkeypatch.setattr(prediction, "write_text", write_state)
    monkeypatch.setattr(prediction.RowPredictor, "predict", count_rows)
    heedful.predict(classifier, rows, out=out)
    assert sum(predicted) == len(TEXTS) - 16
    assert isinstance(whole, Path)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("out*")) == [out.name]


def test_rows_of_json_may_have_other_fields_than_the_first(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "WINDOW_ROWS", 4)
    rows: list[dict[str, Any]] = [{"note": text} for text in TEXTS]
    rows[4]["source"] = "mail"  # the first of a window
    out = heedful.predict(classifier, toy.lines(tmp_path / "rows.jsonl", rows), out=tmp_path / "out.jsonl")
    found = [json.loads(line) for line in Path(str(out)).read_text().splitlines()]
    assert [row["note"] for row in found] == TEXTS
    assert [i for i, row in enumerate(found) if "source" in row] == [4]
    rows[9]["label"] = "mine"
    with pytest.raises(InputError, match="line 10: the row has the field 'label', which a prediction needs"):
        heedful.predict(classifier, toy.lines(tmp_path / "late.jsonl", rows), out=tmp_path / "late-out.jsonl")


def test_predictions_of_predictions_overwrite_no_column(classifier: Path, rows: Path, tmp_path: Path) -> None:
    heedful.predict(classifier, rows, out=tmp_path / "once.csv")
    heedful.predict(classifier, tmp_path / "once.csv", out=tmp_path / "twice.csv")
    with (tmp_path / "twice.csv").open(newline="") as file:
        names = next(csv.reader(file))
    assert names[3:] == ["predicted_label", "score", "predicted_predicted_label", "predicted_score"]
    found = heedful.predict(classifier, [{"note": TEXTS[0], "Label": "-"}])
    assert isinstance(found, list)
    assert list(found[0]) == ["note", "Label", "predicted_label", "score"]


@pytest.mark.slow
def test_a_process_that_was_killed_is_gone_on_with(classifier: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.jsonl"
    toy.lines(big, [{"note": text} for text in TEXTS * 600])
    heedful.predict(classifier, big, out=tmp_path / "whole.jsonl")
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "heedful.cli", "predict", str(classifier), str(big), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    state = tmp_path / "out.jsonl.part.json"
    while not state.is_file() and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert state.is_file()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "resuming" in again.stderr
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_what_another_command_left_is_not_gone_on_with(
    heed: Heed, classifier: Path, rows: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.csv.part").write_text("x")
    (tmp_path / "out.csv.part.json").write_text('{"job": {}, "rows": 1, "bytes": 1, "header": []}')
    code, _, err = heed("predict", classifier, rows, "--out", tmp_path / "out.csv")
    assert code == 3
    assert "left by another command" in err
    assert (tmp_path / "out.csv.part").read_text() == "x"


def test_several_files_are_one_table(classifier: Path, rows: Path, tmp_path: Path) -> None:
    more = toy.table(tmp_path / "more.csv", ("label", "note", "id"), [("-", TEXTS[0], 99)])
    heedful.predict(classifier, [rows, more], out=tmp_path / "both.tsv")
    lines = (tmp_path / "both.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["id", "note", "label", "predicted_label", "score"]
    assert lines[-1].split("\t")[:3] == ["99", TEXTS[0], "-"]


def test_texts_in_memory_and_vectors_of_a_model_without_a_head(bases: dict[str, Path]) -> None:
    found = heedful.predict(bases["encoder"], TEXTS[:2])
    assert isinstance(found, list)
    assert [row["text"] for row in found] == TEXTS[:2]
    assert all(len(row["vector"]) == 64 for row in found)


def test_a_pair_without_its_second_text_has_no_prediction(bases: dict[str, Path]) -> None:
    rows = [{"sentence1": "ann sees", "sentence2": text} for text in ("", "ann sees", "bob likes")]
    found = heedful.predict(bases["encoder"], rows, task="similarity")
    assert isinstance(found, list)
    assert [row["score"] is None for row in found] == [True, False, False]
    assert found[1]["score"] == pytest.approx(1, abs=1e-5)


def test_a_conversation_is_a_text_or_messages() -> None:
    user = [{"role": "user", "content": "[hello"}]
    assert read_prompt("[hello") == user
    answered = [*user, {"role": "assistant", "content": "hi"}]
    assert list(read_prompt(json.dumps(answered))) == user
    with pytest.raises(InputError, match="without an answer"):
        read_prompt('[{"role": "system", "content": "x"}]')


def test_text_is_written_behind_prompts(bases: dict[str, Path]) -> None:
    found = heedful.predict(bases["decoder"], [{"prompt": "ann sees", "n": 1}], max_tokens=4)
    assert isinstance(found, list)
    assert set(found[0]) == {"prompt", "n", "generated_text"}


def test_spans_of_words_with_tags(bases: dict[str, Path], tmp_path: Path) -> None:
    file = toy.tagged(tmp_path / "t.conll")
    tagger = heedful.finetune(bases["encoder"], file, lr=5e-3, out=tmp_path / "tagger", quiet=True)
    heedful.predict(tagger.folder, file, out=tmp_path / "spans.jsonl")
    first = json.loads((tmp_path / "spans.jsonl").read_text().splitlines()[0])
    assert [first["text"][span["start"] : span["end"]] for span in first["spans"]] == ["ann", "sees"]


def test_a_parquet_file(classifier: Path, rows: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    heedful.predict(classifier, rows, out=tmp_path / "out.parquet")
    table = pyarrow.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "note", "label", "predicted_label", "score"]
    assert table.column("score").null_count == 1


def test_bad_input_is_one_line(
    heed: Heed, classifier: Path, bases: dict[str, Path], rows: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there.csv"
    there.write_text("x")
    wrong = toy.table(tmp_path / "wrong.csv", ("a", "b"), [("x", "y")])
    pairs = toy.table(tmp_path / "pairs.csv", ("sentence1", "sentence2"), [("x", "y")])
    for call, message, code in (
        ((classifier, rows), "--out", 2),
        ((classifier, rows, "--out", there), "already exists", 3),
        ((classifier, rows, "--out", tmp_path / "out.xyz"), ".parquet", 3),
        ((classifier, rows, "--out", tmp_path / "no" / "out.csv"), "folder not found", 3),
        ((classifier, wrong, "--out", tmp_path / "o.csv"), "which column", 3),
        ((classifier, pairs, "--pair", "sentence2", "--out", tmp_path / "o.csv"), "pair of texts", 3),
        ((classifier, tmp_path / "none.csv", "--out", tmp_path / "o.csv"), "none.csv", 3),
        ((classifier, rows, "--task", "clasify", "--out", tmp_path / "o.csv"), "classify", 3),
        ((bases["encoder"], rows, "--task", "tag", "--out", tmp_path / "o.csv"), "tag", 3),
    ):
        got, out, err = heed("predict", *call)
        assert (got, out) == (code, ""), err
        assert message in err
    assert there.read_text() == "x"
    assert not list(tmp_path.glob("o.csv*"))


def test_a_field_that_only_a_later_row_has_is_not_lost(classifier: Path, tmp_path: Path) -> None:
    file = toy.lines(tmp_path / "rows.jsonl", [{"note": "ann sees"}, {"note": "bob likes", "more": 1}])
    with pytest.raises(InputError, match="'more'.*jsonl"):
        heedful.predict(classifier, file, out=tmp_path / "out.csv")


def test_parquet_without_its_library_is_refused_before_anything_is_read(
    classifier: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match=r"heedful\[parquet\]"):
        heedful.predict(classifier, rows, out=tmp_path / "out.parquet")
    with pytest.raises(ConfigError, match="known ending"):
        heedful.predict(classifier, rows, out=tmp_path / "out.txt")
