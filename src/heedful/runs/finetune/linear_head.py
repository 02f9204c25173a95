"""Few rows: a linear head on the frozen model's sentence vectors, measured by cross-validation.

    p = softmax(W v + b),  v the sentence vector of length 1:   min  Σ −log p(label) + λ/2 ‖W‖²

All weights of a model overfit a few dozen rows, and a fifth of those cannot say which weights are good. A
linear head has one setting, λ, and every row is held out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batches import Batches, seeded_generator
from heedful.evaluate.scores import class_scores
from heedful.loading import with_head
from heedful.models.base import LM, Model
from heedful.nn.head import SentenceHead, pool_tokens

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


def put_linear_head(model: Model, labels: Sequence[str]) -> LM:
    """Return the same frozen body under an untrained linear head on its sentence vectors."""
    pooling = model.config.classifier_pooling or (model.pooling.mode if model.pooling else "mean")
    made = with_head(model, "classify", labels, classifier_pooling=pooling).to(model.device)
    assert isinstance(made, LM)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    return made.eval()


@torch.no_grad()
def frozen_vectors(model: LM, batches: Batches) -> tuple[Tensor, Tensor]:
    """Return what the linear head reads of every row, (N, D), and the rows' labels, (N,)."""
    assert isinstance(model.head, SentenceHead)
    vectors, labels = [], []
    for batch in batches.once():
        there = batch.to(model.device)
        hidden = model.encode(there.tokens, valid=there.valid, types=there.types)
        pooled = pool_tokens(hidden, there.valid, model.head.pooling)
        vectors.append(F.normalize(pooled, dim=-1).double().cpu())
        labels.append(there.extra["label"].cpu())
    return torch.cat(vectors), torch.cat(labels)


def fit_logistic(
    x: Tensor, labels: Tensor, classes: int, penalty: float, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the weight (C, D) and the bias (C,) of a multinomial logistic regression, by L-BFGS."""
    zeros = (x.new_zeros(classes, x.shape[1]), x.new_zeros(classes))
    weight, bias = (t.clone().requires_grad_() for t in (start or zeros))
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=MAX_ITERATIONS, tolerance_grad=1e-5, history_size=10,
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


def fit_linear_head(model: LM, batches: Batches, seed: int) -> CrossValidation:
    """Fit the linear head of a model on all rows; its penalty and its score come from cross-validation."""
    assert isinstance(model.head, SentenceHead)
    vectors, labels = frozen_vectors(model, batches)
    mean = vectors.mean(0)
    scale = (vectors - mean).square().sum(1).mean().sqrt().clamp(min=1e-12)  # so that one λ suits any model
    x = (vectors - mean) / scale
    found = cross_validate(x, labels, model.config.labels, seed)
    weight, bias = fit_logistic(x, labels, model.config.labels, found.penalty)
    with torch.no_grad():
        model.head.linear.weight.copy_(weight / scale)
        model.head.linear.bias.copy_(bias - weight @ mean / scale)
    return found
