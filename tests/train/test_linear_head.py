"""Logistic regression on vectors: its optimum, its folds, and who is held out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.train.linear_head import (
    FOLDS,
    PENALTIES,
    CrossValidation,
    assign_folds,
    cross_validate,
    fit_candidates,
    fit_logistic,
    mean_loss,
)


def points(rows: int = 30, classes: int = 3) -> tuple[Tensor, Tensor]:
    targets = torch.arange(rows) % classes
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)) + F.one_hot(targets, 4), targets


def test_the_loss_is_per_row_and_sums_over_labels_that_may_hold_at_once() -> None:
    logits, several = torch.tensor([[0.0, 2.0], [1.0, -1.0]]), torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    one = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))]
    assert float(mean_loss(logits, torch.tensor([1, 1]))) == pytest.approx(sum(one) / 2)
    cost = lambda z, y: math.log(1 + math.exp(-z if y else z))
    each = [cost(0, 0), cost(2, 1), cost(1, 1), cost(-1, 1)]
    assert float(mean_loss(logits, several)) == pytest.approx(sum(each) / 2)


@pytest.mark.parametrize("penalty", [0.1, 3.0])
@pytest.mark.parametrize("several", [False, True])
def test_a_head_is_where_the_penalised_loss_is_flat(penalty: float, several: bool) -> None:
    x, labels = points()
    targets = F.one_hot(labels).float() if several else labels
    weight, bias = (t.requires_grad_() for t in fit_logistic(x, targets, 3, penalty))
    logits = x @ weight.T + bias
    if several:
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    else:
        loss = F.cross_entropy(logits, targets, reduction="sum")
    slopes = torch.autograd.grad(loss + penalty / 2 * weight.square().sum(), (weight, bias))
    assert max(float(slope.abs().max()) for slope in slopes) < 0.05


def test_every_class_is_spread_evenly_over_the_folds_and_a_single_row_is_never_held_out() -> None:
    labels = np.array([0] * 11 + [1] * 5 + [2] * 2 + [3])
    folds = assign_folds(labels, seed=1)
    counts = lambda label: np.bincount(folds[labels == label], minlength=FOLDS).tolist()
    assert [counts(label) for label in range(3)] == [[3, 2, 2, 2, 2], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert folds[-1] == -1
    assert assign_folds(labels, 1, count=2).max() == 1
    assert folds.tolist() == assign_folds(labels, seed=1).tolist()
    assert folds.tolist() != assign_folds(labels, seed=2).tolist()


def test_rows_of_a_group_are_held_out_together_and_the_only_group_of_a_class_never() -> None:
    labels, groups = np.array([0, 0, 0, 0, 1, 1, 2, 2]), np.array([5, 5, 6, 7, 5, 8, 9, 9])
    folds = assign_folds(labels, 3, 5, groups)
    assert len({folds[i] for i in (0, 1, 4)}) == 1
    assert (folds[:6] >= 0).all()
    assert folds[6:].tolist() == [-1, -1]


def test_predictions_of_folds_count_as_fewer_trials() -> None:
    empty = torch.zeros(0)
    assert CrossValidation([0, 1, 2, 3, 3], empty, 0, 5).trials == pytest.approx(4 / (1 + 5 / 4))
    assert CrossValidation([0, 1, 2, 3], empty, 0, 2, (3, 1)).trials == pytest.approx(16 / 10 / (1 + 2))


def test_each_row_is_predicted_by_the_candidate_that_the_other_folds_choose() -> None:
    labels = np.array([0, 1] * 6)
    targets, fold_of, calls = torch.tensor(labels), assign_folds(labels, 4, 3), []

    def predict(train: NDArray[np.int64], held: NDArray[np.int64]) -> Tensor:
        calls.append((set(train.tolist()), set(held.tolist())))
        right, first = F.one_hot(targets[held], 2).float(), fold_of[held[0]] == 0
        # The first candidate is better on fold 0 alone, by much; the second is better on the others.
        return torch.stack([right * (9.0 if first else 1.0), right * (0.0 if first else 1.5)])

    found = cross_validate(predict, targets, labels, 4, folds=3)
    assert all(train.isdisjoint(held) and len(train | held) == 12 for train, held in calls)
    assert sorted(found.rows) == list(range(12))
    assert (found.folds, found.group_sizes, found.choice) == (3, (), 0)
    tops = {int(fold_of[row]): float(z.max()) for row, z in zip(found.rows, found.logits, strict=True)}
    assert tops == {0: 0.0, 1: 1.0, 2: 1.0}


def test_repeated_folds_are_drawn_again_and_chosen_among_themselves() -> None:
    labels = np.array([0, 1] * 6)
    targets, held_out = torch.tensor(labels), list[tuple[int, ...]]()

    def predict(train: NDArray[np.int64], held: NDArray[np.int64]) -> Tensor:
        held_out.append(tuple(sorted(held.tolist())))
        right, again = F.one_hot(targets[held], 2).float(), len(held_out) > 2
        return torch.stack([right * (1.0 if again else 2.0), right * (2.0 if again else 1.0)])

    found = cross_validate(predict, targets, labels, 0, folds=2, repeats=2)
    assert (len(held_out), found.folds) == (4, 2)
    assert set(held_out[:2]) != set(held_out[2:])
    assert sorted(found.rows) == sorted([*range(12), *range(12)])
    assert found.logits.amax(-1).tolist() == [2.0] * 24


def test_groups_too_few_to_learn_from_one_another_are_taken_apart() -> None:
    labels, targets = np.array([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
    predict = lambda train, held: F.one_hot(targets[held], 2).float()[None]
    apart = cross_validate(predict, targets, labels, 0, groups=np.array([1, 1, 2, 2]))
    assert (sorted(apart.rows), apart.group_sizes) == ([0, 1, 2, 3], ())
    one_fold = cross_validate(predict, targets[1:], labels[1:], 0, groups=np.array([1, 2, 1]))
    assert (one_fold.folds, one_fold.group_sizes) == (2, ())
    together = cross_validate(predict, targets, labels, 0, groups=np.array([1, 2, 1, 2]))
    assert (sorted(together.rows), together.group_sizes) == ([0, 1, 2, 3], (2, 2))


def test_candidates_are_heads_of_each_penalty_on_the_rows_to_learn_from() -> None:
    x, targets = points()
    found = fit_candidates(x, targets, 3, np.arange(20), np.arange(20, 30))
    assert found.shape == (len(PENALTIES), 10, 3)
    for logits, penalty in zip(found, PENALTIES, strict=True):
        weight, bias = fit_logistic(x[:20], targets[:20], 3, penalty)
        expected = x[20:] @ weight.T + bias
        assert torch.allclose(logits.log_softmax(-1), expected.log_softmax(-1), atol=5e-3)
