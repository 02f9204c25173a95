"""Few rows: a linear head on sentence vectors, of the model as it is or tuned on pairs, cross-validated.

    p = softmax(W v + b),  v the sentence vector of length 1:   min  Σ −log p(label) + λ/2 ‖W‖²

All weights of a model overfit a few dozen rows, and a fifth of those cannot say which weights are good. So
the vectors are tuned on pairs (pairs.py), once for each fold, without the rows that the fold holds out and
that score it. The model gets the mean of these weights, and a linear head is fitted to all rows. Of a frozen
model only the head is fitted, and held-out rows choose its λ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import Batch
from heedful.data.batches import Batches
from heedful.models.base import LM, Model
from heedful.nn.head import SentenceHead
from heedful.tasks.finetune.finetune_result import MAX_WHOLE
from heedful.tasks.finetune.pairs import (
    STEPS,
    Weights,
    block_weights,
    copy_weights,
    count_step_rows,
    set_weights,
    tune_on_pairs,
)
from heedful.train.logistic import (
    PENALTIES,
    CrossValidation,
    cross_validate,
    fit_candidates,
    fit_logistic,
)
from heedful.weights.loading import with_head

TUNED_PENALTY = 0.3  # λ on tuned vectors, which lie so far apart that it hardly matters
TUNED_FOLDS = 3
REPEATS = 4  # cross-validations of a frozen model over other folds, whose mean varies less
MAX_REPEATED_ROWS = 500


@dataclass(frozen=True)
class LinearHead:
    """A fitted head: how it was chosen, and what cross-validation says of it."""

    validation: CrossValidation
    penalty: float
    tuned: bool  # whether pairs taught the blocks


def put_linear_head(model: Model, labels: Sequence[str]) -> LM:
    """Return the same body under an untrained linear head on its sentence vectors, which alone may learn."""
    pooling = model.config.classifier_pooling or (model.pooling.mode if model.pooling else "mean")
    made = with_head(model, "classify", labels, classifier_pooling=pooling).to(model.device)
    assert isinstance(made, LM)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    return made.eval()


@torch.no_grad()
def read_vectors(model: LM, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Return what the linear head reads of every row, (N, D), and the rows' targets."""
    assert isinstance(model.head, SentenceHead)
    vectors, targets = [], []
    for batch in batches:
        there = batch.to(model.device)
        hidden = model.encode(there.tokens, valid=there.valid, types=there.types)
        vectors.append(model.head.vectors(hidden, there.valid).double().cpu())
        targets.append(there.extra["label"].cpu())
    return torch.cat(vectors), torch.cat(targets)


def can_tune(model: LM, batches: Batches) -> bool:
    """Return whether pairs can teach the model.

    Rows of which several labels may hold have no pairs; of a model above MAX_WHOLE the head is kept alone.
    """
    large = sum(p.numel() for p in model.parameters()) > MAX_WHOLE
    return not large and batches[0].extra["label"].dim() == 1


def foretell_tuning(model: LM, batches: Batches) -> float:
    """Return about how many seconds tuning takes; a step takes three times as long as reading its rows."""
    every = list(batches.once())
    tokens, rows = (sum(size(batch.tokens) for batch in every) for size in (Tensor.numel, len))
    filled = sum(batch.tokens.numel() if batch.valid is None else int(batch.valid.sum()) for batch in every)
    read_vectors(model, every[:1])  # the first reading takes longer
    began = time.perf_counter()
    read_vectors(model, every[:1])
    pace = (time.perf_counter() - began) / every[0].tokens.numel()
    step = min(count_step_rows(batches), rows) * filled / rows
    return pace * (TUNED_FOLDS * (3 * STEPS * step + tokens) + tokens)


def scale_vectors(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors of mean 0 and mean square length 1, which one λ suits, and their mean and scale."""
    mean = vectors.mean(0)
    scale = (vectors - mean).square().sum(1).mean().sqrt().clamp(min=1e-12)
    return (vectors - mean) / scale, mean, scale


def fit_head(
    model: LM, vectors: Tensor, targets: Tensor, penalty: float, weights: Tensor | None = None
) -> None:
    """Fit the linear head of a model, in place, to sentence vectors (N, D) and their targets."""
    assert isinstance(model.head, SentenceHead)
    x, mean, scale = scale_vectors(vectors)
    weight, bias = fit_logistic(x, targets, model.config.labels, penalty, weights=weights)
    with torch.no_grad():
        model.head.linear.weight.copy_(weight / scale)
        model.head.linear.bias.copy_(bias - weight @ mean / scale)


def fit_linear_head(
    model: LM, batches: Batches, seed: int, *, pairs: bool, names: int = 0,
    class_weights: Sequence[float] | None = None, groups: NDArray[np.int64] | None = None,
    announce: Callable[[CrossValidation, float], None] | None = None,
) -> LinearHead:  # fmt: skip
    """Fit the linear head of a model on all rows; what is chosen and its score come from cross-validation.

    With `pairs` the model's blocks are tuned first; `announce` is told before what a head on frozen vectors
    gets and how many seconds the tuning takes. The last `names` rows are names of classes: they are learnt
    from, and never held out. Rows of one of the `groups` are held out together.
    """
    frozen, targets = read_vectors(model, batches.once())
    classes = model.config.labels
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=frozen.dtype)
    if targets.dim() == 2:
        targets = targets.to(frozen.dtype)
    labels = targets.numpy() if targets.dim() == 1 else np.zeros(len(targets), np.int64)
    rows, always = len(targets) - names, np.arange(len(targets) - names, len(targets))
    blocks, tuned = block_weights(model), list[Weights]()
    before = copy_weights(blocks) if pairs else {}
    penalties = (TUNED_PENALTY,) if pairs else PENALTIES

    def predict_frozen(train: NDArray[np.int64], held: NDArray[np.int64]) -> Tensor:
        """Logits of held-out rows by every penalty."""
        x, train = scale_vectors(frozen)[0], np.concatenate([train, always])
        return fit_candidates(x, targets, classes, train, held, weights, penalties)

    def predict_tuned(train: NDArray[np.int64], held: NDArray[np.int64]) -> Tensor:
        """The same, by vectors whose tuning did not see these rows either."""
        train = np.concatenate([train, always])
        tune_on_pairs(model, batches, train.tolist(), labels, seed + len(tuned))
        tuned.append(copy_weights(blocks))
        x = scale_vectors(read_vectors(model, batches.once())[0])[0]
        set_weights(blocks, [before])
        return fit_candidates(x, targets, classes, train, held, weights, penalties)

    validate = partial(cross_validate, targets=targets, labels=labels[:rows], seed=seed, groups=groups)
    if pairs:
        if announce is not None:
            announce(validate(predict_frozen, folds=TUNED_FOLDS), foretell_tuning(model, batches))
        found = validate(predict_tuned, folds=TUNED_FOLDS)
        set_weights(blocks, tuned)
    else:
        found = validate(predict_frozen, repeats=1 if rows > MAX_REPEATED_ROWS else REPEATS)
    penalty = penalties[found.choice]
    vectors = read_vectors(model, batches.once())[0] if pairs else frozen
    fit_head(model, vectors, targets, penalty, weights)
    return LinearHead(found, penalty, pairs)
