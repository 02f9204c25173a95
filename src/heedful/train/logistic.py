"""Logistic regression on vectors, and predictions for rows that it did not see.

p = softmax(W x + b):   min  Σ −log p(label) + λ/2 ‖W‖²

Where several labels may hold at once, p = σ(W x + b) for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.progress import report_progress
from heedful.data.batches import seeded_generator

FOLDS = 5
PENALTIES = (3.0, 1.0, 0.3, 0.1)  # λ, the strongest first: of equally good ones it is taken
FOLD_SEED = 0xF01D
MAX_ITERATIONS = 200


@dataclass(frozen=True)
class CrossValidation:
    """Logits of rows by heads that had not seen them, and the choice that did best on them.

    A row may be held out several times, in folds drawn anew.
    """

    rows: list[int]  # by their numbers, those that were held out
    logits: Tensor  # (len(rows), C)
    choice: int  # which candidate the final head is fitted by
    folds: int
    group_sizes: tuple[int, ...] = ()  # of the rows held out together; (): each row by itself

    @property
    def trials(self) -> float:
        """How many independent predictions they count as: n/(1 + k/(k − 1))   (Nadeau and Bengio 2003)

        The heads of k folds share most of their rows. Rows of a group may be right or wrong together:
        n = (Σ m)²/Σ m² for groups of m rows   (Kish 1965), which is the number of rows if each is alone.
        """
        sizes = np.array(self.group_sizes or (1,) * len(set(self.rows)), float)
        return float(sizes.sum() ** 2 / (sizes**2).sum()) / (1 + self.folds / (self.folds - 1))


def mean_loss(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """−log p of labels (N,), or of every label that may hold, targets (N, C); `weights` are of classes."""
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, weight=weights)
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights) * targets.shape[1]


def fit_logistic(
    x: Tensor, targets: Tensor, classes: int, penalty: float, start: tuple[Tensor, Tensor] | None = None,
    *, iterations: int = MAX_ITERATIONS, weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the weight (C, D) and the bias (C,) of a logistic regression, by L-BFGS.

    `targets` are labels (N,), or (N, C) where several may hold at once.
    """
    zeros = (x.new_zeros(classes, x.shape[1]), x.new_zeros(classes))
    weight, bias = (t.clone().requires_grad_() for t in (start or zeros))
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=iterations, tolerance_grad=1e-5, history_size=10,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        search.zero_grad()
        shrink = penalty / (2 * len(x)) * weight.square().sum()
        mean = mean_loss(F.linear(x, weight, bias), targets, weights) + shrink
        mean.backward()
        return mean

    search.step(loss)
    return weight.detach(), bias.detach()


def assign_folds(
    labels: NDArray[np.int64], seed: int, count: int = FOLDS, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the fold that holds each row out: every class in as many folds as it can be, from the first on.

    So a class is not rarer among the rows learnt where it is more frequent among those held out. Rows of one
    of the `groups` are held out together. The only row of its class, or the only group, is never held out
    (−1): nobody could have learnt it.
    """
    groups = np.arange(len(labels)) if groups is None else groups
    folds = np.full(len(labels), -1, dtype=np.int64)
    alone = [label for label in np.unique(labels) if len(np.unique(groups[labels == label])) < 2]
    placed = set(groups[np.isin(labels, alone)].tolist())
    for label in np.unique(labels):
        rows = seeded_generator(seed, FOLD_SEED, int(label)).permutation(np.flatnonzero(labels == label))
        order = [group for group in dict.fromkeys(groups[rows].tolist()) if group not in placed]
        for place, group in enumerate(order):
            folds[groups == group] = place % count
        placed |= set(order)
    return folds


# The rows to learn from, the rows held out → logits of these by every candidate, (candidates, N, C).
Predictor = Callable[[NDArray[np.int64], NDArray[np.int64]], Tensor]


def cross_validate(
    predict: Predictor, targets: Tensor, labels: NDArray[np.int64], seed: int, *, folds: int = FOLDS,
    repeats: int = 1, groups: NDArray[np.int64] | None = None,
) -> CrossValidation:  # fmt: skip
    """Predict every row by heads that did not see it.

    The candidate of a fold's prediction is chosen by the other folds, that of the final head by all of them:
    the one with the lowest loss. `labels` part the rows, so that every fold has some of each; rows of
    `targets` beyond them are never held out, and the caller may learn from them. Rows of one of the `groups`,
    which share a text, are held out together: else a head would have seen part of what it is scored on.
    """
    if groups is not None and assign_folds(labels, seed, folds, groups).max(initial=-1) < 1:
        groups = None  # too few to hold one out and learn from another
    found: list[tuple[NDArray[np.int64], Tensor, Tensor]] = []
    for repeat in range(repeats):
        fold_of = assign_folds(labels, seed + repeat, folds, groups)
        for fold in range(fold_of.max(initial=-1) + 1):
            held = np.flatnonzero(fold_of == fold)
            logits = predict(np.flatnonzero(fold_of != fold), held)
            losses = torch.stack([mean_loss(one, targets[held]) * len(held) for one in logits])
            found.append((held, logits, losses))
            report_progress("folds", len(found), repeats * (int(fold_of.max()) + 1))
    losses = torch.stack([loss for *_, loss in found])  # (folds, candidates)
    per = len(found) // repeats
    rows: list[int] = []
    chosen = []
    for i, (held, logits, _) in enumerate(found):
        first = i // per * per
        others = losses[first : first + per].sum(0) - losses[i]
        rows += held.tolist()
        chosen.append(logits[int(others.argmin())])
    sizes = () if groups is None else np.unique(groups[sorted(set(rows))], return_counts=True)[1].tolist()
    return CrossValidation(rows, torch.cat(chosen), int(losses.sum(0).argmin()), per, tuple(sizes))


def fit_candidates(
    x: Tensor, targets: Tensor, classes: int, train: NDArray[np.int64], valid: NDArray[np.int64],
    weights: Tensor | None = None, penalties: Sequence[float] = PENALTIES,
) -> Tensor:  # fmt: skip
    """Return the logits of held-out rows by a head for each of the penalties, (P, N, C)."""
    start, found = None, []
    for penalty in penalties:
        start = fit_logistic(x[train], targets[train], classes, penalty, start, weights=weights)
        found.append(F.linear(x[valid], *start))
    return torch.stack(found)
