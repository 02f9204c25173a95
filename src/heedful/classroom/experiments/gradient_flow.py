"""How far back a loss reaches: the norm of its gradient with respect to inputs k steps before it.

In a recurrence ∂L_T/∂x_{T−k} is a product of k Jacobians, which shrinks or grows exponentially (Bengio et al.
1994; Pascanu et al. 2013): ln ‖∂L_T/∂x_{T−k}‖ ≈ c + rate · k. A rate below 0 vanishes, above 0 explodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.errors import InputError
from heedful.interp.gradients import GradientByDistance
from heedful.interp.inputs import Result
from heedful.models.base import LM, evaluation_mode
from heedful.nn.context import Watch
from heedful.nn.recurrent import Recurrence
from heedful.tasks.metrics.scores import t_quantile
from heedful.weights.loading import build

# Smaller distances are left out of the fit: there the loss still sees the token through its own path.
NEAREST = 4
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


def fit_rate(gradient: GradientByDistance) -> LineFit:
    """Fit ln ‖∂L_T/∂x_{T−k}‖ = c + rate · k, up to where the gradient drowns in rounding.

    The first input of a text is also left out, because attention treats the first token differently.
    """
    norms = np.asarray(gradient.norms[NEAREST:-1])
    drowned = np.flatnonzero(norms <= SMALLEST * 1e3)
    end = max(int(drowned[0]), 3) if len(drowned) else len(norms)
    return fit_exponential(gradient.distances[NEAREST : NEAREST + end], norms[:end])


def exploding_rates(
    gains: Sequence[float], *, dim: int = 64, length: int = 64, rows: int = 16, vocab: int = 64, seed: int = 0
) -> list[dict[str, Any]]:
    """Return the rate of an RNN whose recurrent matrix is an orthogonal one times each of `gains`.

    tanh′ ≤ 1, so the norm of a Jacobian is at most the gain: below 1 the gradient must vanish, at a rate of
    ln(gain) or faster; above 1 it may explode, and does while the units are not saturated.
    """
    draw = torch.Generator().manual_seed(seed)
    tokens, labels = (torch.randint(0, vocab, (rows, length), generator=draw) for _ in range(2))
    curves = []
    for gain in gains:
        model = build("rnn", vocab=vocab, dim=dim, layers=1, dropout=0.0, seed=seed)
        assert isinstance(model, LM)
        with torch.no_grad():
            for part in model.modules():
                if isinstance(part, Recurrence):
                    part.h.weight.mul_(gain)
        curve = loss_gradient_by_distance(model, tokens, labels)
        curves.append({"gain": gain, "norms": curve.norms, "rate": fit_rate(curve).to_dict()})
    return curves


# Straight lines through measurements: exponents of power laws and rates of exponentials, with intervals.


@dataclass(frozen=True)
class LineFit(Result):
    """y = intercept + slope · x by least squares, with the 95 % interval of the slope."""

    slope: float
    intercept: float
    low: float
    high: float
    residual: float  # root mean square of what the line leaves over


def fit_line(x: Sequence[float] | NDArray[Any], y: Sequence[float] | NDArray[Any]) -> LineFit:
    """Fit a line; its interval is s/√Σ(x − x̄)² · t, with s² the residual variance of n − 2 degrees."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    if len(a) != len(b) or len(a) < 3:
        raise InputError(f"a line with an interval needs 3 points or more; got {len(a)} and {len(b)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("a line cannot be fitted through points that are not finite")
    centred = a - a.mean()
    slope = float(centred @ b / (centred @ centred))
    intercept = float(b.mean() - slope * a.mean())
    left = b - intercept - slope * a
    error = math.sqrt(float(left @ left) / (len(a) - 2) / float(centred @ centred))
    half = t_quantile(len(a) - 2) * error
    return LineFit(slope, intercept, slope - half, slope + half, float(np.sqrt(np.mean(left**2))))


def fit_power(x: Sequence[float], y: Sequence[float]) -> LineFit:
    """y = c · x^slope: a line through the logarithms of both"""
    return fit_line(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)))


def fit_exponential(x: Sequence[float], y: Sequence[float] | NDArray[Any]) -> LineFit:
    """y = c · e^(slope · x): a line through the logarithms of y"""
    return fit_line(x, np.log(np.asarray(y, float)))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of values and its 95 % interval by Student's t; of a single one, no interval (NaN)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half
