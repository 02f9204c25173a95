"""A saved model knows what it learnt from, and everything that uses it refuses other inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from heedful.core.errors import ConfigError, InputError
from heedful.tasks.task_specification import TaskSpecification
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed

PAIRS = [
    (a, b, "same" if a.split()[1] == b.split()[1] else "other")
    for a in toy.SENTENCES[:12]
    for b in toy.SENTENCES[::3]
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that learnt from pairs of texts, and one that learnt from single texts."""
    from heedful.tasks.finetune import FinetuneRequest, finetune

    root = tmp_path_factory.mktemp("learnt")
    base = toy.models(root / "bases")["encoder"]
    files = {
        "pair": toy.table(root / "pairs.csv", ("premise", "hypothesis", "label"), PAIRS),
        "single": toy.classes(root / "classes.csv"),
    }
    for name, file in files.items():
        finetune(FinetuneRequest(str(base), str(file), epochs=1, out=str(root / name)), quiet=True)
    return {name: root / name for name in files}


def test_the_folder_says_what_was_learnt(folders: dict[str, Path]) -> None:
    learnt = TaskSpecification.of_folder(folders["pair"])
    assert learnt is not None
    assert (learnt.task, learnt.command, learnt.labels) == (
        "text-classification",
        "classify",
        ("other", "same"),
    )
    assert list(learnt.inputs.items()) == [("text", "premise"), ("pair", "hypothesis")]
    assert learnt.target == "label"
    assert (learnt.metric, learnt.max_length) == ("accuracy", 64)
    assert learnt.score is not None
    assert learnt.score_interval is not None
    assert learnt.score_interval[0] <= learnt.score <= learnt.score_interval[1]
    assert TaskSpecification.of(heedful.load(folders["pair"])) == learnt


def test_a_model_of_pairs_refuses_a_single_text(folders: dict[str, Path]) -> None:
    pipe = heedful.pipeline("text-classification", model=folders["pair"])
    with pytest.raises(InputError, match=r"'premise' and 'hypothesis'.* one text"):
        pipe("anna sees cats")
    assert pipe({"text": "anna sees cats", "text_pair": "eve sees dogs"})["label"] in ("same", "other")


def test_a_model_of_single_texts_refuses_a_pair(folders: dict[str, Path]) -> None:
    pipe = heedful.pipeline("text-classification", model=folders["single"])
    with pytest.raises(InputError, match=r"column 'text'.* pair of texts"):
        pipe({"text": "anna sees cats", "text_pair": "eve sees dogs"})


def test_a_single_text_in_the_shell_is_told_which_columns_a_table_needs(
    heed: Heed, folders: dict[str, Path]
) -> None:
    code, _, err = heed("classify", "anna sees cats", "--model", folders["pair"])
    assert code == 3
    assert "'premise' and 'hypothesis'" in err
    assert ".csv" in err


def test_an_evaluation_takes_the_columns_that_were_learnt_from(
    heed: Heed, folders: dict[str, Path], tmp_path: Path
) -> None:
    columns = ("text", "premise", "hypothesis", "label")
    file = toy.table(tmp_path / "test.csv", columns, [("unused", *row) for row in PAIRS[:6]])
    code, out, _ = heed("eval", folders["pair"], file, "--json")
    assert code == 0
    assert json.loads(out)["columns"] == ["premise", "hypothesis", "label"]


def test_a_model_of_pairs_is_not_scored_on_one_text(
    heed: Heed, folders: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(a, label) for a, _, label in PAIRS[:6]]
    file = toy.table(tmp_path / "test.csv", ("text", "label"), rows)
    code, _, err = heed("eval", folders["pair"], file)
    assert code == 3
    assert "'text'" in err
    assert "'premise' and 'hypothesis'" in err
    assert "--pair" in err


def test_a_model_of_single_texts_is_not_scored_on_pairs(
    heed: Heed, folders: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(a, b, "sees") for a, b, _ in PAIRS[:6]]
    file = toy.table(tmp_path / "test.csv", ("sentence1", "sentence2", "label"), rows)
    code, _, err = heed("eval", folders["single"], file)
    assert code == 3
    assert "'sentence1' and 'sentence2'" in err
    assert "'text'" in err
    assert heed("eval", folders["single"], file, "--text", "sentence1")[0] == 0


def test_a_new_head_forgets_what_the_old_one_learnt(folders: dict[str, Path]) -> None:
    model = heedful.load(folders["pair"])
    assert TaskSpecification.of(heedful.weights.loading.with_head(model, "classify", ["a", "b"])) is None


def test_what_is_no_specification_is_one_clear_line() -> None:
    for damaged in ("text", {"task": "x"}, {"inputs": 3}):
        with pytest.raises(ConfigError, match="task_specification"):
            TaskSpecification.parse({"task_specification": damaged})
