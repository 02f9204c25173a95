"""Few rows: a linear head on sentence vectors, of the model as it is or tuned on pairs, cross-validated.

    p = softmax(W v + b),  v the sentence vector of length 1:   min  Σ −log p(label) + λ/2 ‖W‖²

All weights of a model overfit a few dozen rows, and a fifth of those cannot say which weights are good. So
the vectors are tuned on pairs (pairs.py), the weights are taken part of the way from the old ones to the
tuned ones, and a linear head is fitted. How far and which λ is chosen by rows that were held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batches import Batches
from heedful.evaluate.logistic import (
    FOLDS,
    PENALTIES,
    CrossValidation,
    cross_validate,
    fit_candidates,
    fit_logistic,
)
from heedful.loading import with_head
from heedful.models.base import LM, Model
from heedful.nn.head import SentenceHead
from heedful.runs.finetune.finetune_result import MAX_WHOLE
from heedful.runs.finetune.pairs import (
    copy_weights,
    set_weights,
    tune_on_pairs,
    upper_weights,
)

SHARES = (0.5, 1.0)  # of the way from the old weights to the tuned ones
REPEATS = 4  # cross-validations of a frozen model over other folds, whose mean varies less
MAX_REPEATED_ROWS = 500
FEW_FOLDS = 3  # where a fold takes long
# Tokens of all rows × weights tuned, so that a fine-tuning takes a minute at the most on two cores of a CPU.
MAX_WORK_OF_ALL_FOLDS = 3e9  # with more there are only FEW_FOLDS of them
MAX_TUNED_WORK = 4e10  # with more the model stays frozen


@dataclass(frozen=True)
class LinearHead:
    """A fitted head: how it was chosen, and what cross-validation says of it."""

    validation: CrossValidation
    penalty: float
    share: float  # how far the upper blocks went to the weights that pairs taught; 0: they are as before

    @property
    def way(self) -> str:
        """What was chosen, in words."""
        return f"pairs, {self.share:.0%} of the way" if self.share else "frozen"


def put_linear_head(model: Model, labels: Sequence[str]) -> LM:
    """Return the same body under an untrained linear head on its sentence vectors, which alone may learn."""
    pooling = model.config.classifier_pooling or (model.pooling.mode if model.pooling else "mean")
    made = with_head(model, "classify", labels, classifier_pooling=pooling).to(model.device)
    assert isinstance(made, LM)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    return made.eval()


@torch.no_grad()
def read_vectors(model: LM, batches: Batches) -> tuple[Tensor, Tensor]:
    """Return what the linear head reads of every row, (N, D), and the rows' targets."""
    assert isinstance(model.head, SentenceHead)
    vectors, targets = [], []
    for batch in batches.once():
        there = batch.to(model.device)
        hidden = model.encode(there.tokens, valid=there.valid, types=there.types)
        vectors.append(model.head.vectors(hidden, there.valid).double().cpu())
        targets.append(there.extra["label"].cpu())
    return torch.cat(vectors), torch.cat(targets)


def tuning_work(model: LM, batches: Batches) -> float:
    """Return tokens × weights tuned, 0 for what pairs cannot teach.

    Rows of which several labels may hold have no pairs, layers that share weights no upper half, and of a
    model above MAX_WHOLE the head is kept alone.
    """
    large = sum(p.numel() for p in model.parameters()) > MAX_WHOLE
    if large or batches[0].extra["label"].dim() > 1:
        return 0.0
    return float(count_upper(model) * sum(batch.tokens.numel() for batch in batches.once()))


def can_tune(model: LM, batches: Batches) -> bool:
    """Return whether pairs can teach the model something in the time that a few rows are given."""
    return 0 < tuning_work(model, batches) <= MAX_TUNED_WORK


def count_upper(model: LM) -> int:
    """Return how many parameters pairs teach."""
    return sum(parameter.numel() for parameter in upper_weights(model).values())


def scale_vectors(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors of mean 0 and mean square length 1, which one λ suits, and their mean and scale."""
    mean = vectors.mean(0)
    scale = (vectors - mean).square().sum(1).mean().sqrt().clamp(min=1e-12)
    return (vectors - mean) / scale, mean, scale


def fit_linear_head(
    model: LM, batches: Batches, seed: int, *, pairs: bool, names: int = 0,
    class_weights: Sequence[float] | None = None,
) -> LinearHead:  # fmt: skip
    """Fit the linear head of a model on all rows; what is chosen and its score come from cross-validation.

    With `pairs` the model's upper blocks are tuned first. The last `names` rows are names of classes: they
    are learnt from, and never held out.
    """
    assert isinstance(model.head, SentenceHead)
    frozen, targets = read_vectors(model, batches)
    classes = model.config.labels
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=frozen.dtype)
    if targets.dim() == 2:
        targets = targets.to(frozen.dtype)
    labels = targets.numpy() if targets.dim() == 1 else np.zeros(len(targets), np.int64)
    rows, always = len(targets) - names, np.arange(len(targets) - names, len(targets))
    upper = upper_weights(model) if pairs else {}
    before = copy_weights(upper)

    def predict(train: NDArray[np.int64], held: NDArray[np.int64]) -> Tensor:
        """Logits by every share and penalty; what is tuned did not see the rows held out."""
        train = np.concatenate([train, always])
        if not pairs:
            return fit_candidates(scale_vectors(frozen)[0], targets, classes, train, held, weights)
        tune_on_pairs(model, batches, train.tolist(), labels, seed)
        after, found = copy_weights(upper), []
        for share in SHARES:
            set_weights(upper, before, after, share)
            x = scale_vectors(read_vectors(model, batches)[0])[0]
            found.append(fit_candidates(x, targets, classes, train, held, weights))
        set_weights(upper, before)
        return torch.cat(found)

    repeats = 1 if pairs or rows > MAX_REPEATED_ROWS else REPEATS
    folds = FEW_FOLDS if pairs and tuning_work(model, batches) > MAX_WORK_OF_ALL_FOLDS else FOLDS
    found = cross_validate(predict, targets, labels[:rows], seed, folds=folds, repeats=repeats)
    which, best = divmod(found.choice, len(PENALTIES))
    share = SHARES[which] if pairs else 0.0
    vectors = frozen
    if share:
        tune_on_pairs(model, batches, range(len(labels)), labels, seed)
        set_weights(upper, before, copy_weights(upper), share)
        vectors = read_vectors(model, batches)[0]
    x, mean, scale = scale_vectors(vectors)
    weight, bias = fit_logistic(x, targets, classes, PENALTIES[best], weights=weights)
    with torch.no_grad():
        model.head.linear.weight.copy_(weight / scale)
        model.head.linear.bias.copy_(bias - weight @ mean / scale)
    return LinearHead(found, PENALTIES[best], share)
