"""Layers that read the same x as one product on a GPU; going back, one kernel joins their gradients (Triton).

    [y₁ y₂ …] = x [W₁ W₂ …]ᵀ + [b₁ b₂ …];   back: d = [up₁ up₂ …] and Σ_rows d, in one visit to memory

Three products of 768 columns take longer than one of 2,304, their gradients of x have to be added, and each
gradient is read once more to be summed for its bias. Against that stands one copy of the gradients. What the
layers say is handed on as views of the one product.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function


class Tile(NamedTuple):
    """What a program works on at a time."""

    rows: int
    columns: int
    warps: int


STRIPE = 256  # rows whose sum a program takes
TILE = Tile(32, 128, 4)
MAX_PARTS = 3  # tensors that one launch joins


def stripe_count(rows: int) -> int:
    """How many partial sums a column has."""
    return -(-rows // STRIPE)


def concat_reference(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The tensors side by side, and the sums of their columns."""
    whole = torch.cat(parts, 1)
    return whole, whole.float().sum(0, keepdim=True)


@functools.cache
def concat_kernel() -> Any:
    """The kernel, made when a GPU first asks for it."""
    import triton
    import triton.language as tl

    @triton.jit
    def concat(  # type: ignore[no-untyped-def]
        x, y, z, out, sums, M, A, B, C, sx, sy, sz,
        STRIPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ):  # fmt: skip
        """x (M, A), y (M, B) and z (M, C), their rows sx, sy and sz apart; a block lies in one of them."""
        wide = A + B + C
        block = tl.program_id(0)
        first, second = tl.cdiv(A, BN), tl.cdiv(B, BN)
        base, stride, size, before, nth = x, sx, A, 0, block
        if block >= first + second:
            base, stride, size, before, nth = z, sz, C, A + B, block - first - second
        elif block >= first:
            base, stride, size, before, nth = y, sy, B, A, block - first
        n = nth * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, STRIPE, BM):
            m = tl.program_id(1).to(tl.int64) * STRIPE + start + tl.arange(0, BM)
            inside = (m[:, None] < M) & (n[None, :] < size)
            v = tl.load(base + m[:, None] * stride + n[None, :], mask=inside, other=0.0)
            tl.store(out + before + m[:, None] * wide + n[None, :], v, mask=inside)
            total += v.to(tl.float32)
        tl.store(sums + tl.program_id(1) * wide + before + n, tl.sum(total, 0), mask=n < size)

    return concat


@torch.library.custom_op("heedful::join", mutates_args=())
def concat_with_sums(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Matrices side by side, and the sums of their columns, in parts."""
    return launch_concat(parts) if parts[0].is_cuda else concat_reference(parts)


def launch_concat(parts: list[Tensor], tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The kernel over up to three matrices."""
    ready = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    ready += [ready[0][:, :0]] * (MAX_PARTS - len(ready))
    sizes, strides = [part.shape[1] for part in ready], [part.stride(0) for part in ready]
    (M, wide), (rows, columns, warps) = (len(ready[0]), sum(sizes)), tile or TILE
    out = torch.empty(M, wide, device=ready[0].device, dtype=ready[0].dtype)
    sums = torch.empty(stripe_count(M), wide, device=out.device, dtype=torch.float32)
    grid = (sum(-(-size // columns) for size in sizes), stripe_count(M))
    concat_kernel()[grid](
        *ready, out, sums, M, *sizes, *strides, STRIPE=STRIPE, BM=rows, BN=columns, num_warps=warps
    )
    return out, sums


@concat_with_sums.register_fake
def _(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows, wide = len(parts[0]), sum(part.shape[1] for part in parts)
    count = stripe_count(rows) if parts[0].is_cuda else 1
    return parts[0].new_empty(rows, wide), parts[0].new_empty(count, wide, dtype=torch.float32)


class _LinearGroup(Function):
    """x Wᵀ + b in pieces of the given sizes"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, sizes: list[int]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, w)
        ctx.has_bias = b is not None
        return F.linear(x, w, b).split(sizes, 1)

    @staticmethod
    def backward(ctx: Any, *ups: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        d, sums = concat_with_sums(list(ups))
        return d @ w, d.t() @ x, sums.sum(0).to(w.dtype) if ctx.has_bias else None, None


def linear_group(x: Tensor, layers: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What up to three layers say to the same x (…, D), multiplied in `dtype`; all have a bias or none."""
    w = torch.cat([layer.weight.to(dtype) for layer in layers])
    b = torch.cat([layer.bias.to(dtype) for layer in layers]) if layers[0].bias is not None else None
    sizes = [layer.out_features for layer in layers]
    outs: tuple[Tensor, ...] = _LinearGroup.apply(x.to(dtype).reshape(-1, x.shape[-1]), w, b, sizes)
    return tuple(y.unflatten(0, x.shape[:-1]) for y in outs)
