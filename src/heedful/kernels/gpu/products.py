"""Products of few rows in one launch with what stands next to them, and norms of rows (Triton).

    products   act(W norm(x) + b) + r, up to four W at once, or one that a second one gates
    normalise  a norm of rows

One row is a matter of reading W as fast as memory gives it. A program adds up a few rows of W x in registers
and reduces them once, at its end; x, which all programs read, comes from the cache. Kernels stand in a row
and each needs what the one before it wrote, but not for its weights. Where the device can (Hopper), a kernel
starts while the one before it still runs, loads its first weights, and waits only then. Several rows go
through matrix units. W may be floats, whole numbers of 8 bits with one factor per row, or of 4 bits with a
factor and an offset for each group of columns.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

ACTS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5}
NORMS = {None: 0, "layer": 1, "rms": 2, "scaled": 3}
UNITS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@functools.cache
def overlap(device: torch.device) -> dict[str, Any]:
    """Return the options of a kernel that starts before the one ahead of it has ended, where that can be."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"OVERLAP": True, "launch_pdl": True} if can else {"OVERLAP": False}


@triton.jit
def wait_for_input(OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the next kernel start, and wait until the one before has written all that it writes."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def apply_activation(y, ACT: tl.constexpr):  # type: ignore[no-untyped-def]
    if ACT == 1:
        y = tl.maximum(y, 0.0)
    elif ACT == 2:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif ACT == 3:
        t = 0.7978845608028654 * (y + 0.044715 * y * y * y)
        y = y * tl.sigmoid(2.0 * t)
    elif ACT == 4:
        y = y * tl.sigmoid(y)
    elif ACT == 5:
        y = 2.0 * tl.sigmoid(2.0 * y) - 1.0
    return y


@triton.jit
def select_product(  # type: ignore[no-untyped-def]
    program, w0, w1, w2, w3, s0, s1, s2, s3, b0, b1, b2, b3, y0, y1, y2, y3, n0, n1, n2, n3,
    COUNT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The matrix that a program works on, what belongs to it, and the program's number among its own"""
    w, s, b, y, n, which = w0, s0, b0, y0, n0, program * 0
    if COUNT > 1:
        ahead = tl.cdiv(n0, ROWS)
        if program >= ahead:
            w, s, b, y, n, which, program = w1, s1, b1, y1, n1, which + 1, program - ahead
            if COUNT > 2:
                ahead = tl.cdiv(n1, ROWS)
                if program >= ahead:
                    w, s, b, y, n, which, program = w2, s2, b2, y2, n2, which + 1, program - ahead
                    if COUNT > 3:
                        ahead = tl.cdiv(n2, ROWS)
                        if program >= ahead:
                            w, s, b, y, n, which, program = w3, s3, b3, y3, n3, which + 1, program - ahead
    return tl.multiple_of(w, 16), s, b, y, n, which, program


@triton.jit
def finish_product(  # type: ignore[no-untyped-def]
    value, up, which, bias, bias_up, residual, y, r, at, mask,
    ACTS: tl.constexpr, BIASES: tl.constexpr, GATED: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """y = act(value + b) · (up + b′) + r, the last two if there are any

    `r` counts rows of W, `at` where they go; ACTS has four bits and BIASES one for each of the matrices.
    """
    if BIASES != 0:
        here = mask & (((BIASES >> which) & 1) == 1)
        value += tl.load(bias + r, mask=here, other=0.0).to(tl.float32)
    for i in tl.static_range(4):
        if (ACTS >> (4 * i)) & 15 != 0:
            value = tl.where(which == i, apply_activation(value, (ACTS >> (4 * i)) & 15), value)
    if GATED:
        if BIASES != 0:
            up += tl.load(bias_up + r, mask=mask, other=0.0).to(tl.float32)
        value = value * up
    if RESIDUAL:
        value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)
    return value


@triton.jit
def load_row(x, gamma, beta, k, inside, eps, SIZE: tl.constexpr, NORM: tl.constexpr, BETA: tl.constexpr):  # type: ignore[no-untyped-def]
    """x as it is multiplied, and x²: normalised by mean and variance (k has all columns), or γ x alone

    What an RMSNorm divides by is one number for all columns: the sums are divided by it at their end.
    """
    v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
    square = v * v
    if NORM == 1:
        v = tl.where(inside, v - tl.sum(v, 0) / SIZE, 0.0)
        v = v * tl.rsqrt(tl.sum(v * v, 0) / SIZE + eps)
    if (NORM == 1) | (NORM == 2):
        v = v * tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
        if BETA:
            v += tl.load(beta + k, mask=inside, other=0.0).to(tl.float32)
    return v, square


@triton.jit
def widen_bytes(n, SIGNED: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bytes as floats. A byte put below the exponent of 2²³ is the float 2²³ + byte: two fast instructions.

    Converting takes the GPU four times as long. An interpreter knows no instructions, and converts.
    """
    if FAST:
        if SIGNED:
            code: tl.constexpr = """{ .reg .b32 u; xor.b32 u, $4, 0x80808080;
                prmt.b32 $0, u, 0x4B000000, 0x7650; sub.f32 $0, $0, 0f4B000080;
                prmt.b32 $1, u, 0x4B000000, 0x7651; sub.f32 $1, $1, 0f4B000080;
                prmt.b32 $2, u, 0x4B000000, 0x7652; sub.f32 $2, $2, 0f4B000080;
                prmt.b32 $3, u, 0x4B000000, 0x7653; sub.f32 $3, $3, 0f4B000080; }"""
            return tl.inline_asm_elementwise(code, "=r,=r,=r,=r,r", [n], tl.float32, True, 4)
        plain: tl.constexpr = """{
            prmt.b32 $0, $4, 0x4B000000, 0x7650; sub.f32 $0, $0, 0f4B000000;
            prmt.b32 $1, $4, 0x4B000000, 0x7651; sub.f32 $1, $1, 0f4B000000;
            prmt.b32 $2, $4, 0x4B000000, 0x7652; sub.f32 $2, $2, 0f4B000000;
            prmt.b32 $3, $4, 0x4B000000, 0x7653; sub.f32 $3, $3, 0f4B000000; }"""
        return tl.inline_asm_elementwise(plain, "=r,=r,=r,=r,r", [n], tl.float32, True, 4)
    return n.to(tl.float32)


@triton.jit
def group_sums(  # type: ignore[no-untyped-def]
    a, low, high, factors, both, k, mask,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """factor · Σ n x + offset · Σ x over each group of 2 · HALF columns, (ROWS, BLOCK / HALF)"""
    n = widen_bytes(a & 15, False, FAST) * low[None, :] + widen_bytes(a >> 4, False, FAST) * high[None, :]
    sums = tl.sum(tl.reshape(n, (ROWS, BLOCK // HALF, HALF)), 2)
    factor = tl.load(factors + k[None, :] * 2, mask=mask, other=0.0)
    offset = tl.load(factors + k[None, :] * 2 + 1, mask=mask, other=0.0)
    return factor * sums + offset * both[None, :]


@triton.jit
def add_tile(  # type: ignore[no-untyped-def]
    total, second, squares, a, g, x, gamma, beta, scales, scales_up, start, live, eps,
    SIZE: tl.constexpr, NORM: tl.constexpr, BETA: tl.constexpr, GATED: tl.constexpr, BITS: tl.constexpr,
    HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """total + a x for a tile a of W, element by element; GATED, second + g x too

    Of 4 bits a tile counts bytes, the low bits of a byte are HALF columns before the high ones, and sums are
    those of groups.
    """
    k = start + tl.arange(0, BLOCK)
    if BITS == 4:
        column, inside = k // HALF * (2 * HALF) + k % HALF, k < SIZE // 2
        low = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(x + column + HALF, mask=inside, other=0.0).to(tl.float32)
        both = tl.sum(tl.reshape(low + high, (BLOCK // HALF, HALF)), 1)
        group = start // HALF + tl.arange(0, BLOCK // HALF)
        mask = live[:, None] & (group < SIZE // (2 * HALF))[None, :]
        total += group_sums(a, low, high, scales, both, group, mask, ROWS, BLOCK, HALF, FAST)
        if GATED:
            second += group_sums(g, low, high, scales_up, both, group, mask, ROWS, BLOCK, HALF, FAST)
    else:
        v, square = load_row(x, gamma, beta, k, k < SIZE, eps, SIZE, NORM, BETA)
        if NORM == 2:
            squares += square
        if BITS == 8:
            total += widen_bytes(a, True, FAST) * v[None, :]
            if GATED:
                second += widen_bytes(g, True, FAST) * v[None, :]
        else:
            total += a.to(tl.float32) * v[None, :]
            if GATED:
                second += g.to(tl.float32) * v[None, :]
    return total, second, squares


@triton.jit(do_not_specialize=["n0", "n1", "n2", "n3"])
def row_kernel(  # type: ignore[no-untyped-def]
    x, gamma, beta, after, scaled, sums, w0, w1, w2, w3, s0, s1, s2, s3, b0, b1, b2, b3, y0, y1, y2, y3,
    residual, n0, n1, n2, n3, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, PARTS: tl.constexpr, MOST_PARTS: tl.constexpr,
    AFTER: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, COUNT: tl.constexpr,
    ACTS: tl.constexpr, BIASES: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """ROWS numbers of act(W norm(x) + b) + r for one row x, or of that product times a second one, GATED

    The first tiles of W are loaded before x is there. An RMSNorm that comes AFTER, with gains `after`, finds
    γ y in `scaled` and the sum of squares in `sums`, a part of it from each program. Such a norm is NORM 3,
    and `gamma` are those PARTS.
    """
    w, s, bias, y, count, which, program = select_product(
        tl.program_id(0), w0, w1, w2, w3, s0, s1, s2, s3, b0, b1, b2, b3, y0, y1, y2, y3, n0, n1, n2, n3,
        COUNT, ROWS,
    )  # fmt: skip
    r = program * ROWS + tl.arange(0, ROWS)
    live = r < count
    width: tl.constexpr = SIZE // 2 if BITS == 4 else SIZE  # elements of a row of W
    line = r.to(tl.int64)[:, None] * width
    groups = r.to(tl.int64)[:, None] * (SIZE // HALF)  # two numbers for each group of 2 · HALF columns
    k = tl.arange(0, BLOCK)
    mask = live[:, None] & (k < width)[None, :]
    a = tl.load(w + line + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
    g = a
    if GATED:
        g = tl.load(w1 + line + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
    wait_for_input(OVERLAP)
    wide: tl.constexpr = BLOCK // HALF if BITS == 4 else BLOCK
    total = tl.zeros((ROWS, wide), tl.float32)
    second = tl.zeros((ROWS, wide), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    if NORM == 3:
        part = tl.arange(0, MOST_PARTS)
        length = tl.sum(tl.load(gamma + part, mask=part < PARTS, other=0.0), 0)
    total, second, squares = add_tile(
        total, second, squares, a, g, x, gamma, beta, s + groups, s1 + groups, 0, live, eps, SIZE, NORM, BETA,
        GATED, BITS, HALF, ROWS, BLOCK, FAST,
    )  # fmt: skip
    for start in range(BLOCK, width, BLOCK):
        k = start + tl.arange(0, BLOCK)
        mask = live[:, None] & (k < width)[None, :]
        a = tl.load(w + line + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        if GATED:
            g = tl.load(w1 + line + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        total, second, squares = add_tile(
            total, second, squares, a, g, x, gamma, beta, s + groups, s1 + groups, start, live, eps, SIZE,
            NORM, BETA, GATED, BITS, HALF, ROWS, BLOCK, FAST,
        )  # fmt: skip
    value, up = tl.sum(total, 1), tl.sum(second, 1)
    if NORM == 2:
        length = tl.sum(squares, 0)
    if NORM >= 2:
        gain = tl.rsqrt(length / SIZE + eps)
        value, up = value * gain, up * gain
    if BITS == 8:
        value = value * tl.load(s + r, mask=live, other=0.0)
        if GATED:
            up = up * tl.load(s1 + r, mask=live, other=0.0)
    value = finish_product(value, up, which, bias, b1, residual, y, r, r, live, ACTS, BIASES, GATED, RESIDUAL)
    if AFTER:
        value = tl.where(live, value.to(scaled.dtype.element_ty).to(tl.float32), 0.0)
        gains = tl.load(after + r, mask=live, other=0.0).to(tl.float32)
        tl.store(scaled + r, (value * gains).to(scaled.dtype.element_ty), mask=live)
        tl.store(sums + program, tl.sum(value * value, 0))


@triton.jit
def multiply_tile(  # type: ignore[no-untyped-def]
    total, w, scales, x, line, groups, k, m, live, rows, width, size,
    BITS: tl.constexpr, HALF: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """total + W x for a tile of W and the same columns of rows x"""
    inside = k < width
    mask = live[:, None] & inside[None, :]
    here = inside[:, None] & (m < rows)[None, :]
    a = tl.load(w + line + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
    if BITS == 4:
        column = k // HALF * (2 * HALF) + k % HALF
        factor = tl.load(scales + groups + k[None, :] // HALF * 2, mask=mask, other=0.0)
        offset = tl.load(scales + groups + k[None, :] // HALF * 2 + 1, mask=mask, other=0.0)
        low = tl.load(x + m[None, :] * size + column[:, None], mask=here, other=0.0)
        high = tl.load(x + m[None, :] * size + column[:, None] + HALF, mask=here, other=0.0)
        first, last = (a & 15).to(tl.float32) * factor + offset, (a >> 4).to(tl.float32) * factor + offset
        total = tl.dot(first.to(UNIT), low.to(UNIT), total, input_precision="ieee")
        total = tl.dot(last.to(UNIT), high.to(UNIT), total, input_precision="ieee")
    else:
        v = tl.load(x + m[None, :] * size + k[:, None], mask=here, other=0.0)
        total = tl.dot(a.to(UNIT), v.to(UNIT), total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["n0", "n1", "n2", "n3", "rows"])
def rows_kernel(  # type: ignore[no-untyped-def]
    x, w0, w1, w2, w3, s0, s1, s2, s3, b0, b1, b2, b3, y0, y1, y2, y3, residual, rows, size, n0, n1, n2, n3,
    RESIDUAL: tl.constexpr, GATED: tl.constexpr, COUNT: tl.constexpr, ACTS: tl.constexpr,
    BIASES: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr, UNIT: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """ROWS columns of act(x Wᵀ + b) + r for up to TOKENS rows x, by matrix units"""
    w, s, bias, y, count, which, program = select_product(
        tl.program_id(0), w0, w1, w2, w3, s0, s1, s2, s3, b0, b1, b2, b3, y0, y1, y2, y3, n0, n1, n2, n3,
        COUNT, ROWS,
    )  # fmt: skip
    r = program * ROWS + tl.arange(0, ROWS)
    m = tl.arange(0, TOKENS)
    live = r < count
    width = size // 2 if BITS == 4 else size
    line = r.to(tl.int64)[:, None] * width
    groups = r.to(tl.int64)[:, None] * (size // HALF)
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    second = tl.zeros((ROWS, TOKENS), tl.float32)
    wait_for_input(OVERLAP)
    for start in tl.range(0, width, BLOCK, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK)
        total = multiply_tile(total, w, s, x, line, groups, k, m, live, rows, width, size, BITS, HALF, UNIT)
        if GATED:
            second = multiply_tile(
                second, w1, s1, x, line, groups, k, m, live, rows, width, size, BITS, HALF, UNIT
            )
    if BITS == 8:
        total = total * tl.load(s + r, mask=live, other=0.0)[:, None]
        if GATED:
            second = second * tl.load(s1 + r, mask=live, other=0.0)[:, None]
    at = m[None, :] * count + r[:, None]
    mask = live[:, None] & (m < rows)[None, :]
    finish_product(
        total, second, which, bias, b1, residual, y, r[:, None], at, mask, ACTS, BIASES, GATED, RESIDUAL
    )


def row_tile(columns: int, norm: int, bits: int, gated: bool) -> tuple[int, int, int]:
    """Return rows of W, columns (or bytes) at a time and warps of a program for one row: fast on an H200."""
    whole = triton.next_power_of_2(columns // 2 if bits == 4 else columns)
    if norm == 1 or whole <= 1024:
        return 4, whole, 4
    if whole == 4096 and columns < 4096:
        return 2, 4096, 8
    if gated or norm == 2 or (norm == 0 and columns <= 4096):
        return 2, 1024, 4
    return (2, 1024, 2) if bits == 8 and norm == 0 else (4, 1024, 4)


def rows_tile(columns: int, count: int) -> tuple[int, int, int, int]:
    """Return rows of W, columns at a time, tiles under way and warps of a program for several rows."""
    return (16, 128, 4, 4) if columns * count < 2**24 else (64, 128, 4, 4)


def products(
    x: Tensor, norm: Any, products: list[Any], residual: Tensor | None, dtype: torch.dtype, after: Any = None
) -> list[Tensor]:
    """act(W norm(x) + b) + r of rows x (M, K) for up to four W, or for one that is gated by a second.

    Only one row is normalised on the way, and only the product of one row has a norm `after` it.
    """
    (tokens, columns), first = x.shape, products[0]
    found = [torch.empty(tokens, len(p.weight), dtype=dtype, device=x.device) for p in products]
    read = products if first.gated is None else [first, first.gated]
    fill = lambda items: [*items, *[found[0]] * (4 - len(items))]
    sizes = [len(p.weight) for p in products]
    matrices = [
        *fill([p.weight for p in read]), *fill([found[0] if p.scale is None else p.scale for p in read]),
        *fill([found[0] if p.bias is None else p.bias for p in read]), *fill(found),
        found[0] if residual is None else residual,
    ]  # fmt: skip
    counts = [*sizes, *[0] * (4 - len(sizes))]
    # A matrix that this step itself computes may not be there when a kernel starts early.
    stored = all(isinstance(p.weight, torch.nn.Parameter) for p in read)
    kinds = {
        "RESIDUAL": residual is not None, "GATED": first.gated is not None, "COUNT": len(products),
        "ACTS": sum(ACTS[p.act] << (4 * i) for i, p in enumerate(products)),
        "BIASES": sum((p.bias is not None) << i for i, p in enumerate(products)),
        "BITS": first.bits, "HALF": max(1, first.group // 2),
        **(overlap(x.device) if stored else {"OVERLAP": False}),
    }  # fmt: skip
    if tokens > 1:
        rows, block, stages, warps = rows_tile(columns, sum(sizes))
        rows_kernel[(sum(-(-n // rows) for n in sizes),)](
            x, *matrices, tokens, columns, *counts, **kinds, UNIT=UNITS[x.dtype], ROWS=rows, BLOCK=block,
            TOKENS=max(16, triton.next_power_of_2(tokens)), STAGES=stages, num_warps=warps,
        )  # fmt: skip
        return found
    kind = NORMS[None if norm is None else norm.kind]
    rows, block, warps = row_tile(columns, kind, first.bits, first.gated is not None)
    programs, beta, behind = sum(-(-n // rows) for n in sizes), None if norm is None else norm.bias, [x, x, x]
    parts = len(norm.weight) if kind == NORMS["scaled"] else 1
    if after is not None:
        scaled = torch.empty(tokens, sizes[0], dtype=after.weight.dtype, device=x.device)
        behind = [after.weight, scaled, torch.empty(programs, dtype=torch.float32, device=x.device)]
    row_kernel[(programs,)](
        x, x if norm is None else norm.weight, x if beta is None else beta, *behind, *matrices, *counts,
        0.0 if norm is None else norm.eps, **kinds, NORM=kind, BETA=beta is not None,
        PARTS=parts, MOST_PARTS=triton.next_power_of_2(parts), AFTER=after is not None, SIZE=columns,
        ROWS=rows, BLOCK=block, FAST=x.device.type == "cuda", num_warps=warps,
    )  # fmt: skip
    return found if after is None else [*found, *behind[1:]]


@triton.jit
def normalise_kernel(  # type: ignore[no-untyped-def]
    x, gamma, beta, y, size, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) in the type of y; an RMSNorm is rounded to it before it meets γ, as its definition has it"""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = k < size
    wait_for_input(OVERLAP)
    value = tl.load(x + row * size + k, mask=inside, other=0.0).to(y.dtype.element_ty).to(tl.float32)
    if NORM == 1:
        value = tl.where(inside, value - tl.sum(value, 0) / size, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    if NORM == 2:
        value = value.to(y.dtype.element_ty).to(tl.float32)
    value = value * tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    if BETA:
        value += tl.load(beta + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * size + k, value.to(y.dtype.element_ty), mask=inside)


def normalise(x: Tensor, norm: Any) -> Tensor:
    size, weight = x.shape[-1], norm.weight
    y = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    normalise_kernel[(x.numel() // size,)](
        x.contiguous(), weight, weight if norm.bias is None else norm.bias, y, size, norm.eps,
        NORM=NORMS[norm.kind], BETA=norm.bias is not None, BLOCK=triton.next_power_of_2(size),
        num_warps=8 if size > 2048 else 4, **overlap(x.device),
    )  # fmt: skip
    return y
