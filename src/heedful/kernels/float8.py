"""y = x Wᵀ, both factors rounded to 8-bit floats   (Micikevicius et al. 2022)

Forward factors are e4m3 (more digits), gradients e5m2 (more range). One scale per tensor, such that its own
largest value just fits. `reference` rounds in the same way and multiplies in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def scale_of(x: Tensor, kind: torch.dtype) -> Tensor:
    """s = largest float8 / largest |x|"""
    return torch.finfo(kind).max / x.abs().amax().float().clamp(min=1e-12)


def rounded(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """x · s in float8, and 1/s"""
    scale = scale_of(x, kind)
    return (x.float() * scale).to(kind), 1.0 / scale


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The definition: round both factors, multiply exactly."""
    (a, sa), (b, sb) = rounded(x, FORWARD), rounded(weight, FORWARD)
    return F.linear(a.float() * sa, b.float() * sb).to(x.dtype)


def _multiply(a: Tensor, sa: Tensor, b: Tensor, sb: Tensor, dtype: torch.dtype) -> Tensor:
    """a (M, K) times bᵀ, b (N, K), both with rows contiguous."""
    out: Tensor = torch._scaled_mm(a, b.t(), scale_a=sa, scale_b=sb, out_dtype=dtype, use_fast_accum=True)
    return out


class _Linear8(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (a, sa), (b, sb) = rounded(x.reshape(-1, x.shape[-1]), FORWARD), rounded(weight, FORWARD)
        ctx.save_for_backward(a, sa, b, sb)  # a byte a number: half the memory of bfloat16
        ctx.shape, ctx.kind = x.shape, weight.dtype
        return _multiply(a, sa, b, sb, x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, sa, b, sb = ctx.saved_tensors
        g, sg = rounded(up.reshape(-1, up.shape[-1]), BACKWARD)
        gx = _multiply(g, sg, b.t().contiguous(), sb, up.dtype).view(ctx.shape)
        gw = _multiply(g.t().contiguous(), sg, a.t().contiguous(), sa, up.dtype).to(ctx.kind)
        return gx, gw


class Float8Linear(nn.Linear):
    """A linear layer whose three products run in float8; the weight stays as it is."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y: Tensor = _Linear8.apply(x, self.weight)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def swap_in(model: nn.Module, *, inside: str = "") -> int:
    """Make every linear layer of the blocks a float8 one, in place, where its sizes are multiples of 16.

    How many there were is given back.
    """
    count = 0
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or inside not in name or name.startswith("head"):
            continue
        if module.in_features % 16 == 0 and module.out_features % 16 == 0:
            module.__class__ = Float8Linear
            count += 1
    return count
