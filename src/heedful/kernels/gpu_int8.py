"""Products of one row with weights of 8 bits, in whole numbers: Triton kernels.

    round_digits_kernel  v ≈ gain · (256 hi + lo), hi and lo signed bytes, one gain for 16 neighbours
    int8_product_kernel  y = act(s ⊙ W v + b), W four bytes to a word; y is set, added to x, or gated

A byte that becomes a float costs instructions and registers; four bytes times four bytes are one instruction
instead (dp4a), for hi and for lo, and a row is read as two bytes a column instead of floats to be normalised.
16 bits of v are far more than the 8 of W, so that the error stays that of the weights. `kernels/cpu_rows.py`
does the same on a CPU.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

from heedful.kernels.gpu_rows import round_row, store_output


@triton.jit
def round_digits_kernel(v, digits, gains, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < size
    value = tl.load(v + k, mask=inside, other=0.0).to(tl.float32)
    round_row(value, digits, gains, k, size, inside, BLOCK)


@triton.jit
def dot4(w, v, total, DP4A: tl.constexpr):  # type: ignore[no-untyped-def]
    """total + Σ_b w_b v_b over the four signed bytes b of two words.

    One instruction of the GPU; an interpreter has none, and takes the bytes one by one.
    """
    if DP4A:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [w, v, total], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        for b in tl.static_range(4):
            total += ((w << (24 - 8 * b)) >> 24) * ((v << (24 - 8 * b)) >> 24)
    return total


@triton.jit
def group_sums(w, hi, lo, ROWS: tl.constexpr, BLOCK: tl.constexpr, DP4A: tl.constexpr):  # type: ignore[no-untyped-def]
    """Σ w (256 hi + lo) over each 16 columns, (ROWS, BLOCK / 4). 32 bits hold it: 16 · 127 · 2¹⁵."""
    hi, lo = tl.broadcast_to(hi[None, :], (ROWS, BLOCK)), tl.broadcast_to(lo[None, :], (ROWS, BLOCK))
    n = dot4(w, lo, dot4(w, hi, tl.zeros((ROWS, BLOCK), tl.int32), DP4A) * 256, DP4A)
    return tl.sum(tl.reshape(n, (ROWS, BLOCK // 4, 4)), 2).to(tl.float32)


@triton.jit
def int8_product_kernel(  # type: ignore[no-untyped-def]
    digits, gains, w, y, scales, bias, factor,
    WORDS: tl.constexpr, COUNT: tl.constexpr, MODE: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DP4A: tl.constexpr,
):  # fmt: skip
    """ROWS rows of W v. `digits` and `w` are read as words; the loop is unrolled, so that loads run ahead."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = r < COUNT
    base = w + r.to(tl.int64)[:, None] * WORDS
    total = tl.zeros((ROWS, BLOCK // 4), tl.float32)
    second = tl.zeros((ROWS, BLOCK // 4), tl.float32)
    for start in tl.static_range(0, WORDS, BLOCK):
        k = start + tl.arange(0, BLOCK)
        group = start // 4 + tl.arange(0, BLOCK // 4)
        mask = live[:, None] & (k < WORDS)[None, :]
        a = tl.load(base + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        if MODE == 2:
            b = tl.load(base + COUNT * WORDS + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        hi = tl.load(digits + k, mask=k < WORDS, other=0)
        lo = tl.load(digits + WORDS + k, mask=k < WORDS, other=0)
        gain = tl.load(gains + group, mask=group < WORDS // 4, other=0.0)
        total += group_sums(a, hi, lo, ROWS, BLOCK, DP4A) * gain[None, :]
        if MODE == 2:
            second += group_sums(b, hi, lo, ROWS, BLOCK, DP4A) * gain[None, :]
    value = tl.sum(total, 1) * tl.load(scales + r, mask=live, other=0.0)
    up = tl.sum(second, 1)
    if MODE == 2:
        up = up * tl.load(scales + COUNT + r, mask=live, other=0.0)
    store_output(value, up, y, bias, r, live, COUNT, factor, MODE, ACT, BIAS)
