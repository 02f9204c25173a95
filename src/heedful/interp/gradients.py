"""Gradients: which tokens an answer depends on, and how far back a gradient reaches.

A gradient says how a logit changes when a token's vector moves a little. Where the logit is already saturated
it says nearly nothing, so integrated gradients average it along a straight path from a neutral baseline to
the text (Sundararajan et al. 2017). The shares of the tokens then add up to the rise of the logit between the
two, and the gap that is left tells how far to trust them. `gradient_by_distance` measures how much of a
gradient survives d tokens back: it vanishes or explodes in a recurrence, and hardly changes in attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import InputError
from heedful.interp.activations import prepare_inputs
from heedful.interp.inputs import (
    Input,
    Result,
    Text,
    answer_id,
    choices,
    position_of,
    reading,
    token_vectors,
)
from heedful.models.base import LM, Model, Seq2Seq, evaluation_mode
from heedful.nn.context import Watch

POINTS = 16  # of the quadrature on one piece of the path
Vectors = dict[str, Tensor]  # of the tokens, by the name of their value
Logit = Callable[[Vectors], Tensor]  # F, the logit of an answer as a function of the token vectors
MAX_STEPS = 2**13  # points on the path; a model of many layers may need thousands, most stop far below


@dataclass(frozen=True)
class Attribution(Result):
    """A share of the answer's logit for every token read.

    `total` is what they should sum to by completeness, and `gap` what is missing; of input × gradient, which
    promises no such thing, both are None.
    """

    method: str
    answer: int
    tokens: tuple[str, ...]
    scores: Tensor  # (S,)
    target_tokens: tuple[str, ...]
    target_scores: Tensor | None
    total: float | None = None
    gap: float | None = None


def attribution(
    model: Model, text: Text, target: Text | None = None, *, answer: int | str | None = None,
    position: int = -1, method: str = "integrated", steps: int = MAX_STEPS, baseline: Text = "mean",
) -> Attribution:  # fmt: skip
    """Return what each token adds to the logit of `answer` at `position`; by default the most likely.

    An answer is a token, by its id or its text, or a label of a classifier, by its number or its name; a head
    that gives one answer for the whole text has no positions.
    "gradient": x · ∂F/∂x. "integrated": (x − x') · ∫ ∂F/∂x(x' + α (x − x')) dα, which sums to F(x) − F(x')
    (Sundararajan et al. 2017, eq. 1 and prop. 1). x are token vectors, x' the `baseline`: "mean" (of all),
    "zero", the vector of the token "pad" or "mask", or a text (or ids) of as many tokens; positions stay as
    they are. Where the sum is missed the path is halved until it fits, up to `steps` points (by default
    8,192). Shares that still miss a tenth of the rise are not an answer: that raises InputError.
    """
    check_choice("method", method, ("gradient", "integrated"))
    given = reading(model, text, target)
    names = ["embed.token"] + ["target_embed.token"] * isinstance(model, Seq2Seq)
    position = position_of(given.names, position)
    with torch.no_grad():
        logits = choices(model, given.run(model), position)[0]
    chosen = answer_id(model, answer, logits)
    plain = _vectors(model, given, names)

    def logit(vectors: Vectors) -> Tensor:
        """F of a batch of token vectors (N, T, D): the logit of the answer, (N,)."""
        instead = lambda value: lambda _: value  # an edit that ignores what the model computed
        watch = Watch(edit={name: instead(value) for name, value in vectors.items()})
        rows = given.run(model, watch, repeat=len(vectors["embed.token"]))
        return choices(model, rows, position)[:, chosen]

    total = gap = None
    if method == "gradient":
        grads = _gradients(logit, {n: x[None] for n, x in plain.items()})
        shares = {n: (plain[n] * g[0]).sum(-1).detach() for n, g in grads.items()}
    else:
        start = _baseline_vectors(model, given, plain, baseline)
        shares, total, gap = _integrate(logit, plain, start, steps)
    target_shares = shares.get("target_embed.token")
    return Attribution(
        method, chosen, given.tokens, shares["embed.token"], given.target_tokens, target_shares, total, gap
    )


NO_RISE = 0.1  # a rise of the logit below this is as good as none, and a tenth of it no measure
BASELINES = ("mean", "zero", "pad", "mask")


def _baseline_vectors(model: Model, inputs: Input, vectors: Vectors, baseline: Text) -> Vectors:
    """Return the token vectors where the path begins; a text has those of the source alone."""
    if not isinstance(baseline, str) or baseline not in BASELINES:
        other = reading(model, baseline, inputs.target)
        if other.ids.shape != inputs.ids.shape:
            counts = f"the text has {inputs.ids.shape[1]}, the baseline {other.ids.shape[1]}"
            raise InputError(f"a baseline is {', '.join(BASELINES)} or a text of as many tokens", hint=counts)
        return _vectors(model, other, list(vectors))
    if baseline == "zero":
        return {name: torch.zeros_like(x) for name, x in vectors.items()}
    tables = {"embed.token": "tokens", "target_embed.token": "target"}
    rows = {name: token_vectors(model.tables[tables[name]]).detach() for name in vectors}
    if baseline == "mean":
        return {name: rows[name].mean(0).expand_as(x) for name, x in vectors.items()}
    token = getattr(model.tokenizer, baseline, None)
    if token is None:
        hint = "choose mean or zero, or give a text as the baseline"
        raise InputError(f"this model has no token for {baseline!r}", hint=hint)
    return {name: rows[name][token].expand_as(x) for name, x in vectors.items()}


def _gradients(logit: Logit, vectors: Vectors) -> Vectors:
    """∂F/∂x for each of a batch of token vectors."""
    with torch.enable_grad():
        leaves = {name: v.detach().clone().requires_grad_() for name, v in vectors.items()}
        grads = torch.autograd.grad(logit(leaves).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), grads, strict=True)
    return {n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in pairs}


@torch.no_grad()
def _vectors(model: Model, inputs: Input, names: list[str]) -> Vectors:
    watch = inputs.record(model, *names)
    return {name: watch[name][0] for name in names}


class _Piece(NamedTuple):
    """A part of the path: each token's share of what F rises by there, and what they miss of the rise.

    Completeness is missed where a norm of nearly nothing makes F steep, so that its points are too few.
    """

    start: float
    end: float
    scores: Vectors
    rise: float  # F(end) − F(start)
    gap: float


def _integrate(logit: Logit, vectors: Vectors, base: Vectors, steps: int) -> tuple[Vectors, float, float]:
    """Return the shares of the tokens, what they should sum to, and what is missing."""
    # Gauss-Legendre quadrature on each piece of the straight path from base to input.
    u, w = (torch.tensor(t, dtype=torch.float64) for t in np.polynomial.legendre.leggauss(POINTS))
    line = lambda at: {n: base[n] + at.to(x)[:, None, None] * (x - base[n]) for n, x in vectors.items()}

    def piece(start: float, end: float) -> _Piece:
        alpha, weights = start + (end - start) * (u + 1) / 2, w * (end - start) / 2
        grads = _gradients(logit, line(alpha))
        shares = {n: (g * (vectors[n] - base[n])).sum(-1).double().cpu() for n, g in grads.items()}  # (N, T)
        scores = {n: (weights[:, None] * s).sum(0) for n, s in shares.items()}
        with torch.no_grad():
            low, high = logit(line(torch.tensor([start, end]))).tolist()
        return _Piece(
            start, end, scores, high - low, high - low - sum(float(s.sum()) for s in scores.values())
        )

    pieces, used = [piece(0.0, 1.0)], POINTS
    total = pieces[0].rise
    while abs(gap := sum(p.gap for p in pieces)) > 1e-3 * max(1.0, abs(total)) and used + 2 * POINTS <= steps:
        worst = max(pieces, key=lambda p: abs(p.gap))
        middle = (worst.start + worst.end) / 2
        pieces.remove(worst)
        pieces += [piece(worst.start, middle), piece(middle, worst.end)]
        used += 2 * POINTS
    if not abs(gap) <= 0.1 * max(abs(total), NO_RISE):
        raise InputError(
            f"with `steps={steps}` the shares sum to {total - gap:.3g}, and the logit of the answer rises by "
            f"{total:.3g}: integrated gradients have not converged",
            hint=f"set `steps={max(4 * steps, MAX_STEPS)}`, or choose a baseline nearer to the text, such as "
            "another text of as many tokens",
        )
    return {n: torch.stack([p.scores[n] for p in pieces]).sum(0) for n in vectors}, total, gap


@dataclass(frozen=True)
class GradientByDistance(Result):
    """The size of the gradient that the last state sends to the input `distance` tokens before it."""

    also = ("relative",)

    distances: tuple[int, ...]
    norms: tuple[float, ...]

    @property
    def relative(self) -> tuple[float, ...]:
        """The norms divided by that at distance 0, so that models with vectors of other lengths compare."""
        return tuple(norm / (self.norms[0] or 1.0) for norm in self.norms)


def gradient_by_distance(
    model: Model, text: Text | None = None, *, length: int = 32, samples: int = 8, seed: int = 0
) -> GradientByDistance:
    """‖∂(u·h_T)/∂x_{T−d}‖ for d = 0 … T−1, the root mean square over random unit vectors u

    h_T is the last hidden state, x the embedding. In a recurrence it is a product of d Jacobians, which fades
    or bursts (Bengio et al. 1994; Pascanu et al. 2013); attention has a path of length one to every token.
    Without a text, it reads random tokens. An encoder-decoder is measured on its encoder.
    """
    for name, number in (("length", length), ("samples", samples)):
        check_integer(name, number)
    draw = torch.Generator().manual_seed(seed)
    if text is None and model.processor is not None:
        raise InputError(
            "random tokens cannot replace an image or a sound", hint="give one: reading(model, image)"
        )
    if text is None:
        text = torch.randint(0, model.tables["tokens"].vocab, (length,), generator=draw)
    (given,) = prepare_inputs(model, [text], source_only=True)
    assert isinstance(model, (LM, Seq2Seq))
    with torch.enable_grad(), evaluation_mode(model):
        leaves: list[Tensor] = []

        def leaf(x: Tensor) -> Tensor:
            leaves[:] = [x.detach().requires_grad_()]
            return leaves[0]

        watch = Watch(edit={"embed.output": leaf})
        if isinstance(model, LM):
            hidden = model.encode(given.ids, types=given.types, watch=watch)
        else:
            hidden = model.encode(given.ids, watch=watch)
        last = hidden[0, -1]
        total = torch.zeros(
            leaves[0].shape[1], dtype=torch.float64
        )  # an image has more patches than channels
        for _ in range(samples):
            u = torch.randn(last.shape, generator=draw).to(last)
            (grad,) = torch.autograd.grad(last @ (u / u.norm()), leaves, retain_graph=True)
            total += grad[0].double().square().sum(-1).cpu()
    norms = (total / samples).sqrt().flip(0)
    return GradientByDistance(tuple(range(len(norms))), tuple(norms.tolist()))
