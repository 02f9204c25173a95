"""One query of each head over keys and values of a fixed size, on a GPU (Triton).

    softmax(q kᵀ · scale + bias) v

A program takes one key head of one row, with the query heads that share it, over one piece of the keys; the
last of a head's programs joins the pieces. The newest key and value are turned, counted and put into their
slot on the way, so that a step of attention is one launch. Query heads that share keys meet them in matrix
units, 16 at least: those that are not there cost nothing that memory would notice. So do those of many rows,
whose keys then stream through shared memory; few programs take longer to start than to multiply. Exponentials
are powers of two. Keys and values may be kept in 8-bit floats; they are widened when they are there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from heedful.kernels.gpu.products import UNITS, overlap, wait_for_input

LOG2E = tl.constexpr(math.log2(math.e))
LOWEST = tl.constexpr(-1e30)
TILE = 16384  # numbers of a tile of keys
SHARED_TILE = 16384  # bytes of one for matrix units, which goes through shared memory
PROGRAMS = 132  # that fill the device
MAX_PIECES = 8
MIN_PIECE = 64  # keys of a piece


@triton.jit
def load_rotated(base, c, s, i, live, ROTATED: tl.constexpr):  # type: ignore[no-untyped-def]
    """x_i cos − x_{i+n} sin in a head's first n = ROTATED / 2 numbers, x_i cos + x_{i−n} sin in the next n"""
    x = tl.load(base + i, mask=live, other=0.0).to(tl.float32)
    if ROTATED > 0:
        partner = tl.where(i < ROTATED // 2, i + ROTATED // 2, i - ROTATED // 2)
        x = x * c + tl.load(base + partner, mask=live & (i < ROTATED), other=0.0).to(tl.float32) * s
    return x


@triton.jit
def round_to_cache(x, cache):  # type: ignore[no-untyped-def]
    """x as a cache keeps it; an 8-bit float holds numbers beyond its largest at that"""
    if cache.dtype.element_ty == tl.float8e4nv:
        x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    return x.to(cache.dtype.element_ty)


@triton.jit
def bend(u, softcap, SOFTCAP: tl.constexpr):  # type: ignore[no-untyped-def]
    if SOFTCAP:
        u = softcap * (2.0 * tl.sigmoid(2.0 * u / softcap) - 1.0)
    return u


@triton.jit
def seen_slots(j, high, slot, slots, window, NEWEST: tl.constexpr, WINDOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether slots j hold older keys that the query may look at"""
    visible = j < high
    if NEWEST:
        visible = visible & (j != slot)
    if WINDOW:
        visible = visible & (tl.where(j <= slot, slot - j, slot - j + slots) < window)
    return visible


@triton.jit
def add_keys(  # type: ignore[no-untyped-def]
    m, z, o, x, k, v, j, visible, keep, bias, scale, softcap, bias_slot, here,
    QUERIES: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The largest score so far, and the softmax's denominator and numerator, with a tile of keys more"""
    if KEEP:
        visible = visible & (tl.load(keep + j, mask=visible, other=0) != 0)
    if QUERIES == 1:
        u = tl.sum(k.to(tl.float32) * x, 1)[:, None]
    else:
        u = tl.dot(k.to(UNIT), tl.trans(x).to(UNIT), input_precision="ieee")
    u = bend(u * scale, softcap, SOFTCAP)  # (BLOCK, QUERIES)
    if BIAS:
        added = tl.load(
            bias[None, :] + j[:, None] * bias_slot, mask=visible[:, None] & here[None, :], other=0.0
        )
        u += added.to(tl.float32)
    u = tl.where(visible[:, None], u * LOG2E, LOWEST)
    top = tl.maximum(m, tl.max(u, 0))
    p = tl.where(visible[:, None], tl.exp2(u - top[None, :]), 0.0)
    shrink = tl.exp2(m - top)
    z = z * shrink + tl.sum(p, 0)
    if QUERIES == 1:
        o = o * shrink[:, None] + tl.sum(p * v.to(tl.float32), 0)[None, :]
    else:
        o = tl.dot(tl.trans(p).to(UNIT), v.to(UNIT), o * shrink[:, None], input_precision="ieee")
    return top, z, o


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]
    q, keys, values, new_k, new_v, past, cos, sin, keep, bias, sinks, y, parts, counters,
    slots, kv_heads, scale, softcap, window, pieces,
    q_row, q_head, k_row, k_head, k_slot, v_row, v_head, v_slot, nk_row, nk_head, nv_row, nv_head,
    keep_row, bias_row, bias_head, bias_slot,
    SIZE: tl.constexpr, PADDED: tl.constexpr, SHARED: tl.constexpr, QUERIES: tl.constexpr,
    BLOCK: tl.constexpr, ROTATED: tl.constexpr, NEWEST: tl.constexpr, WINDOW: tl.constexpr,
    KEEP: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    SEVERAL: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row, g, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    i, h = tl.arange(0, PADDED), tl.arange(0, QUERIES)
    live, here = i < SIZE, h < SHARED
    head = g * SHARED + h
    both = here[:, None] & live[None, :]
    # Older keys were written by earlier steps: a first tile of them is loaded before q is there.
    at, slot, end = slots, slots, slots
    if NEWEST:
        at = tl.load(past + row).to(tl.int32)
        slot = at % slots
        end = tl.minimum(at + 1, slots)
    span = tl.cdiv(tl.cdiv(end, pieces), BLOCK) * BLOCK
    low = piece * span
    high = tl.minimum(low + span, end)
    keys, values = keys + row * k_row + g * k_head, values + row * v_row + g * v_head
    j = low + tl.arange(0, BLOCK)
    visible = seen_slots(j, high, slot, slots, window, NEWEST, WINDOW)
    mask, far = visible[:, None] & live[None, :], j.to(tl.int64)[:, None]
    k = tl.load(keys + far * k_slot + i[None, :], mask=mask, other=0.0)
    v = tl.load(values + far * v_slot + i[None, :], mask=mask, other=0.0)
    wait_for_input(OVERLAP)
    c, s = tl.full((PADDED,), 1.0, tl.float32), tl.zeros((PADDED,), tl.float32)
    if ROTATED > 0:
        angle = at * (ROTATED // 2) + i % (ROTATED // 2)
        c = tl.load(cos + angle, mask=i < ROTATED, other=1.0)
        s = tl.load(sin + angle, mask=i < ROTATED, other=0.0) * tl.where(i < ROTATED // 2, -1.0, 1.0)
    line = q + row * q_row + head[:, None] * q_head
    x = load_rotated(line, c[None, :], s[None, :], i[None, :], both, ROTATED)
    m = tl.full((QUERIES,), LOWEST, tl.float32)
    z = tl.zeros((QUERIES,), tl.float32)
    o = tl.zeros((QUERIES, PADDED), tl.float32)
    first = piece == 0
    keep, bias = keep + row * keep_row, bias + row * bias_row + head * bias_head
    if SINKS:
        m = tl.where(first & here, tl.load(sinks + head, mask=here, other=0.0).to(tl.float32) * LOG2E, m)
        z = tl.where(first & here, 1.0, z)
    if NEWEST:
        new = round_to_cache(load_rotated(new_k + row * nk_row + g * nk_head, c, s, i, live, ROTATED), keys)
        worth = tl.load(new_v + row * nv_row + g * nv_head + i, mask=live, other=0.0).to(tl.float32)
        worth = round_to_cache(worth, values)
        tl.store(keys + slot.to(tl.int64) * k_slot + i, new, mask=live & first)
        tl.store(values + slot.to(tl.int64) * v_slot + i, worth, mask=live & first)
        score = bend(tl.sum(x * new.to(tl.float32)[None, :], 1) * scale, softcap, SOFTCAP)
        if BIAS:
            score += tl.load(bias + slot * bias_slot, mask=here, other=0.0).to(tl.float32)
        score = tl.where(first, score * LOG2E, LOWEST)
        highest = tl.maximum(m, score)
        weight = tl.where(first, tl.exp2(score - highest), 0.0)
        z = z * tl.exp2(m - highest) + weight
        o = weight[:, None] * worth.to(tl.float32)[None, :]
        m = highest
    m, z, o = add_keys(
        m, z, o, x, k, v, j, visible, keep, bias, scale, softcap, bias_slot, here, QUERIES, KEEP, BIAS,
        SOFTCAP, UNIT,
    )  # fmt: skip
    for start in range(low + BLOCK, high, BLOCK):
        j = start + tl.arange(0, BLOCK)
        visible = seen_slots(j, high, slot, slots, window, NEWEST, WINDOW)
        mask, far = visible[:, None] & live[None, :], j.to(tl.int64)[:, None]
        k = tl.load(keys + far * k_slot + i[None, :], mask=mask, other=0.0)
        v = tl.load(values + far * v_slot + i[None, :], mask=mask, other=0.0)
        m, z, o = add_keys(
            m, z, o, x, k, v, j, visible, keep, bias, scale, softcap, bias_slot, here, QUERIES, KEEP, BIAS,
            SOFTCAP, UNIT,
        )  # fmt: skip
    out = y + (row * kv_heads * SHARED + head[:, None]) * SIZE + i[None, :]
    if SEVERAL:
        place = (row * kv_heads + g) * pieces
        size: tl.constexpr = QUERIES * (PADDED + 2)
        mine = parts + (place + piece) * size
        tl.store(mine + h[:, None] * PADDED + i[None, :], o)
        tl.store(mine + QUERIES * PADDED + h, m)
        tl.store(mine + QUERIES * (PADDED + 1) + h, z)
        tl.debug_barrier()
        done = tl.atomic_add(counters + row * kv_heads + g, 1)
        if done == pieces - 1:  # the last to come, which finds what all others wrote
            tl.store(counters + row * kv_heads + g, 0)
            m = tl.full((QUERIES,), LOWEST, tl.float32)
            z = tl.zeros((QUERIES,), tl.float32)
            o = tl.zeros((QUERIES, PADDED), tl.float32)
            for other in range(0, pieces):
                theirs = parts + (place + other) * size
                m_other = tl.load(theirs + QUERIES * PADDED + h, cache_modifier=".cg")
                z_other = tl.load(theirs + QUERIES * (PADDED + 1) + h, cache_modifier=".cg")
                o_other = tl.load(theirs + h[:, None] * PADDED + i[None, :], cache_modifier=".cg")
                top = tl.maximum(m, m_other)
                mine_less, theirs_less = tl.exp2(m - top), tl.exp2(m_other - top)
                z = z * mine_less + z_other * theirs_less
                o = o * mine_less[:, None] + o_other * theirs_less[:, None]
                m = top
            o = tl.where(z[:, None] > 0.0, o / z[:, None], 0.0)
            tl.store(out, o.to(y.dtype.element_ty), mask=both)
    else:
        o = tl.where(z[:, None] > 0.0, o / z[:, None], 0.0)
        tl.store(out, o.to(y.dtype.element_ty), mask=both)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, counters: Tensor, *, newest: Any = None,
    keep: Tensor | None = None, bias: Tensor | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(q kᵀ · scale + bias) v of one query (B, H, 1, K); `counters` (B · G,) are zeros."""
    (B, H, _, K), (G, S) = q.shape, keys.shape[1:3]
    y, padded, shared = q.new_empty(B, H, 1, K), max(16, triton.next_power_of_2(K)), H // G
    queries = 1 if shared == 1 and B * G < 2 * PROGRAMS else max(16, triton.next_power_of_2(shared))
    pieces = max(1, min(MAX_PIECES, PROGRAMS // (B * G), S // MIN_PIECE))
    parts = y
    if pieces > 1:
        parts = torch.empty(B * G * pieces * queries * (padded + 2), dtype=torch.float32, device=q.device)
    flat = lambda t: t if t.stride(3) == 1 else t.contiguous()
    q, new_k, new_v, past = flat(q), y, y, y
    cos = sin = y
    if newest is not None:
        new_k, new_v, past = flat(newest.k), flat(newest.v), newest.past
        cos, sin = (y, y) if newest.angles is None else newest.angles
    kept = y if keep is None else keep.contiguous().view(torch.uint8)
    apart = lambda t, axis: 0 if t is None or t.shape[axis] == 1 else t.stride(axis)
    unit = torch.float16 if keys.dtype.itemsize == 1 else q.dtype
    block = TILE // padded if queries == 1 else min(128, SHARED_TILE // (padded * unit.itemsize))
    window = None if newest is None else newest.window
    attend_kernel[(B, G, pieces)](
        q, keys, values, new_k, new_v, past, cos, sin, kept, y if bias is None else bias,
        y if sinks is None else sinks, y, parts, counters,
        S, G, scale, softcap or 0.0, window or 0, pieces,
        q.stride(0), q.stride(1), *keys.stride()[:3], *values.stride()[:3],
        *new_k.stride()[:2], *new_v.stride()[:2],
        apart(keep, 0), apart(bias, 0), apart(bias, 1), apart(bias, 3),
        SIZE=K, PADDED=padded, SHARED=shared, QUERIES=queries,
        BLOCK=max(16, min(block, triton.next_power_of_2(S))), ROTATED=0 if cos is y else 2 * cos.shape[-1],
        NEWEST=newest is not None, WINDOW=window is not None, KEEP=keep is not None, BIAS=bias is not None,
        SOFTCAP=softcap is not None, SINKS=sinks is not None, SEVERAL=pieces > 1, UNIT=UNITS[unit],
        num_warps=8 if queries == 1 else 4, num_stages=3, **overlap(q.device),
    )  # fmt: skip
    return y
