"""From a file to a score without being told twice: guessed tasks, numbers, several labels, `heed eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from heedful.core.errors import InputError
from heedful.data.input_files import table_in_memory
from heedful.tasks.examples import infer_file_task
from heedful.tasks.registry import trainable_tasks
from heedful.tasks.task_specification import TaskSpecification
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed

COST = {"sees": 100.5, "likes": 2000.0, "paints": 90000.25}
COSTS = [(s, COST[s.split()[1]] + i / 10) for i, s in enumerate(toy.SENTENCES)]
BOTH = [(s, "|".join(s.split()[:2])) for s in toy.SENTENCES]
VERBS = [(s, s.split()[1]) for s in toy.SENTENCES]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def costs(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("costs")
    file = toy.table(root / "costs.csv", ("note", "cost"), COSTS)
    return heedful.finetune(
        bases["encoder"], file, text="note", lr=5e-3, out=root / "made", quiet=True
    ).folder


@pytest.fixture(scope="module")
def verbs(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verbs") / "made"
    return heedful.finetune(bases["encoder"], VERBS, lr=5e-3, length=8, out=out, quiet=True).folder


@pytest.mark.parametrize(
    ("rows", "flags", "task"),
    [
        (VERBS, {"--text": "0", "--label": "1"}, "classify"),
        (VERBS, {"--text": "0"}, "classify"),
        (COSTS, {"--label": "1"}, "regress"),
        ([(s, i % 5) for i, s in enumerate(toy.SENTENCES)], {"--text": "0"}, "classify"),
        ([(s, s, i / 3) for i, s in enumerate(toy.SENTENCES)],
         {"--text": "0", "--pair": "1", "--label": "2"}, "similarity"),
        ([(s.split(), ["O"] * len(s.split())) for s in toy.SENTENCES], {"--text": "0"}, "tag"),
        ([(s, s.split()[:2]) for s in toy.SENTENCES], {"--text": "0"}, "classify"),
        ([(f"{s} " * 9, f"{s} today") for s in toy.SENTENCES], {"--text": "0"}, "summarize"),
    ],
)  # fmt: skip
def test_the_contents_of_named_columns_tell_the_task(
    rows: list[tuple[object, ...]], flags: dict[str, str], task: str
) -> None:
    lines: list[str] = []
    assert infer_file_task(table_in_memory(rows), trainable_tasks(), None, flags, lines.append) == task
    assert len(lines) == 1
    assert lines[0].startswith(f"assumed: --task {task}, because")


@pytest.mark.parametrize("flags", [{}, {"--text": "0", "--label": "1"}])
def test_what_is_not_clear_is_still_asked(flags: dict[str, str]) -> None:
    rows = [(s, f"{toy.german(s)} und noch mehr {i}") for i, s in enumerate(toy.SENTENCES)]
    with pytest.raises(InputError, match="what is to be learnt"):
        infer_file_task(table_in_memory(rows), trainable_tasks(), None, flags)


def test_a_named_column_that_is_missing_is_refused_before_the_task_is_asked_for() -> None:
    rows = [{"note": s, "kind": "good"} for s in toy.SENTENCES]
    with pytest.raises(InputError, match="has no column 'body' for text="):
        infer_file_task(table_in_memory(rows), trainable_tasks(), None, {"--text": "body", "--label": "kind"})


def test_a_number_is_learnt_measured_and_predicted(costs: Path, heed: Heed, tmp_path: Path) -> None:
    learnt = TaskSpecification.of_folder(costs)
    assert learnt is not None
    assert (learnt.task, learnt.command, learnt.metric) == ("text-regression", "regress", "rmse")
    pipe = heedful.pipeline(model=costs)
    low, high = pipe(["ann sees cats", "ann paints cats"])
    assert abs(low["score"] - 100) < 9000
    assert abs(high["score"] - 90000) < 9000
    file = toy.table(tmp_path / "test.csv", ("note", "cost"), COSTS)
    code, out, _ = heed("eval", costs, file, "--json")
    scores = json.loads(out)
    assert code == 0
    assert scores["rmse"] < 9000
    assert scores["spearman"] > 0.5
    code, _, err = heed("predict", costs, file, "--out", tmp_path / "out.csv")
    assert code == 0, err
    assert (tmp_path / "out.csv").read_text().startswith("note,cost,score\n")


def test_a_model_of_numbers_is_no_reranker_and_takes_no_pair(costs: Path) -> None:
    with pytest.raises(InputError, match="rerank needs"):
        heedful.pipeline("rerank", model=costs)
    with pytest.raises(InputError, match="column 'note'.* pair of texts"):
        heedful.pipeline(model=costs)({"text": "ann", "text_pair": "bob"})


def test_rows_without_a_number_are_left_out_and_one_number_teaches_nothing(bases: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="every row has the number 3"):
        heedful.finetune(bases["encoder"], [(s, 3) for s in toy.SENTENCES], task="regress", quiet=True)
    with pytest.raises(InputError, match="whose number is not a number"):
        heedful.finetune(bases["encoder"], VERBS, task="regress", quiet=True)
    with pytest.raises(InputError, match="whose number has a comma"):
        heedful.finetune(bases["encoder"], [(s, "1,5") for s in toy.SENTENCES], task="regress", quiet=True)


def test_a_low_metric_fails_above_its_threshold(costs: Path, heed: Heed, tmp_path: Path) -> None:
    file = toy.table(tmp_path / "test.csv", ("note", "cost"), COSTS)
    assert heed("eval", costs, file, "--fail-under", 50000)[0] == 0
    code, _, err = heed("eval", costs, file, "--fail-under", 0.001)
    assert code == 1
    assert "above --fail-under" in err


def test_several_labels_in_one_cell(bases: dict[str, Path], heed: Heed, tmp_path: Path) -> None:
    file, out = toy.table(tmp_path / "both.csv", ("text", "label"), BOTH), tmp_path / "made"
    call = ("finetune", bases["encoder"], file, "--separator", "|", "--lr", 5e-3, "--out", out, "--json")
    code, found, err = heed(*call)
    assert code == 0, err
    assert set(json.loads(found)["data"]["labels"]) == {"ann", "bob", "eve", "sees", "likes", "paints"}
    code, found, _ = heed("eval", out, file, "--json")  # the folder knows the separator
    assert code == 0
    assert json.loads(found)["micro_f1"] > 0.5
    code, _, err = heed("predict", out, file, "--out", tmp_path / "out.csv")
    assert code == 0, err
    assert (tmp_path / "out.csv").read_text().startswith("text,label,predicted_label,score\n")


def test_a_separator_is_suggested_and_is_about_classes(
    bases: dict[str, Path], heed: Heed, tmp_path: Path
) -> None:
    file = toy.table(tmp_path / "both.csv", ("text", "label"), BOTH)
    _, _, err = heed("finetune", bases["encoder"], file, "--epochs", 1, "--out", tmp_path / "made")
    assert "--separator '|' makes it several labels" in err
    tagged = toy.tagged(tmp_path / "t.conll")
    code, _, err = heed("finetune", bases["encoder"], tagged, "--separator", "|", "--out", tmp_path / "x")
    assert code == 3
    assert "--task classify" in err


def test_an_evaluation_reads_as_training_did(verbs: Path, heed: Heed, tmp_path: Path) -> None:
    long = [(f"{s} {'and again ' * 60}é", label) for s, label in VERBS]
    file = tmp_path / "test.txt"
    file.write_text("\n".join(["note,kind", *(",".join(row) for row in long)]), encoding="latin-1")
    call = ("eval", verbs, file, "--task", "classify", "--text", "note", "--label", "kind")
    code, out, err = heed(*call, "--encoding", "latin-1", "--json")
    assert code == 0, err
    scores = json.loads(out)
    assert scores["accuracy"] > 0.8  # what is cut off was never learnt from
    assert scores["confusion"]["sees"]["sees"] > 6
    code, out, _ = heed(*call, "--encoding", "latin-1")
    assert code == 0
    assert "confusion: a row per true label" in out


def test_an_evaluation_on_the_file_of_training_says_so(
    bases: dict[str, Path], heed: Heed, tmp_path: Path
) -> None:
    file = toy.classes(tmp_path / "rows.csv")
    made = heedful.finetune(bases["encoder"], file, epochs=1, out=tmp_path / "made", quiet=True)
    code, _, err = heed("eval", made.folder, file)
    assert code == 0
    assert f"the model learnt from {file}: expect a lower score on other rows" in err
    other = toy.table(tmp_path / "others.csv", ("text", "label"), [("bob sees cats", "sees")])
    assert "learnt from" not in heed("eval", made.folder, other)[2]


def test_evaluation_from_python(verbs: Path) -> None:
    scores = heedful.evaluate(verbs, VERBS)
    assert scores == heedful.evaluate(heedful.load(verbs), [{"0": s, "1": verb} for s, verb in VERBS])
    assert scores["accuracy"] > 0.8
    with pytest.raises(InputError, match="no option 'lenght'.*'length'"):
        heedful.evaluate(verbs, VERBS, lenght=3)


def test_a_number_is_part_of_the_weights_and_can_be_learnt_further(costs: Path, tmp_path: Path) -> None:
    model = heedful.load(costs)
    assert "regression" not in model.hf_config
    number = heedful.pipeline(model=model)("ann sees cats")["score"]
    other = heedful.pipeline("text-classification", model=model)("ann sees cats")[0]["score"]
    assert other == pytest.approx(number)  # as transformers reads it
    more = heedful.finetune(costs, COSTS, epochs=0.2, lr=1e-9, out=tmp_path / "more", quiet=True)
    assert more.pipeline("ann sees cats")["score"] == pytest.approx(number, rel=1e-2)


def test_a_pipeline_cuts_texts_where_training_did(verbs: Path) -> None:
    pipe = heedful.pipeline(model=verbs)
    long = "ann sees cats " + "and again " * 10  # the model reads 64 tokens, and learnt from 8
    with pytest.warns(UserWarning, match="cut off"):
        assert pipe(long, truncation=True) == pipe("ann sees cats and again and", max_length=8)
