"""Rounding to 8-bit floats on a GPU: rows for one product and columns for the other, in one visit to memory.

    peek   the largest |v| among some rows, a number for each program; `turn` takes the largest of them
    turn   v · s in float8, as it stands and turned on its side, and the sums of v's columns
    flip   8-bit numbers turned on their side

v is x itself, gelu(x), or up · gelu′(x): what feeds a product never exists in more than 8 bits.
`kernels/float8.py` has the definition.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from heedful.kernels.columns import Tile

# The fastest of six on an H200, for (what v is, whether its columns are summed).
TILES = {
    (0, False): Tile(128, 128, 8),
    (0, True): Tile(128, 64, 4),
    (1, False): Tile(64, 128, 4),
    (2, True): Tile(64, 64, 4),
}
OTHER = Tile(128, 64, 4)


@triton.jit
def tanh(t, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """One instruction, off by 2⁻¹¹ at most (less than 8 bits show); or exactly."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [t], tl.float32, True, 1)
    return 2.0 * tl.sigmoid(2.0 * t) - 1.0


@triton.jit
def value(x, up, at, inside, WHAT: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """x, g(x) = ½ x (1 + tanh t) with t = √(2/π) (x + 0.044715 x³), or up · g′(x), in float32."""
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if WHAT != 0:
        bend = 0.03567740813630013 * v * v
        gate = 0.5 + 0.5 * tanh(v * (0.7978845608028654 + bend), FAST)
        if WHAT == 1:
            v = v * gate
        else:
            slope = gate + 2.0 * v * gate * (1.0 - gate) * (0.7978845608028654 + 3.0 * bend)
            v = slope * tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    return v


@triton.jit
def peek(  # type: ignore[no-untyped-def]
    x, up, highs, M, N, stride, step,
    WHAT: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    m = ((tl.program_id(0) * ROWS + tl.arange(0, ROWS)) * step).to(tl.int64)
    high = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        v = value(x, up, m[:, None] * stride + n[None, :], (m[:, None] < M) & (n[None, :] < N), WHAT, FAST)
        high = tl.maximum(high, tl.abs(v))
    tl.store(highs + tl.program_id(0), tl.max(tl.max(high, 1), 0))


@triton.jit
def round_tile(v, kind, FAST: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]
    """v in float8, as bytes: what is beyond the largest is held there, a NaN stays one.

    The GPU's instruction does so by itself, for two numbers at once. If such a pair has to be taken apart
    again to be turned on its side, ptxas 12.9 mixes in bytes of other registers (Triton's issue 11111), which
    may mean NaN: so a number is paired with nothing.
    """
    if not FAST:
        v = tl.where(v > MOST, MOST, tl.where(v < -MOST, -MOST, v))
        return v.to(kind.dtype.element_ty).to(tl.int8, bitcast=True)
    if kind.dtype.element_ty == tl.float8e5:
        e5: tl.constexpr = "{.reg .b16 t; cvt.rn.satfinite.e5m2x2.f32 t, 0f00000000, $1; cvt.u32.u16 $0, t;}"
        return tl.inline_asm_elementwise(e5, "=r,f", [v], tl.int32, True, 1).to(tl.int8)
    e4: tl.constexpr = "{.reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, 0f00000000, $1; cvt.u32.u16 $0, t;}"
    return tl.inline_asm_elementwise(e4, "=r,f", [v], tl.int32, True, 1).to(tl.int8)


@triton.jit
def turn(  # type: ignore[no-untyped-def]
    x, up, highs, kind, flat, turned, back, sums, M, N, stride, wide, room,
    WHAT: tl.constexpr, FAST: tl.constexpr, SEEN: tl.constexpr, MOST: tl.constexpr, SUM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """`wide` is the length of a row of `flat`, which may hold other tensors beside this one.

    `kind` only points to the type.
    """
    high = tl.max(tl.load(highs + tl.arange(0, SEEN)), 0)
    scale = MOST / tl.maximum(high * room, 1e-30)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(back, 1.0 / scale)
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    inside = (m[:, None] < M) & (n[None, :] < N)
    v = value(x, up, m[:, None] * stride + n[None, :], inside, WHAT, FAST)
    if SUM:
        tl.store(sums + tl.program_id(0) * wide + n, tl.sum(v, 0), mask=n < N)
    bits = round_tile(v * scale, kind, FAST, MOST)
    tl.store(flat + m[:, None] * wide + n[None, :], bits, mask=inside)
    tl.store(turned + n[None, :] * M + m[:, None], bits, mask=inside)


@triton.jit
def flip(x, turned, M, N, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    v = tl.load(x + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N), other=0)
    tl.store(turned + n[:, None] * M + m[None, :], tl.trans(v), mask=(n[:, None] < N) & (m[None, :] < M))


def launch_round(
    parts: list[Tensor],
    up: Tensor | None,
    what: int,
    kind: torch.dtype,
    room: float,
    sums: bool,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The kernels over tensors (M, N) that stand side by side in what they give."""
    tile = tile or TILES.get((what, sums), OTHER)
    fast = not triton.knobs.runtime.interpret
    rows, wide = len(parts[0]), sum(part.shape[1] for part in parts)
    made = lambda *size, dtype=torch.float32: torch.empty(size, device=parts[0].device, dtype=dtype)
    flat, side, back = made(rows, wide, dtype=kind), made(wide, rows, dtype=kind), made()
    total = made(triton.cdiv(rows, tile.rows) if sums else 0, wide)
    seen = 32 * (1 << (len(parts) - 1).bit_length())
    highs = made(seen) if seen == 32 * len(parts) else torch.zeros(seen, device=parts[0].device)
    ready = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    beside = ready[0] if up is None else up.contiguous() if up.stride() != ready[0].stride() else up
    for i, x in enumerate(ready):
        peek[(32,)](
            x, beside, highs[32 * i :], rows, x.shape[1], x.stride(0), -(-rows // 256),
            WHAT=what, FAST=fast, ROWS=8, BLOCK=512, num_warps=8,
        )  # fmt: skip
    start = 0
    for x in ready:
        size = x.shape[1]
        turn[(triton.cdiv(rows, tile.rows), triton.cdiv(size, tile.columns))](
            x, beside, highs, flat, bytes_of(flat)[:, start:], bytes_of(side)[start:], back,
            total[:, start:] if sums else back, rows, size, x.stride(0), wide, room,
            WHAT=what, FAST=fast, SEEN=seen, MOST=torch.finfo(kind).max, SUM=sums,
            BM=tile.rows, BN=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        start += size
    return flat, side, back, total


def bytes_of(x: Tensor) -> Tensor:
    """8-bit numbers as they lie in memory"""
    return x.view(torch.int8)


def stripes(rows: int, what: int) -> int:
    """How many partial sums a column has."""
    return -(-rows // TILES.get((what, True), OTHER).rows)


def transpose_bytes(x: Tensor) -> Tensor:
    """xᵀ, in memory too, of 8-bit numbers."""
    M, N = x.shape
    side = torch.empty(N, M, device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(M, 128), triton.cdiv(N, 128))
    flip[grid](bytes_of(x), bytes_of(side), M, N, BM=128, BN=128, num_warps=8)
    return side
