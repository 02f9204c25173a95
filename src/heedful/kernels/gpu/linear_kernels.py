"""What is done to the factors of a training step's products, each in one visit to memory (Triton).

    gelu_kernel       gelu(x)
    join_kernel       gradients side by side, or up · gelu′(x), and the sums of their columns
    max_kernel        the largest |v| among some rows, a number for each program
    round_kernel      v · s in float8, as it stands and transposed, and the sums of v's columns
    transpose_kernel  8-bit numbers transposed

v is x itself, gelu(x), or up · gelu′(x): what feeds a product in float8 never exists in more than 8 bits.
`kernels/gpu/fused_linear.py` and `kernels/gpu/float8_product.py` have the definitions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from heedful.kernels.gpu.operators import launch


class Tile(NamedTuple):
    """What a program works on at a time."""

    rows: int
    columns: int
    warps: int


STRIPE = 256  # rows whose sum a program takes
BLOCK = 4096  # numbers that a program takes of what goes through the GELU
MAX_PARTS = 3  # tensors that one launch joins
JOIN_ROWS, SLOPE_ROWS, COLUMNS = 32, 16, 128  # that a program of the joining kernel takes at a time
# The fastest of six on an H200, for (operand,  whether its columns are summed).
TILES = {
    (0, False): Tile(128, 128, 8),
    (0, True): Tile(128, 64, 4),
    (1, False): Tile(64, 128, 4),
    (2, True): Tile(64, 64, 4),
}
OTHER = Tile(128, 64, 4)


@triton.jit
def gelu_gate(v):  # type: ignore[no-untyped-def]
    """g of gelu(v) = v g; the numbers are −2 log₂e · √(2/π), and the same times 0.044715."""
    return 1.0 / (1.0 + tl.exp2(v * (-2.302208198 - 0.10294324 * v * v)))


@triton.jit
def gelu_slope(v, gate):  # type: ignore[no-untyped-def]
    """gelu′(v)"""
    bend = 0.03567740813630013 * v * v
    return gate + 2.0 * v * gate * (1.0 - gate) * (0.7978845608028654 + 3.0 * bend)


@triton.jit
def gelu_kernel(u, h, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(u + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(h + at, (v * gelu_gate(v)).to(h.dtype.element_ty), mask=at < size)


@triton.jit
def join_kernel(  # type: ignore[no-untyped-def]
    x, y, z, up, out, sums, M, A, B, C, sx, sy, sz,
    SLOPE: tl.constexpr, STRIPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """x (M, A), y (M, B) and z (M, C), their rows sx, sy and sz apart; a block lies in one of them.

    SLOPE: up · gelu′(x), where x is the only one.
    """
    wide = A + B + C
    block = tl.program_id(0)
    base, stride, size, before, nth = x, sx, A, 0, block
    if not SLOPE:
        first, second = tl.cdiv(A, BN), tl.cdiv(B, BN)
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
        if SLOPE:
            v = v.to(tl.float32)
            g = tl.load(up + m[:, None] * stride + n[None, :], mask=inside, other=0.0).to(tl.float32)
            v = (g * gelu_slope(v, gelu_gate(v))).to(out.dtype.element_ty)
        tl.store(out + before + m[:, None] * wide + n[None, :], v, mask=inside)
        total += v.to(tl.float32)
    tl.store(sums + tl.program_id(1) * wide + before + n, tl.sum(total, 0), mask=n < size)


def launch_gelu(u: Tensor) -> Tensor:
    h = torch.empty_like(u)
    launch(gelu_kernel, triton.cdiv(u.numel(), BLOCK))(u, h, u.numel(), BLOCK=BLOCK, num_warps=8)
    return h


def launch_join(parts: list[Tensor], up: Tensor | None) -> tuple[Tensor, Tensor]:
    """The kernel over up to three matrices, or over the only one with `up`."""
    ready = [part if part.stride(-1) == 1 and up is None else part.contiguous() for part in parts]
    ready += [ready[0][:, :0]] * (MAX_PARTS - len(ready))
    sizes, strides = [part.shape[1] for part in ready], [part.stride(0) for part in ready]
    M, wide, stripes = len(ready[0]), sum(sizes), triton.cdiv(len(ready[0]), STRIPE)
    out, sums = ready[0].new_empty(M, wide), ready[0].new_empty(stripes, wide, dtype=torch.float32)
    launch(join_kernel, sum(triton.cdiv(size, COLUMNS) for size in sizes), stripes)(
        *ready, ready[0] if up is None else up.contiguous(), out, sums, M, *sizes, *strides,
        SLOPE=up is not None, STRIPE=STRIPE, BM=JOIN_ROWS if up is None else SLOPE_ROWS, BN=COLUMNS,
        num_warps=4,
    )  # fmt: skip
    return out, sums


@triton.jit
def tanh_approx(t, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """One instruction, off by 2⁻¹¹ at most (less than 8 bits show); or exactly."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [t], tl.float32, True, 1)
    return 2.0 * tl.sigmoid(2.0 * t) - 1.0


@triton.jit
def load_operand(x, up, at, inside, OPERAND: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """x, g(x) = ½ x (1 + tanh t) with t = √(2/π) (x + 0.044715 x³), or up · g′(x), in float32."""
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if OPERAND != 0:
        bend = 0.03567740813630013 * v * v
        gate = 0.5 + 0.5 * tanh_approx(v * (0.7978845608028654 + bend), FAST)
        if OPERAND == 1:
            v = v * gate
        else:
            v = gelu_slope(v, gate) * tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    return v


@triton.jit
def max_kernel(  # type: ignore[no-untyped-def]
    x, up, highs, M, N, stride, step,
    OPERAND: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    m = ((tl.program_id(0) * ROWS + tl.arange(0, ROWS)) * step).to(tl.int64)
    high = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        inside = (m[:, None] < M) & (n[None, :] < N)
        v = load_operand(x, up, m[:, None] * stride + n[None, :], inside, OPERAND, FAST)
        high = tl.maximum(high, tl.abs(v))
    tl.store(highs + tl.program_id(0), tl.max(tl.max(high, 1), 0))


@triton.jit
def round_tile(v, kind, FAST: tl.constexpr, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    """v in float8, as bytes: what is beyond the largest is held there, a NaN stays one.

    The GPU's instruction does so by itself, for two numbers at once. If such a pair has to be taken apart
    again to be transposed, ptxas 12.9 mixes in bytes of other registers (Triton's issue 11111), which may
    mean NaN: so a number is paired with nothing.
    """
    if not FAST:
        v = tl.where(v > LARGEST, LARGEST, tl.where(v < -LARGEST, -LARGEST, v))
        return v.to(kind.dtype.element_ty).to(tl.int8, bitcast=True)
    if kind.dtype.element_ty == tl.float8e5:
        e5: tl.constexpr = "{.reg .b16 t; cvt.rn.satfinite.e5m2x2.f32 t, 0f00000000, $1; cvt.u32.u16 $0, t;}"
        return tl.inline_asm_elementwise(e5, "=r,f", [v], tl.int32, True, 1).to(tl.int8)
    e4: tl.constexpr = "{.reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, 0f00000000, $1; cvt.u32.u16 $0, t;}"
    return tl.inline_asm_elementwise(e4, "=r,f", [v], tl.int32, True, 1).to(tl.int8)


@triton.jit
def round_kernel(  # type: ignore[no-untyped-def]
    x, up, highs, kind, flat, out_t, inverse_scale, sums, M, N, stride, width, headroom,
    OPERAND: tl.constexpr, FAST: tl.constexpr, SAMPLES: tl.constexpr, LARGEST: tl.constexpr,
    SUM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """`width` is the length of a row of `flat`, which may hold other tensors next to this one.

    `kind` only points to the type.
    """
    high = tl.max(tl.load(highs + tl.arange(0, SAMPLES)), 0)
    scale = LARGEST / tl.maximum(high * headroom, 1e-30)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse_scale, 1.0 / scale)
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    inside = (m[:, None] < M) & (n[None, :] < N)
    v = load_operand(x, up, m[:, None] * stride + n[None, :], inside, OPERAND, FAST)
    if SUM:
        tl.store(sums + tl.program_id(0) * width + n, tl.sum(v, 0), mask=n < N)
    bits = round_tile(v * scale, kind, FAST, LARGEST)
    tl.store(flat + m[:, None] * width + n[None, :], bits, mask=inside)
    tl.store(out_t + n[None, :] * M + m[:, None], bits, mask=inside)


@triton.jit
def transpose_kernel(x, out_t, M, N, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    v = tl.load(x + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N), other=0)
    tl.store(out_t + n[:, None] * M + m[None, :], tl.trans(v), mask=(n[:, None] < N) & (m[None, :] < M))


def launch_round(
    parts: list[Tensor], up: Tensor | None, operand_kind: int, kind: torch.dtype, headroom: float, sums: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The kernels over tensors (M, N) that stand side by side in the result."""
    tile, fast = TILES.get((operand_kind, sums), OTHER), not triton.knobs.runtime.interpret
    rows, width = len(parts[0]), sum(part.shape[1] for part in parts)
    made = lambda *size, dtype=torch.float32: torch.empty(size, device=parts[0].device, dtype=dtype)
    flat, side, inverse_scale = made(rows, width, dtype=kind), made(width, rows, dtype=kind), made()
    total = made(triton.cdiv(rows, tile.rows) if sums else 0, width)
    samples = 32 * (1 << (len(parts) - 1).bit_length())
    highs = made(samples) if samples == 32 * len(parts) else torch.zeros(samples, device=parts[0].device)
    ready = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    beside = ready[0] if up is None else up.contiguous() if up.stride() != ready[0].stride() else up
    for i, x in enumerate(ready):
        launch(max_kernel, 32)(
            x, beside, highs[32 * i :], rows, x.shape[1], x.stride(0), -(-rows // 256),
            OPERAND=operand_kind, FAST=fast, ROWS=8, BLOCK=512, num_warps=8,
        )  # fmt: skip
    start = 0
    for x in ready:
        size = x.shape[1]
        launch(round_kernel, triton.cdiv(rows, tile.rows), triton.cdiv(size, tile.columns))(
            x, beside, highs, flat, as_bytes(flat)[:, start:], as_bytes(side)[start:], inverse_scale,
            total[:, start:] if sums else inverse_scale, rows, size, x.stride(0), width, headroom,
            OPERAND=operand_kind, FAST=fast, SAMPLES=samples, LARGEST=torch.finfo(kind).max, SUM=sums,
            BM=tile.rows, BN=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        start += size
    return flat, side, inverse_scale, total


def as_bytes(x: Tensor) -> Tensor:
    """8-bit numbers as they lie in memory"""
    return x.view(torch.int8)


def transpose_bytes(x: Tensor) -> Tensor:
    """xᵀ, in memory too, of 8-bit numbers."""
    M, N = x.shape
    side = torch.empty(N, M, device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(M, 128), triton.cdiv(N, 128))
    launch(transpose_kernel, *grid)(as_bytes(x), as_bytes(side), M, N, BM=128, BN=128, num_warps=8)
    return side
