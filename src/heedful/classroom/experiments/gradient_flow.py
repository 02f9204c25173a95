"""How far back a loss reaches: the norm of its gradient with respect to inputs k steps before it.

In a recurrence ∂L_T/∂x_{T−k} is a product of k Jacobians, which shrinks or grows exponentially (Bengio et al.
1994; Pascanu et al. 2013): ln ‖∂L_T/∂x_{T−k}‖ ≈ c + rate · k. A rate below 0 vanishes, above 0 explodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.classroom.experiments.fits import LineFit, fit_exponential
from heedful.interp.gradients import GradientByDistance
from heedful.models.base import LM, evaluation_mode
from heedful.nn.context import Watch
from heedful.nn.recurrent import Recurrence
from heedful.weights.loading import build

NEAREST = (
    4  # distances below are left out of the fit: there the loss still sees the token through its own path
)
SMALLEST = 1e-30  # a gradient below is rounding, and its logarithm says nothing


def loss_gradient_by_distance(model: LM, tokens: Tensor, labels: Tensor) -> GradientByDistance:
    """‖∂L_T/∂x_{T−k}‖ for k = 0 … T−1, with L_T the loss of the last position and x the embedding

    `tokens` and `labels` are (B, T); the norms are geometric means over the rows.
    """
    leaves: list[Tensor] = []

    def detach_embedding(x: Tensor) -> Tensor:
        leaves[:] = [x.detach().requires_grad_()]
        return leaves[0]

    with torch.enable_grad(), evaluation_mode(model):
        logits = model(tokens.to(model.device), watch=Watch(edit={"embed.output": detach_embedding}))
        loss = F.cross_entropy(logits[:, -1].float(), labels[:, -1].to(model.device), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, leaves)
    norms = gradient.double().norm(dim=-1).clamp(min=SMALLEST).log().mean(0).exp().flip(0)
    return GradientByDistance(tuple(range(len(norms))), tuple(norms.tolist()))


def fit_rate(gradient: GradientByDistance, nearest: int = NEAREST) -> LineFit:
    """Fit ln ‖∂L_T/∂x_{T−k}‖ = c + rate · k, up to where the gradient drowns in rounding.

    The first input of a text is left out too: attention's first token has a part of its own.
    """
    norms = np.asarray(gradient.norms[nearest:-1])
    drowned = np.flatnonzero(norms <= SMALLEST * 1e3)
    end = max(int(drowned[0]), 3) if len(drowned) else len(norms)
    return fit_exponential(gradient.distances[nearest : nearest + end], norms[:end])


def exploding_rates(
    gains: Sequence[float], *, dim: int = 64, length: int = 64, rows: int = 16, vocab: int = 64, seed: int = 0
) -> list[dict[str, Any]]:
    """Return the rate of an RNN whose recurrent matrix is an orthogonal one times each of `gains`.

    tanh′ ≤ 1, so the norm of a Jacobian is at most the gain: below 1 the gradient must vanish, at a rate of
    ln(gain) or faster; above 1 it may explode, and does while the units are not saturated.
    """
    draw = torch.Generator().manual_seed(seed)
    tokens, labels = (torch.randint(0, vocab, (rows, length), generator=draw) for _ in range(2))
    found = []
    for gain in gains:
        model = build("rnn", vocab=vocab, dim=dim, layers=1, dropout=0.0, seed=seed)
        assert isinstance(model, LM)
        with torch.no_grad():
            for part in model.modules():
                if isinstance(part, Recurrence):
                    part.h.weight.mul_(gain)
        curve = loss_gradient_by_distance(model, tokens, labels)
        found.append({"gain": gain, "norms": curve.norms, "rate": fit_rate(curve).to_dict()})
    return found
