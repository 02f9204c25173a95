"""heed finetune on labels that are unbalanced, ordered, or several at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import heedful
from heedful.data.batch import Batch
from heedful.data.input_files import table_in_memory
from heedful.tasks.examples import Examples, fold_label
from heedful.tasks.finetune.data import read_and_split
from heedful.tasks.finetune.request import FinetuneRequest
from heedful.tasks.label_kinds import label_names, label_notes, merge_labels, ordinal_loss
from heedful.tasks.metrics.scores import balanced_scores, multi_label_scores, ordinal_scores, quadratic_kappa
from heedful.tasks.pipelines.text_classification import TextClassification
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed

VERBS = ("sees", "likes", "paints")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.models(tmp_path_factory.mktemp("bases"))["encoder"]


def taught(heed: Heed, *arguments: object) -> dict[str, Any]:
    code, printed, err = heed("finetune", *arguments, "--out", "made", "--json", "-q")
    assert code == 0, (printed, err)
    found: dict[str, Any] = json.loads(printed)
    return found


def words_of(sentence: str) -> list[str]:
    """Two labels that may hold at once: who does it, and whether it is seen."""
    name, verb = sentence.split()[:2]
    return [label for label, holds in (("ann", name == "ann"), ("seen", verb == "sees")) if holds]


def lists(path: Path) -> Path:
    return toy.lines(path, [{"text": s, "labels": words_of(s)} for s in toy.SENTENCES])


def columns(path: Path) -> Path:
    rows = [(s, int("ann" in words_of(s)), int("seen" in words_of(s))) for s in toy.SENTENCES]
    return toy.table(path, ("text", "ann", "seen"), rows)


@pytest.mark.parametrize("flags", [(), ("--lr", 2e-3, "--epochs", 12)], ids=["few", "all weights"])
def test_several_labels_of_a_row_are_learnt_and_opened_by_transformers(
    heed: Heed, base: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    told = taught(heed, base, lists(tmp_path / "rows.jsonl"), *flags)
    assert told["scores"]["micro_f1"] > 0.8
    assert next(iter(told["scores"])) == "micro_f1_95"
    pipe = heedful.pipeline("text-classification", model="made")
    scores = {row["label"]: row["score"] for row in pipe("ann sees cats", top_k=None)}
    assert all(score > 0.5 for score in scores.values())  # both hold: a softmax could not say so
    assert max(row["score"] for row in pipe("eve likes cats", top_k=None)) < 0.5
    code, out, _ = heed("eval", "made", lists(tmp_path / "others.jsonl"), "--json")
    assert (code, json.loads(out)["micro_f1"] > 0.8) == (0, True)
    if flags:
        theirs = transformers.pipeline("text-classification", model="made", device="cpu")
        other = {row["label"]: row["score"] for row in theirs("ann sees cats", top_k=None)}
        assert other == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_label_of_one_row_is_learnt_and_no_reason_to_refuse_the_file(
    base: Path, tmp_path: Path, seed: int
) -> None:
    rare = [{"text": s, "labels": [*words_of(s), f"rare {i}"]} for i, s in enumerate(toy.SENTENCES[:20])]
    rows = [{"text": s, "labels": words_of(s)} for s in toy.SENTENCES]
    file = toy.lines(tmp_path / "rare.jsonl", [*rare, *rows])
    split = read_and_split(FinetuneRequest(str(base), str(file), seed=seed), print)
    known = {label for row in split.train.items for label in row[-1]}
    assert {f"rare {i}" for i in range(20)} <= known
    assert len(split.valid) > 0


def test_a_column_for_each_label_is_the_same_as_lists(heed: Heed, base: Path, tmp_path: Path) -> None:
    told = taught(heed, base, columns(tmp_path / "rows.csv"), "--label", "ann,seen")
    assert heedful.load("made").label_names == ["ann", "seen"]
    assert told["scores"]["micro_f1"] > 0.8


@pytest.mark.parametrize(
    ("rows", "flags", "part"),
    [
        ([("a b", 1, 2)] * 5, ("--label", "x,y"), "'y' is '2', neither 1 nor 0"),
        ([("a b", 1, 0)] * 5, ("--label", "x,z"), "no column 'z'"),
        ([("a b", 0, 0)] * 5, ("--label", "x,y"), "no row has a label"),
        ([("a b", 1, 1)] * 5, ("--label", "x,y"), "nothing to distinguish"),
        ([("a b", 1, 0)] * 5, ("--label", "x,y", "--order", "numbers"), "--order"),
    ],
)
def test_columns_that_are_no_labels_are_one_clear_error(
    heed: Heed, base: Path, tmp_path: Path, rows: list[Any], flags: tuple[str, ...], part: str
) -> None:
    file = toy.table(tmp_path / "bad.csv", ("text", "x", "y"), rows)
    code, _, err = heed("finetune", base, file, *flags, "--out", "made")
    assert code in (2, 3)
    assert part in err
    assert not Path("made").exists()


def test_a_list_that_holds_no_names_is_left_out_and_named(heed: Heed, base: Path, tmp_path: Path) -> None:
    rows = [{"text": s, "labels": words_of(s)} for s in toy.SENTENCES] + [{"text": "x", "labels": [["y"]]}]
    code, _, err = heed("finetune", base, toy.lines(tmp_path / "rows.jsonl", rows), "--out", "made")
    assert code == 0
    assert "whose labels are not a list of names" in err


def ordered(path: Path) -> Path:
    place = {"sees": "low", "likes": "middle", "paints": "high"}
    return toy.table(path, ("text", "label"), [(s, place[s.split()[1]]) for s in toy.SENTENCES])


@pytest.mark.parametrize("flags", [(), ("--lr", 2e-3, "--epochs", 10)], ids=["few", "all weights"])
def test_ordered_labels_have_a_loss_and_a_score_of_their_own(
    heed: Heed, base: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    file = ordered(tmp_path / "rows.csv")
    told = taught(heed, base, file, "--order", "low,middle,high", *flags)
    assert heedful.load("made").label_names == ["low", "middle", "high"]
    assert next(iter(told["scores"])) == "kappa_95"
    assert told["scores"]["kappa"] > 0.7
    assert told["scores"]["mean_error"] < 0.5
    code, out, _ = heed("eval", "made", file, "--json")
    assert (code, json.loads(out)["kappa"] > 0.7) == (0, True)
    assert "--order low,middle,high" in Path("made/README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("order", "part"),
    [
        ("low,high", "three labels"), ("low,low,high", "each once"), ("low,middle,top", "has no place"),
        ("numbers", "is not a number"),
    ],
)  # fmt: skip
def test_an_order_that_does_not_fit_is_one_clear_error(
    heed: Heed, base: Path, tmp_path: Path, order: str, part: str
) -> None:
    code, _, err = heed("finetune", base, ordered(tmp_path / "rows.csv"), "--order", order, "--out", "made")
    assert code in (2, 3)
    assert part in err


def test_the_loss_of_an_order_is_larger_for_a_mistake_of_more_steps() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, *_: Any, **__: Any) -> torch.Tensor:
            return torch.tensor([[0.0, 0.0, 6.0]])

    def loss(label: int) -> float:
        batch = Batch(tokens=torch.zeros(1, 1, dtype=torch.long), extra={"label": torch.tensor([label])})
        return float(ordinal_loss(Fixed(), batch)["ordinal"].total)  # type: ignore[arg-type]

    near, far = loss(1), loss(0)
    p = torch.tensor([0.0, 0.0, 6.0]).softmax(0)
    cumulative = p.cumsum(0)
    naive = lambda y: float(-p[y].log() + sum((cumulative[k] - float(y <= k)) ** 2 for k in range(3)))
    assert (near, far) == pytest.approx((naive(1), naive(0)), rel=1e-5)
    assert far > near + 0.5


def test_unbalanced_labels_are_drawn_evenly_and_scored_by_macro_f1(
    heed: Heed, base: Path, tmp_path: Path
) -> None:
    rows = [(s, s.split()[1]) for s in toy.SENTENCES]
    common = [row for row in rows if row[1] == "sees"] * 12 + [r for r in rows if r[1] != "sees"][::3]
    file = toy.table(tmp_path / "rows.csv", ("text", "label"), common)
    told = taught(heed, base, file, "--lr", 2e-3, "--epochs", 6)
    assert next(iter(told["scores"])) == "macro_f1_95"
    assert told["scores"]["macro_f1"] > 0.8
    plain = heed("finetune", base, file, "--no-balance", "--epochs", 1, "--out", "plain", "--json", "-q")[1]
    assert next(iter(json.loads(plain)["scores"])) == "accuracy_95"
    few = toy.table(tmp_path / "few.csv", ("text", "label"), [*rows[:18], *rows[18:][:4]])
    assert next(iter(json.loads(
        heed("finetune", base, few, "--balance", "--out", "few", "--json", "-q")[1]
    )["scores"])) == "macro_f1_95"  # fmt: skip


def test_the_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    truth, guess = draw.integers(5, size=80), draw.integers(5, size=80)
    guess[:50] = truth[:50]
    kappa = quadratic_kappa(truth.tolist(), guess.tolist())
    assert kappa == pytest.approx(metrics.cohen_kappa_score(truth, guess, weights="quadratic"))
    found = ordinal_scores(truth.tolist(), guess.tolist())
    assert found["mean_error"] == pytest.approx(metrics.mean_absolute_error(truth, guess))
    assert found["kappa_95"][0] < kappa < found["kappa_95"][1]
    balanced = balanced_scores(truth.tolist(), guess.tolist())
    assert balanced["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, guess))
    labels = list("abc")
    sets = [[{c for c in labels if draw.random() < 0.4} for _ in range(60)] for _ in range(2)]
    matrix = [np.array([[c in s for c in labels] for s in side]) for side in sets]
    told = multi_label_scores(sets[0], sets[1], labels)
    assert told["micro_f1"] == pytest.approx(metrics.f1_score(*matrix, average="micro"))
    assert told["macro_f1"] == pytest.approx(metrics.f1_score(*matrix, average="macro"))
    assert told["exact_match"] == pytest.approx(metrics.accuracy_score(*matrix))


def spelled(path: Path) -> Path:
    """Labels as people write them: in several spellings, and missing in words."""
    seen = [s for s in toy.SENTENCES if "sees" in s]
    variant = {seen[0]: "Sees", seen[3]: "SEES"}
    rows = [(s, variant.get(s, s.split()[1])) for s in toy.SENTENCES]
    return toy.table(path, ("text", "label"), [*rows, ("anna sleeps", "N/A"), ("eve sleeps", "n/a")])


def test_numbers_that_are_written_in_two_ways_are_one_label() -> None:
    # JSON and Parquet tell 1 from 1.0 where the column had gaps; of texts a note says so.
    rows = [{"text": s, "label": (1.0, 1)[i % 2] if i % 3 else 0.0} for i, s in enumerate(toy.SENTENCES)]
    examples = TextClassification.read_examples(table_in_memory(rows), {})
    assert label_names(examples) == ("0", "1")
    texts = [{"text": row["text"], "label": f"{row['label']:.{i % 2}f}"} for i, row in enumerate(rows)]
    examples = TextClassification.read_examples(table_in_memory(texts), {})
    assert label_names(examples) != ("0", "1")
    assert all("differ only by how the number is written" in note for note in label_notes(examples))
    assert len(label_notes(examples)) == 2
    assert len(label_names(merge_labels(examples))) == 2
    assert fold_label("1234567") != fold_label("1234568")
    assert fold_label("1" * 40) != fold_label("1" * 39 + "2")
    assert fold_label("1e-99999999999999999999") == "1e-99999999999999999999"
    rows[0]["label"] = math.nan
    [note] = TextClassification.read_examples(table_in_memory(rows), {}).notes
    assert "without a label" in note


def test_labels_that_differ_only_by_case_or_look_empty_are_named(
    heed: Heed, base: Path, tmp_path: Path
) -> None:
    code, out, err = heed("finetune", base, spelled(tmp_path / "rows.csv"), "--epochs", 1, "--json")
    assert code == 0, err
    assert "'sees'" in err
    assert "'SEES'" in err
    assert "differ only by case or white space" in err
    assert "'N/A' (1) and 'n/a' (1) look empty" in err
    assert "--merge-labels" in err
    assert len(json.loads(out)["data"]["label_notes"]) == 2
    _, _, err = heed("finetune", base, toy.classes(tmp_path / "clean.csv"), "--epochs", 1)
    assert "--merge-labels" not in err


def test_labels_that_differ_only_by_case_can_be_merged(heed: Heed, base: Path, tmp_path: Path) -> None:
    file = spelled(tmp_path / "rows.csv")
    code, out, err = heed("finetune", base, file, "--merge-labels", "--epochs", 1, "--valid", file, "--json")
    assert code == 0, err
    assert set(json.loads(out)["data"]["labels"]) == {"sees", "likes", "paints"}
    assert "2 rows whose label looks empty are left out" in err
    code, out, err = heed("eval", "rows-encoder", file, "--json")  # the same labels are the same there
    assert code == 0, err
    assert json.loads(out)["rows"] == len(toy.SENTENCES)


def test_several_labels_at_once_are_merged_each(tmp_path: Path) -> None:
    examples = Examples(
        [("a", ("Red", "big")), ("b", ("red", "null")), ("c", ("red", "RED"))], ["1", "2", "3"]
    )
    merged = merge_labels(examples)
    assert [row[-1] for row in merged.items] == [("red", "big"), ("red",), ("red",)]
