# ruff: noqa
"""einsum wherever it fits; types in the signatures; helpers beside the functions."""

from __future__ import annotations

import torch
from torch import Tensor, einsum


def _stable_exp(x: Tensor, dim: int) -> Tensor:
    return (x - x.amax(dim=dim, keepdim=True)).exp()


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    return _stable_exp(x, dim) / _stable_exp(x, dim).sum(dim=dim, keepdim=True)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = einsum("...td,...sd->...ts", q, k) * k.shape[-1] ** -0.5
    if mask is not None:
        scores = torch.where(mask, scores, torch.tensor(-1e9))
    return einsum("...ts,...sd->...td", softmax(scores), v)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    D = x.shape[-1]
    centred = x - einsum("...d->...", x)[..., None] / D
    var = einsum("...d,...d->...", centred, centred) / D
    return einsum("...d,...,d->...d", centred, torch.rsqrt(var + eps), gamma) + beta


def positional_encoding(length: int, dim: int, base: float = 10000.0) -> Tensor:
    t = torch.arange(length, dtype=torch.float64)
    f = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = einsum("t,f->tf", t, f)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, dim)


def lstm_step(x, h, c, W, U, b):
    H = h.shape[1]
    z = einsum("bd,gd->bg", x, W) + einsum("bh,gh->bg", h, U) + b
    gates = z[:, : 2 * H].sigmoid()
    o = z[:, 3 * H :].sigmoid()
    new_c = gates[:, H:] * c + gates[:, :H] * z[:, 2 * H : 3 * H].tanh()
    return (o * new_c.tanh(), new_c)


def bahdanau_score(query, memory, W, U, v):
    return einsum(
        "bsa,a->bs", (einsum("bq,aq->ba", query, W)[:, None] + einsum("bsm,am->bsa", memory, U)).tanh(), v
    )


def skipgram_step(V, U, centre, contexts, negatives, rate):
    rows = torch.tensor(contexts + negatives)
    labels = torch.tensor([1.0] * len(contexts) + [0.0] * len(negatives))
    v, u = V[centre], U[rows]
    error = torch.sigmoid(einsum("md,d->m", u, v)) - labels
    new_V, new_U = V.clone(), U.clone()
    new_V[centre] = v - rate * einsum("m,md->d", error, u)
    new_U.index_add_(0, rows, -rate * einsum("m,d->md", error, v))
    return new_V, new_U
