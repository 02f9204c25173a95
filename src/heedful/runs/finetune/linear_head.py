"""Few rows: a linear head on the frozen model's sentence vectors, measured by cross-validation.

    p = softmax(W v + b),  v the sentence vector of length 1:   min  Σ −log p(label) + λ/2 ‖W‖²

All weights of a model overfit a few dozen rows, and a fifth of those cannot say which weights are good. A
linear head has one setting, λ, and every row is held out once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.data.batches import Batches
from heedful.evaluate.logistic import CrossValidation, cross_validate, fit_logistic
from heedful.loading import with_head
from heedful.models.base import LM, Model
from heedful.nn.head import SentenceHead


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
        vectors.append(model.head.vectors(hidden, there.valid).double().cpu())
        labels.append(there.extra["label"].cpu())
    return torch.cat(vectors), torch.cat(labels)


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
