"""exp(−1/N Σ log p(w_t | what came before)), over a text of any length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from heedful.core.errors import InputError
from heedful.core.progress import report_progress
from heedful.models.base import LM, evaluation_mode


@dataclass(frozen=True)
class Perplexity:
    """The negative log-likelihood of a text under a model."""

    tokens: int  # that were predicted
    nats: float  # over all of them

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss): the number of equally likely choices per token."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def per(self, count: int) -> float:
        """Return the bits per character, byte or word, of which the text has `count`."""
        return self.nats / math.log(2) / count


@torch.no_grad()
def perplexity(
    model: LM,
    ids: Sequence[int] | NDArray[Any],
    *,
    length: int | None = None,
    stride: int | None = None,
    batch: int = 8,
) -> Perplexity:
    """Return the perplexity of one stream of tokens.

    Windows of `length` tokens (the model's context) move on by `stride` (half of it); each predicts only what
    is new: every token but the first is predicted once, with at least length − stride tokens before it.
    """
    if not isinstance(model, LM) or not model.causal or model.config.head != "lm":
        raise InputError("perplexity needs a language model that reads from left to right")
    stream = np.asarray(ids, np.int64)
    if len(stream) < 2:
        raise InputError("perplexity needs at least two tokens")
    length = length or int(getattr(model.config, "context", 512))
    length = min(length, len(stream) - 1)
    stride = min(stride or max(1, length // 2), length)
    starts = list(range(0, max(len(stream) - 1 - length, 0) + stride, stride))
    starts = [min(s, len(stream) - 1 - length) for s in starts]
    total, done = 0.0, 0
    for at in range(0, len(starts), batch):
        rows = starts[at : at + batch]
        window = torch.from_numpy(np.stack([stream[s : s + length + 1] for s in rows])).to(model.device)
        with evaluation_mode(model):
            logits = model(window[:, :-1]).float()
        losses = F.cross_entropy(logits.transpose(1, 2), window[:, 1:], reduction="none").cpu()
        for row, start in zip(losses, rows, strict=True):
            total += float(row[max(done - start, 0) :].double().sum())
            done = max(done, start + length)
        report_progress("windows", at + len(rows), len(starts))
    return Perplexity(len(stream) - 1, total)
