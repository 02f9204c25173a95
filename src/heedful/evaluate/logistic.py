"""Multinomial logistic regression on vectors, measured by cross-validation.

p = softmax(W x + b):   min  Σ −log p(label) + λ/2 ‖W‖²
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batches import seeded_generator
from heedful.evaluate.scores import class_scores

FOLDS = 5
REPEATS = 4  # cross-validations over other folds, whose mean varies less
MAX_REPEATED_ROWS = 500
PENALTIES = (3.0, 1.0, 0.3, 0.1)  # λ, the strongest first: of equally good ones it is taken
FOLD_SEED = 0xF01D
MAX_ITERATIONS = 200


@dataclass(frozen=True)
class CrossValidation:
    """Predictions for rows while they were held out, and the penalty that did best on them."""

    truth: list[int]
    predictions: list[int]
    penalty: float
    folds: int
    rows: int

    def scores(self) -> dict[str, Any]:
        """Accuracy after its 95 % interval, and other scores of the predictions.

        The heads of k folds share most of their rows, so that N predictions tell as much as N/(1 + k/(k − 1))
        independent ones   (Nadeau and Bengio 2003)
        """
        trials = self.rows / (1 + self.folds / (self.folds - 1))
        return class_scores(self.truth, self.predictions, trials) | {"rows": self.rows}


def fit_logistic(
    x: Tensor, labels: Tensor, classes: int, penalty: float, start: tuple[Tensor, Tensor] | None = None,
    *, iterations: int = MAX_ITERATIONS,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the weight (C, D) and the bias (C,) of a multinomial logistic regression, by L-BFGS."""
    zeros = (x.new_zeros(classes, x.shape[1]), x.new_zeros(classes))
    weight, bias = (t.clone().requires_grad_() for t in (start or zeros))
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=iterations, tolerance_grad=1e-5, history_size=10,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        search.zero_grad()
        shrink = penalty / (2 * len(x)) * weight.square().sum()
        mean = F.cross_entropy(F.linear(x, weight, bias), labels) + shrink
        mean.backward()
        return mean

    search.step(loss)
    return weight.detach(), bias.detach()


def assign_folds(labels: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Return the fold that holds each row out: every class in as many folds as it can be, from the first on.

    So a class is not rarer among the rows learnt where it is more frequent among those held out. The only row
    of its class is never held out (−1): nobody could have learnt it.
    """
    folds = np.full(len(labels), -1, dtype=np.int64)
    for label in np.unique(labels):
        rows = seeded_generator(seed, FOLD_SEED, int(label)).permutation(np.flatnonzero(labels == label))
        if len(rows) > 1:
            folds[rows] = np.arange(len(rows)) % FOLDS
    return folds


def predict_held_out(x: Tensor, labels: Tensor, classes: int, folds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return predictions of every row by heads that did not see it, one for each penalty: (P, N)."""
    predicted = np.full((len(PENALTIES), len(folds)), -1, dtype=np.int64)
    for fold in range(folds.max(initial=-1) + 1):
        held, start = torch.from_numpy(folds == fold), None
        for i, penalty in enumerate(PENALTIES):
            start = fit_logistic(x[~held], labels[~held], classes, penalty, start)
            predicted[i, held] = F.linear(x[held], *start).argmax(1).numpy()
    return predicted


def cross_validate(x: Tensor, labels: Tensor, classes: int, seed: int) -> CrossValidation:
    """Predict every row by a head that did not see it.

    The penalty of a fold's prediction is chosen by the other folds, that of the final head by all of them.
    """
    truth, hits = labels.numpy(), np.zeros(len(PENALTIES))
    answers: list[int] = []
    predictions: list[int] = []
    for repeat in range(REPEATS if len(truth) <= MAX_REPEATED_ROWS else 1):
        folds = assign_folds(truth, seed + repeat)
        predicted = predict_held_out(x, labels, classes, folds)
        right = (predicted == truth) & (folds >= 0)
        for fold in range(folds.max(initial=-1) + 1):
            best = right[:, folds != fold].sum(1).argmax()
            predictions += predicted[best, folds == fold].tolist()
            answers += truth[folds == fold].tolist()
        hits += right.sum(1)
    held = int((folds >= 0).sum())
    return CrossValidation(answers, predictions, PENALTIES[hits.argmax()], int(folds.max()) + 1, held)
