"""Normalisation over the last dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.context import Context
from heedful.nn.operators import operators


class LayerNorm(nn.LayerNorm):
    """γ (x − mean x) / √(var x + ε) + β   (Ba et al. 2016)"""

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps=eps, bias=bias)


class RMSNorm(nn.Module):
    """γ x / √(mean x² + ε), in float32   (Zhang and Sennrich 2019)"""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        fused = operators() if x.dtype == self.weight.dtype else None
        if fused is not None:
            return fused.rms_norm(x, self.weight, self.eps)
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        normed = F.rms_norm(x.float(), self.weight.shape, None, self.eps)
        return self.weight * normed.to(x.dtype)


def show_norm(norm: nn.Module, x: Tensor, ctx: Context) -> Tensor:
    """norm(x), with its `input`, its `scale` and its `output` shown; unwatched, norm(x) alone."""
    if ctx.watch is None:
        normed: Tensor = norm(x)
        return normed
    return ctx.see("output", show_scale(norm, ctx.see("input", x), ctx))


def show_scale(norm: nn.Module, x: Tensor, ctx: Context) -> Tensor:
    """norm(x), with its `scale` shown: what a row is divided by, √(var x + ε) or √(mean x² + ε), (…, 1).

    Where an edit replaces it, what comes out follows from the edited one: so a norm can be frozen.
    """
    if ctx.watch is None or not isinstance(norm, nn.LayerNorm | RMSNorm) or not ctx.watches("scale"):
        normed: Tensor = norm(x)
        return normed
    narrow = x.to(norm.weight.dtype) if getattr(norm, "narrows", False) else x
    wide = narrow.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else wide
    scale = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    edited = ctx.see("scale", scale)
    if edited is scale:
        return norm(x)
    out = (centred / edited).to(narrow.dtype)
    if isinstance(norm, RMSNorm):
        return norm.weight * out
    return out * norm.weight if norm.bias is None else out * norm.weight + norm.bias
