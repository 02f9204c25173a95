"""The selective scan of Mamba on a GPU, forward and back, alone or with what stands around it (Triton).

    h_t = a_t h_{t−1} + Δ_t u_t B_t,   y_t = h_t C_t,   a_t = exp(Δ_t A) keep_t
    GATED: Δ = softplus(r),  out_t = (y_t + D u_t) silu(z_t)
    G_t = dy_t C_t + a_{t+1} G_{t+1},  the gradient of h_t:
    ∂ log a_t = G_t h_{t−1} a_t,   ∂(Δu)_t = G_t B_t,   ∂B_t = Σ_d G_t Δ_t u_t,   ∂C_t = Σ_d dy_t h_t

`nn.state_space.scan.selective` is the definition. A warp reads a segment of the text for eight channels, one
position after the other; each of the four lanes of a channel holds four of its 16 states.
What needs no state (softplus, the gate, reading and writing) a lane does for every fourth position instead:
`spread` hands such values to all four lanes, `fold` sums over the lanes and leaves each lane the sum of its
position. Going back, SPAN states are made again from the h kept before them. No exponent is ever positive.

A vector has one number for each lane: number i belongs to lane i % 4 of channel i // 4, and eight channels
make a warp. Each lane holds four of a channel's 16 states, as four vectors. Lane j of channel d holds state 4
j + (k xor d % 4) in the k-th of them, not 4 j + k. So a sum over channels adds the first vector of a lane to
the second of its neighbour, and no lane has to choose what to give away.
"""

# mypy: disable-error-code="assignment, no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


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
    """B next to C of every position (…, 2 N) as (…, 4, 2, 16): in the orders of four neighbouring channels"""
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


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * LOG2E))


@triton.jit
def step_sizes(raw, t, T, SOFTPLUS: tl.constexpr):
    """Δ, 0 after the end of the text, and its derivative"""
    x = raw.to(tl.float32)
    if SOFTPLUS:
        e = tl.exp2(-tl.abs(x) * LOG2E)
        series = e * (1.0 - e * (0.5 - e * (0.3333333333 - e * 0.25)))  # log(1 + e) for small e
        value = tl.maximum(x, 0.0) + tl.where(e < 0.01, series, tl.log2(1.0 + e) * LN2)
        value, slope = tl.where(t < T, value, 0.0), tl.where(x >= 0, 1.0, e) / (1.0 + e)
    else:
        value, slope = x, tl.full(x.shape, 1.0, tl.float32)
    return value, slope


@triton.jit
def gate_slopes(dout, z, GATED: tl.constexpr):
    """dy = dout silu(z), and dout silu′(z), which times y is the gradient of z"""
    dy = dout.to(tl.float32)
    bend = dy
    if GATED:
        gate = z.to(tl.float32)
        open = sigmoid(gate)
        dy, bend = dy * gate * open, dy * open * (1.0 + gate * (1.0 - open))
    return dy, bend


@triton.jit
def load_shared(x, t, n, T, COUNT: tl.constexpr, WHOLE: tl.constexpr):
    """B or C of COUNT positions from t on, four vectors each

    Unless texts are WHOLE spans, the last position stands in for those after it.
    """
    out = ()
    for p in tl.static_range(COUNT):
        place = t + p if WHOLE else tl.minimum(t + p, T - 1)
        out = out + split_four(tl.load(x + place * 128 + (n[:, None] + tl.arange(0, 4)[None, :])))
    return out


@triton.jit
def read_ahead(
    h, rates, step, made, bs, cs, keep, t, T, i, HALF: tl.constexpr, V: tl.constexpr, FORGETS: tl.constexpr,
    OUTPUTS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Four positions from t on: every h, that before them first; every a; Δ and Δu; each lane's Σ_n h C

    bs and cs are those of a whole span, of which this is the first or second HALF.
    """
    hs, decays, steps, mades, outs = h, (), (), (), ()
    for p in tl.static_range(4):
        s, m = spread(step, p, V, FAST), spread(made, p, V, FAST)
        steps, mades, out = steps + (s,), mades + (m,), tl.zeros_like(s)
        kept = tl.load(keep + t + p, mask=t + p < T, other=1.0).to(tl.float32) if FORGETS else 1.0
        for k in tl.static_range(4):
            a = tl.exp2(rates[k] * LOG2E * s)
            if FORGETS:
                a *= kept
            decays, hs = decays + (a,), hs + (a * hs[4 * p + k] + m * bs[16 * HALF + 4 * p + k],)
            if OUTPUTS:
                out += hs[4 * p + 4 + k] * cs[16 * HALF + 4 * p + k]
        outs = outs + (out,)
    return hs, decays, steps, mades, fold(outs, i, V, FAST) if OUTPUTS else made


@triton.jit
def scan_forward(
    u, raw, z, A, B, C, skip, keep, starts, states, y, ends, sums, T, spans, per_segment,
    D: tl.constexpr, N: tl.constexpr, u_row: tl.constexpr, raw_row: tl.constexpr, z_row: tl.constexpr,
    SPAN: tl.constexpr, V: tl.constexpr, WHOLE: tl.constexpr, FORGETS: tl.constexpr, GATED: tl.constexpr,
    OUTPUTS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """OUTPUTS: y, and the h before every SPAN positions, from the h before a segment.

    Otherwise the h after a segment if nothing came before it, and Σ Δ of the segment.
    """
    i, segment, b = tl.arange(0, V), tl.program_id(1), tl.program_id(2).to(tl.int64)
    j, d, there = i % 4, tl.program_id(0) * (V // 4) + i // 4, tl.program_id(0) * (V // 4) + i // 4 < D
    own, n = 16 * d + 4 * j, d % 4 * 32 + 4 * j  # where states that are kept lie, and B's in their order
    row, at = b * T, b * tl.num_programs(1) + segment
    u, raw, z, y = u + row * u_row, raw + row * raw_row, z + row * z_row, y + row * D
    B, C, keep, states = B + row * 128, C + row * 128, keep + row, states + b * spans * 16 * D
    rates, total = load_states(A, d, j, there, N), tl.zeros((V,), tl.float32)
    D_d = tl.load(skip + d, mask=there, other=0.0) if GATED else 0.0
    h = load_states(starts + at * N * D, d, j, there, N) if OUTPUTS else (total, total, total, total)
    first, last = segment * per_segment, min(segment * per_segment + per_segment, spans)
    t = first * SPAN + j
    u_next, raw_next = load_rows(u, t, d, T, there, u_row), load_rows(raw, t, d, T, there, raw_row)
    z_next = load_rows(z, t, d, T, there, z_row) if GATED and OUTPUTS else u_next
    b_next = load_shared(B, first * SPAN, n, T, SPAN, WHOLE)
    c_next = load_shared(C, first * SPAN, n, T, SPAN, WHOLE) if OUTPUTS else ()
    for span in range(first, last):
        xs, raws, gates, t, outs = u_next, raw_next, z_next, span * SPAN + j, ()
        u_next = load_rows(u, t + SPAN, d, T, there, u_row)  # long before they are needed
        raw_next = load_rows(raw, t + SPAN, d, T, there, raw_row)
        z_next = load_rows(z, t + SPAN, d, T, there, z_row) if GATED and OUTPUTS else u_next
        after, bs, cs = tl.minimum(span + 1, last - 1) * SPAN, b_next, c_next
        b_next = load_shared(B, after, n, T, SPAN, WHOLE)
        c_next = load_shared(C, after, n, T, SPAN, WHOLE) if OUTPUTS else ()
        if OUTPUTS:
            store_four(states + span * 16 * D, h, own, there, V)
        for v in tl.static_range(2):
            x, step = xs[v].to(tl.float32), step_sizes(raws[v], t + 4 * v, T, GATED)[0]
            hs, _, _, _, out = read_ahead(
                h, rates, step, step * x, bs, cs, keep, span * SPAN + 4 * v, T, i, v, V, FORGETS, OUTPUTS,
                FAST,
            )  # fmt: skip
            h, total = (hs[16], hs[17], hs[18], hs[19]), total + step
            if GATED:
                gate = gates[v].to(tl.float32)
                out = (out + D_d * x) * gate * sigmoid(gate)
            outs = outs + (out,)
        if OUTPUTS:
            for v in tl.static_range(2):
                store_row(y, outs[v], t + 4 * v, d, T, there, D)
    store_states(ends + at * N * D, h, d, j, there, N)
    if not OUTPUTS:
        tl.store(sums + at * D + d, fold((total, total, total, total), i, V, FAST), mask=there & (j == 0))


@triton.jit
def scan_slopes(
    dout, raw, z, A, C, keep, ends, sums, T, spans, per_segment,
    D: tl.constexpr, N: tl.constexpr, raw_row: tl.constexpr, z_row: tl.constexpr, SPAN: tl.constexpr,
    V: tl.constexpr, WHOLE: tl.constexpr, FORGETS: tl.constexpr, GATED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The gradient of the h before every segment if nothing comes after it, and Σ Δ of the segment."""
    i, segment, b = tl.arange(0, V), tl.program_id(1), tl.program_id(2).to(tl.int64)
    j, d, there = i % 4, tl.program_id(0) * (V // 4) + i // 4, tl.program_id(0) * (V // 4) + i // 4 < D
    n, row, at = d % 4 * 32 + 4 * j, b * T, b * tl.num_programs(1) + segment
    dout, raw, z, C, keep = dout + row * D, raw + row * raw_row, z + row * z_row, C + row * 128, keep + row
    rates, total = load_states(A, d, j, there, N), tl.zeros((V,), tl.float32)
    g, first = (total, total, total, total), segment * per_segment
    last = min(first + per_segment, spans)
    t = (last - 1) * SPAN + j
    d_next, raw_next = load_rows(dout, t, d, T, there, D), load_rows(raw, t, d, T, there, raw_row)
    z_next = load_rows(z, t, d, T, there, z_row) if GATED else d_next
    c_next = load_shared(C, (last - 1) * SPAN, n, T, SPAN, WHOLE)
    for back in range(0, last - first):
        ups, raws, gates, cs, begin = d_next, raw_next, z_next, c_next, (last - 1 - back) * SPAN
        t = begin + j
        d_next = load_rows(dout, t - SPAN, d, T, there, D)
        raw_next = load_rows(raw, t - SPAN, d, T, there, raw_row)
        z_next = load_rows(z, t - SPAN, d, T, there, z_row) if GATED else d_next
        c_next = load_shared(C, tl.maximum(begin - SPAN, 0), n, T, SPAN, WHOLE)
        for v in tl.static_range(1, -1, -1):
            step, dy = step_sizes(raws[v], t + 4 * v, T, GATED)[0], gate_slopes(ups[v], gates[v], GATED)[0]
            total += step
            for p in tl.static_range(3, -1, -1):
                place, s, up = begin + 4 * v + p, spread(step, p, V, FAST), spread(dy, p, V, FAST)
                before = ()
                kept = tl.load(keep + place, mask=place < T, other=1.0).to(tl.float32) if FORGETS else 1.0
                for k in tl.static_range(4):
                    before = before + (
                        tl.exp2(rates[k] * LOG2E * s) * kept * (g[k] + up * cs[16 * v + 4 * p + k]),
                    )
                g = before
    store_states(ends + at * N * D, g, d, j, there, N)
    tl.store(sums + at * D + d, fold((total, total, total, total), i, V, FAST), mask=there & (j == 0))


@triton.jit
def read_back(
    g, slope_A, rates, hs, decays, steps, mades, dy, B, C, t, n, T, i,
    V: tl.constexpr, WHOLE: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Four positions from t on, the last first: G before them and the gradient of A; each lane's gradients of
    Δu and of log a; and for each position the sums over a warp's channels for B and C."""
    inner, logs, sums = (), (), ()
    for p in tl.static_range(3, -1, -1):
        bs, cs = load_shared(B, t + p, n, T, 1, WHOLE), load_shared(C, t + p, n, T, 1, WHOLE)
        up, for_b, for_c, before, slope_new = spread(dy, p, V, FAST), (), (), (), ()
        of_x, of_log = tl.zeros_like(up), tl.zeros_like(up)
        for k in tl.static_range(4):
            G = g[k] + up * cs[k]
            for_b, for_c = for_b + (G * mades[p],), for_c + (up * hs[4 * p + 4 + k],)
            of_x += G * bs[k]
            G *= decays[4 * p + k]
            slope = G * hs[4 * p + k]
            of_log += slope * rates[k]
            before, slope_new = before + (G,), slope_new + (slope_A[k] + slope * steps[p],)
        g, slope_A = before, slope_new
        inner, logs = (of_x,) + inner, (of_log,) + logs
        sums = (fold_channels(for_b, for_c, i, V, FAST),) + sums
    return g, slope_A, fold(inner, i, V, FAST), fold(logs, i, V, FAST), sums


@triton.jit
def store_channel_sums(to, xs, t, T, SPAN: tl.constexpr, V: tl.constexpr):
    """Sums over the warps of a program, for SPAN positions from t on; `to` has a row for each program there

    In a warp channels 0 to 3 hold the sums for B, one state of every four each, channels 4 to 7 those for C.
    """
    odd = tl.join(tl.join(xs[1], xs[5]), tl.join(xs[3], xs[7]))
    pairs = tl.join(tl.join(tl.join(xs[0], xs[4]), tl.join(xs[2], xs[6])), odd)
    rows = tl.reshape(tl.permute(tl.reshape(pairs, (V, SPAN)), (1, 0)), (SPAN * V,))
    # In this order a thread gets the same lane of all warps; without it threads would queue for memory banks.
    at, size = tl.arange(0, SPAN * V), 32 * SPAN
    every = tl.gather(rows, at % size // 32 * V + at // size * 32 + at % 32, 0)
    total = tl.sum(tl.reshape(every, (V // 32, 32 * SPAN)), 0)
    lane, p = tl.arange(0, 32 * SPAN) % 32, tl.arange(0, 32 * SPAN) // 32
    state = lane % 4 * 4 + lane // 4 % 4
    tl.store(to + p * tl.num_programs(0) * 32 + lane // 16 * 16 + state, total, mask=t + p < T)


@triton.jit
def scan_backward(
    dout, u, raw, z, A, B, C, skip, keep, states, slopes, du, draw, dz, dA, dparts, dh, sums, T, spans,
    per_segment, D: tl.constexpr, N: tl.constexpr, u_row: tl.constexpr, raw_row: tl.constexpr,
    z_row: tl.constexpr, dz_row: tl.constexpr, SPAN: tl.constexpr, V: tl.constexpr, WHOLE: tl.constexpr,
    FORGETS: tl.constexpr, GATED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """All gradients of a segment, SPAN positions at a time from its end, where `slopes` is G after it.

    dA (rows, segments, D, N) and dparts (rows, segments, 2, D), for D and Δ's bias, are sums over a segment,
    `sums` (rows, T, programs, 32) those over the program's channels for B and C; dh is G before the segment.
    """
    i, segment, b = tl.arange(0, V), tl.program_id(1), tl.program_id(2).to(tl.int64)
    j, d, there = i % 4, tl.program_id(0) * (V // 4) + i // 4, tl.program_id(0) * (V // 4) + i // 4 < D
    own, n = 16 * d + 4 * j, d % 4 * 32 + 4 * j
    row, at = b * T, b * tl.num_programs(1) + segment
    dout, u, raw, z = dout + row * D, u + row * u_row, raw + row * raw_row, z + row * z_row
    du, draw, dz, keep = du + row * D, draw + row * D, dz + row * dz_row, keep + row
    B, C, states = B + row * 128, C + row * 128, states + b * spans * 16 * D
    rates, g = load_states(A, d, j, there, N), load_states(slopes + at * N * D, d, j, there, N)
    D_d, zero = tl.load(skip + d, mask=there, other=0.0) if GATED else 0.0, tl.zeros((V,), tl.float32)
    slope_A, of_skip, of_bias, first = (zero, zero, zero, zero), zero, zero, segment * per_segment
    last = min(first + per_segment, spans)
    t = (last - 1) * SPAN + j
    d_next, u_next = load_rows(dout, t, d, T, there, D), load_rows(u, t, d, T, there, u_row)
    raw_next = load_rows(raw, t, d, T, there, raw_row)
    z_next = load_rows(z, t, d, T, there, z_row) if GATED else d_next
    h_next = load_four(states + (last - 1) * 16 * D, own, there)
    for back in range(0, last - first):
        begin = (last - 1 - back) * SPAN
        ups, xs, raws, gates, h, t = d_next, u_next, raw_next, z_next, h_next, begin + j
        d_next, u_next = load_rows(dout, t - SPAN, d, T, there, D), load_rows(u, t - SPAN, d, T, there, u_row)
        raw_next = load_rows(raw, t - SPAN, d, T, there, raw_row)
        z_next = load_rows(z, t - SPAN, d, T, there, z_row) if GATED else d_next
        h_next = load_four(states + tl.maximum(last - 2 - back, 0) * 16 * D, own, there)
        bs = load_shared(B, begin, n, T, SPAN, WHOLE)
        cs = load_shared(C, begin, n, T, SPAN, WHOLE) if GATED else bs
        step, slope = step_sizes(raws[0], t, T, GATED)
        step2, slope2 = step_sizes(raws[1], t + 4, T, GATED)
        dy, bend = gate_slopes(ups[0], gates[0], GATED)
        dy2, bend2 = gate_slopes(ups[1], gates[1], GATED)
        x, x2 = xs[0].to(tl.float32), xs[1].to(tl.float32)
        hs, decays, steps, mades, y = read_ahead(
            h, rates, step, step * x, bs, cs, keep, begin, T, i, 0, V, FORGETS, GATED, FAST
        )  # fmt: skip
        h = hs[16], hs[17], hs[18], hs[19]
        hs2, decays2, steps2, mades2, y2 = read_ahead(
            h, rates, step2, step2 * x2, bs, cs, keep, begin + 4, T, i, 1, V, FORGETS, GATED, FAST
        )  # fmt: skip
        if GATED:
            store_row(dz, bend * (y + D_d * x), t, d, T, there, dz_row)
            store_row(dz, bend2 * (y2 + D_d * x2), t + 4, d, T, there, dz_row)
        g, slope_A, inner2, logs2, late = read_back(
            g, slope_A, rates, hs2, decays2, steps2, mades2, dy2, B, C, begin + 4, n, T, i, V, WHOLE, FAST
        )  # fmt: skip
        g, slope_A, inner, logs, early = read_back(
            g, slope_A, rates, hs, decays, steps, mades, dy, B, C, begin, n, T, i, V, WHOLE, FAST
        )  # fmt: skip
        dstep = tl.where(t < T, (inner * x + logs) * slope, 0.0)
        dstep2 = tl.where(t + 4 < T, (inner2 * x2 + logs2) * slope2, 0.0)
        store_row(du, inner * step + D_d * dy, t, d, T, there, D)
        store_row(du, inner2 * step2 + D_d * dy2, t + 4, d, T, there, D)
        store_row(draw, dstep, t, d, T, there, D)
        store_row(draw, dstep2, t + 4, d, T, there, D)
        of_skip, of_bias = of_skip + dy * x + dy2 * x2, of_bias + dstep + dstep2
        to = sums + ((row + begin) * tl.num_programs(0) + tl.program_id(0)) * 32
        store_channel_sums(to, early + late, begin, T, SPAN, V)
    store_states(dA + at * N * D, slope_A, d, j, there, N)
    store_states(dh + at * N * D, g, d, j, there, N)
    if GATED:
        of_skip = fold((of_skip, of_skip, of_skip, of_skip), i, V, FAST)
        of_bias = fold((of_bias, of_bias, of_bias, of_bias), i, V, FAST)
        tl.store(dparts + at * 2 * D + d, of_skip, mask=there & (j == 0))
        tl.store(dparts + (at * 2 + 1) * D + d, of_bias, mask=there & (j == 0))


@triton.jit
def scan_segments(
    ends, sums, A, kept, first, starts, segments, D, N,
    BLOCK: tl.constexpr, FORGETS: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """start_{s+1} = exp(A Σ Δ) start_s + end_s from the first segment on or, REVERSE, from the last one."""
    at, b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    there = at < N * D
    decay = tl.load(A + at, mask=there, other=0.0) * LOG2E
    h = tl.load(first + b * N * D + at, mask=there, other=0.0)
    for nth in range(0, segments):
        place = b * segments + (segments - 1 - nth if REVERSE else nth)
        tl.store(starts + place * N * D + at, h, mask=there)
        a = tl.exp2(decay * tl.load(sums + place * D + at // N, mask=there, other=0.0))
        if FORGETS:
            a *= tl.load(kept + place).to(tl.float32)
        h = a * h + tl.load(ends + place * N * D + at, mask=there, other=0.0)
