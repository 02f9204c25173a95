"""Mamba-2's state space in chunks on a GPU, forward and back, with its steps, skip and gate (Triton).

    Δ = softplus(r + b),  ℓ_t = Σ_{s≤t} Δ_s A from the start of a chunk on,  e_ts = exp(ℓ_t − ℓ_s) for s ≤ t
    y_t = Σ_s C_t·B_s e_ts Δ_s u_s + exp(ℓ_t) C_t S + D u_t,   out = y silu(z)          inside a chunk
    S′ = exp(ℓ_c) S + Σ_s B_s (exp(ℓ_c − ℓ_s) Δ_s u_s)ᵀ                                  to the next chunk

`heedful.nn.state_space.ssd.Mamba2` is the definition (Dao and Gu 2024 §6). A head has one decay, so all sums
are products of matrices. The heads of a group share C Bᵀ, which is made once; the pattern of a head is never
written to memory. `x` holds u, B and C side by side. `joint` begins with the gate z and ends with steps r.
Kernels read and write columns where they lie, so nothing is split or joined. No exponent is ever positive.

A program has half a chunk, so that several fit on a multiprocessor: what it waits for is memory. Sums that it
cannot finish go to `sums` (B, T, 7, H): two parts of dℓ_t and two of dΔ_s from inside the chunk, dD, then
dℓ_t by way of the state before the chunk and dΔ_s by way of the state after it.
"""

# mypy: disable-error-code="assignment, no-untyped-def"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.kernels.gpu.operators import launch
from heedful.kernels.gpu.state_space.scan import LOG2E, gate_slopes, sigmoid, step_sizes

CHUNK = 128  # positions; states are kept between chunks, and cost inside one is quadratic
HEADS_TOGETHER = 12  # whose gradients of B and C a program sums, at most
BLOCK, AHEAD = 256, 4  # numbers of a state, and chunks, that are loaded before the first of them is needed


@triton.jit
def chunk_bounds(chunks, T, SIZE: tl.constexpr):
    """The place of a program's row in tensors (B · T, …), and the first and the last position of its chunk"""
    b, start = tl.program_id(0) // chunks, tl.program_id(0) % chunks * SIZE
    return b.to(tl.int64) * T, start, tl.minimum(start + SIZE, T) - 1


@triton.jit
def load_tile(x, t, d, row, T):
    """Columns d of x at positions t; zeros after the end of the text"""
    return tl.load(x + t[:, None] * row + d[None, :], mask=(t < T)[:, None], other=0.0)


@triton.jit
def store_tile(x, value, t, d, row, T):
    tl.store(x + t[:, None] * row + d[None, :], value.to(x.dtype.element_ty), mask=(t < T)[:, None])


@triton.jit
def load_steps(x, t, heads, T):
    return tl.load(x + t * heads, mask=t < T, other=0.0)


@triton.jit
def load_logs(logs, t, heads, last):
    """ℓ in powers of two; after the end of the text it stays as it is"""
    return tl.load(logs + tl.minimum(t, last) * heads) * LOG2E


@triton.jit
def decays(until, since, t, s):
    """exp(ℓ_t − ℓ_s) for s ≤ t, else 0"""
    return tl.exp2(tl.where(t >= s, until - since, float("-inf")))


@triton.jit
def steps_forward(
    raw, bias, A, steps, logs, T, chunks, row, heads, SIZE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Δ and ℓ of a chunk and all heads, (B, T, H)"""
    base, start, _ = chunk_bounds(chunks, T, SIZE)
    t = start + tl.arange(0, SIZE)
    h = tl.arange(0, HEADS)
    inside = (t < T)[:, None] & (h < heads)[None, :]
    x = tl.load(raw + base * row + t[:, None] * row + h[None, :], mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias + h, mask=h < heads, other=0.0).to(tl.float32)[None, :]
    step = tl.where(inside, step_sizes(x, t[:, None], T, True)[0], 0.0)
    at = base * heads + t[:, None] * heads + h[None, :]
    tl.store(steps + at, step, mask=inside)
    log = tl.cumsum(step * tl.load(A + h, mask=h < heads, other=0.0)[None, :], 0)
    tl.store(logs + at, log, mask=inside)


@triton.jit
def ends_forward(
    x, steps, logs, ends, T, chunks, heads, groups, row,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the state of a head: Σ_s B_s (exp(ℓ_c − ℓ_s) Δ_s u_s)ᵀ, (N, P)"""
    base, start, last = chunk_bounds(chunks, T, SIZE)
    t = start + tl.arange(0, SIZE)
    head, n, p = tl.program_id(1), tl.arange(0, N), tl.arange(0, P)
    x, steps, logs = x + base * row, steps + base * heads + head, logs + base * heads + head
    far = tl.exp2(tl.load(logs + last * heads) * LOG2E - load_logs(logs, t, heads, last))
    u = load_tile(x + head * P, t, p, row, T)
    u = (u * (far * load_steps(steps, t, heads, T))[:, None]).to(u.dtype)
    B = load_tile(x + heads * P + head // (heads // groups) * N, t, n, row, T)
    end = tl.dot(tl.trans(B), u, input_precision=PRECISION)
    at = (tl.program_id(0).to(tl.int64) * heads + head) * N * P
    tl.store(ends + at + n[:, None] * P + p[None, :], end.to(ends.dtype.element_ty))


@triton.jit
def carry_forward(
    logs, states, T, chunks, heads, size, SIZE: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """S before every chunk, written where what that chunk adds was read"""
    b, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    at, h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32)
    states += (b * chunks * heads + head) * size + at
    logs, stride = logs + b * T * heads + head, tl.cast(heads * size, tl.int64)
    for begin in range(0, chunks, AHEAD):
        ends, rates = (), ()
        for k in tl.static_range(AHEAD):
            c = begin + k
            ends = ends + (tl.load(states + c * stride, mask=(at < size) & (c < chunks), other=0.0),)
            last = tl.minimum(c * SIZE + SIZE, T) - 1
            rates = rates + (tl.exp2(tl.load(logs + last * heads) * LOG2E),)
        for k in tl.static_range(AHEAD):
            c = begin + k
            there = (at < size) & (c < chunks)
            tl.store(states + c * stride, h.to(states.dtype.element_ty), mask=there)
            h = rates[k] * h + ends[k].to(tl.float32)


@triton.jit
def scores_forward(
    x, scores, T, chunks, heads, groups, row,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C_t·B_s of a chunk, (c, c), which heads of a group share"""
    base, start, _ = chunk_bounds(chunks, T, SIZE)
    t = start + tl.arange(0, SIZE)
    group, n, s = tl.program_id(1), tl.arange(0, N), tl.arange(0, SIZE)
    x += base * row + heads * P + group * N
    B, C = load_tile(x, t, n, row, T), load_tile(x + groups * N, t, n, row, T)
    value = tl.dot(C, tl.trans(B), input_precision=PRECISION)
    scores += (tl.program_id(0).to(tl.int64) * groups + group) * SIZE * SIZE
    tl.store(scores + s[:, None] * SIZE + s[None, :], value.to(scores.dtype.element_ty))


@triton.jit
def outputs_forward(
    x, joint, steps, logs, scores, states, skip, y, out, T, chunks, heads, groups, row, joint_row,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y and y silu(z) of half a chunk and one head"""
    base, start, last = chunk_bounds(chunks, T, SIZE)
    half: tl.constexpr = SIZE // 2
    chunk, head, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    n, p, i = tl.arange(0, N), tl.arange(0, P), tl.arange(0, half)
    x, steps, logs = x + base * row, steps + base * heads + head, logs + base * heads + head
    t, group = start + side * half + i, head // (heads // groups)
    C, log = load_tile(x + heads * P + (groups + group) * N, t, n, row, T), load_logs(logs, t, heads, last)
    S = tl.load(states + (chunk * heads + head) * N * P + n[:, None] * P + p[None, :])
    value = tl.dot(C, S, input_precision=PRECISION) * tl.exp2(log)[:, None]
    scores += (chunk * groups + group) * SIZE * SIZE + (side * half + i)[:, None] * SIZE
    for before in range(0, side + 1):
        s = start + before * half + i
        pattern = tl.load(scores + (before * half + i)[None, :]).to(tl.float32)
        pattern *= decays(log[:, None], load_logs(logs, s, heads, last)[None, :], t[:, None], s[None, :])
        pattern *= load_steps(steps, s, heads, T)[None, :]
        u = load_tile(x + head * P, s, p, row, T)
        value = tl.dot(pattern.to(u.dtype), u, value, input_precision=PRECISION)
    value += tl.load(skip + head) * load_tile(x + head * P, t, p, row, T).to(tl.float32)
    own = base * heads * P + head * P
    store_tile(y + own, value, t, p, heads * P, T)
    z = load_tile(joint + base * joint_row + head * P, t, p, joint_row, T).to(tl.float32)
    store_tile(out + own, value * z * sigmoid(z), t, p, heads * P, T)


@triton.jit
def outputs_backward(
    dout, x, joint, y, logs, dy, djoint, dstates, T, chunks, heads, groups, row, joint_row,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of y, z and the state before a chunk, Σ_t C_t (exp(ℓ_t) dy_t)ᵀ, for one head"""
    base, start, last = chunk_bounds(chunks, T, SIZE)
    t = start + tl.arange(0, SIZE)
    head, n, p = tl.program_id(1), tl.arange(0, N), tl.arange(0, P)
    own, gates = base * heads * P + head * P, base * joint_row + head * P
    z = load_tile(joint + gates, t, p, joint_row, T)
    up, bend = gate_slopes(load_tile(dout + own, t, p, heads * P, T), z, True)
    store_tile(djoint + gates, bend * load_tile(y + own, t, p, heads * P, T), t, p, joint_row, T)
    store_tile(dy + own, up, t, p, heads * P, T)
    C = load_tile(x + base * row + heads * P + (groups + head // (heads // groups)) * N, t, n, row, T)
    up *= tl.exp2(load_logs(logs + base * heads + head, t, heads, last))[:, None]
    slope = tl.dot(tl.trans(C), up.to(C.dtype), input_precision=PRECISION)
    at = (tl.program_id(0).to(tl.int64) * heads + head) * N * P
    tl.store(dstates + at + n[:, None] * P + p[None, :], slope.to(dstates.dtype.element_ty))


@triton.jit
def carry_backward(
    logs, states, slopes, dlogs, T, chunks, heads, size,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """The gradient of what every chunk adds, written where that of the state before it was read

    `dlogs` (B · chunks, H, programs) are the gradients of ℓ_c by way of the state.
    """
    b, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    at, g = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32)
    states += (b * chunks * heads + head) * size + at
    slopes += (b * chunks * heads + head) * size + at
    dlogs += (b * chunks * heads + head) * tl.num_programs(1) + tl.program_id(1)
    logs, stride = logs + b * T * heads + head, tl.cast(heads * size, tl.int64)
    for back in range(0, chunks, AHEAD):
        hs, ups, rates = (), (), ()
        for k in tl.static_range(AHEAD):
            c = chunks - 1 - back - k
            there, place = (at < size) & (c >= 0), c * stride
            hs = hs + (tl.load(states + place, mask=there, other=0.0).to(tl.float32),)
            ups = ups + (tl.load(slopes + place, mask=there, other=0.0).to(tl.float32),)
            last = tl.maximum(tl.minimum(c * SIZE + SIZE, T) - 1, 0)
            rates = rates + (tl.exp2(tl.load(logs + last * heads) * LOG2E),)
        for k in tl.static_range(AHEAD):
            c = chunks - 1 - back - k
            there = (at < size) & (c >= 0)
            tl.store(slopes + c * stride, g.to(slopes.dtype.element_ty), mask=there)
            g *= rates[k]
            tl.store(dlogs + c * heads * tl.num_programs(1), tl.sum(g * hs[k], 0), mask=c >= 0)
            g += ups[k]


@triton.jit
def inputs_backward(
    dy, x, steps, logs, scores, dends, skip, dx, sums, T, chunks, heads, groups, row,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """du of half a chunk and one head, and dD as the fifth of `sums` (B, T, 7, H)"""
    base, start, last = chunk_bounds(chunks, T, SIZE)
    half: tl.constexpr = SIZE // 2
    chunk, head, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    n, p, i = tl.arange(0, N), tl.arange(0, P), tl.arange(0, half)
    x, steps, logs = x + base * row, steps + base * heads + head, logs + base * heads + head
    s, group, dy = start + side * half + i, head // (heads // groups), dy + base * heads * P + head * P
    B, log = load_tile(x + heads * P + group * N, s, n, row, T), load_logs(logs, s, heads, last)
    at = (chunk * heads + head) * N * P
    end = tl.load(dends + at + n[:, None] * P + p[None, :])
    far = tl.exp2(tl.load(logs + last * heads) * LOG2E - log)
    value = tl.dot(B, end, input_precision=PRECISION) * far[:, None]
    scores += (chunk * groups + group) * SIZE * SIZE + (side * half + i)[:, None]
    for after in range(side, 2):
        t = start + after * half + i
        pattern = tl.load(scores + (after * half + i)[None, :] * SIZE).to(tl.float32)
        pattern *= decays(load_logs(logs, t, heads, last)[None, :], log[:, None], t[None, :], s[:, None])
        up = load_tile(dy, t, p, heads * P, T)
        value = tl.dot(pattern.to(up.dtype), up, value, input_precision=PRECISION)
    value *= load_steps(steps, s, heads, T)[:, None]
    own, u = load_tile(dy, s, p, heads * P, T).to(tl.float32), load_tile(x + head * P, s, p, row, T)
    store_tile(dx + base * row + head * P, value + tl.load(skip + head) * own, s, p, row, T)
    total = tl.sum(own * u.to(tl.float32), 1)
    tl.store(sums + base * 7 * heads + (s * 7 + 4) * heads + head, total, mask=s < T)


@triton.jit
def scores_backward(
    dy, x, steps, logs, scores, dscores, sums, T, chunks, heads, groups, row, part,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of C_t·B_s for a quarter of a chunk, summed over `part` heads, and four of the `sums`

    These are dℓ_t by way of either half of s, and dΔ_s by way of either half of t. The quarter above the
    diagonal is 0.
    """
    base, start, last = chunk_bounds(chunks, T, SIZE)
    half: tl.constexpr = SIZE // 2
    late, early, first = tl.program_id(2) // 2, tl.program_id(2) % 2, tl.program_id(1) * part
    i, p, chunk = tl.arange(0, half), tl.arange(0, P), tl.program_id(0).to(tl.int64)
    t, s = start + late * half + i, start + early * half + i
    x, steps, logs, dy = x + base * row, steps + base * heads, logs + base * heads, dy + base * heads * P
    spot, group = (late * half + i)[:, None] * SIZE + (early * half + i)[None, :], first // (heads // groups)
    score = tl.load(scores + (chunk * groups + group) * SIZE * SIZE + spot).to(tl.float32)
    total = tl.zeros((half, half), tl.float32)
    for head in range(first, first + tl.where(late >= early, part, 0)):
        u, up = load_tile(x + head * P, s, p, row, T), load_tile(dy + head * P, t, p, heads * P, T)
        until, since = load_logs(logs + head, t, heads, last), load_logs(logs + head, s, heads, last)
        slope = tl.dot(up, tl.trans(u), input_precision=PRECISION)
        slope *= decays(until[:, None], since[None, :], t[:, None], s[None, :])
        step = load_steps(steps + head, s, heads, T)[None, :]
        total += slope * step
        slope *= score
        to = sums + base * 7 * heads + head
        tl.store(to + (t * 7 + early) * heads, tl.sum(slope * step, 1), mask=t < T)
        tl.store(to + (s * 7 + 2 + late) * heads, tl.sum(slope, 0), mask=s < T)
    dscores += (chunk * tl.num_programs(1) + tl.program_id(1)) * SIZE * SIZE
    tl.store(dscores + spot, total.to(dscores.dtype.element_ty))


@triton.jit
def shared_backward(
    dy, x, steps, logs, dscores, states, dends, dB, dC, sums, T, chunks, heads, groups, row, part,
    SIZE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dC of half a chunk, summed over `part` heads, or in every second program dB; the last two `sums`

    dC_t = Σ_s dscores_ts B_s + Σ_heads exp(ℓ_t) S dy_t
    dB_s = Σ_t dscores_ts C_t + Σ_heads exp(ℓ_c − ℓ_s) Δ_s dE u_s
    """
    base, start, last = chunk_bounds(chunks, T, SIZE)
    half: tl.constexpr = SIZE // 2
    side, first, i = tl.program_id(2) % 2, tl.program_id(1) * part, tl.arange(0, half)
    here, n, p, j = tl.program_id(2) // 2 * half + i, tl.arange(0, N), tl.arange(0, P), tl.arange(0, SIZE)
    t, steps, logs = start + here, steps + base * heads, logs + base * heads
    shared, chunk = x + base * row + heads * P + first // (heads // groups) * N, tl.program_id(0).to(tl.int64)
    right, matrices, width, to = dy + base * heads * P, states, heads * P, dC
    own, other = shared + groups * N, shared
    if side == 1:
        right, matrices, width, to = x + base * row, dends, row, dB
        own, other = shared, shared + groups * N
    left = load_tile(own, t, n, row, T).to(tl.float32)
    total = tl.zeros((half, N), tl.float32)
    for head in range(first, first + part):
        log = load_logs(logs + head, t, heads, last)
        # Exponents of the second side are those from a position to the end of its chunk.
        rate = tl.exp2(log + side * (tl.load(logs + last * heads + head) * LOG2E - 2 * log))
        matrix = tl.load(matrices + (chunk * heads + head) * N * P + n[:, None] * P + p[None, :])
        value = load_tile(right + head * P, t, p, width, T)
        slope = tl.dot(value, tl.trans(matrix), input_precision=PRECISION) * rate[:, None]
        spot = base * 7 * heads + (t * 7 + 5 + side) * heads + head
        tl.store(sums + spot, tl.sum(slope * left, 1), mask=t < T)
        step = load_steps(steps + head, t, heads, T)
        total += slope * tl.where(side == 1, step, 1.0)[:, None]
    dscores += (chunk * tl.num_programs(1) + tl.program_id(1)) * SIZE * SIZE
    at = here[:, None] * SIZE + j[None, :]
    if side == 1:
        at = here[:, None] + j[None, :] * SIZE
    rows = load_tile(other, start + j, n, row, T)
    total = tl.dot(tl.load(dscores + at), rows, total, input_precision=PRECISION)
    to += (base * tl.num_programs(1) + tl.program_id(1)) * N
    store_tile(to, total, t, n, tl.num_programs(1) * N, T)


@triton.jit
def steps_backward(
    raw, bias, A, steps, state_sums, sums, draw, parts, T, chunks, row, heads,
    SIZE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The gradient of r and, in `parts` (B · chunks, 3, H), those of A, Δ's bias and D, from all `sums`"""
    base, start, last = chunk_bounds(chunks, T, SIZE)
    t = start + tl.arange(0, SIZE)
    h = tl.arange(0, HEADS)
    inside = (t < T)[:, None] & (h < heads)[None, :]
    at = sums + base * 7 * heads + t[:, None] * 7 * heads + h[None, :]
    step = tl.load(steps + base * heads + t[:, None] * heads + h[None, :], mask=inside, other=0.0)
    toward_end = tl.load(at + 6 * heads, mask=inside, other=0.0)
    dstep = tl.load(at + 2 * heads, mask=inside, other=0.0) + tl.load(at + 3 * heads, mask=inside, other=0.0)
    dstep += toward_end
    dlog = tl.load(at, mask=inside, other=0.0) + tl.load(at + heads, mask=inside, other=0.0)
    dlog += tl.load(at + 5 * heads, mask=inside, other=0.0) - step * dstep
    chunk = tl.program_id(0).to(tl.int64)
    end = tl.sum(step * toward_end, 0) + tl.load(state_sums + chunk * heads + h, mask=h < heads, other=0.0)
    dlog += tl.where((t == last)[:, None], end[None, :], 0.0)
    after = tl.cumsum(dlog, 0, reverse=True)
    dstep += after * tl.load(A + h, mask=h < heads, other=0.0)[None, :]
    places = base * row + t[:, None] * row + h[None, :]
    z = tl.load(raw + places, mask=inside, other=0.0).to(tl.float32)
    z += tl.load(bias + h, mask=h < heads, other=0.0).to(tl.float32)[None, :]
    slope = tl.where(inside, dstep * step_sizes(z, t[:, None], T, True)[1], 0.0)
    tl.store(draw + places, slope.to(draw.dtype.element_ty), mask=inside)
    to = parts + chunk * 3 * heads + h
    tl.store(to, tl.sum(after * step, 0), mask=h < heads)
    tl.store(to + heads, tl.sum(slope, 0), mask=h < heads)
    tl.store(to + 2 * heads, tl.sum(tl.load(at + 4 * heads, mask=inside, other=0.0), 0), mask=h < heads)


class Sizes(NamedTuple):
    """What all kernels of one part are launched with"""

    rows: int
    length: int
    heads: int
    groups: int
    N: int
    P: int
    size: int  # positions of a chunk
    columns: int  # of x

    @classmethod
    def from_input(cls, x: Tensor, heads: int, groups: int, channels: int) -> Sizes:
        """From x (B, T, channels of u, then of B and C)"""
        rows, length, columns = x.shape
        size = max(32, min(CHUNK, triton.next_power_of_2(length)))
        N, P = (columns - channels) // (2 * groups), channels // heads
        return cls(rows, length, heads, groups, N, P, size, columns)

    @property
    def chunks(self) -> int:
        return triton.cdiv(self.length, self.size)

    def constants(self, x: Tensor, warps: int, stages: int = 3) -> dict[str, Any]:
        """What kernels are compiled for; with one stage of loads more programs fit on a multiprocessor"""
        precision = "ieee" if x.dtype == torch.float32 else "tf32"
        fixed = {"SIZE": self.size, "N": self.N, "P": self.P, "PRECISION": precision}
        return {**fixed, "num_warps": warps, "num_stages": stages}


def launch_forward(
    x: Tensor, joint: Tensor, bias: Tensor, A: Tensor, skip: Tensor, s: Sizes
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out and y (B, T, F), C Bᵀ, the states before chunks (B · chunks, H, N, P), Δ and ℓ (B, T, H)"""
    text, programs = (s.length, s.chunks, s.heads, s.groups, s.columns), s.rows * s.chunks
    few, many = s.constants(x, 4, 1), s.constants(x, 8)
    steps, logs = (A.new_empty(s.rows, s.length, s.heads) for _ in range(2))
    launch(steps_forward, programs)(
        joint[..., s.heads * s.P + s.columns :], bias, A, steps, logs, s.length, s.chunks, joint.stride(1),
        s.heads, SIZE=s.size, HEADS=triton.next_power_of_2(s.heads),
    )  # fmt: skip
    states = x.new_empty(programs, s.heads, s.N, s.P)
    launch(ends_forward, programs, s.heads)(x, steps, logs, states, *text, **many)
    size, block = s.N * s.P, min(BLOCK, s.N * s.P)
    launch(carry_forward, s.rows * s.heads, triton.cdiv(size, block))(
        logs, states, s.length, s.chunks, s.heads, size, SIZE=s.size, BLOCK=block, AHEAD=AHEAD, num_warps=1
    )
    scores = x.new_empty(programs, s.groups, s.size, s.size)
    launch(scores_forward, programs, s.groups)(x, scores, *text, **many)
    y, out = (x.new_empty(s.rows, s.length, s.heads * s.P) for _ in range(2))
    launch(outputs_forward, programs, s.heads, 2)(
        x, joint, steps, logs, scores, states, skip, y, out, *text, joint.stride(1), **few
    )
    return out, y, scores, states, steps, logs


def launch_backward(
    dout: Tensor, x: Tensor, joint: Tensor, bias: Tensor, A: Tensor, skip: Tensor, y: Tensor, scores: Tensor,
    states: Tensor, steps: Tensor, logs: Tensor, djoint: Tensor, s: Sizes,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of x, and (3, H) of A, Δ's bias and D; those of the gate and the steps go to djoint."""
    text, programs = (s.length, s.chunks, s.heads, s.groups, s.columns), s.rows * s.chunks
    few, many = s.constants(x, 4, 1), s.constants(x, 8)
    dy, dx, dends = torch.empty_like(dout), torch.empty_like(x), torch.empty_like(states)
    launch(outputs_backward, programs, s.heads)(
        dout, x, joint, y, logs, dy, djoint, dends, *text, joint.stride(1), **many
    )
    size, block = s.N * s.P, min(BLOCK, s.N * s.P)
    state_sums = A.new_empty(programs, s.heads, triton.cdiv(size, block))
    launch(carry_backward, s.rows * s.heads, triton.cdiv(size, block))(
        logs, states, dends, state_sums, s.length, s.chunks, s.heads, size, SIZE=s.size, BLOCK=block,
        AHEAD=AHEAD, num_warps=1,
    )  # fmt: skip
    sums = A.new_zeros(s.rows, s.length, 7, s.heads)
    launch(inputs_backward, programs, s.heads, 2)(
        dy, x, steps, logs, scores, dends, skip, dx, sums, *text, **few
    )
    part = max(n for n in range(1, HEADS_TOGETHER + 1) if s.heads // s.groups % n == 0)
    parts = s.heads // part
    dscores = x.new_empty(programs, parts, s.size, s.size)
    launch(scores_backward, programs, parts, 4)(dy, x, steps, logs, scores, dscores, sums, *text, part, **few)
    dB, dC = (x.new_empty(s.rows, s.length, s.groups, parts // s.groups, s.N) for _ in range(2))
    launch(shared_backward, programs, parts, 4)(
        dy, x, steps, logs, dscores, states, dends, dB, dC, sums, *text, part, **s.constants(x, 4)
    )
    both = dx[..., s.heads * s.P :].unflatten(2, (2, s.groups, s.N))
    for slopes, pieces in zip(both.unbind(2), (dB, dC), strict=True):
        torch.sum(pieces, 3, out=slopes)
    parameters, raw = A.new_empty(programs, 3, s.heads), slice(s.heads * s.P + s.columns, None)
    launch(steps_backward, programs)(
        joint[..., raw], bias, A, steps, state_sums.sum(2), sums, djoint[..., raw], parameters, s.length,
        s.chunks, joint.stride(1), s.heads, SIZE=s.size, HEADS=triton.next_power_of_2(s.heads),
    )  # fmt: skip
    return dx, parameters.sum(0)
