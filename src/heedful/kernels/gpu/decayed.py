"""Scores that decay, for the positions of a chunk each against each (Triton); no exponent is ever positive.

Channel by channel, for a few positions (`state_space.chunked.decayed_scores` is the definition):

    P_ts = Σ_k q_tk k_sk e_tsk,   e_tsk = exp(log_tk − log_sk) for s ≤ t, else 0
    dq_t = Σ_s dP_ts k_s e_ts,    dk_s = Σ_t dP_ts q_t e_ts

A program has one block of c positions and reads one position s after the other; e is never written.

With one decay for a whole head, and q and k that heads share (`state_space.chunked._inside_chunks`):

    y = (S ∘ e) v,  S = q kᵀ;   dS = Σ_heads (dy vᵀ) ∘ e,   dq = dS k,   dk = dSᵀ q

A program has a chunk and some heads. It makes S once, and no pattern of a head is ever written to memory.
From chunk to chunk (`state_space.chunked.between_chunks`) h′ = a h + E, where a is one number for a head; a
program has some columns of a row of h, of which heads have V each, and reads one chunk after the other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
CHANNELS = 32  # that a program of the gradient has


@triton.jit
def scores_kernel(q, k, log, out, K, SIZE: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    t, c = tl.arange(0, SIZE), tl.arange(0, BK)
    base = tl.program_id(0).to(tl.int64) * SIZE
    at = (base + t)[:, None] * K + c[None, :]
    inside = (c < K)[None, :]
    x = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
    until = tl.load(log + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
    for s in range(0, SIZE):
        row = (base + s) * K + c
        key = tl.load(k + row, mask=c < K, other=0.0).to(tl.float32)
        since = tl.load(log + row, mask=c < K, other=0.0).to(tl.float32) * LOG2E
        decay = tl.exp2(tl.where((t >= s)[:, None], until - since[None, :], float("-inf")))
        tl.store(out + (base + t) * SIZE + s, tl.sum(x * decay * key[None, :], 1))


@triton.jit
def scores_backward_kernel(  # type: ignore[no-untyped-def]
    dP, q, k, log, dq, dk, K, SIZE: tl.constexpr, BK: tl.constexpr
):
    t, c = tl.arange(0, SIZE), tl.program_id(1) * BK + tl.arange(0, BK)
    base = tl.program_id(0).to(tl.int64) * SIZE
    at = (base + t)[:, None] * K + c[None, :]
    inside = (c < K)[None, :]
    x = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
    until = tl.load(log + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
    total = tl.zeros((SIZE, BK), tl.float32)
    for s in range(0, SIZE):
        row = (base + s) * K + c
        key = tl.load(k + row, mask=c < K, other=0.0).to(tl.float32)
        since = tl.load(log + row, mask=c < K, other=0.0).to(tl.float32) * LOG2E
        decay = tl.exp2(tl.where((t >= s)[:, None], until - since[None, :], float("-inf")))
        weight = tl.load(dP + (base + t) * SIZE + s)[:, None] * decay
        total += weight * key[None, :]
        tl.store(dk + row, tl.sum(weight * x, 0), mask=c < K)
    tl.store(dq + at, total, mask=inside)


def launch_scores(q: Tensor, k: Tensor, log: Tensor) -> Tensor:
    """P (M, c, c) of q, k and log (M, c, K)"""
    q, k, log = q.contiguous(), k.contiguous(), log.contiguous()
    M, size, K = q.shape
    out = torch.empty(M, size, size, device=q.device, dtype=torch.float32)
    block = triton.next_power_of_2(K)
    scores_kernel[(M,)](q, k, log, out, K, SIZE=size, BK=block, num_warps=4 if block > 64 else 2)
    return out


def launch_scores_backward(dP: Tensor, q: Tensor, k: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """dq and dk"""
    dP, q, k, log = (x.contiguous() for x in (dP, q, k, log))
    M, size, K = q.shape
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    grid = (M, triton.cdiv(K, CHANNELS))
    scores_backward_kernel[grid](dP, q, k, log, dq, dk, K, SIZE=size, BK=CHANNELS, num_warps=1)
    return dq, dk


@triton.jit
def load_rows(x, t, d, row):  # type: ignore[no-untyped-def]
    return tl.load(x + t[:, None] * row + d[None, :])


@triton.jit
def head_decays(log, t, s, heads):  # type: ignore[no-untyped-def]
    """exp(log_t − log_s) for s ≤ t, else 0"""
    until, since = tl.load(log + t * heads) * LOG2E, tl.load(log + s * heads) * LOG2E
    return tl.exp2(tl.where(t[:, None] >= s[None, :], until[:, None] - since[None, :], float("-inf")))


@triton.jit
def chunk_kernel(  # type: ignore[no-untyped-def]
    q, k, v, log, y, groups, heads, part,
    SIZE: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Heads `part` at a time, of those that share the q and k of a group"""
    t = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    first, of_k, of_v = tl.program_id(1) * part, tl.arange(0, K), tl.arange(0, V)
    group = first // (heads // groups)
    a, b = load_rows(q + group * K, t, of_k, groups * K), load_rows(k + group * K, t, of_k, groups * K)
    scores = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    for head in range(first, first + part):
        x = load_rows(v + head * V, t, of_v, heads * V)
        pattern = (scores * head_decays(log + head, t, t, heads)).to(x.dtype)
        out = tl.dot(pattern, x, input_precision=PRECISION)
        tl.store(y + t[:, None] * heads * V + head * V + of_v[None, :], out.to(y.dtype.element_ty))


@triton.jit
def chunk_backward_kernel(  # type: ignore[no-untyped-def]
    dy, q, k, v, log, dq, dk, dv, dlog, groups, heads, part,
    SIZE: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Half the positions s of a chunk with all t: tiles of all of both would not fit into the registers

    dq, dk and dlog are sums over what a program has, of which two see a position t.
    """
    half: tl.constexpr = SIZE // 2
    t = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    side = tl.program_id(2)
    s = tl.program_id(0).to(tl.int64) * SIZE + side * half + tl.arange(0, half)
    first, of_k, of_v = tl.program_id(1) * part, tl.arange(0, K), tl.arange(0, V)
    group = first // (heads // groups)
    a, b = load_rows(q + group * K, t, of_k, groups * K), load_rows(k + group * K, s, of_k, groups * K)
    scores = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    slopes = tl.zeros((SIZE, half), tl.float32)
    for head in range(first, first + part):
        x, up = load_rows(v + head * V, s, of_v, heads * V), load_rows(dy + head * V, t, of_v, heads * V)
        decay = head_decays(log + head, t, s, heads)
        out = tl.dot(tl.trans((scores * decay).to(x.dtype)), up, input_precision=PRECISION)
        tl.store(dv + s[:, None] * heads * V + head * V + of_v[None, :], out.to(dv.dtype.element_ty))
        slope = tl.dot(up, tl.trans(x), input_precision=PRECISION) * decay
        slopes += slope
        slope *= scores
        tl.store(dlog + (t * 3 + side) * heads + head, tl.sum(slope, 1))
        tl.store(dlog + (s * 3 + 2) * heads + head, -tl.sum(slope, 0))
    slopes = slopes.to(a.dtype)
    at = t[:, None] * tl.num_programs(1) + tl.program_id(1)
    tl.store(dq + (at * 2 + side) * K + of_k[None, :], tl.dot(slopes, b, input_precision=PRECISION))
    at = s[:, None] * tl.num_programs(1) + tl.program_id(1)
    tl.store(dk + at * K + of_k[None, :], tl.dot(tl.trans(slopes), a, input_precision=PRECISION))


def chunk_sizes(q: Tensor, v: Tensor, size: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """The programs, and what both kernels are compiled for"""
    (rows, T, groups, K), (heads, V) = q.shape, v.shape[2:]
    part = next(n for n in (8, 6, 4, 3, 2, 1) if heads // groups % n == 0)
    precision = "ieee" if q.dtype == torch.float32 else "tf32"
    fixed = {"SIZE": size, "K": K, "V": V, "PRECISION": precision}
    return (rows * T // size, heads // part), {"groups": groups, "heads": heads, "part": part, **fixed}


def launch_chunks(q: Tensor, k: Tensor, v: Tensor, log: Tensor, size: int) -> Tensor:
    """y (B, T, H, V) of q and k (B, T, G, K), v (B, T, H, V) and log (B, T, H), T being whole chunks"""
    grid, fixed = chunk_sizes(q, v, size)
    y = torch.empty_like(v)
    chunk_kernel[grid](q, k, v, log, y, **fixed, num_warps=8)
    return y


def launch_chunks_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, log: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq and dk (B, T, G, some, K), dv, and dlog (B, T, 3, H), to be summed over the last but one"""
    grid, fixed = chunk_sizes(q, v, size)
    (rows, T, groups, K), parts = q.shape, grid[1] // q.shape[2]
    dq, dk = (q.new_empty(rows, T, groups, n * parts, K, dtype=torch.float32) for n in (2, 1))
    dv, dlog = torch.empty_like(v), log.new_empty(rows, T, 3, log.shape[2])
    chunk_backward_kernel[*grid, 2](dy, q, k, v, log, dq, dk, dv, dlog, **fixed, num_warps=8)
    return dq, dk, dv, dlog


@triton.jit
def carry_kernel(  # type: ignore[no-untyped-def]
    log, ends, first, states, last, chunks, groups, rows, columns, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The h before every chunk, and the last one"""
    at = tl.program_id(0).to(tl.int64)  # row and group
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    log += at // groups * chunks * groups * (columns // V) + at % groups * (columns // V) + column // V
    place = tl.program_id(1) * columns + column
    h = tl.load(first + at * rows * columns + place, mask=there, other=0.0)
    for i in range(0, chunks):
        spot = (at * chunks + i) * rows * columns + place
        tl.store(states + spot, h.to(states.dtype.element_ty), mask=there)
        a = tl.exp2(tl.load(log + i * groups * (columns // V), mask=there, other=0.0) * LOG2E)
        h = a * h + tl.load(ends + spot, mask=there, other=0.0).to(tl.float32)
    tl.store(last + at * rows * columns + place, h, mask=there)


@triton.jit
def carry_backward_kernel(  # type: ignore[no-untyped-def]
    dstates, dlast, log, states, dends, dfirst, dlog, chunks, groups, rows, columns,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`dlog` has a number for every row of h"""
    at = tl.program_id(0).to(tl.int64)
    column, heads = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), columns // V
    head = tl.program_id(2) * (BLOCK // V) + tl.arange(0, BLOCK // V)
    there = column < columns
    log += at // groups * chunks * groups * heads + at % groups * heads + column // V
    place = tl.program_id(1) * columns + column
    g = tl.load(dlast + at * rows * columns + place, mask=there, other=0.0)
    for back in range(0, chunks):
        i = chunks - 1 - back
        spot = (at * chunks + i) * rows * columns + place
        tl.store(dends + spot, g.to(dends.dtype.element_ty), mask=there)
        g *= tl.exp2(tl.load(log + i * groups * heads, mask=there, other=0.0) * LOG2E)
        slope = g * tl.load(states + spot, mask=there, other=0.0).to(tl.float32)
        sums = tl.sum(tl.reshape(slope, (BLOCK // V, V)), 1)
        to = dlog + ((at * chunks + i) * rows + tl.program_id(1)) * heads + head
        tl.store(to, sums, mask=head < heads)
        g += tl.load(dstates + spot, mask=there, other=0.0).to(tl.float32)
    tl.store(dfirst + at * rows * columns + place, g, mask=there)


def launch_carry(log: Tensor, ends: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """All h (B, G, n, K, W) and the last from log (B, n, H), ends as those and the first (B, G, K, W)"""
    (rows, groups, chunks, K, W), V = ends.shape, ends.shape[1] * ends.shape[4] // log.shape[2]
    block = max(V, 1024)
    states, last = torch.empty_like(ends), torch.empty_like(first)
    carry_kernel[rows * groups, K, triton.cdiv(W, block)](
        log, ends, first, states, last, chunks, groups, K, W, V=V, BLOCK=block
    )
    return states, last


def launch_carry_backward(
    dstates: Tensor, dlast: Tensor, log: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of log, (B, G, n, K, H / G) to be summed over K, of ends and of the first"""
    (rows, groups, chunks, K, W), V = states.shape, states.shape[1] * states.shape[4] // log.shape[2]
    block = max(V, 1024)
    dends, dfirst = torch.empty_like(states), torch.empty_like(dlast)
    dlog = torch.empty(rows, groups, chunks, K, W // V, device=log.device)
    carry_backward_kernel[rows * groups, K, triton.cdiv(W, block)](
        dstates, dlast, log, states, dends, dfirst, dlog, chunks, groups, K, W, V=V, BLOCK=block
    )
    return dlog, dends, dfirst
