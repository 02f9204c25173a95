"""silu of a short causal convolution, forward and back, each in one visit to memory (Triton).

    c_t = b + Σ_{j<4} w_j x_{t−3+j},   u_t = silu(c_t)
    dc_t = du_t silu′(c_t),   dx_t = Σ_j w_j dc_{t+3−j},   dw_j = Σ_t dc_t x_{t−3+j},   db = Σ_t dc_t

A program walks over CHUNK positions of BD channels and remembers the last three; x and dx may be columns of
wider rows. `heedful.nn.state_space.ssm.ShortConv` is the definition.
"""

# mypy: disable-error-code="assignment, no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.kernels.gpu.operators import launch

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
STEP = 8  # positions that are loaded at a time
CHUNK, CHANNELS = 32, 256  # positions and channels of a program


@triton.jit
def load_at(x, t, d, T, row: tl.constexpr, D: tl.constexpr):
    """x at position t, 0 where there is none"""
    return tl.load(x + t * row + d, mask=(d < D) & (t >= 0) & (t < T), other=0.0).to(tl.float32)


@triton.jit
def load_weights(w, bias, d, D: tl.constexpr):
    w0 = tl.load(w + d * 4, mask=d < D, other=0.0).to(tl.float32)
    w1 = tl.load(w + d * 4 + 1, mask=d < D, other=0.0).to(tl.float32)
    w2 = tl.load(w + d * 4 + 2, mask=d < D, other=0.0).to(tl.float32)
    w3 = tl.load(w + d * 4 + 3, mask=d < D, other=0.0).to(tl.float32)
    return w0, w1, w2, w3, tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def conv_forward(
    x, w, bias, u, T, row: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    first, b = tl.program_id(1) * CHUNK, tl.program_id(2).to(tl.int64)
    x += b * T * row
    u += b * T * D
    w0, w1, w2, w3, shift = load_weights(w, bias, d, D)
    x3, x2 = load_at(x, first - 3, d, T, row, D), load_at(x, first - 2, d, T, row, D)
    x1 = load_at(x, first - 1, d, T, row, D)
    for begin in range(first, min(first + CHUNK, T), STEP):
        xs = ()
        for i in tl.static_range(STEP):
            xs = xs + (load_at(x, begin + i, d, T, row, D),)
        for i in tl.static_range(STEP):
            c = shift + w0 * x3 + w1 * x2 + w2 * x1 + w3 * xs[i]
            out = c / (1.0 + tl.exp2(-c * LOG2E))
            tl.store(u + (begin + i) * D + d, out.to(u.dtype.element_ty), mask=(d < D) & (begin + i < T))
            x3, x2, x1 = x2, x1, xs[i]


@triton.jit
def silu_slope(c):
    open = 1.0 / (1.0 + tl.exp2(-c * LOG2E))
    return open * (1.0 + c * (1.0 - open))


@triton.jit
def conv_backward(
    du, x, w, bias, dx, parts, T, row: tl.constexpr, dx_row: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """`parts` (rows, chunks, 5, D) are the sums over a chunk for the four weights and the bias."""
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    first, b = tl.program_id(1) * CHUNK, tl.program_id(2).to(tl.int64)
    parts += (b * tl.num_programs(1) + tl.program_id(1)) * 5 * D
    x += b * T * row
    dx += b * T * dx_row
    du += b * T * D
    w0, w1, w2, w3, shift = load_weights(w, bias, d, D)
    x3, x2 = load_at(x, first - 3, d, T, row, D), load_at(x, first - 2, d, T, row, D)
    x1 = load_at(x, first - 1, d, T, row, D)
    zero = tl.zeros((BD,), tl.float32)
    s0, s1, s2, s3, total = zero, zero, zero, zero, zero
    g3, g2, g1 = zero, zero, zero  # dc of the three positions before
    xs, ups = (), ()
    for i in tl.static_range(3):
        xs, ups = xs + (load_at(x, first + i, d, T, row, D),), ups + (load_at(du, first + i, d, T, D, D),)
    for i in tl.static_range(3):
        g = ups[i] * silu_slope(shift + w0 * x3 + w1 * x2 + w2 * x1 + w3 * xs[i])
        s0, s1, s2, s3, total = s0 + g * x3, s1 + g * x2, s2 + g * x1, s3 + g * xs[i], total + g
        x3, x2, x1 = x2, x1, xs[i]
        g3, g2, g1 = g2, g1, g
    for begin in range(first, min(first + CHUNK, T), STEP):
        now, ups_now = (), ()
        for i in tl.static_range(STEP):
            t = begin + i + 3
            now, ups_now = now + (load_at(x, t, d, T, row, D),), ups_now + (load_at(du, t, d, T, D, D),)
        for i in tl.static_range(STEP):
            t = begin + i + 3
            g = ups_now[i] * silu_slope(shift + w0 * x3 + w1 * x2 + w2 * x1 + w3 * now[i])
            out = w3 * g3 + w2 * g2 + w1 * g1 + w0 * g
            tl.store(dx + (t - 3) * dx_row + d, out.to(dx.dtype.element_ty), mask=(d < D) & (t - 3 < T))
            own = tl.where(t < first + CHUNK, g, 0.0)  # those after the chunk are another program's
            s0, s1, s2, s3 = s0 + own * x3, s1 + own * x2, s2 + own * x1, s3 + own * now[i]
            total += own
            x3, x2, x1 = x2, x1, now[i]
            g3, g2, g1 = g2, g1, g
    sums = (s0, s1, s2, s3, total)
    for k in tl.static_range(5):
        tl.store(parts + k * D + d, sums[k], mask=d < D)


def launch_conv(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """u (B, T, D) from x (B, T, D), w (D, 1, 4)"""
    rows, T, D = x.shape
    u = torch.empty(rows, T, D, dtype=x.dtype, device=x.device)
    grid = triton.cdiv(D, CHANNELS), triton.cdiv(T, CHUNK), rows
    launch(conv_forward, *grid)(
        x, w, bias, u, T, x.stride(1), D, CHUNK=CHUNK, STEP=STEP, BD=CHANNELS, num_warps=4
    )
    return u


def launch_conv_backward(du: Tensor, x: Tensor, w: Tensor, bias: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
    """Write dx; return dw (D, 1, 4) and db (D,)"""
    (rows, T, D), chunks = x.shape, triton.cdiv(x.shape[1], CHUNK)
    parts = torch.empty(rows, chunks, 5, D, device=x.device)
    launch(conv_backward, triton.cdiv(D, CHANNELS), chunks, rows)(
        du, x, w, bias, dx, parts, T, x.stride(1), dx.stride(1), D, CHUNK=CHUNK, STEP=STEP, BD=CHANNELS,
        num_warps=4,
    )  # fmt: skip
    whole = parts.sum((0, 1))
    return whole[:4].t().unsqueeze(1).contiguous(), whole[4]
