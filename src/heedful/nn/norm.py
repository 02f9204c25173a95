"""Normalisation over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.context import Context


class LayerNorm(nn.LayerNorm):
    """γ (x − mean x) / √(var x + ε) + β   (Ba et al. 2016); `weight=False`: γ = 1 and β = 0, not learned"""

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True, weight: bool = True) -> None:
        super().__init__(dim, eps=eps, elementwise_affine=weight, bias=bias)


class OffsetLayerNorm(LayerNorm):
    """(1 + γ) (x − mean x) / √(var x + ε) + β   (Nemotron): γ = 0 changes nothing"""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__(dim, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """γ x / √(mean x² + ε), in float32 or better   (Zhang and Sennrich 2019)"""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        normed = F.rms_norm(x.float(), self.weight.shape, None, self.eps)
        return self.weight * normed.to(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """(1 + γ) x / √(mean x² + ε), in float32   (Gemma Team 2024, arXiv 2403.08295): γ = 0 changes nothing"""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(wide, self.weight.shape, 1 + self.weight.to(wide.dtype), self.eps).to(x.dtype)


class HeadLayerNorm(nn.Module):
    """γ_h (x_h − mean x_h) / √(var x_h + ε): heads (B, H, T, K), each with its γ    (StableLM 2)"""

    def __init__(self, heads: int, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight[:, None]

    def select_heads(self, heads: Sequence[int]) -> HeadLayerNorm:
        """The same norm for some of the heads."""
        selected = HeadLayerNorm(len(heads), self.weight.shape[1], self.eps)
        selected.weight = nn.Parameter(self.weight.detach()[list(heads)])
        return selected


class GroupRMSNorm(nn.Module):
    """γ x_g / √(mean x_g² + ε) for each of `groups` equal parts x_g of x, in float32   (Mamba-2's code)"""

    def __init__(self, groups: int, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.float().unflatten(-1, (self.groups, -1))
        return self.weight * F.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2).to(x.dtype)


def norm_size(norm: nn.Module) -> int:
    """How many entries a norm with weights normalises together."""
    return cast(Tensor, norm.weight).shape[-1]


def gain_and_shift(norm: nn.LayerNorm | RMSNorm) -> tuple[Tensor | float, Tensor | float]:
    """γ and β of a norm y = γ x̂ + β, x̂ what is normalised; 1 and 0 where it has none."""
    gain = 1.0 if norm.weight is None else norm.weight
    shift = 0.0 if isinstance(norm, RMSNorm) or norm.bias is None else norm.bias
    return (1 + gain if isinstance(norm, OffsetLayerNorm | OffsetRMSNorm) else gain), shift


def show_norm(norm: nn.Module, x: Tensor, ctx: Context) -> Tensor:
    """norm(x), with its `input`, its `scale` and its `output` shown; unwatched, norm(x) alone."""
    if ctx.watch is None:
        return norm(x)
    return ctx.see("output", show_scale(norm, ctx.see("input", x), ctx))


def show_scale(norm: nn.Module, x: Tensor, ctx: Context) -> Tensor:
    """norm(x), with its `scale` shown: the divisor of a row, √(var x + ε) or √(mean x² + ε), (…, 1).

    Where an edit replaces it, what comes out follows from the edited one: so a norm can be frozen.
    """
    if ctx.watch is None or not isinstance(norm, nn.LayerNorm | RMSNorm) or not ctx.watches("scale"):
        return norm(x)
    narrow = x.to(norm.weight.dtype) if getattr(norm, "narrows", False) else x
    wide = narrow.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else wide
    scale = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    edited = ctx.see("scale", scale)
    if edited is scale:
        return norm(x)
    gain, shift = gain_and_shift(norm)
    return gain * (centred / edited).to(narrow.dtype) + shift
