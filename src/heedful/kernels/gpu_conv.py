"""A causal convolution over a few positions, each channel by itself, and its gradient on a GPU (Triton).

    y_t = b + Σ_{j<W} w_j x_{t−W+1+j}
    ∂x_t = Σ_j w_j dy_{t+W−1−j},   ∂w_j = Σ_t dy_t x_{t−W+1+j},   ∂b = Σ_t dy_t

`heedful.nn.conv.causal_conv` has the definition. A program has TILE positions of WIDTH channels at a time;
the same numbers are read W times, all but once from cache.
"""

# mypy: disable-error-code="assignment"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 16  # positions
BACK_TILE = 8  # positions of the gradient, which holds W + 1 sums for each number
WIDTH = 128  # channels
SPAN = 128  # positions whose gradients one program adds up for w and b


@triton.jit
def load_rows(x, base, t, d, T, D):  # type: ignore[no-untyped-def]
    """x at the positions t of one row, in float32; zeros outside of it"""
    inside = ((t >= 0) & (t < T))[:, None] & (d < D)[None, :]
    return tl.load(x + (base + t)[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def conv_kernel(  # type: ignore[no-untyped-def]
    x, w, b, y, T, D, W: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, BIASED: tl.constexpr
):
    d = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    t, base = tl.program_id(1) * TILE + tl.arange(0, TILE), tl.program_id(2).to(tl.int64) * T
    total = tl.zeros((TILE, WIDTH), tl.float32)
    if BIASED:
        total += tl.load(b + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(W):
        weight = tl.load(w + d * W + j, mask=d < D, other=0.0).to(tl.float32)
        total += weight[None, :] * load_rows(x, base, t - (W - 1) + j, d, T, D)
    inside = (t < T)[:, None] & (d < D)[None, :]
    tl.store(y + (base + t)[:, None] * D + d[None, :], total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def conv_backward_kernel(  # type: ignore[no-untyped-def]
    dy, x, w, dx, sums, T, D,
    W: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """∂x of SPAN positions, and what they add to ∂w and ∂b: (programs, W + 1, D)"""
    d, base = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.program_id(2).to(tl.int64) * T
    weights, slopes = (), ()
    for j in tl.static_range(W):
        weights = weights + (tl.load(w + d * W + j, mask=d < D, other=0.0).to(tl.float32),)
        slopes = slopes + (tl.zeros((TILE, WIDTH), tl.float32),)
    slope = tl.zeros((TILE, WIDTH), tl.float32)  # summed over positions once, at the end
    for begin in range(0, SPAN, TILE):
        t = tl.program_id(1) * SPAN + begin + tl.arange(0, TILE)
        up, total, added = load_rows(dy, base, t, d, T, D), tl.zeros((TILE, WIDTH), tl.float32), ()
        slope += up
        for j in tl.static_range(W):
            total += weights[j][None, :] * load_rows(dy, base, t + (W - 1) - j, d, T, D)
            added = added + (slopes[j] + up * load_rows(x, base, t - (W - 1) + j, d, T, D),)
        slopes = added
        inside = (t < T)[:, None] & (d < D)[None, :]
        tl.store(dx + (base + t)[:, None] * D + d[None, :], total.to(dx.dtype.element_ty), mask=inside)
    place = (tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * (W + 1) * D + d
    for j in tl.static_range(W):
        tl.store(sums + place + j * D, tl.sum(slopes[j], 0), mask=d < D)
    tl.store(sums + place + W * D, tl.sum(slope, 0), mask=d < D)


def launch_conv(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """y of x (B, T, D), w (D, W) and b (D)"""
    x, w = x.contiguous(), w.contiguous()
    (rows, T, D), W = x.shape, w.shape[1]
    y = torch.empty_like(x)
    conv_kernel[(triton.cdiv(D, WIDTH), triton.cdiv(T, TILE), rows)](
        x, w, w if b is None else b, y, T, D, W=W, TILE=TILE, WIDTH=WIDTH, BIASED=b is not None, num_warps=4
    )
    return y


def launch_conv_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """∂x, ∂w and ∂b, the last two in float32"""
    dy, x, w = dy.contiguous(), x.contiguous(), w.contiguous()
    (rows, T, D), W = x.shape, w.shape[1]
    spans, dx = triton.cdiv(T, SPAN), torch.empty_like(x)
    sums = torch.empty(rows * spans, W + 1, D, device=x.device, dtype=torch.float32)
    conv_backward_kernel[(triton.cdiv(D, WIDTH), spans, rows)](
        dy, x, w, dx, sums, T, D, W=W, TILE=BACK_TILE, WIDTH=WIDTH, SPAN=SPAN, num_warps=4
    )
    total = sums.sum(0)
    return dx, total[:W].t().contiguous(), total[W].clone()
