"""heed finetune on a few rows: a linear head on the frozen model's sentence vectors, cross-validated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import InputError
from heedful.evaluate.logistic import assign_folds, cross_validate, fit_logistic
from heedful.loading import save_on_base
from heedful.nn.head import SentenceHead
from heedful.runs.evaluate import evaluate
from heedful.runs.requests import EvaluationRequest
from heedful.tasks.text_classification import are_few
from tests.runs import finetuning as toy
from tests.runs.conftest import Heed

FEW = toy.SENTENCES[::2]  # 18 rows, 6 of each verb; no row of the other half
OTHERS = toy.SENTENCES[1::2]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


def verbs(path: Path, sentences: list[str]) -> Path:
    return toy.table(path, ("text", "label"), [(s, s.split()[1]) for s in sentences])


def taught(heed: Heed, *arguments: object, out: str = "made") -> dict[str, Any]:
    code, printed, err = heed("finetune", *arguments, "--out", out, "--json", "-q")
    assert code == 0, (printed, err)
    found: dict[str, Any] = json.loads(printed)
    return found


def correct(folder: str, sentences: list[str]) -> float:
    pipe = heedful.pipeline("text-classification", model=folder)
    return float(
        np.mean([a["label"] == s.split()[1] for a, s in zip(pipe(sentences), sentences, strict=True)])
    )


def test_few_rows_are_learnt_by_a_linear_head_on_the_frozen_model(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    told = taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    assert correct("made", OTHERS) > 0.8
    base, made = heedful.load(bases["encoder"]), heedful.load("made")
    assert isinstance(made.head, SentenceHead)
    trained = dict(made.named_parameters())
    assert all(torch.equal(p, trained[n]) for n, p in base.named_parameters() if n.startswith("blocks."))
    assert told["learning"] == sum(p.numel() for p in made.head.parameters())


def test_the_score_of_few_rows_is_cross_validated_and_its_interval_stands_first(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = verbs(tmp_path / "few.csv", FEW)
    code, out, err = heed("finetune", bases["encoder"], file, "--out", "made")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:3] == ["score", "accuracy_95", "accuracy"]
    assert "5-fold cross-validation" in out
    assert "validation: 5-fold cross-validation of 18 rows (seed 0)" in err
    assert "By 5-fold cross-validation: each of 18 examples" in Path("made/README.md").read_text("utf-8")


def test_labels_that_say_nothing_are_not_told_to_be_learnt(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    draw = random.Random(0)
    for trial in range(4):
        rows = [(s, draw.choice(["yes", "no"])) for s in FEW]
        told = taught(
            heed,
            bases["encoder"],
            toy.table(tmp_path / f"{trial}.csv", ("text", "label"), rows),
            out=str(trial),
        )
        low = told["scores"]["accuracy_95"][0]
        assert low < 0.55
        assert told["scores"]["rows"] == told["valid_rows"] == len(rows)


def test_heed_classify_and_eval_take_the_folder(heed: Heed, bases: dict[str, Path], tmp_path: Path) -> None:
    taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    code, out, _ = heed("classify", OTHERS[0], "--model", "made", "--json")
    assert code == 0
    assert OTHERS[0].split()[1] in out
    code, out, _ = heed("eval", "made", verbs(tmp_path / "others.csv", OTHERS), "--json", "--fail-under", 0.8)
    assert (code, json.loads(out)["ok"]) == (0, True)


def test_several_files_are_evaluated_together_and_an_unknown_label_is_named(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    files = [verbs(tmp_path / "a.csv", OTHERS[:5]), verbs(tmp_path / "b.csv", OTHERS[5:])]
    code, out, err = heed("eval", "made", *files, "--json")
    assert (code, json.loads(out)["rows"]) == (0, len(OTHERS)), err
    odd = toy.table(tmp_path / "odd.csv", ("text", "label"), [("ann sees cats", "seees")])
    with pytest.raises(InputError) as caught:
        evaluate(heedful.load("made"), "classify", EvaluationRequest([str(files[0]), str(odd)]))
    assert caught.value.message == f"{odd}, line 2: label 'seees' was not seen in training"
    assert "'sees'" in (caught.value.hint or "")


def test_another_file_measures_what_all_rows_taught(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    valid = verbs(tmp_path / "others.csv", OTHERS)
    told = taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW), "--valid", valid)
    assert (told["folds"], told["train_rows"], told["valid_rows"]) == (0, len(FEW), len(OTHERS))
    assert told["scores"]["accuracy"] == pytest.approx(correct("made", OTHERS))


@pytest.mark.parametrize("flags", [("--full",), ("--lora",), ("--epochs", 1), ("--lr", 1e-4)])
def test_whoever_says_how_to_train_gets_the_model_trained(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, flags: tuple[object, ...]
) -> None:
    told = taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW), *flags)
    assert told["steps"] > 0
    assert not isinstance(heedful.load("made").head, SentenceHead)


def test_the_learning_rate_of_heed_train_says_nothing_about_fine_tuning(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEED_LR", "0.25")
    told = taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    assert told["steps"] == 0
    assert "lr" not in told["settings"]


def test_a_run_on_few_rows_neither_stops_early_nor_chooses_by_them(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    code, out, err = heed(
        "finetune", bases["encoder"], toy.tagged(tmp_path / "names.conll"), "--out", "made", "--lr", 1e-7
    )
    assert code == 0
    assert "stopped early" not in err
    assert "best so far" not in err
    assert [line.split()[0] for line in out.splitlines()][1:3] == ["f1_95", "f1"]
    assert "note: the score is of 7 sentences only: on others f1 may be anywhere between" in err
    assert "from which nothing was learnt" in Path("made/README.md").read_text("utf-8")


def test_more_rows_go_on_from_a_linear_head_and_few_ones_fit_it_again(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    assert taught(heed, "made", verbs(tmp_path / "others.csv", OTHERS), out="again")["folds"] == 5
    told = taught(heed, "made", verbs(tmp_path / "many.csv", toy.SENTENCES * 3), "--lr", 1e-7, out="more")
    assert told["before"] > 0.9
    assert isinstance(heedful.load("more").head, SentenceHead)


def test_two_texts_are_read_as_the_pipeline_reads_them(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(a, b, "same" if a.split()[1] == b.split()[1] else "other") for a in FEW[:5] for b in OTHERS[:5]]
    told = taught(
        heed, bases["encoder"], toy.table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "label"), rows)
    )
    assert told["folds"] == 5
    pipe = heedful.pipeline("text-classification", model="made")
    answer = pipe({"text": rows[0][0], "text_pair": rows[0][1]})
    assert answer["label"] in ("same", "other")


def test_a_class_of_one_row_is_learnt_but_not_measured(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(s, s.split()[1]) for s in FEW] + [("what does a b c", "none")]
    told = taught(heed, bases["encoder"], toy.table(tmp_path / "f.csv", ("text", "label"), rows))
    assert (told["train_rows"], told["valid_rows"]) == (19, 18)
    assert "none" in heedful.load("made").hf_config["label2id"]
    single = toy.table(
        tmp_path / "one.csv", ("text", "label"), [(s, s.split()[1]) for s in toy.SENTENCES[:12:4]]
    )
    code, _, err = heed("finetune", bases["encoder"], single, "--out", "none", "-q")
    assert code == 3
    assert "every class has one row only" in err


def test_a_head_alone_can_be_kept_beside_the_name_of_its_model(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    made = heedful.load("made")
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    folder = save_on_base(made, tmp_path / "head", str(bases["encoder"]), torch.float32)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000
    tokens = torch.tensor([made.tokenizer.encode(OTHERS[0])])
    torch.testing.assert_close(heedful.load(folder)(tokens), made(tokens))


def test_folds_hold_every_class_out_evenly() -> None:
    labels = np.array([0] * 10 + [1] * 5 + [2] * 2 + [3])
    folds = assign_folds(labels, seed=0)
    assert folds[-1] == -1
    assert [np.bincount(folds[labels == c], minlength=5).tolist() for c in (0, 1, 2)] == [
        [2, 2, 2, 2, 2],
        [1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0],
    ]


def test_cross_validation_of_noise_stays_at_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    inside, scores = [], []
    for trial in range(8):
        x, labels = torch.randn(20, 32, generator=draw).double(), torch.arange(20) % 2
        found = cross_validate(x / 6, labels, 2, seed=trial).scores()
        low, high = found["accuracy_95"]
        scores.append(found["accuracy"])
        inside.append(low <= 0.5 <= high)
    assert 0.4 < np.mean(scores) < 0.6
    assert sum(inside) >= 7


def test_the_fit_is_the_minimum_that_scikit_learn_finds() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(1)).double()
    labels = (x[:, :3] * 2).argmax(1)
    weight, bias = fit_logistic(x, labels, 3, penalty=0.3)
    theirs = linear_model.LogisticRegression(C=1 / 0.3, tol=1e-8, max_iter=5000).fit(
        x.numpy(), labels.numpy()
    )
    centred = lambda t: t - t.mean(0)  # a constant added to all classes changes no probability
    np.testing.assert_allclose(weight.numpy(), theirs.coef_, atol=2e-3)
    np.testing.assert_allclose(
        centred(bias).numpy(), centred(torch.tensor(theirs.intercept_)).numpy(), atol=2e-3
    )


def test_rows_are_few_by_their_classes() -> None:
    assert are_few(["a", "b"] * 32)
    assert not are_few(["a", "b"] * 33)
    assert are_few([str(i % 100) for i in range(3200)])
