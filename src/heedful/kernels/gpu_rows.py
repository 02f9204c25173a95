"""One step of a decoder on a GPU: Triton kernels for what stands between the large products, and for those
products where one row makes them a matter of memory alone.

    embed      x = scale · table[token] + position
    normalise  x += y;  n = norm(x)
    product    y = act(W norm(x) + b), one row; y is set, added to x, or gated by a second matrix
    gate       h = act(g) ⊙ u
    attend     rotary q and k; k and v go to the cache; softmax(q kᵀ · scale + bias) v, in pieces of the cache
    combine    the pieces of a head as one

The model itself is the definition; `kernels/rows.py` is the same list for a CPU. x is kept in float32.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

SET, ADD, GATED = 0, 1, 2
NONE, RELU, GELU, GELU_TANH, SILU, TANH, SQUARED_RELU = range(7)
PLAIN, LAYER, RMS = 0, 1, 2


@triton.jit
def activated(y, ACT: tl.constexpr):  # type: ignore[no-untyped-def]
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
def normed(  # type: ignore[no-untyped-def]
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
def embed(  # type: ignore[no-untyped-def]
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
def normalise(  # type: ignore[no-untyped-def]
    x, y, n, gamma, beta, size, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x += y if there is a y;  n = norm(x)"""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < size
    value = tl.load(x + row * size + k, mask=inside, other=0.0)
    if ADDED:
        value += tl.load(y + row * size + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + row * size + k, value, mask=inside)
    value = normed(value, gamma, beta, k, inside, size, eps, NORM, BETA)
    tl.store(n + row * size + k, value.to(n.dtype.element_ty), mask=inside)


@triton.jit
def gate(g, h, size, ACT: tl.constexpr, GATED_: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """h = act(g) ⊙ u, g and u side by side; or act(g) alone"""
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < size
    wide = 2 * size if GATED_ else size
    value = activated(tl.load(g + row * wide + k, mask=inside, other=0.0).to(tl.float32), ACT)
    if GATED_:
        value = value * tl.load(g + row * wide + size + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(h + row * size + k, value.to(h.dtype.element_ty), mask=inside)


@triton.jit
def product(  # type: ignore[no-untyped-def]
    x, w, y, scales, bias, gamma, beta, size, rows, eps, factor,
    NORM: tl.constexpr, BETA: tl.constexpr, MODE: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr,
    INT8: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """ROWS rows of W x. WHOLE: a block reaches over all columns, so that x can be normalised on the way."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = r < rows
    place = w + r.to(tl.int64)[:, None] * size
    other = place + rows.to(tl.int64) * size  # the second matrix of a gate
    k = tl.arange(0, BLOCK)
    if WHOLE:
        inside = k < size
        mask = live[:, None] & inside[None, :]
        a = tl.load(place + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        if MODE == 2:
            b = tl.load(other + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        v = normed(v, gamma, beta, k, inside, size, eps, NORM, BETA)
        value = tl.sum(a.to(tl.float32) * v[None, :], 1)
        if MODE == 2:
            up = tl.sum(b.to(tl.float32) * v[None, :], 1)
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        second = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, size, BLOCK):
            inside = start + k < size
            mask = live[:, None] & inside[None, :]
            v = tl.load(x + start + k, mask=inside, other=0.0).to(tl.float32)
            a = tl.load(place + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
            total += a.to(tl.float32) * v[None, :]
            if MODE == 2:
                b = tl.load(other + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
                second += b.to(tl.float32) * v[None, :]
        value = tl.sum(total, 1)
        if MODE == 2:
            up = tl.sum(second, 1)
    if INT8:
        value = value * tl.load(scales + r, mask=live, other=0.0)
    value = value * factor
    if BIAS:
        value += tl.load(bias + r, mask=live, other=0.0).to(tl.float32)
    value = activated(value, ACT)
    if MODE == 2:
        if INT8:
            up = up * tl.load(scales + rows + r, mask=live, other=0.0)
        if BIAS:
            up += tl.load(bias + rows + r, mask=live, other=0.0).to(tl.float32)
        value = value * up
    if MODE == 1:
        value += tl.load(y + r, mask=live, other=0.0)
    tl.store(y + r, value.to(y.dtype.element_ty), mask=live)


@triton.jit
def turned(place, cos, sin, i, half, live, ROTARY: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two halves of heads at `place`, turned by their angles."""
    a = tl.load(place + i, mask=live, other=0.0).to(tl.float32)
    b = tl.load(place + half + i, mask=live, other=0.0).to(tl.float32)
    if ROTARY:
        a, b = a * cos - b * sin, b * cos + a * sin
    return a, b


@triton.jit
def attend(  # type: ignore[no-untyped-def]
    qkv, keys, values, y, parts, past, first, cos, sin, slopes,
    room, heads, kv_heads, half, scale, window, splits,
    SHARED: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, ROTARY: tl.constexpr, ALIBI: tl.constexpr,
    WINDOW: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One key head of one row, the query heads that share it, and one of `splits` pieces of the cache.

    The newest key and value come from qkv: piece 0 counts them and puts them into the cache.
    """
    row, g, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    size, end = 2 * half, tl.load(past)
    begin = tl.load(first + row)
    at = (end - begin) * half  # angles are by position, slots count padding too
    if WINDOW:
        begin = tl.maximum(begin, end + 1 - window)
    i = tl.arange(0, HALF)
    live = i < half
    c = tl.load(cos + at + i, mask=live, other=0.0) if ROTARY else 0.0
    s = tl.load(sin + at + i, mask=live, other=0.0) if ROTARY else 0.0
    shared = heads // kv_heads
    h = tl.arange(0, SHARED)
    line = qkv + row.to(tl.int64) * (heads + 2 * kv_heads) * size
    which, both = g * shared + h, (h < shared)[:, None] & live[None, :]
    qa, qb = turned(line + which[:, None] * size, c, s, i[None, :], half, both, ROTARY)
    slope = tl.load(slopes + which, mask=h < shared, other=0.0) if ALIBI else tl.zeros((SHARED,), tl.float32)
    cache = ((row * kv_heads + g) * room).to(tl.int64) * size
    m = tl.full((SHARED,), -1e30, tl.float32)
    z = tl.zeros((SHARED,), tl.float32)
    oa = tl.zeros((SHARED, HALF), tl.float32)
    ob = tl.zeros((SHARED, HALF), tl.float32)
    if piece == 0:
        new_a, new_b = turned(line + (heads + g) * size, c, s, i, half, live, ROTARY)
        worth_a, worth_b = turned(line + (heads + kv_heads + g) * size, c, s, i, half, live, False)
        slot = cache + end.to(tl.int64) * size
        tl.store(keys + slot + i, new_a.to(keys.dtype.element_ty), mask=live)
        tl.store(keys + slot + half + i, new_b.to(keys.dtype.element_ty), mask=live)
        tl.store(values + slot + i, worth_a.to(values.dtype.element_ty), mask=live)
        tl.store(values + slot + half + i, worth_b.to(values.dtype.element_ty), mask=live)
        m = tl.sum(qa * new_a[None, :] + qb * new_b[None, :], 1) * scale
        z += 1.0
        oa += worth_a[None, :]
        ob += worth_b[None, :]
    span = tl.cdiv(tl.cdiv(end - begin, splits), BLOCK) * BLOCK
    low = begin + piece * span
    high = tl.minimum(low + span, end)
    for start in range(low, high, BLOCK):
        j = start + tl.arange(0, BLOCK)
        seen = j < high
        slots = cache + j.to(tl.int64)[:, None] * size + i[None, :]
        mask = seen[:, None] & live[None, :]
        ka = tl.load(keys + slots, mask=mask, other=0.0).to(tl.float32)
        kb = tl.load(keys + slots + half, mask=mask, other=0.0).to(tl.float32)
        va = tl.load(values + slots, mask=mask, other=0.0).to(tl.float32)
        vb = tl.load(values + slots + half, mask=mask, other=0.0).to(tl.float32)
        u = (
            tl.sum(qa[:, None, :] * ka[None, :, :] + qb[:, None, :] * kb[None, :, :], 2) * scale
        )  # (SHARED, BLOCK)
        if ALIBI:
            u -= slope[:, None] * (end - j).to(tl.float32)[None, :]
        u = tl.where(seen[None, :], u, -1e30)
        top = tl.maximum(m, tl.max(u, 1))
        p, shrink = tl.exp(u - top[:, None]), tl.exp(m - top)
        p = tl.where(seen[None, :], p, 0.0)
        z = z * shrink + tl.sum(p, 1)
        oa = oa * shrink[:, None] + tl.sum(p[:, :, None] * va[None, :, :], 1)
        ob = ob * shrink[:, None] + tl.sum(p[:, :, None] * vb[None, :, :], 1)
        m = top
    if SPLIT:
        out = parts + ((row * heads + which) * splits + piece).to(tl.int64) * (size + 2)
        tl.store(out[:, None] + i[None, :], oa, mask=both)
        tl.store(out[:, None] + half + i[None, :], ob, mask=both)
        tl.store(out + size, m, mask=h < shared)
        tl.store(out + size + 1, z, mask=h < shared)
    else:
        out = y + (row * heads + which).to(tl.int64) * size
        tl.store(out[:, None] + i[None, :], (oa / z[:, None]).to(y.dtype.element_ty), mask=both)
        tl.store(out[:, None] + half + i[None, :], (ob / z[:, None]).to(y.dtype.element_ty), mask=both)


@triton.jit
def combine(parts, y, size, splits, SPLITS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = Σ_p e^(m_p − m) o_p / Σ_p e^(m_p − m) z_p"""
    head = tl.program_id(0).to(tl.int64)
    p, k = tl.arange(0, SPLITS), tl.arange(0, BLOCK)
    here = p < splits
    line = parts + (head * splits + p) * (size + 2)
    m = tl.load(line + size, mask=here, other=-1e30)
    weight = tl.exp(m - tl.max(m, 0))
    z = tl.sum(weight * tl.load(line + size + 1, mask=here, other=0.0), 0)
    o = tl.load(line[:, None] + k[None, :], mask=here[:, None] & (k < size)[None, :], other=0.0)
    tl.store(y + head * size + k, (tl.sum(o * weight[:, None], 0) / z).to(y.dtype.element_ty), mask=k < size)
