"""Pairs: texts of one class come near each other and away from those of other classes.

    loss = −Σ_i mean_{j ∈ P(i)} log softmax_{k ≠ i}(v_i·v_k / τ)_j,   P(i) the other texts of i's class

v are sentence vectors of length 1. A few rows give many pairs, which is why so few suffice
(Tunstall et al. 2022; the loss is that of Khosla et al. 2020, eq. 2). The blocks learn; the table of tokens
does not, since most words are in none of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import Batch
from heedful.data.batches import BalancedOrder, Batches
from heedful.models.base import LM, Model
from heedful.nn.head import SentenceHead
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.objectives import Term, extra_of, promote_float32

TEMPERATURE = 0.1
STEPS = 20
LEARNING_RATE = 1e-4
MIN_BATCH, MAX_BATCH = 16, 48  # rows of a step; their pairs are compared with each other
STEP_TOKENS = 1024  # of long texts a step has fewer
LENGTH_GROUPS = 4  # in which the rows of a step are read

Weights = dict[str, Tensor]


def pairs_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ_i mean_{j ∈ P(i)} log softmax_{k ≠ i}(v_i·v_k / τ)_j; a row without a partner counts nothing."""
    assert isinstance(model, LM)
    assert isinstance(model.head, SentenceHead)
    found, labels = [], extra_of(batch, "label")
    parts = group_by_length(batch)
    for rows, width in parts:
        tokens, valid, types = (
            None if part is None else part[rows, :width] for part in (batch.tokens, batch.valid, batch.types)
        )
        assert tokens is not None
        found.append(model.head.vectors(model.encode(tokens, valid=valid, types=types), valid))
    vectors, labels = promote_float32(torch.cat(found)), labels[torch.cat([rows for rows, _ in parts])]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    partner = (labels[:, None] == labels[None, :]) & ~itself  # (B, B)
    logs = (vectors @ vectors.T / TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(1)
    mean = logs.masked_fill(~partner, 0.0).sum(1) / partner.sum(1).clamp(min=1)
    return {"pairs": Term(-mean.sum(), "row")}


def group_by_length(batch: Batch) -> list[tuple[Tensor, int]]:
    """Part the rows of a batch into groups of similar length, and say how wide each is; little is padding."""
    if batch.valid is None:
        return [(torch.arange(len(batch.tokens), device=batch.tokens.device), batch.tokens.shape[1])]
    last = batch.valid.int().cumsum(1).argmax(1) + 1  # how far a row reaches, wherever its padding stands
    return [(rows, int(last[rows].max())) for rows in last.argsort().chunk(LENGTH_GROUPS)]


def block_weights(model: LM) -> Weights:
    """Return the parameters of the blocks, not copied."""
    return {name: p for name, p in model.named_parameters() if name.startswith("blocks.")}


def copy_weights(weights: Weights) -> Weights:
    """Return a copy of parameters."""
    return {name: p.detach().clone() for name, p in weights.items()}


@torch.no_grad()
def set_weights(weights: Weights, values: Sequence[Weights]) -> None:
    """Give parameters the mean of some values   (Wortsman et al. 2022)"""
    for name, parameter in weights.items():
        parameter.copy_(torch.stack([value[name] for value in values]).mean(0))


def count_step_rows(batches: Batches) -> int:
    """Return how many rows a step compares: fewer of long texts."""
    longest = max(batch.tokens.shape[1] for batch in batches.once())
    return min(max(STEP_TOKENS // longest, MIN_BATCH), MAX_BATCH)


def tune_on_pairs(
    model: LM, batches: Batches, rows: Sequence[int], labels: NDArray[np.int64], seed: int
) -> None:
    """Teach the blocks, in place, to put these rows near those of their class."""
    weights = block_weights(model)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    order = BalancedOrder(rows, labels, count_step_rows(batches), seed)
    config = TrainConfig(
        steps=STEPS, lr=LEARNING_RATE, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=STEPS // 10, seed=seed,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in weights)
    for _ in fit(model, pairs_loss, replace(batches, order=order), config):
        pass
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learning)
    model.eval()
