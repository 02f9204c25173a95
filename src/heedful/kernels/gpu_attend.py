"""One step's attention on a GPU: rotary q and k, the newest key and value into the cache, and
softmax(q kᵀ · scale + bias) v over what is written so far, for one row or many.

    attention_kernel      one key head of one row with the query heads that share it, over one piece
    combine_kernel        the pieces of a head as one
    rotate_prompt_kernel  rotary q and k of whole prompts; their keys and values into the cache

Blocks of keys and values stream through a pipeline and meet the queries in matrix units, 16 queries at least:
those that are not there cost nothing that memory would notice. Exponentials are powers of two, log₂e is in
the scale. Caches may be narrower than q (8-bit floats): a block is widened when it is there.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

from heedful.kernels.gpu_rows import round_row

MIN_TILE = 16  # queries and head sizes that a matrix unit takes
UNITS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def rotary_angles(cos, sin, base, i, SIZE: tl.constexpr, PADDED: tl.constexpr, ROTARY: tl.constexpr):  # type: ignore[no-untyped-def]
    """cos and signed sin for every place of a head whose angles begin at `base`; 1 and 0 without"""
    c = tl.full((PADDED,), 1.0, tl.float32)
    s = tl.zeros((PADDED,), tl.float32)
    if ROTARY:
        c = tl.load(cos + base + i % (SIZE // 2), mask=i < SIZE, other=0.0)
        s = tl.load(sin + base + i % (SIZE // 2), mask=i < SIZE, other=0.0)
        s = s * tl.where(i < SIZE // 2, -1.0, 1.0)
    return c, s


@triton.jit
def rotate_head(base, c, s, i, live, SIZE: tl.constexpr, ROTARY: tl.constexpr):  # type: ignore[no-untyped-def]
    """x_i cos − x_{i+K/2} sin in a head's first half, x_i cos + x_{i−K/2} sin in the second; s is signed"""
    x = tl.load(base + i, mask=live, other=0.0).to(tl.float32)
    if ROTARY:
        partner = tl.where(i < SIZE // 2, i + SIZE // 2, i - SIZE // 2)
        x = x * c + tl.load(base + partner, mask=live, other=0.0).to(tl.float32) * s
    return x


@triton.jit
def widen_float8(w, SECOND: tl.constexpr, PACKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of the two 8-bit floats in each 16 bits, as a float16 that is 2⁸ too small.

    Both have a sign, an exponent and a mantissa in this order: shifted into base, only the exponent's zero
    differs, by 8. PACKED does it for two at once in 32 bits, which an interpreter cannot.
    """
    if PACKED:
        if SECOND:
            w = tl.inline_asm_elementwise(
                "{ .reg .b32 a, b; and.b32 a, $1, 0x80008000; shr.b32 b, $1, 1; and.b32 b, b, 0x3f803f80; "
                "or.b32 $0, a, b; }", "=r,r", [w], dtype=tl.int16, is_pure=True, pack=2,
            )  # fmt: skip
        else:
            w = tl.inline_asm_elementwise(
                "{ .reg .b32 a, b; shl.b32 a, $1, 8; and.b32 a, a, 0x80008000; shl.b32 b, $1, 7; "
                "and.b32 b, b, 0x3f803f80; or.b32 $0, a, b; }", "=r,r", [w], dtype=tl.int16, is_pure=True,
                pack=2,
            )  # fmt: skip
    else:
        n = w.to(tl.int32)
        n = n if SECOND else n << 8
        w = ((n & 0x8000) | ((n >> 1) & 0x3F80)).to(tl.int16)
    return w.to(tl.float16, bitcast=True)


@triton.jit
def weigh_values(q, k, m, slope, away, visible, scale, ALIBI: tl.constexpr):  # type: ignore[no-untyped-def]
    """2^(u − top) for a block of keys, the largest score so far, and what earlier sums shrink by"""
    u = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (SHARED, BLOCK)
    if ALIBI:
        u -= slope[:, None] * away.to(tl.float32)[None, :]
    u = tl.where(visible[None, :], u, -1e30)
    top = tl.maximum(m, tl.max(u, 1))
    p = tl.where(visible[None, :], tl.exp2(u - top[:, None]), 0.0)
    return p, top, tl.exp2(m - top)


@triton.jit
def attention_kernel(  # type: ignore[no-untyped-def]
    qkv, keys, values, y, parts, past, first, cos, sin, slopes,
    capacity, heads, kv_heads, scale, window, splits,
    SIZE: tl.constexpr, PADDED: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    ROTARY: tl.constexpr, ALIBI: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, UNIT: tl.constexpr,
    PAIRS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The newest key and value come from qkv: piece 0 counts them and puts them into the cache.

    `scale` has the factor log₂e; SIZE is that of a head, PADDED and SHARED are rounded up. PAIRS: values are
    8-bit floats and are read two at a time, since matrix units want 16 bits; o has even and odd ones apart.
    """
    row, g, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end, begin = tl.load(past), tl.load(first + row)
    at = (end - begin) * (SIZE // 2)  # angles are by position, slots count padding too
    if WINDOW:
        begin = tl.maximum(begin, end + 1 - window)
    i = tl.arange(0, PADDED)
    live = i < SIZE
    c, s = rotary_angles(cos, sin, at, i, SIZE, PADDED, ROTARY)
    shared = heads // kv_heads
    h = tl.arange(0, SHARED)
    line = qkv + row.to(tl.int64) * (heads + 2 * kv_heads) * SIZE
    which, both = g * shared + h, (h < shared)[:, None] & live[None, :]
    q = rotate_head(line + which[:, None] * SIZE, c[None, :], s[None, :], i[None, :], both, SIZE, ROTARY)
    slope = tl.zeros((SHARED,), tl.float32)
    if ALIBI:
        slope = tl.load(slopes + which, mask=h < shared, other=0.0) * 1.4426950408889634
    cache = (row * kv_heads + g).to(tl.int64) * capacity * SIZE
    m = tl.full((SHARED,), -1e30, tl.float32)
    z = tl.zeros((SHARED,), tl.float32)
    newest = m
    worth = tl.zeros((PADDED,), tl.float32)
    if piece == 0:
        new = rotate_head(line + (heads + g) * SIZE, c, s, i, live, SIZE, ROTARY).to(keys.dtype.element_ty)
        value = tl.load(line + (heads + kv_heads + g) * SIZE + i, mask=live, other=0.0)
        value = value.to(values.dtype.element_ty)
        slot = cache + end.to(tl.int64) * SIZE + i
        tl.store(keys + slot, new, mask=live)
        tl.store(values + slot, value, mask=live)
        newest = tl.sum(q * new.to(tl.float32)[None, :], 1) * scale
        z += 1.0
        worth = value.to(tl.float32)
    m = newest
    if PAIRS:
        two = tl.arange(0, PADDED // 2)
        pairs = (values + cache).to(tl.pointer_type(tl.int16), bitcast=True)
        o = tl.zeros((SHARED, PADDED // 2), tl.float32)
        odd = tl.zeros((SHARED, PADDED // 2), tl.float32)
    else:
        o = tl.zeros((SHARED, PADDED), tl.float32)
    q = q.to(UNIT)
    span = tl.cdiv(tl.cdiv(end - begin, splits), BLOCK) * BLOCK
    low = begin + piece * span
    high = tl.minimum(low + span, end)
    for start in tl.range(low, high, BLOCK, num_stages=STAGES):
        j = start + tl.arange(0, BLOCK)
        visible = j < high
        slots = j[:, None] * SIZE + i[None, :]
        mask = visible[:, None] & live[None, :]
        k = tl.load(keys + cache + slots, mask=mask, other=0.0).to(UNIT)
        p, m, shrink = weigh_values(q, k, m, slope, end - j, visible, scale, ALIBI)
        z = z * shrink + tl.sum(p, 1)
        if PAIRS:
            inside = visible[:, None] & (two < SIZE // 2)[None, :]
            v = tl.load(pairs + j[:, None] * (SIZE // 2) + two[None, :], mask=inside, other=0)
            o = tl.dot(p.to(UNIT), widen_float8(v, False, PACKED), o * shrink[:, None])
            odd = tl.dot(p.to(UNIT), widen_float8(v, True, PACKED), odd * shrink[:, None])
        else:
            v = tl.load(values + cache + slots, mask=mask, other=0.0).to(UNIT)
            o = tl.dot(p.to(UNIT), v, o * shrink[:, None], input_precision="ieee")
    if PAIRS:
        o = tl.interleave(o, odd) * 256.0
    o += tl.exp2(newest - m)[:, None] * worth[None, :]
    if SPLIT:
        out = parts + ((row * heads + which) * splits + piece).to(tl.int64) * (SIZE + 2)
        tl.store(out[:, None] + i[None, :], o, mask=both)
        tl.store(out + SIZE, m, mask=h < shared)
        tl.store(out + SIZE + 1, z, mask=h < shared)
    else:
        out = y + (row * heads + which).to(tl.int64) * SIZE
        tl.store(out[:, None] + i[None, :], (o / z[:, None]).to(y.dtype.element_ty), mask=both)


@triton.jit
def combine_kernel(  # type: ignore[no-untyped-def]
    parts, y, gains, size, splits,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, DIGITS: tl.constexpr,
):  # fmt: skip
    """y = Σ_p 2^(m_p − m) o_p / Σ_p 2^(m_p − m) z_p, as it is or in digits"""
    head = tl.program_id(0).to(tl.int64)
    p, k = tl.arange(0, SPLITS), tl.arange(0, BLOCK)
    here, inside = p < splits, k < size
    line = parts + (head * splits + p) * (size + 2)
    m = tl.load(line + size, mask=here, other=-1e30)
    weight = tl.exp2(m - tl.max(m, 0))
    z = tl.sum(weight * tl.load(line + size + 1, mask=here, other=0.0), 0)
    o = tl.load(line[:, None] + k[None, :], mask=here[:, None] & inside[None, :], other=0.0)
    value = tl.sum(o * weight[:, None], 0) / z
    if DIGITS:
        round_row(value, y, gains, head * size + k, tl.num_programs(0) * size, inside, BLOCK)
    else:
        tl.store(y + head * size + k, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def rotate_prompt_kernel(  # type: ignore[no-untyped-def]
    qkv, turned_qkv, keys, values, cos, sin, length, capacity, heads, kv_heads,
    SIZE: tl.constexpr, PADDED: tl.constexpr, HEADS: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one position, of q, k and v side by side: into the cache, and as attention over the
    prompt reads them. That is keys and values as they are kept.
    """
    at = tl.program_id(0)
    row, t = at // length, at % length
    h, i = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, PADDED)
    live = (h < heads + 2 * kv_heads)[:, None] & (i < SIZE)[None, :]
    new, worth = (h >= heads) & (h < heads + kv_heads), h >= heads + kv_heads
    c, s = rotary_angles(cos, sin, t * (SIZE // 2), i, SIZE, PADDED, ROTARY)
    c = tl.where(worth[:, None], 1.0, c[None, :])
    s = tl.where(worth[:, None], 0.0, s[None, :])
    line = at.to(tl.int64) * (heads + 2 * kv_heads) * SIZE
    offsets = h[:, None] * SIZE
    x = rotate_head(qkv + line + offsets, c, s, i[None, :], live, SIZE, ROTARY)
    kept = x.to(keys.dtype.element_ty)
    g = tl.where(worth, h - heads - kv_heads, h - heads)
    slot = ((row * kv_heads + g).to(tl.int64) * capacity + t)[:, None] * SIZE + i[None, :]
    tl.store(keys + slot, kept, mask=live & new[:, None])
    tl.store(values + slot, kept, mask=live & worth[:, None])
    x = tl.where((h < heads)[:, None], x, kept.to(tl.float32))
    tl.store(turned_qkv + line + offsets + i[None, :], x.to(qkv.dtype.element_ty), mask=live)
