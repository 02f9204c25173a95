"""Linear layers of a training step on a GPU in bfloat16 or in 8-bit floats, forward and back (Triton).

    [y₁ y₂ …] = x [W₁ W₂ …]ᵀ + [b₁ b₂ …]      layers that read the same x, as one product
    y = W₂ gelu(W₁ x + b₁) + b₂                a hidden layer with tanh's GELU

Three products of 768 columns take longer than one of 2,304, their gradients of x have to be added, and each
gradient is read once more to be summed for its bias. So one kernel writes the gradients side by side and sums
their columns, in one visit to memory; for a hidden layer it multiplies by gelu′ on the way. With

    h = u g,   g = ½ (1 + tanh t) = 1 / (1 + e⁻²ᵗ),   t = √(2/π) (u + 0.044715 u³)

u and h are both kept from forward to backward: at 65,536 × 3,072 numbers writing h again costs more than the
0.4 GB it takes. In 8 bits the same happens while numbers are rounded (kernels/gpu/float8_product.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from heedful.kernels.gpu.float8_product import GELU, PLAIN, ROWS, SLOPE, float8_product, round_operand
from heedful.kernels.gpu.operators import operator


@operator("gelu")
def gelu(u: Tensor) -> Tensor:
    """h; the compiler does not see into it, and so keeps h instead of making it again."""
    if not u.is_cuda:
        return F.gelu(u, approximate="tanh")
    from heedful.kernels.gpu.linear_kernels import launch_gelu

    return launch_gelu(u.contiguous())


def join_reference(parts: list[Tensor], up: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Matrices side by side, or up · gelu′ of the only one, and the sums of their columns."""
    whole = torch.cat(parts, 1)
    if up is not None:
        whole = torch.ops.aten.gelu_backward(up, whole, approximate="tanh")
    return whole, whole.float().sum(0, keepdim=True)


@operator("join")
def join(parts: list[Tensor], up: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What `join_reference` says of up to three matrices; the sums come in parts of some rows."""
    if not parts[0].is_cuda:
        return join_reference(parts, up)
    from heedful.kernels.gpu.linear_kernels import launch_join

    return launch_join(parts, up)


# A matrix as products read it: with whole rows, on its side, and, of 8 bits, what its numbers are times.
Factor = tuple[Tensor, Tensor, Tensor | None]


def read_factor(x: Tensor, float8: bool, kind: int = PLAIN) -> Factor:
    """x or, for GELU, gelu(x)"""
    if float8:
        return round_operand([x], None, kind, False)[:3]
    x = gelu(x) if kind == GELU else x
    return x, x.t(), None


def read_gradient(parts: Sequence[Tensor], float8: bool, up: Tensor | None = None) -> tuple[Factor, Tensor]:
    """Gradients side by side, or up · gelu′ of the only tensor, and the sums of their columns."""
    if float8:
        *factor, sums = round_operand(list(parts), up, PLAIN if up is None else SLOPE, True)
        return (factor[0], factor[1], factor[2]), sums.sum(0)
    if len(parts) == 1 and up is None:
        return (parts[0], parts[0].t(), None), parts[0].sum(0, dtype=torch.float32)
    whole, sums = join(list(parts), up)
    return (whole, whole.t(), None), sums.sum(0)


def multiply(
    a: Tensor, sa: Tensor | None, b: Tensor, sb: Tensor | None, dtype: torch.dtype,
    bias: Tensor | None = None, fast: bool = True,
) -> Tensor:  # fmt: skip
    """a bᵀ + bias of factors; `dtype` and `fast` are for those in 8 bits."""
    if sa is None or sb is None:
        return F.linear(a, b, bias)
    return float8_product(a, sa, b, sb, dtype, bias, fast)


def _concat(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class _LinearGroup(Function):
    """Layers that read the same x, as one product; each output and each gradient stay apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, float8: bool, has_bias: bool, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) // 2 if has_bias else len(given)
        weights = given[:count] if float8 else [w.to(x.dtype) for w in given[:count]]
        bias = _concat([b.to(x.dtype) for b in given[count:]]) if has_bias else None
        a, at, sa = read_factor(x, float8)
        b, bt, sb = read_factor(_concat(weights), float8)
        ctx.save_for_backward(at, sa, bt, sb)
        ctx.float8, ctx.sizes, ctx.has_bias = float8, [len(w) for w in weights], has_bias
        ctx.kinds = [t.dtype for t in given]
        y = multiply(a, sa, b, sb, x.dtype, bias)
        return y.split(ctx.sizes, 1) if count > 1 else (y,)

    @staticmethod
    def backward(ctx: Any, *ups: Tensor) -> tuple[Tensor | None, ...]:
        at, sa, bt, sb = ctx.saved_tensors
        (g, gt, sg), sums = read_gradient(ups, ctx.float8)
        gx = multiply(g, sg, bt, sb, ups[0].dtype)
        gw = multiply(gt, sg, at, sa, torch.float32, fast=False).split(ctx.sizes)
        gb = sums.split(ctx.sizes) if ctx.has_bias else ()
        return gx, None, None, *(t.to(kind) for t, kind in zip((*gw, *gb), ctx.kinds, strict=True))


class _HiddenLayer(Function):
    """W₂ gelu(W₁ x + b₁) + b₂; the hidden state is kept before the GELU, and after it for its product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, float8: bool, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        ctx.kinds = [t.dtype for t in (w1, b1, w2, b2)]
        if not float8:
            w1, w2 = w1.to(x.dtype), w2.to(x.dtype)
        a, at, sa = read_factor(x, float8)
        b, bt, sb = read_factor(w1, float8)
        u = multiply(a, sa, b, sb, x.dtype, b1.to(x.dtype))
        h, ht, sh = read_factor(u, float8, GELU)
        c, ct, sc = read_factor(w2, float8)
        ctx.save_for_backward(at, sa, bt, sb, u, ht, sh, ct, sc)
        ctx.float8 = float8
        return multiply(h, sh, c, sc, x.dtype, b2.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        at, sa, bt, sb, u, ht, sh, ct, sc = ctx.saved_tensors
        (g, gt, sg), over = read_gradient([up], ctx.float8)
        gw2 = multiply(gt, sg, ht, sh, torch.float32, fast=False)
        (d, dt, sd), under = read_gradient([u], ctx.float8, multiply(g, sg, ct, sc, up.dtype))
        gw1 = multiply(dt, sd, at, sa, torch.float32, fast=False)
        slopes = zip((gw1, under, gw2, over), ctx.kinds, strict=True)
        return multiply(d, sd, bt, sb, up.dtype), None, *(t.to(kind) for t, kind in slopes)


def as_rows(x: Tensor) -> Tensor:
    """x as the step's products want it: rows of bfloat16 under autocast."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return x.reshape(-1, x.shape[-1])


def linear_group(x: Tensor, layers: Sequence[nn.Linear], float8: bool = False) -> tuple[Tensor, ...]:
    """What up to three layers say to the same x (…, D), views of one product; all have a bias or none."""
    has_bias = layers[0].bias is not None
    given = [layer.weight for layer in layers] + [layer.bias for layer in layers if has_bias]
    outs: tuple[Tensor, ...] = _LinearGroup.apply(as_rows(x), float8, has_bias, *given)
    return tuple(y.unflatten(0, x.shape[:-1]) for y in outs)


def hidden_layer(x: Tensor, up: nn.Linear, down: nn.Linear, float8: bool = False) -> Tensor:
    """down(gelu(up x)), with tanh's GELU and both biases"""
    y: Tensor = _HiddenLayer.apply(as_rows(x), float8, up.weight, up.bias, down.weight, down.bias)
    return y.unflatten(0, x.shape[:-1])


def fits_float8(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether these rows and these layers can be multiplied in float8."""
    return x.numel() // x.shape[-1] % ROWS == 0 and all(
        layer.in_features % ROWS == 0 and layer.out_features % ROWS == 0 for layer in layers
    )


class Float8Linear(nn.Linear):
    """A linear layer whose three products run in float8; the weight stays as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return linear_group(x, [self], float8=True)[0] if fits_float8(x, self) else super().forward(x)
