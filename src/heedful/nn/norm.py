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
    """norm(x), with its `input`, its `scale` and its `output` shown; unwatched, norm(x) alone.

    The scale is what a row is divided by, √(var x + ε) or √(mean x² + ε), (…, 1). Whoever watches it gets the
    equation term by term, so that an edit of it counts, and the last norm can be frozen.
    """
    if ctx.watch is None:
        normed: Tensor = norm(x)
        return normed
    x = ctx.see("input", x)
    layer = isinstance(norm, nn.LayerNorm)
    if not (layer or isinstance(norm, RMSNorm)) or not ctx.watches("scale"):
        return ctx.see("output", norm(x))
    assert isinstance(norm, nn.LayerNorm | RMSNorm)
    narrow = x.to(norm.weight.dtype) if getattr(norm, "narrows", False) else x
    wide = narrow.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True) if layer else wide
    scale = ctx.see("scale", (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt())
    out = centred / scale
    if isinstance(norm, RMSNorm):
        return ctx.see("output", norm.weight * out.to(narrow.dtype))
    out = out * norm.weight if norm.bias is None else out * norm.weight + norm.bias
    return ctx.see("output", out.to(x.dtype))
