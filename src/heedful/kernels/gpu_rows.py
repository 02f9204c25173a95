"""One step of a decoder on a GPU: Triton kernels for what stands between the large products, and for those
products where one row makes them a matter of memory alone.

    embed_kernel      x = scale · table[token] + position
    normalise_kernel  x += y;  n = norm(x)
    product_kernel    y = act(W norm(x) + b), one row; y is set, added to x, or gated by a second matrix
    gate_kernel       h = act(g) ⊙ u

`gpu_attend.py` has attention, `gpu_int8.py` products with weights of 8 bits, for which `normalise_kernel`
writes digits. The model itself is the definition; `kernels/cpu_rows.py` is the same list for a CPU. x stays
in float32.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

SET, ADD, GATED = 0, 1, 2
NONE, RELU, GELU, GELU_TANH, SILU, TANH, SQUARED_RELU = range(7)
PLAIN, LAYER, RMS = 0, 1, 2
GROUP = 16  # columns with a gain of their own: what a thread reads of a row of bytes at once


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
    elif ACT == 6:
        y = tl.maximum(y, 0.0)
        y = y * y
    return y


@triton.jit
def normalise_row(  # type: ignore[no-untyped-def]
    x, gamma, beta, k, inside, size, eps, NORM: tl.constexpr, BETA: tl.constexpr
):  # fmt: skip
    """γ (x − mean) / √(var + ε) + β, or without the mean."""
    if NORM != 0:
        if NORM == 1:
            mean = tl.sum(x, 0) / size
            x = tl.where(inside, x - mean, 0.0)
        gain = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
        x = x * gain * tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
        if BETA:
            x += tl.load(beta + k, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def round_row(v, digits, gains, k, size, inside, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write v (BLOCK,) as digits at k: hi, and lo `size` bytes after it."""
    v = tl.reshape(v, (BLOCK // 16, 16))
    k = tl.reshape(k, (BLOCK // 16, 16))
    inside = tl.reshape(inside, (BLOCK // 16, 16))
    gain = tl.maximum(tl.max(tl.abs(v), 1), 1e-30) / 32512.0  # 127 · 256: hi and lo are bytes
    n = tl.floor(v / gain[:, None] + 0.5).to(tl.int32)
    hi = (n + 128) >> 8
    tl.store(digits + k, hi.to(tl.int8), mask=inside)
    tl.store(digits + size + k, (n - hi * 256).to(tl.int8), mask=inside)
    tl.store(gains + tl.min(k, 1) // 16, gain, mask=tl.max(inside.to(tl.int32), 1) > 0)


@triton.jit
def embed_kernel(  # type: ignore[no-untyped-def]
    tokens, table, scales, positions, past, first, x, size, scale,
    INT8: tl.constexpr, POSITION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    k = tl.arange(0, BLOCK)
    inside = k < size
    value = tl.load(table + token * size + k, mask=inside, other=0).to(tl.float32) * scale
    if INT8:
        value = value * tl.load(scales + token)
    if POSITION:
        at = tl.load(past) - tl.load(first + row)
        value += tl.load(positions + at * size + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + row * size + k, value, mask=inside)


@triton.jit
def normalise_kernel(  # type: ignore[no-untyped-def]
    x, y, n, gains, gamma, beta, size, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, HAS_RESIDUAL: tl.constexpr, DIGITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """x += y if there is a y;  n = norm(x), as it is or, of one row, in digits"""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < size
    value = tl.load(x + row * size + k, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        value += tl.load(y + row * size + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + row * size + k, value, mask=inside)
    value = normalise_row(value, gamma, beta, k, inside, size, eps, NORM, BETA)
    if DIGITS:
        round_row(value, n, gains, k, size, inside, BLOCK)
    else:
        tl.store(n + row * size + k, value.to(n.dtype.element_ty), mask=inside)


@triton.jit
def gate_kernel(g, h, size, ACT: tl.constexpr, HAS_GATE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """h = act(g) ⊙ u, g and u side by side; or act(g) alone"""
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < size
    wide = 2 * size if HAS_GATE else size
    value = apply_activation(tl.load(g + row * wide + k, mask=inside, other=0.0).to(tl.float32), ACT)
    if HAS_GATE:
        value = value * tl.load(g + row * wide + size + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(h + row * size + k, value.to(h.dtype.element_ty), mask=inside)


@triton.jit
def store_output(  # type: ignore[no-untyped-def]
    value, up, y, bias, r, live, rows, factor, MODE: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """y_r = act(factor · value + b): set, added, or multiplied by up + b'. What every product ends with."""
    value = value * factor
    if BIAS:
        value += tl.load(bias + r, mask=live, other=0.0).to(tl.float32)
    value = apply_activation(value, ACT)
    if MODE == 2:
        if BIAS:
            up += tl.load(bias + rows + r, mask=live, other=0.0).to(tl.float32)
        value = value * up
    if MODE == 1:
        value += tl.load(y + r, mask=live, other=0.0)
    tl.store(y + r, value.to(y.dtype.element_ty), mask=live)


@triton.jit
def product_kernel(  # type: ignore[no-untyped-def]
    x, w, y, bias, gamma, beta, size, rows, eps, factor,
    NORM: tl.constexpr, BETA: tl.constexpr, MODE: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of W x. ONE_BLOCK reaches over all columns, so that x can be normalised on the way."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = r < rows
    base = w + r.to(tl.int64)[:, None] * size
    other = base + rows.to(tl.int64) * size  # the second matrix of a gate
    k = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        inside = k < size
        mask = live[:, None] & inside[None, :]
        a = tl.load(base + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        if MODE == 2:
            b = tl.load(other + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        v = normalise_row(v, gamma, beta, k, inside, size, eps, NORM, BETA)
        value = tl.sum(a.to(tl.float32) * v[None, :], 1)
        up = value
        if MODE == 2:
            up = tl.sum(b.to(tl.float32) * v[None, :], 1)
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        second = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, size, BLOCK):
            inside = start + k < size
            mask = live[:, None] & inside[None, :]
            v = tl.load(x + start + k, mask=inside, other=0.0).to(tl.float32)
            a = tl.load(base + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
            total += a.to(tl.float32) * v[None, :]
            if MODE == 2:
                b = tl.load(other + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
                second += b.to(tl.float32) * v[None, :]
        value, up = tl.sum(total, 1), tl.sum(second, 1)
    store_output(value, up, y, bias, r, live, rows, factor, MODE, ACT, BIAS)
