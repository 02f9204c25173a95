"""Parts of a model that take a faster way through a compiled step on a GPU; what they compute is the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.kernels.gelu import gelu_mlp
from heedful.kernels.linear_group import linear_group
from heedful.nn.attention import Attention
from heedful.nn.context import Context, PartState
from heedful.nn.ffn import MLP, gelu_tanh


class FusedAttention(Attention):
    """Attention whose q, k and v are one product; one kernel joins and sums their gradients."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not torch.is_autocast_enabled(x.device.type):
            return super().project(x)
        q, k, v = linear_group(x, (self.q, self.k, self.v), torch.get_autocast_dtype(x.device.type))
        return q, k, v


class FusedMLP(MLP):
    """down(gelu(up x)) with a kernel for the GELU; going back, it also gives the slope of up's bias.

    The compiler reads the slope again to sum it: at 65,536 × 3,072 numbers 0.4 GB more in every layer.
    """

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        narrow = torch.is_autocast_enabled(x.device.type)
        if not narrow or ctx.watches("up", "hidden") or (self.training and self.dropout > 0):
            return super().forward(x, ctx, state)
        dtype = torch.get_autocast_dtype(x.device.type)
        factors = self.up.weight, self.up.bias, self.down.weight, self.down.bias
        w1, b1, w2, b2 = (t.to(dtype) for t in factors)
        return gelu_mlp(x.to(dtype), w1, b1, w2, b2)


def fuse(model: nn.Module) -> int:
    """Replace parts by faster ones in place; return how many were replaced."""
    count = 0
    for module in model.modules():
        if type(module) is Attention and alike(module.q, module.k, module.v):
            module.__class__, count = FusedAttention, count + 1
        elif type(module) is MLP and module.act is gelu_tanh and alike(module.up, module.down, has_bias=True):
            module.__class__, count = FusedMLP, count + 1
    return count


def alike(*layers: nn.Linear, has_bias: bool = False) -> bool:
    """Return whether all layers are plain and all have a bias, or, unless `has_bias`, none has."""
    have = {m.bias is not None for m in layers}
    return all(type(m) is nn.Linear for m in layers) and (
        have == {True} or (have == {False} and not has_bias)
    )
