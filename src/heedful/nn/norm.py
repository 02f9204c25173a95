"""Normalisation over the last dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
