"""y = x Wᵀ + b, both factors rounded to 8-bit floats   (Micikevicius et al. 2022)

Forward factors are e4m3 (more digits), gradients e5m2 (more range), one scale per tensor. It is taken again
each time from 256 rows spread over the tensor, with headroom for what they did not show: a float needs no
tight scale, and nothing has to be remembered from step to step. Beyond it values are held at the largest
float8.

Each of a layer's three products sums over rows that lie whole in memory, so a factor is needed as it stands
and turned on its side. `kernels/gpu/float8.py` writes both in one visit, sums the columns of a gradient on
the way (the slope of the bias), and takes a GELU and its derivative along. In bytes a number, for 65,536
rows of GPT-2 (7 · 768 numbers a row enter products, 9 · 768 gradients leave them): bfloat16 writes 2, reads 2
to sum a gradient; float8 reads 2, writes 1 + 1. To keep the weights' products in bfloat16 would write 2 + 1
and gain nothing there; a largest value found beforehand would read 2 more.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
HEADROOM = {FORWARD: 16.0, BACKWARD: 256.0}  # how far above the rows looked at a value may lie
SAMPLED_ROWS = 256
ROWS = 16  # what a product's sizes must be multiples of
PLAIN, GELU, SLOPE = 0, 1, 2
LONG_SUMS_FAST = False  # whether those, too, may be kept with fewer digits


def round_float8(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """x · s in float8, and 1/s;  s = largest float8 / (headroom · largest |x| in some rows)"""
    sample, largest = x[:: -(-len(x) // SAMPLED_ROWS)], torch.finfo(kind).max
    scale = largest / (sample.abs().amax().float() * HEADROOM[kind]).clamp(min=1e-30)
    return (x.float() * scale).clamp(-largest, largest).to(kind), 1.0 / scale


def product_reference(x: Tensor, weight: Tensor) -> Tensor:
    """The definition: round both factors, multiply exactly."""
    (a, sa), (b, sb) = round_float8(x, FORWARD), round_float8(weight, FORWARD)
    return F.linear(a.float() * sa, b.float() * sb).to(x.dtype)


def operand(x: Tensor, up: Tensor | None, operand_kind: int) -> Tensor:
    """x, gelu(x) or up · gelu′(x)"""
    if operand_kind == GELU:
        return F.gelu(x.float(), approximate="tanh")
    if operand_kind == SLOPE:
        assert up is not None
        return torch.ops.aten.gelu_backward(up.float(), x.float(), approximate="tanh")
    return x.float()


@torch.library.custom_op("heedful::turn8", mutates_args=())
def round_operand(
    parts: list[Tensor], up: Tensor | None, operand_kind: int, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tensors side by side, rounded: as they stand, on their side, 1/s; sums of a gradient's columns."""
    kind = BACKWARD if gradient else FORWARD
    if parts[0].is_cuda:
        from heedful.kernels.gpu.float8 import launch_round

        return launch_round(parts, up, operand_kind, kind, HEADROOM[kind], gradient)
    v = torch.cat([operand(part, up, operand_kind) for part in parts], 1)
    flat, back = round_float8(v, kind)
    return flat, flat.t().contiguous(), back, v.sum(0, keepdim=True) if gradient else v[:0].clone()


@round_operand.register_fake
def _(parts: list[Tensor], up: Tensor | None, operand_kind: int, gradient: bool) -> tuple[Tensor, ...]:
    kind, rows = BACKWARD if gradient else FORWARD, len(parts[0])
    width, parts_of_sum = sum(part.shape[1] for part in parts), int(gradient)
    if gradient and parts[0].is_cuda:
        from heedful.kernels.gpu.float8 import partial_sums as count

        parts_of_sum = count(rows, operand_kind)
    new = lambda *size, dtype=torch.float32: parts[0].new_empty(size, dtype=dtype)
    return new(rows, width, dtype=kind), new(width, rows, dtype=kind), new(), new(parts_of_sum, width)


def round_matrix(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x · s in e4m3 as it stands and on its side, and 1/s"""
    flat, turned, back, _ = round_operand([x], None, PLAIN, False)
    return flat, turned, back


def transpose_float8(x: Tensor) -> Tensor:
    """xᵀ in memory too"""
    if not x.is_cuda:
        return x.t().contiguous()
    from heedful.kernels.gpu import float8 as gpu_float8

    return gpu_float8.transpose_bytes(x)


def float8_product(
    a: Tensor, sa: Tensor, b: Tensor, sb: Tensor, dtype: torch.dtype, bias: Tensor | None = None,
    fast: bool = True,
) -> Tensor:  # fmt: skip
    """a (M, K) times bᵀ, b (N, K), both with rows whole; `fast` sums with fewer digits, for shorter sums."""
    if a.is_cuda:
        fused = bias if dtype == torch.bfloat16 else None  # the library adds no bias to wider sums
        out: Tensor = torch._scaled_mm(
            a, b.t(), scale_a=sa, scale_b=sb, bias=fused, out_dtype=dtype, use_fast_accum=fast
        )
        return out if bias is None or fused is not None else out + bias
    with torch.autocast("cpu", enabled=False):
        exact = (a.float() @ b.float().t()) * (sa * sb)
        return (exact if bias is None else exact + bias.float()).to(dtype)


def long_product(a: Tensor, sa: Tensor, b: Tensor, sb: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for sums over many thousand products."""
    return float8_product(a, sa, b, sb, dtype, fast=LONG_SUMS_FAST)


def _concat_scales(tensors: tuple[Tensor, ...]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class _Linear8(Function):
    """Layers that read the same x, as one product; each output and each gradient stay apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, has_bias: bool, *given: Tensor) -> tuple[Tensor, ...]:
        weights = given[: len(given) // 2] if has_bias else given
        bias = _concat_scales(given[len(weights) :]).to(x.dtype) if has_bias else None
        a, at, sa = round_matrix(x)
        b, bt, sb = round_matrix(_concat_scales(weights))
        ctx.save_for_backward(at, sa, bt, sb)
        ctx.sizes, ctx.has_bias, ctx.kinds = [len(w) for w in weights], has_bias, [t.dtype for t in given]
        y = float8_product(a, sa, b, sb, x.dtype, bias)
        return y.split(ctx.sizes, 1) if len(weights) > 1 else (y,)

    @staticmethod
    def backward(ctx: Any, *ups: Tensor) -> tuple[Tensor | None, ...]:
        at, sa, bt, sb = ctx.saved_tensors
        g, gt, sg, sums = round_operand(list(ups), None, PLAIN, True)
        gx = float8_product(g, sg, bt, sb, ups[0].dtype)
        gw = long_product(gt, sg, at, sa, torch.float32).split(ctx.sizes)
        gb = sums.sum(0).split(ctx.sizes) if ctx.has_bias else ()
        return gx, None, *(t.to(kind) for t, kind in zip((*gw, *gb), ctx.kinds, strict=True))


class _MLP8(Function):
    """W₂ gelu(W₁ x + b₁) + b₂; the hidden state is kept before the GELU, and after it in 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        a, at, sa = round_matrix(x)
        b, bt, sb = round_matrix(w1)
        u = float8_product(a, sa, b, sb, x.dtype, b1.to(x.dtype))
        h, ht, sh, _ = round_operand([u], None, GELU, False)
        c, ct, sc = round_matrix(w2)
        ctx.save_for_backward(at, sa, bt, sb, u, ht, sh, ct, sc)
        ctx.kinds = [t.dtype for t in (w1, b1, w2, b2)]
        return float8_product(h, sh, c, sc, x.dtype, b2.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, ...]:
        at, sa, bt, sb, u, ht, sh, ct, sc = ctx.saved_tensors
        g, gt, sg, over = round_operand([up], None, PLAIN, True)
        gw2 = long_product(gt, sg, ht, sh, torch.float32)
        d, dt, sd, under = round_operand([u], float8_product(g, sg, ct, sc, up.dtype), SLOPE, True)
        gw1 = long_product(dt, sd, at, sa, torch.float32)
        slopes = zip((gw1, under.sum(0), gw2, over.sum(0)), ctx.kinds, strict=True)
        return float8_product(d, sd, bt, sb, up.dtype), *(t.to(kind) for t, kind in slopes)


def as_rows(x: Tensor) -> Tensor:
    """x as the step's products want it: rows of bfloat16 under autocast."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return x.reshape(-1, x.shape[-1])


def fits_float8(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether these rows and these layers can be multiplied in float8."""
    return x.numel() // x.shape[-1] % ROWS == 0 and all(
        layer.in_features % ROWS == 0 and layer.out_features % ROWS == 0 for layer in layers
    )


def linear8(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What several layers say to the same x; all of them have a bias or none."""
    given = [layer.weight for layer in layers]
    has_bias = layers[0].bias is not None
    given += [layer.bias for layer in layers] if has_bias else []
    outs: tuple[Tensor, ...] = _Linear8.apply(as_rows(x), has_bias, *given)
    return tuple(y.unflatten(0, x.shape[:-1]) for y in outs)


def mlp8(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    """down(gelu(up x)), with tanh's GELU and both biases"""
    y: Tensor = _MLP8.apply(as_rows(x), up.weight, up.bias, down.weight, down.bias)
    return y.unflatten(0, x.shape[:-1])


class Float8Linear(nn.Linear):
    """A linear layer whose three products run in float8; the weight stays as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return linear8(x, self)[0] if fits_float8(x, self) else super().forward(x)


class Head8(nn.Linear):
    """An output matrix that the cross-entropy multiplies in float8; elsewhere a plain layer."""
