"""Four lanes of a warp share a channel: what they read, hand to each other and sum, for scans (Triton).

A vector has one number for each lane: number i belongs to lane i % 4 of channel i // 4, and eight channels
make a warp. Of a channel's 16 states each lane holds four, as four vectors. Lane j of channel d holds state
4 j + (k xor d % 4) in the k-th of them, not 4 j + k: so a sum over channels adds the first vector of a lane
to the second of its neighbour, and no lane has to choose what to give away.
"""

# mypy: disable-error-code="assignment, no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_states(x, d, j, there, N: tl.constexpr):
    """A lane's four states of x (D, N); zeros where there are fewer than 16"""
    out = ()
    for k in tl.static_range(4):
        n = 4 * j + (k ^ (d % 4))
        out = out + (tl.load(x + d * N + n, mask=there & (n < N), other=0.0),)
    return out


@triton.jit
def store_states(x, values, d, j, there, N: tl.constexpr):
    for k in tl.static_range(4):
        n = 4 * j + (k ^ (d % 4))
        tl.store(x + d * N + n, values[k], mask=there & (n < N))


@triton.jit
def order_shared(bc, out, count, row: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr):
    """B beside C of every position (…, 2 N) as (…, 4, 2, 16): in the orders of four neighbouring channels"""
    m, c = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, 128)[None, :]
    n = (c % 16) ^ (c // 32)
    x = tl.load(bc + m * row + c % 32 // 16 * N + n, mask=(m < count) & (n < N), other=0.0)
    tl.store(out + m * 128 + c, x.to(tl.float32), mask=m < count)


@triton.jit
def add_neighbour(x, y, BIT: tl.constexpr):
    """x + the y of the lane that is BIT away"""
    code: tl.constexpr = """{.reg .b32 other;
        shfl.sync.bfly.b32 other, $2, $3, 0x1f, 0xffffffff; add.f32 $0, $1, other;}"""
    return tl.inline_asm_elementwise(code, "=r,r,r,r", [x, y, BIT], tl.float32, True, 1)


@triton.jit
def add_across(x, y, odd, BIT: tl.constexpr):
    """x + the neighbour's x in even lanes, y + the neighbour's y in odd ones: two sums, one exchange

    The neighbour is BIT lanes away; odd is lane & BIT.
    """
    code: tl.constexpr = """{.reg .pred p; .reg .b32 give, keep;
        setp.ne.u32 p, $3, 0; selp.b32 give, $1, $2, p; selp.b32 keep, $2, $1, p;
        shfl.sync.bfly.b32 give, give, $4, 0x1f, 0xffffffff; add.f32 $0, keep, give;}"""
    return tl.inline_asm_elementwise(code, "=r,r,r,r,r", [x, y, odd, BIT], tl.float32, True, 1)


@triton.jit
def spread(x, J: tl.constexpr, V: tl.constexpr, FAST: tl.constexpr):
    """All four lanes of a channel get what its lane J holds."""
    if FAST:
        code: tl.constexpr = "shfl.sync.idx.b32 $0, $1, $2, 0x1c1f, 0xffffffff;"
        out = tl.inline_asm_elementwise(code, "=r,r,r", [x, J], tl.float32, True, 1)
    else:  # an interpreter knows no lanes
        four = tl.reshape(x, (V // 4, 4))
        one = tl.sum(tl.where(tl.arange(0, 4)[None, :] == J, four, 0.0), 1)
        out = tl.reshape(tl.broadcast_to(one[:, None], (V // 4, 4)), (V,))
    return out


@triton.jit
def fold(xs, i, V: tl.constexpr, FAST: tl.constexpr):
    """Lane j of a channel gets the sum over its four lanes of the j-th of four vectors."""
    if FAST:
        out = add_across(add_across(xs[0], xs[1], i & 1, 1), add_across(xs[2], xs[3], i & 1, 1), i & 2, 2)
    else:
        out = tl.zeros_like(xs[0])
        for j in tl.static_range(4):
            total = tl.sum(tl.reshape(xs[j], (V // 4, 4)), 1)
            whole = tl.reshape(tl.broadcast_to(total[:, None], (V // 4, 4)), (V,))
            out = tl.where(i % 4 == j, whole, out)
    return out


@triton.jit
def fold_channels(xs, ys, i, V: tl.constexpr, FAST: tl.constexpr):
    """Sums over the eight channels of a warp, xs and ys being four vectors of states each

    Lane j of channel c gets the sum of xs for state 4 j + c or, from the fourth channel on, that of ys for
    state 4 j + c − 4.
    """
    if FAST:
        x = add_neighbour(add_neighbour(xs[0], xs[1], 4), add_neighbour(xs[2], xs[3], 4), 8)
        y = add_neighbour(add_neighbour(ys[0], ys[1], 4), add_neighbour(ys[2], ys[3], 4), 8)
        out = add_across(x, y, i & 16, 16)
    else:
        out = tl.zeros_like(xs[0])
        for k in tl.static_range(4):
            for c in tl.static_range(
                4
            ):  # the k-th vector of channel c or c + 4 holds state k xor c of its lane
                mine = ((i // 4) % 4) == c
                x = tl.sum(tl.reshape(tl.where(mine, xs[k], 0.0), (V // 32, 8, 4)), 1)
                y = tl.sum(tl.reshape(tl.where(mine, ys[k], 0.0), (V // 32, 8, 4)), 1)
                x = tl.reshape(tl.broadcast_to(x[:, None, :], (V // 32, 8, 4)), (V,))
                y = tl.reshape(tl.broadcast_to(y[:, None, :], (V // 32, 8, 4)), (V,))
                out += tl.where((i // 4) % 8 == (k ^ c), x, 0.0) + tl.where(
                    (i // 4) % 8 == 4 + (k ^ c), y, 0.0
                )
    return out


@triton.jit
def load_rows(x, t, d, T, there, row: tl.constexpr):
    """x at two positions of a lane, t and t + 4"""
    first = tl.load(x + t * row + d, mask=there & (t >= 0) & (t < T), other=0.0)
    return first, tl.load(x + (t + 4) * row + d, mask=there & (t + 4 >= 0) & (t + 4 < T), other=0.0)


@triton.jit
def store_row(x, value, t, d, T, there, row: tl.constexpr):
    tl.store(x + t * row + d, value.to(x.dtype.element_ty), mask=there & (t < T))


@triton.jit
def split_four(x):
    """The columns of x (V, 4)"""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def load_four(x, at, there):
    """Four numbers from each place `at` on, one vector each, by one load"""
    return split_four(tl.load(x + (at[:, None] + tl.arange(0, 4)[None, :]), mask=there[:, None], other=0.0))


@triton.jit
def store_four(x, values, at, there, V: tl.constexpr):
    whole = tl.join(tl.join(values[0], values[2]), tl.join(values[1], values[3]))
    tl.store(x + (at[:, None] + tl.arange(0, 4)[None, :]), tl.reshape(whole, (V, 4)), mask=there[:, None])
