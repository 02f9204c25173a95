"""The operators of one step of decoding as Triton kernels; `nn/operators.py` defines each in plain torch.

    products, normalise                                         gpu_products.py
    lstm_cell, conv_silu, selective_step, gated_linear_step     gpu_states.py
    rotate   rotary positions of one token
    attend   one query of each head over keys of a fixed size, some of them hidden, the newest put there
    append   the newest key and value of every row alone

Small kernels in a row are a matter of how many there are: each starts in one to two microseconds.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from heedful.kernels.gpu_attend import combine_kernel
from heedful.kernels.gpu_products import normalise, power_of_two, products
from heedful.kernels.gpu_states import conv_silu, gated_linear_step, lstm_cell, selective_step

__all__ = [
    "append", "attend", "conv_silu", "gated_linear_step", "lstm_cell", "normalise", "products", "rotate",
    "selective_step",
]  # fmt: skip

MAX_HEAD = 256  # numbers of a head that `attend` takes
TILE = 8192  # numbers of a tile of keys
LOG2E = tl.constexpr(math.log2(math.e))
LONG = 1024  # keys beyond which a head is cut into pieces


@triton.jit
def rotate_kernel(  # type: ignore[no-untyped-def]
    x, cos, sin, y, heads, x_row, x_head, angle_row,
    SIZE: tl.constexpr, TURNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, h, i = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    half: tl.constexpr = TURNED // 2
    inside, turned = i < SIZE, i < TURNED
    line = x + row * x_row + h * x_head
    value = tl.load(line + i, mask=inside, other=0.0).to(tl.float32)
    partner = tl.where(i < half, i + half, i - half)
    other = tl.load(line + partner, mask=turned, other=0.0).to(tl.float32)
    c = tl.load(cos + row * angle_row + i % half, mask=turned, other=1.0)
    s = tl.load(sin + row * angle_row + i % half, mask=turned, other=0.0)
    value = value * c + other * tl.where(i < half, -s, s)
    tl.store(y + (row * heads + h) * SIZE + i, value.to(y.dtype.element_ty), mask=inside)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """One token's heads (B, H, 1, K), turned by angles (B or 1, 1, 1, ·); None for several tokens."""
    B, H, T, K = x.shape
    if T != 1 or x.stride(3) != 1 or not cos.is_contiguous() or not sin.is_contiguous():
        return None
    y = x.new_empty(B, H, 1, K)
    rotate_kernel[(B, H)](
        x, cos, sin, y, H, x.stride(0), x.stride(1), 0 if len(cos) == 1 else cos.stride(0),
        SIZE=K, TURNED=2 * cos.shape[-1], BLOCK=power_of_two(K), num_warps=1,
    )  # fmt: skip
    return y


@triton.jit
def append_kernel(  # type: ignore[no-untyped-def]
    keys, values, k, v, past, capacity, heads, k_row, k_head, v_row, v_head,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, g, i = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    slot = (row * heads + g) * capacity + tl.load(past + row)
    key = tl.load(k + row * k_row + g * k_head + i, mask=i < KEY, other=0.0)
    value = tl.load(v + row * v_row + g * v_head + i, mask=i < VALUE, other=0.0)
    tl.store(keys + slot * KEY + i, key.to(keys.dtype.element_ty), mask=i < KEY)
    tl.store(values + slot * VALUE + i, value.to(values.dtype.element_ty), mask=i < VALUE)


def append(keys: Tensor, values: Tensor, newest: Any) -> None:
    k, v, past = newest.k, newest.v, newest.past
    k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (k, v))
    key, value = k.shape[3], v.shape[3]
    append_kernel[(len(k), k.shape[1])](
        keys, values, k, v, past, keys.shape[2], k.shape[1], k.stride(0), k.stride(1), v.stride(0),
        v.stride(1), KEY=key, VALUE=value, BLOCK=power_of_two(max(key, value)), num_warps=1,
    )  # fmt: skip


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]
    q, k, v, keep, bias, y, parts, new_k, new_v, past, length, heads, shared, scale, splits,
    q_row, q_head, k_row, k_head, k_slot, v_row, v_head, v_slot, keep_row, bias_row, bias_head, bias_slot,
    nk_row, nk_head, nv_row, nv_head,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    SPLIT: tl.constexpr, NEWEST: tl.constexpr,
):  # fmt: skip
    """One head of one row over one piece of the keys. `scale` has the factor log₂e.

    The NEWEST key and value are not in their slot yet: piece 0 counts them, and a group's first head puts
    them there; nobody reads that slot.
    """
    row, h, piece = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    g = h // shared
    i = tl.arange(0, PADDED)
    live = i < SIZE
    x = tl.load(q + row * q_row + h * q_head + i, mask=live, other=0.0).to(tl.float32) * scale
    m = tl.full((1,), -1e30, tl.float32)
    z = tl.zeros((1,), tl.float32)
    o = tl.zeros((PADDED,), tl.float32)
    if NEWEST:
        at = tl.load(past + row)
        new = tl.load(new_k + row * nk_row + g * nk_head + i, mask=live, other=0.0).to(k.dtype.element_ty)
        worth = tl.load(new_v + row * nv_row + g * nv_head + i, mask=live, other=0.0).to(v.dtype.element_ty)
        score = tl.sum(new.to(tl.float32) * x, 0)
        if BIAS:
            score += tl.load(bias + row * bias_row + h * bias_head + at * bias_slot).to(tl.float32) * LOG2E
        m = z + tl.where(piece == 0, score, -1e30)
        z = z + tl.where(piece == 0, 1.0, 0.0)
        o = tl.where(piece == 0, worth.to(tl.float32), 0.0)
        mine = live & (piece == 0) & (h % shared == 0)
        tl.store(k + row * k_row + g * k_head + at * k_slot + i, new, mask=mine)
        tl.store(v + row * v_row + g * v_head + at * v_slot + i, worth, mask=mine)
    span = tl.cdiv(length, splits * BLOCK) * BLOCK
    low = piece * span
    high = tl.minimum(low + span, length)
    for start in range(low, high, BLOCK):
        j = start + tl.arange(0, BLOCK)
        visible = j < high
        if NEWEST:
            visible = visible & (j != at)
        if KEEP:
            visible = visible & (tl.load(keep + row * keep_row + j, mask=visible, other=0) != 0)
        mask = visible[:, None] & live[None, :]
        far = j.to(tl.int64)[:, None]
        key = tl.load(k + row * k_row + g * k_head + far * k_slot + i[None, :], mask=mask, other=0.0)
        value = tl.load(v + row * v_row + g * v_head + far * v_slot + i[None, :], mask=mask, other=0.0)
        u = tl.sum(key.to(tl.float32) * x[None, :], 1)
        if BIAS:
            added = tl.load(bias + row * bias_row + h * bias_head + j * bias_slot, mask=visible, other=0.0)
            u += added.to(tl.float32) * LOG2E
        u = tl.where(visible, u, -1e30)
        top = tl.maximum(m, tl.max(u, 0))
        p = tl.where(visible, tl.exp2(u - top), 0.0)
        shrink = tl.exp2(m - top)
        z = z * shrink + tl.sum(p, 0)
        o = o * shrink + tl.sum(p[:, None] * value.to(tl.float32), 0)
        m = top
    if SPLIT:
        out = parts + ((row * heads + h) * splits + piece) * (SIZE + 2)
        one = tl.arange(0, 1)
        tl.store(out + i, o, mask=live)
        tl.store(out + SIZE + one, m)
        tl.store(out + SIZE + 1 + one, z)
    else:
        o = tl.where(z > 0.0, o / z, 0.0)
        tl.store(y + (row * heads + h) * SIZE + i, o.to(y.dtype.element_ty), mask=live)


def attend(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float, newest: Any
) -> Tensor | None:
    """softmax(q kᵀ · scale + bias, kept) v; None for heads it does not take."""
    (B, H, T, K), (S, V) = q.shape, v.shape[2:]
    new = (q, q) if newest is None else (newest.k, newest.v)
    if T != 1 or K != V or K > MAX_HEAD or any(t.stride(3) != 1 for t in (q, k, v, *new)):
        return None
    y, padded = q.new_empty(B, H, 1, K), power_of_two(K)
    splits = 1 if S <= LONG or B * H >= 264 else min(16, S // 256)
    parts = y if splits == 1 else torch.empty(B * H * splits * (K + 2), dtype=torch.float32, device=q.device)
    kept = y if keep is None else keep.contiguous().view(torch.uint8)
    apart = lambda t, axis: 0 if t is None or t.shape[axis] == 1 else t.stride(axis)
    attend_kernel[(B, H, splits)](
        q, k, v, kept, y if bias is None else bias, y, parts, *new, y if newest is None else newest.past,
        S, H, H // k.shape[1], scale * math.log2(math.e), splits,
        q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
        apart(keep, 0), apart(bias, 0), apart(bias, 1), apart(bias, 3),
        *(stride for t in new for stride in t.stride()[:2]),
        SIZE=K, PADDED=padded, BLOCK=max(16, min(TILE // padded, power_of_two(S))), KEEP=keep is not None,
        BIAS=bias is not None, SPLIT=splits > 1, NEWEST=newest is not None, num_warps=8,
    )  # fmt: skip
    if splits > 1:
        combine_kernel[(B * H,)](
            parts, y, y, K, splits, SPLITS=power_of_two(splits), BLOCK=padded, DIGITS=False, num_warps=1
        )
    return y
