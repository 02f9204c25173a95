"""y = x Wᵀ + b, both factors rounded to 8-bit floats   (Micikevicius et al. 2022)

Forward factors are e4m3 (more digits), gradients e5m2 (more range), one scale per tensor. It is taken again
each time from 256 rows spread over the tensor, with headroom for what they did not show: a float needs no
tight scale, and nothing has to be remembered from step to step. Beyond it values are held at the largest
float8.

Each of a layer's three products sums over rows that lie whole in memory, so a factor is needed as it stands
and turned on its side. `kernels/gpu/linear_kernels.py` writes both in one visit, sums the columns of a
gradient on the way (the slope of the bias), and takes a GELU and its derivative along. In bytes a number, for
65,536 rows of GPT-2 (7 · 768 numbers a row enter products, 9 · 768 gradients leave them): bfloat16 writes 2,
reads 2 to sum a gradient; float8 reads 2, writes 1 + 1. To keep the weights' products in bfloat16 would write
2 + 1 and gain nothing there; a largest value found beforehand would read 2 more.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.kernels.gpu.operators import operator

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
HEADROOM = {FORWARD: 16.0, BACKWARD: 256.0}  # how far above the rows looked at a value may lie
SAMPLED_ROWS = 256
ROWS = 16  # what a product's sizes must be multiples of
PLAIN, GELU, SLOPE = 0, 1, 2  # operands: x, gelu(x), up · gelu′(x)


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


@operator("turn8")
def round_operand(
    parts: list[Tensor], up: Tensor | None, operand_kind: int, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tensors side by side, rounded: as they stand, on their side, 1/s; sums of a gradient's columns."""
    kind = BACKWARD if gradient else FORWARD
    if parts[0].is_cuda:
        from heedful.kernels.gpu.linear_kernels import launch_round

        return launch_round(parts, up, operand_kind, kind, HEADROOM[kind], gradient)
    v = torch.cat([operand(part, up, operand_kind) for part in parts], 1)
    flat, back = round_float8(v, kind)
    return flat, flat.t().contiguous(), back, v.sum(0, keepdim=True) if gradient else v[:0].clone()


def round_matrix(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x · s in e4m3 as it stands and on its side, and 1/s"""
    flat, turned, back, _ = round_operand([x], None, PLAIN, False)
    return flat, turned, back


def transpose_float8(x: Tensor) -> Tensor:
    """xᵀ in memory too"""
    if not x.is_cuda:
        return x.t().contiguous()
    from heedful.kernels.gpu.linear_kernels import transpose_bytes

    return transpose_bytes(x)


def float8_product(
    a: Tensor, sa: Tensor, b: Tensor, sb: Tensor, dtype: torch.dtype, bias: Tensor | None = None,
    fast: bool = True,
) -> Tensor:  # fmt: skip
    """a (M, K) times bᵀ, b (N, K), both with rows whole.

    `fast` keeps fewer digits of a sum: not for those over many thousand products.
    """
    if a.is_cuda:
        fused = bias if dtype == torch.bfloat16 else None  # the library adds no bias to wider sums
        out: Tensor = torch._scaled_mm(
            a, b.t(), scale_a=sa, scale_b=sb, bias=fused, out_dtype=dtype, use_fast_accum=fast
        )
        return out if bias is None or fused is not None else out + bias
    with torch.autocast("cpu", enabled=False):
        exact = (a.float() @ b.float().t()) * (sa * sb)
        return (exact if bias is None else exact + bias.float()).to(dtype)


class Head8(nn.Linear):
    """An output matrix that the cross-entropy multiplies in float8; elsewhere a plain layer."""
