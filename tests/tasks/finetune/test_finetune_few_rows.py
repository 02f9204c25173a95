"""heed finetune on a few rows: vectors tuned on pairs, or frozen, under a linear head; cross-validated."""

from __future__ import annotations

import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import BalancedOrder
from heedful.nn.head import SentenceHead
from heedful.tasks.evaluate import evaluate
from heedful.tasks.examples import Examples
from heedful.tasks.finetune import run
from heedful.tasks.finetune.request import EvaluationRequest
from heedful.tasks.metrics.scores import class_scores
from heedful.tasks.pipelines.text_classification import TextClassification, are_few
from heedful.tasks.registry import bind_task
from heedful.train import linear_head
from heedful.train.linear_head import (
    TEMPERATURE,
    assign_folds,
    block_weights,
    clone_weights,
    cross_validate,
    fit_candidates,
    fit_logistic,
    group_by_length,
    pairs_loss,
    set_weights,
    tune_on_pairs,
)
from heedful.weights.saving import save_on_base
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed

FEW = toy.SENTENCES[::2]  # 18 rows, 6 of each verb; no row of the other half
OTHERS = toy.SENTENCES[1::2]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return toy.models(tmp_path_factory.mktemp("bases"))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune for a few steps: a toy learns in them, and a file of tests takes seconds."""
    monkeypatch.setattr(linear_head, "STEPS", 5)


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


def test_few_rows_are_learnt_by_pairs_and_a_linear_head(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    told = taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    assert correct("made", OTHERS) > 0.8
    base, made = heedful.load(bases["encoder"]), heedful.load("made")
    assert isinstance(made.head, SentenceHead)
    trained = dict(made.named_parameters())
    same = {n.split(".")[0] for n, p in base.named_parameters() if torch.equal(p, trained.get(n, p[:0]))}
    assert {"embed"} == same - {"head"}
    assert told["settings"]["way"] == "pairs"
    head, blocks = (sum(p.numel() for p in part.parameters()) for part in (made.head, made.blocks))
    assert told["learning"] == head + blocks


def test_a_large_model_stays_frozen(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_WHOLE", 1000)
    told = taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    base, trained = heedful.load(bases["encoder"]), dict(heedful.load("made").named_parameters())
    assert told["settings"]["way"] == "frozen"
    assert all(torch.equal(p, trained[n]) for n, p in base.named_parameters() if n.startswith("blocks."))


def test_pairs_bring_rows_of_a_class_together(
    bases: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = heedful.load(bases["encoder"])
    model = linear_head.put_linear_head(body, ["likes", "paints", "sees"])
    examples = Examples([(s, s.split()[1]) for s in FEW], [""] * len(FEW))
    batches = bind_task(TextClassification, model).batches(examples, BatchOptions(32))

    def contrast() -> float:
        vectors, labels = linear_head.read_vectors(model, batches.once())
        same = labels[:, None] == labels
        cosines = vectors @ vectors.T
        return float(cosines[same].mean() - cosines[~same].mean())

    monkeypatch.setattr(linear_head, "STEPS", 20)
    before, first = contrast(), clone_weights(block_weights(model))
    labels = linear_head.read_vectors(model, batches.once())[1].numpy()
    tune_on_pairs(model, batches, range(len(FEW)), labels, seed=0)
    assert contrast() > 1.3 * before
    after = clone_weights(block_weights(model))
    set_weights(block_weights(model), [first])
    assert contrast() == pytest.approx(before, abs=1e-6)
    set_weights(block_weights(model), [first, after])
    name, middle = next(iter(block_weights(model).items()))
    torch.testing.assert_close(middle.detach(), (first[name] + after[name]) / 2)


def test_the_loss_of_pairs_is_the_naive_double_sum(bases: dict[str, Path]) -> None:
    model = linear_head.put_linear_head(heedful.load(bases["encoder"]), ["likes", "paints", "sees"])
    examples = Examples([(s, s.split()[1]) for s in FEW[:7]] + [("ann", "none")], [""] * 8)
    model.hf_config["id2label"] = {str(i): n for i, n in enumerate(["likes", "none", "paints", "sees"])}
    batches = bind_task(TextClassification, model).batches(examples, BatchOptions(32))
    batch = next(iter(batches.once()))
    vectors, labels = linear_head.read_vectors(model, batches.once())
    total = 0.0
    for i in range(8):
        others = [k for k in range(8) if k != i]
        logs = (vectors[others] @ vectors[i] / TEMPERATURE).log_softmax(0)
        near = [float(logs[n]) for n, k in enumerate(others) if labels[k] == labels[i]]
        total -= float(np.mean(near)) if near else 0.0
    assert float(pairs_loss(model, batch)["pairs"].total) == pytest.approx(total, rel=1e-4)
    assert batch.valid is not None
    assert len({width for _, width in group_by_length(batch)}) > 1
    for rows, width in group_by_length(batch):
        assert not batch.valid[rows, width:].any()
        assert batch.valid[rows, width - 1].any()


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("BookRestaurant", "card_arrival"), ["book restaurant", "card arrival"]),
        (("0", "1"), []),
        (("LABEL_0", "LABEL_1"), []),
        (("pos", "B"), []),
        (("Sci/Tech", "World"), ["sci tech", "world"]),
    ],
)
def test_names_of_classes_are_texts_if_they_are_words(labels: tuple[str, str], names: list[str]) -> None:
    examples = Examples([("a", labels[0]), ("b", labels[1])], ["", ""])
    assert [text for text, _ in TextClassification.name_examples(examples).items] == names
    two_texts = Examples([("a", "c", labels[0]), ("b", "d", labels[1])], ["", ""])
    assert not len(TextClassification.name_examples(two_texts))


def test_a_name_tells_a_class_of_which_the_rows_say_nothing(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    code, _, err = heed("finetune", bases["encoder"], verbs(tmp_path / "few.csv", FEW), "--out", "made")
    assert code == 0
    assert "names: the classes' own are also texts to learn from: 'likes'" in err
    pipe = heedful.pipeline("text-classification", model="made")
    assert [row["label"] for row in pipe(["likes", "paints", "sees"])] == ["likes", "paints", "sees"]


def test_transformers_opens_the_folder_in_the_ten_lines_of_the_docs(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    taught(heed, bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    page = (Path(__file__).parents[3] / "docs/finetuning.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(import json.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) <= 18
    found: dict[str, Any] = {"texts": OTHERS[:3]}
    exec(code, found)
    ours = heedful.pipeline("text-classification", model="made")(OTHERS[:3], top_k=None)
    names = heedful.load("made").label_names
    for row, told in zip(found["probabilities"], ours, strict=True):
        assert {n: float(p) for n, p in zip(names, row, strict=True)} == pytest.approx(
            {one["label"]: one["score"] for one in told}, abs=1e-5
        )


def test_every_class_is_as_frequent_in_balanced_batches() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [2])
    order = BalancedOrder(range(100), labels, 24, seed=1)
    rows, epochs = order.rows(3)
    assert np.bincount(labels[rows]).tolist() == [8, 8, 1]
    assert (rows == order.rows(3)[0]).all()
    assert len(epochs) == 17
    assert sorted(np.concatenate(list(order.once())).tolist()) == list(range(100))
    assert sorted(BalancedOrder([3, 5, 95], labels, 24, seed=1).rows(0)[0].tolist()) == [3, 5, 95]


def test_the_score_of_few_rows_is_cross_validated_and_its_interval_stands_first(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = verbs(tmp_path / "few.csv", FEW)
    code, out, err = heed("finetune", bases["encoder"], file, "--out", "made")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:3] == ["score", "accuracy_95", "accuracy"]
    assert "3-fold cross-validation" in out
    told = [line for line in err.splitlines() if line.startswith(("without training: ", "time: about "))]
    assert re.fullmatch(
        r"without training: accuracy [01]\.\d{4} by a linear head on the model's own vectors "
        r"\(3-fold cross-validation\)",
        told[0],
    )
    assert re.fullmatch(r"time: about \d+:\d\d", told[1])
    assert "validation: 3-fold cross-validation of 18 rows (seed 0)" in err
    assert "By 3-fold cross-validation: each of 18 examples" in Path("made/README.md").read_text("utf-8")


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
    assert taught(heed, "made", verbs(tmp_path / "others.csv", OTHERS), out="again")["folds"] == 3
    many = [f"{sentence}{end}" for end in ("", " ?", " a") for sentence in toy.SENTENCES]
    told = taught(heed, "made", verbs(tmp_path / "many.csv", many), "--lr", 1e-7, out="more")
    assert told["before"] > 0.9
    assert isinstance(heedful.load("more").head, SentenceHead)


def test_two_texts_are_read_as_the_pipeline_reads_them(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    rows = [(a, b, "same" if a.split()[1] == b.split()[1] else "other") for a in FEW[:5] for b in OTHERS[:5]]
    told = taught(
        heed, bases["encoder"], toy.table(tmp_path / "pairs.csv", ("sentence1", "sentence2", "label"), rows)
    )
    assert told["folds"] == 3
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
    assert "every class has only one row" in err


def test_a_head_alone_can_be_kept_beside_the_name_of_its_model(
    heed: Heed, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_WHOLE", 0)
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


@pytest.mark.slow
def test_cross_validation_of_noise_stays_at_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    inside, scores = [], []
    for trial in range(8):
        x, labels = torch.randn(20, 32, generator=draw).double(), torch.arange(20) % 2
        predict = partial(fit_candidates, x / 6, labels, 2)
        found = cross_validate(predict, labels, labels.numpy(), trial, repeats=4)
        told = class_scores(labels[found.rows].tolist(), found.logits.argmax(1).tolist(), found.trials)
        low, high = told["accuracy_95"]
        scores.append(told["accuracy"])
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
    assert are_few(64, ["a", "b"] * 32)
    assert not are_few(66, ["a", "b"] * 33)
    assert are_few(3200, [str(i % 100) for i in range(3200)])


def test_rows_that_share_a_text_are_held_out_together() -> None:
    """A head that knows a text by heart would else be scored on it: labels here follow from nothing else."""
    sentences = 24
    draws = np.random.default_rng(0)
    vectors = torch.from_numpy(draws.normal(size=(sentences, 30))).repeat_interleave(4, 0)
    targets = torch.from_numpy(draws.integers(2, size=sentences)).repeat_interleave(4)
    examples = Examples(
        [(f"text {i // 4}", f"other {i}", str(int(label))) for i, label in enumerate(targets)], [""] * 96
    )
    groups = np.array(TextClassification.group_rows(examples))
    assert len(set(groups.tolist())) == sentences
    predict = lambda train, held: fit_candidates(vectors, targets, 2, train, held)
    right = {}
    for name, given in (("alone", None), ("together", groups)):
        found = cross_validate(predict, targets, targets.numpy(), 0, groups=given)
        right[name] = float((found.logits.argmax(1) == targets[found.rows]).double().mean())
        told = class_scores(targets[found.rows].tolist(), found.logits.argmax(1).tolist(), found.trials)
        low, high = told["accuracy_95"]
        assert (low <= 0.5 <= high) == (name == "together")
    assert right["alone"] > 0.95


def test_a_text_that_nearly_all_rows_share_makes_no_group() -> None:
    rows = [("which is it ?", f"text {i}", "yes" if i % 2 else "no") for i in range(8)]
    groups = TextClassification.group_rows(Examples([*rows, ("Which  is it ?", "text 0", "no")], [""] * 9))
    assert groups == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_folds_of_single_rows_are_as_without_groups() -> None:
    labels = np.repeat([0, 1, 2], [7, 5, 1])
    assert (assign_folds(labels, 3) == assign_folds(labels, 3, groups=np.arange(13))).all()


def test_it_says_that_other_rows_may_be_unlike_these(
    heed: Heed, bases: dict[str, Path], tmp_path: Path
) -> None:
    _, _, err = heed("finetune", bases["encoder"], verbs(tmp_path / "few.csv", FEW))
    assert "the interval is about rows like these 18" in err
    assert "--valid FILE" in err
