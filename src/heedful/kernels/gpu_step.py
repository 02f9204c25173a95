"""The operators of one step of decoding as Triton kernels; `nn/operators.py` defines each in plain torch.

    products           act(W norm(x) + b) + r of one row, up to four W at once
    normalise          a norm of rows
    rotate             rotary positions of one token
    attend             one query of each head over keys of a fixed size, some hidden, the newest put there
    append             the newest key and value of every row alone
    lstm_cell          what an LSTM does with its gates
    conv_silu          a convolution over the last few tokens
    selective_step     Mamba's state space with its skip and gate
    gated_linear_step  gated linear attention

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
from heedful.kernels.gpu_rows import (
    GELU,
    GELU_TANH,
    LAYER,
    NONE,
    PLAIN,
    RELU,
    RMS,
    SILU,
    TANH,
    apply_activation,
    normalise_row,
)

ACTS = {None: NONE, "relu": RELU, "gelu": GELU, "gelu_tanh": GELU_TANH, "silu": SILU, "tanh": TANH}
MAX_HEAD = 256  # numbers of a head that `attend` takes
TILE = 8192  # numbers of a tile of keys
LOG2E = tl.constexpr(math.log2(math.e))
LONG = 1024  # keys beyond which a head is cut into pieces


def power_of_two(n: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, n - 1).bit_length()


@triton.jit
def product_rows(  # type: ignore[no-untyped-def]
    program, x, gamma, beta, w, bias, w_up, b_up, y, residual, size, count, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS numbers of act(W norm(x) + b) + r, or of that product times a second one, GATED.

    ONE_BLOCK reaches over all columns, so that x can be normalised on the way.
    """
    r = program * ROWS + tl.arange(0, ROWS)
    live = r < count
    far = r.to(tl.int64)[:, None] * size
    base = w + far
    k = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        inside = k < size
        mask = live[:, None] & inside[None, :]
        a = tl.load(base + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        if GATED:
            b = tl.load(w_up + far + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        v = normalise_row(v, gamma, beta, k, inside, size, eps, NORM, BETA)
        value = tl.sum(a.to(tl.float32) * v[None, :], 1)
        up = value
        if GATED:
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
            if GATED:
                b = tl.load(
                    w_up + far + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first"
                )
                second += b.to(tl.float32) * v[None, :]
        value, up = tl.sum(total, 1), tl.sum(second, 1)
    if BIAS:
        value += tl.load(bias + r, mask=live, other=0.0).to(tl.float32)
    value = apply_activation(value, ACT)
    if GATED:
        if BIAS:
            up += tl.load(b_up + r, mask=live, other=0.0).to(tl.float32)
        value = value * up
    if RESIDUAL:
        value += tl.load(residual + r, mask=live, other=0.0).to(tl.float32)
    tl.store(y + r, value.to(y.dtype.element_ty), mask=live)


@triton.jit
def products_kernel(  # type: ignore[no-untyped-def]
    x, gamma, beta, w0, w1, w2, w3, b0, b1, b2, b3, y0, y1, y2, y3, residual, size, n0, n1, n2, n3, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, COUNT: tl.constexpr,
    A0: tl.constexpr, A1: tl.constexpr, A2: tl.constexpr, A3: tl.constexpr,
    B0: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Up to four products of one x, one after the other in the grid."""
    program = tl.program_id(0)
    first = tl.cdiv(n0, ROWS)
    if COUNT == 1:
        product_rows(
            program, x, gamma, beta, w0, b0, w1, b1, y0, residual, size, n0, eps, NORM, BETA, A0, B0,
            RESIDUAL, GATED, ROWS, BLOCK, ONE_BLOCK,
        )  # fmt: skip
    else:
        second = first + tl.cdiv(n1, ROWS)
        third = second + tl.cdiv(n2, ROWS)
        if program < first:
            product_rows(
                program, x, gamma, beta, w0, b0, w0, b0, y0, residual, size, n0, eps, NORM, BETA, A0, B0,
                False, False, ROWS, BLOCK, ONE_BLOCK,
            )  # fmt: skip
        elif program < second:
            product_rows(
                program - first, x, gamma, beta, w1, b1, w1, b1, y1, residual, size, n1, eps, NORM, BETA, A1,
                B1, False, False, ROWS, BLOCK, ONE_BLOCK,
            )  # fmt: skip
        elif program < third:
            if COUNT > 2:
                product_rows(
                    program - second, x, gamma, beta, w2, b2, w2, b2, y2, residual, size, n2, eps, NORM, BETA,
                    A2, B2, False, False, ROWS, BLOCK, ONE_BLOCK,
                )  # fmt: skip
        else:
            if COUNT > 3:
                product_rows(
                    program - third, x, gamma, beta, w3, b3, w3, b3, y3, residual, size, n3, eps, NORM, BETA,
                    A3, B3, False, False, ROWS, BLOCK, ONE_BLOCK,
                )  # fmt: skip


def products(
    x: Tensor, norm: Any, products: list[Any], residual: Tensor | None, dtype: torch.dtype
) -> list[Tensor]:
    """act(W norm(x) + b) + r of one row for up to four W, or for one that is gated by a second."""
    count, columns, gated = len(products), x.numel(), products[0].gated
    found = [torch.empty(len(p.weight), dtype=dtype, device=x.device) for p in products]
    fill = lambda items, rest: [*items, *[rest] * (4 - count)]
    whole, nothing = power_of_two(columns), found[0]
    rows, block = (2 if whole >= 2048 else 4, whole) if whole <= 4096 else (4, 1024)
    read = products if gated is None else [products[0], gated]
    weights = [p.weight for p in read] + [nothing] * (4 - len(read))
    biases = [nothing if p.bias is None else p.bias for p in read] + [nothing] * (4 - len(read))
    sizes = [len(p.weight) for p in products]
    beta = None if norm is None else norm.bias
    acts = {f"A{i}": act for i, act in enumerate(fill([ACTS[p.act] for p in products], 0))}
    biased = {f"B{i}": b for i, b in enumerate(fill([p.bias is not None for p in products], False))}
    products_kernel[(sum(-(-n // rows) for n in sizes),)](
        x, nothing if norm is None else norm.weight, nothing if beta is None else beta,
        *weights, *biases, *fill(found, nothing),
        nothing if residual is None else residual, columns, *fill(sizes, 0),
        0.0 if norm is None else norm.eps,
        NORM=PLAIN if norm is None else LAYER if norm.kind == "layer" else RMS, BETA=beta is not None,
        RESIDUAL=residual is not None, GATED=gated is not None, COUNT=count, **acts, **biased,
        ROWS=rows, BLOCK=block, ONE_BLOCK=block >= columns, num_warps=4,
    )  # fmt: skip
    return found


@triton.jit
def normalise_kernel(  # type: ignore[no-untyped-def]
    x, gamma, beta, y, size, eps, NORM: tl.constexpr, BETA: tl.constexpr, BLOCK: tl.constexpr
):
    """norm(x) in the type of y; an RMSNorm is rounded to it before it meets γ, as its definition has it"""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = k < size
    value = tl.load(x + row * size + k, mask=inside, other=0.0).to(y.dtype.element_ty).to(tl.float32)
    if NORM == 1:
        value = normalise_row(value, gamma, beta, k, inside, size, eps, NORM, BETA)
    else:
        gain = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
        value = (value * gain).to(y.dtype.element_ty).to(tl.float32)
        value = value * tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * size + k, value.to(y.dtype.element_ty), mask=inside)


def normalise(x: Tensor, norm: Any) -> Tensor:
    size, weight = x.shape[-1], norm.weight
    y = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    normalise_kernel[(x.numel() // size,)](
        x.contiguous(), weight, weight if norm.bias is None else norm.bias, y, size, norm.eps,
        NORM=LAYER if norm.kind == "layer" else RMS, BETA=norm.bias is not None, BLOCK=power_of_two(size),
        num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return y


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
    parts = y if splits == 1 else torch.empty(B * H * splits * (K + 2), device=q.device)
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


@triton.jit
def lstm_kernel(gates, c, h_new, c_new, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < size
    line = gates + row * 4 * size + k
    i = tl.sigmoid(tl.load(line, mask=inside, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(line + size, mask=inside, other=0.0).to(tl.float32))
    g = 2.0 * tl.sigmoid(2.0 * tl.load(line + 2 * size, mask=inside, other=0.0).to(tl.float32)) - 1.0
    o = tl.sigmoid(tl.load(line + 3 * size, mask=inside, other=0.0).to(tl.float32))
    value = f * tl.load(c + row * size + k, mask=inside, other=0.0).to(tl.float32) + i * g
    tl.store(c_new + row * size + k, value.to(c_new.dtype.element_ty), mask=inside)
    value = o * (2.0 * tl.sigmoid(2.0 * value) - 1.0)
    tl.store(h_new + row * size + k, value.to(h_new.dtype.element_ty), mask=inside)


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c after one token; c is read where it stands."""
    h_new, c_new = torch.empty_like(c), torch.empty_like(c)
    size = c.shape[1]
    lstm_kernel[(len(c), -(-size // 128))](
        gates.contiguous(), c.contiguous(), h_new, c_new, size, BLOCK=128, num_warps=1
    )
    return h_new, c_new


@triton.jit
def conv_silu_kernel(  # type: ignore[no-untyped-def]
    x, window, weight, bias, y, size, WIDTH: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < size
    held = window + row * (WIDTH - 1) * size + d
    newest = tl.load(x + row * size + d, mask=inside, other=0.0)
    value = newest.to(tl.float32) * tl.load(weight + d * WIDTH + WIDTH - 1, mask=inside, other=0.0).to(
        tl.float32
    )
    if BIAS:
        value += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    for j in tl.static_range(WIDTH - 1):
        tap = tl.load(held + j * size, mask=inside, other=0.0)
        value += tap.to(tl.float32) * tl.load(weight + d * WIDTH + j, mask=inside, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(held + (j - 1) * size, tap, mask=inside)
    tl.store(held + (WIDTH - 2) * size, newest.to(window.dtype.element_ty), mask=inside)
    tl.store(y + row * size + d, (value * tl.sigmoid(value)).to(y.dtype.element_ty), mask=inside)


def conv_silu(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    size, y = x.shape[2], torch.empty_like(x, memory_format=torch.contiguous_format)
    conv_silu_kernel[(len(x), -(-size // 128))](
        x.contiguous(), window, weight, y if bias is None else bias, y, size, WIDTH=weight.shape[2],
        BIAS=bias is not None, BLOCK=128, num_warps=1,
    )  # fmt: skip
    return y


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def selective_kernel(  # type: ignore[no-untyped-def]
    u, delta, b, c, a_log, skip, gate, h, y, size, states, STATES: tl.constexpr, BLOCK: tl.constexpr
):
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, n = d < size, tl.arange(0, STATES)
    mask = inside[:, None] & (n < states)[None, :]
    x = tl.load(u + row * size + d, mask=inside, other=0.0).to(tl.float32)
    step = softplus(tl.load(delta + row * size + d, mask=inside, other=0.0).to(tl.float32))
    at = d[:, None] * states + n[None, :]
    decay = tl.exp(-step[:, None] * tl.exp(tl.load(a_log + at, mask=mask, other=0.0).to(tl.float32)))
    into = tl.load(b + row * states + n, mask=n < states, other=0.0).to(tl.float32)
    outof = tl.load(c + row * states + n, mask=n < states, other=0.0).to(tl.float32)
    held = h + row * size * states + at
    state = decay * tl.load(held, mask=mask, other=0.0) + (step * x)[:, None] * into[None, :]
    tl.store(held, state, mask=mask)
    value = tl.sum(tl.where(mask, state * outof[None, :], 0.0), 1)
    value += tl.load(skip + d, mask=inside, other=0.0).to(tl.float32) * x
    g = tl.load(gate + row * size + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * size + d, (value * g * tl.sigmoid(g)).to(y.dtype.element_ty), mask=inside)


def selective_step(
    u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A_log: Tensor, D: Tensor, gate: Tensor, h: Tensor
) -> Tensor:
    (size, states), y = A_log.shape, torch.empty_like(u, memory_format=torch.contiguous_format)
    selective_kernel[(len(u), -(-size // 32))](
        u.contiguous(), dt.contiguous(), B.contiguous(), C.contiguous(), A_log, D, gate.contiguous(), h, y,
        size, states, STATES=power_of_two(states), BLOCK=32, num_warps=2,
    )  # fmt: skip
    return y


@triton.jit
def gated_linear_kernel(  # type: ignore[no-untyped-def]
    q, k, v, decay, S, y, tau, scale,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    row, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, KEYS), tl.arange(0, VALUES)
    here = i < KEY
    mask = here[:, None] & (j < VALUE)[None, :]
    query = tl.load(q + row * KEY + i, mask=here, other=0.0).to(tl.float32) * scale
    key = tl.load(k + row * KEY + i, mask=here, other=0.0).to(tl.float32)
    value = tl.load(v + row * VALUE + j, mask=j < VALUE, other=0.0).to(tl.float32)
    a = tl.exp(-softplus(-tl.load(decay + row * KEY + i, mask=here, other=0.0).to(tl.float32)) / tau)
    held = S + row * KEY * VALUE + i[:, None] * VALUE + j[None, :]
    state = a[:, None] * tl.load(held, mask=mask, other=0.0) + key[:, None] * value[None, :]
    tl.store(held, state, mask=mask)
    out = tl.sum(tl.where(mask, query[:, None] * state, 0.0), 0)
    tl.store(y + row * VALUE + j, out.to(y.dtype.element_ty), mask=j < VALUE)


def gated_linear_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, S: Tensor, tau: float, scale: float
) -> Tensor:
    B, H, K, V = S.shape
    y = torch.empty(B, H, 1, V, dtype=v.dtype, device=v.device)
    gated_linear_kernel[(B * H,)](
        q.contiguous(), k.contiguous(), v.contiguous(), decay.contiguous(), S, y, tau, scale,
        KEY=K, VALUE=V, KEYS=power_of_two(K), VALUES=power_of_two(V), num_warps=4,
    )  # fmt: skip
    return y
