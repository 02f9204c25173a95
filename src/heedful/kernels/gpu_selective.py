"""The selective scan of Mamba on a GPU, forward and back, in chunks that run side by side (Triton).

    h_t = a_t h_{t−1} + Δ_t u_t B_t,   y_t = h_t C_t,   a_t = exp(Δ_t A) keep_t
    G_t = dy_t C_t + a_{t+1} G_{t+1},  the gradient of h_t:
    ∂ log a_t = G_t h_{t−1} a_t,   ∂(Δu)_t = G_t B_t,   ∂B_t = Σ_d G_t Δ_t u_t,   ∂C_t = Σ_d dy_t h_t

`heedful.nn.scan.selective` is the definition. A chunk's decay is exp(A Σ Δ), so that what enters a chunk
follows from what every chunk makes of nothing (`chunk_ends`) by one more scan, over the chunks
(`chunk_starts`); then every chunk is read again from its true start (`chunk_outputs`). Going back is the same
from the right, and the last pass (`chunk_gradients`) makes SPAN states again at a time from the h that was
kept before them. There a thread holds two channels over SPAN positions, for one state n after the other, and
only the sums over channels go from thread to thread. No exponent is ever positive.
"""

# mypy: disable-error-code="assignment"
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64  # positions that one program reads, of two times WIDTH channels
SPAN = 8  # positions between states that are kept for the gradient
WIDTH = 32  # one warp
TILE = 16  # chunks that the scan over chunks reads at a time
REGISTERS = 168  # the most a thread of the gradient may hold: more programs run beside each other
FEW_REGISTERS = 80  # the same for the ends of chunks, of which there are about as many as fit at once
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def load_row(u, delta, keep, row, d, D, FORGETS: tl.constexpr):  # type: ignore[no-untyped-def]
    """u, Δ and keep of one position"""
    x = tl.load(u + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    step = tl.load(delta + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    kept = tl.load(keep + row).to(tl.float32) if FORGETS else 1.0
    return x, step, kept


@triton.jit
def load_states(x, d, D, SCALE: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """SCALE times N rows of x, one vector each"""
    rows = ()
    for n in tl.static_range(N):
        rows = rows + (tl.load(x + n * D + d, mask=d < D, other=0.0) * SCALE,)
    return rows


@triton.jit
def store_states(x, rows, d, D, N: tl.constexpr):  # type: ignore[no-untyped-def]
    for n in tl.static_range(N):
        tl.store(x + n * D + d, rows[n], mask=d < D)


@triton.jit
def chunk_ends(  # type: ignore[no-untyped-def]
    x, delta, A, B, keep, ends, sums, T, D,
    N: tl.constexpr, CHUNK: tl.constexpr, BD: tl.constexpr, FORGETS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """h after every chunk if nothing came before it, and Σ Δ of the chunk.

    BACK: the gradient of h before every chunk if nothing comes after it, with dy for u and C for B.
    """
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    c, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    decay, hs = load_states(A, d, D, LOG2E, N), ()
    for _ in tl.static_range(N):
        hs = hs + (tl.zeros((BD,), tl.float32),)
    total = tl.zeros((BD,), tl.float32)
    first, length = c * CHUNK, min(T - c * CHUNK, CHUNK)
    for i in range(0, length):
        row = b * T + first + (length - 1 - i if BACK else i)
        new, step, kept = load_row(x, delta, keep, row, d, D, FORGETS)
        made, after = new if BACK else step * new, ()
        for n in tl.static_range(N):
            a, vector = tl.exp2(decay[n] * step), tl.load(B + row * N + n)
            if FORGETS:
                a *= kept
            after = after + (a * (hs[n] + made * vector) if BACK else a * hs[n] + made * vector,)
        hs = after
        total += step
    at = b * tl.num_programs(1) + c
    store_states(ends + at * N * D, hs, d, D, N)
    tl.store(sums + at * D + d, total, mask=d < D)


@triton.jit
def compose(a, b, a_next, b_next):  # type: ignore[no-untyped-def]
    return a * a_next, a_next * b + b_next


@triton.jit
def chunk_starts(  # type: ignore[no-untyped-def]
    ends, sums, A, kept, first, starts, last, chunks, slots, D, N,
    RATIO: tl.constexpr, TILE: tl.constexpr, BD: tl.constexpr, FORGETS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """start_{c+1} = exp(A Σ Δ) start_c + end_c from the first chunk on or, BACK, from the last one.

    `starts` has `slots` places a row, of which every RATIO-th is the start of a chunk.
    """
    d, n, b = tl.program_id(0) * BD + tl.arange(0, BD), tl.program_id(1), tl.program_id(2).to(tl.int64)
    decay = tl.load(A + n * D + d, mask=d < D, other=0.0) * LOG2E
    h = tl.load(first + (b * N + n) * D + d, mask=d < D, other=0.0).to(tl.float32)
    edge = b * slots + (chunks - 1 if BACK else 0) * RATIO
    tl.store(starts + (edge * N + n) * D + d, h, mask=d < D)
    i = tl.arange(0, TILE)
    for begin in range(0, chunks, TILE):
        nth = begin + i
        at = b * chunks + (chunks - 1 - nth if BACK else nth)
        inside = (nth < chunks)[:, None] & (d < D)[None, :]
        total = tl.load(sums + at[:, None] * D + d[None, :], mask=inside, other=0.0)
        a = tl.exp2(decay[None, :] * total)
        if FORGETS:
            a = a * tl.load(kept + at, mask=nth < chunks, other=1.0).to(tl.float32)[:, None]
        new = tl.load(ends + (at[:, None] * N + n) * D + d[None, :], mask=inside, other=0.0)
        past, made = tl.associative_scan((a, new), 0, compose)
        after = made + past * h[None, :]
        # The start of a chunk is the end of the one before it: a row is written one place further.
        goal = b * slots + (chunks - 2 - nth if BACK else nth + 1) * RATIO
        follows = (nth + 1 < chunks)[:, None] & (d < D)[None, :]
        tl.store(starts + (goal[:, None] * N + n) * D + d[None, :], after, mask=follows)
        h = tl.sum(tl.where((i == TILE - 1)[:, None], after, 0.0), 0)
    tl.store(last + (b * N + n) * D + d, h, mask=d < D)


@triton.jit
def chunk_outputs(  # type: ignore[no-untyped-def]
    u, delta, A, B, C, keep, states, y, T, D, spans,
    N: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr, BD: tl.constexpr, FORGETS: tl.constexpr,
):  # fmt: skip
    """y, and the h before every SPAN positions, from the h before the chunk."""
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    c, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    decay = load_states(A, d, D, LOG2E, N)
    place = states + (b * spans + c * (CHUNK // SPAN)) * N * D
    hs = load_states(place, d, D, 1.0, N)
    for begin in range(c * CHUNK, min(T, (c + 1) * CHUNK), SPAN):
        store_states(place, hs, d, D, N)
        place += N * D
        for t in range(begin, min(T, begin + SPAN)):
            row = b * T + t
            x, step, kept = load_row(u, delta, keep, row, d, D, FORGETS)
            made, out, after = step * x, tl.zeros((BD,), tl.float32), ()
            for n in tl.static_range(N):
                a = tl.exp2(decay[n] * step)
                if FORGETS:
                    a *= kept
                after = after + (a * hs[n] + made * tl.load(B + row * N + n),)
                out += after[n] * tl.load(C + row * N + n)
            hs = after
            tl.store(y + row * D + d, out.to(y.dtype.element_ty), mask=d < D)


@triton.jit
def add_across(x, y, odd, BIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """x + the neighbour's x in even lanes, y + the neighbour's y in odd ones: two sums, one exchange

    The neighbour is BIT lanes away; odd is lane & BIT.
    """
    code: tl.constexpr = """{.reg .pred p; .reg .b32 give, keep;
        setp.ne.u32 p, $3, 0; selp.b32 give, $1, $2, p; selp.b32 keep, $2, $1, p;
        shfl.sync.bfly.b32 give, give, $4, 0x1f, 0xffffffff; add.f32 $0, keep, give;}"""
    return tl.inline_asm_elementwise(code, "=r,r,r,r,r", [x, y, odd, BIT], tl.float32, True, 1)


@triton.jit
def sum_lanes(xs, lane, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Lanes i and i + 16 of 32 get the sum over all lanes of the i-th of 16 vectors: 16 exchanges, not 80."""
    if FAST:
        for level in tl.static_range(4):
            halved, odd = (), lane & (1 << level)
            for i in tl.static_range(8 >> level):
                halved = halved + (add_across(xs[2 * i], xs[2 * i + 1], odd, 1 << level),)
            xs = halved
        out = add_across(xs[0], xs[0], lane, 16)
    else:  # an interpreter knows no lanes
        out = tl.zeros_like(xs[0])
        for i in tl.static_range(16):
            out = tl.where(lane % 16 == i, tl.sum(xs[i], 0), out)
    return out


@triton.jit
def load_span(x, at, d, D, left, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """SPAN rows of x from offset `at` on, of which `left` exist, one vector each"""
    rows = ()
    for i in tl.static_range(SPAN):
        rows = rows + (tl.load(x + at + (i * D + d), mask=(d < D) & (i < left), other=0.0).to(tl.float32),)
    return rows


@triton.jit
def state_gradients(  # type: ignore[no-untyped-def]
    steps, xs, ups, inner, decays, a_n, h, g, total, B, C, keep, left,
    SPAN: tl.constexpr, FORGETS: tl.constexpr,
):  # fmt: skip
    """One state n over SPAN positions: h ahead from the h before them, then G back from the one after them.

    Adds to `inner` the gradient of Δu, to `decays` that of Δ A and to `total` that of A_n; gives G before the
    span, and for every position what is to be summed over channels for B_n, then for C_n.
    """
    hs, decay = (h,), ()
    for i in tl.static_range(SPAN):
        a = tl.exp2(steps[i] * (a_n * LOG2E))
        if FORGETS:
            a = a * tl.load(keep + i, mask=i < left, other=1.0)
        h = a * h + xs[i] * tl.load(B + i)
        hs, decay = hs + (h,), decay + (a,)
    for_b, for_c, inner_new, decays_new = (), (), (), ()
    for i in tl.static_range(SPAN - 1, -1, -1):
        g += ups[i] * tl.load(C + i)
        for_b, for_c = (g * xs[i],) + for_b, (ups[i] * hs[i + 1],) + for_c
        inner_new = (inner[i] + g * tl.load(B + i),) + inner_new
        g *= decay[i]
        slope = g * hs[i]
        decays_new = (decays[i] + slope * a_n,) + decays_new
        total += slope * steps[i]
    return inner_new, decays_new, g, total, for_b + for_c


@triton.jit
def start_sums(steps, read, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Δu of SPAN positions, and zeros to add up the gradients of Δu and of Δ in"""
    xs, inner, decays = (), (), ()
    for i in tl.static_range(SPAN):
        xs, inner = xs + (steps[i] * read[i],), inner + (tl.zeros_like(steps[i]),)
        decays = decays + (tl.zeros_like(steps[i]),)
    return xs, inner, decays


@triton.jit
def end_sums(u, du, ddelta, steps, inner, decays, at, d, D, left, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the gradients of u and Δ of SPAN positions."""
    for i in tl.static_range(SPAN):
        place, there = at + (i * D + d), (d < D) & (i < left)
        x = tl.load(u + place, mask=there, other=0.0).to(tl.float32)
        tl.store(du + place, (inner[i] * steps[i]).to(du.dtype.element_ty), mask=there)
        tl.store(ddelta + place, (inner[i] * x + decays[i]).to(ddelta.dtype.element_ty), mask=there)


@triton.jit
def load_state(A, before, slopes, n, d, D, N):  # type: ignore[no-untyped-def]
    """A_n, h before the span and G after it; zeros after the last state"""
    there = (d < D) & (n < N)
    a = tl.load(A + n * D + d, mask=there, other=0.0)
    h = tl.load(before + (n * D + d), mask=there, other=0.0)
    return a, h, tl.load(slopes + (n * D + d), mask=there, other=0.0)


@triton.jit
def chunk_gradients(  # type: ignore[no-untyped-def]
    u, delta, A, B, C, keep, dy, states, slopes, du, ddelta, dA, sums, T, D, N, spans,
    CHUNK: tl.constexpr, SPAN: tl.constexpr, BD: tl.constexpr, FORGETS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """All gradients of a chunk, SPAN positions at a time from its end, for two blocks of channels.

    B and C are (rows, N, spans · SPAN) here. `slopes` holds G after the chunk and is carried on in place;
    `sums` (rows, spans, N, programs, 2 · SPAN) gets the sums over this program's channels for B, then for C.
    """
    c, b, lane = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.arange(0, BD)
    d = tl.program_id(0) * 2 * BD + lane
    e = d + BD
    carried = (b * tl.num_programs(1) + c) * N * D
    for back in range(0, CHUNK // SPAN):
        span = c * (CHUNK // SPAN) + CHUNK // SPAN - 1 - back
        if span < spans:
            row, left = b * T + span * SPAN, T - span * SPAN
            steps, ups = load_span(delta, row * D, d, D, left, SPAN), load_span(dy, row * D, d, D, left, SPAN)
            xs, inner, decays = start_sums(steps, load_span(u, row * D, d, D, left, SPAN), SPAN)
            steps2, ups2 = (
                load_span(delta, row * D, e, D, left, SPAN),
                load_span(dy, row * D, e, D, left, SPAN),
            )
            xs2, inner2, decays2 = start_sums(steps2, load_span(u, row * D, e, D, left, SPAN), SPAN)
            before = states + (b * spans + span) * N * D
            line = b * N * spans * SPAN + span * SPAN
            goal = (b * spans + span) * N * tl.num_programs(0) + tl.program_id(0)
            a_n, h, g = load_state(A, before, slopes + carried, 0, d, D, N)
            a_n2, h2, g2 = load_state(A, before, slopes + carried, 0, e, D, N)
            for n in range(0, N):
                # Fetched ahead: the next state's numbers lie far away.
                a_next, h_next, g_next = load_state(A, before, slopes + carried, n + 1, d, D, N)
                a_next2, h_next2, g_next2 = load_state(A, before, slopes + carried, n + 1, e, D, N)
                place = carried + n * D
                total = tl.load(dA + place + d, mask=d < D, other=0.0)
                total2 = tl.load(dA + place + e, mask=e < D, other=0.0)
                at = line + n * spans * SPAN
                inner, decays, g, total, both = state_gradients(
                    steps, xs, ups, inner, decays, a_n, h, g, total, B + at, C + at, keep + row, left,
                    SPAN, FORGETS,
                )  # fmt: skip
                inner2, decays2, g2, total2, both2 = state_gradients(
                    steps2, xs2, ups2, inner2, decays2, a_n2, h2, g2, total2, B + at, C + at, keep + row,
                    left, SPAN, FORGETS,
                )  # fmt: skip
                tl.store(slopes + place + d, g, mask=d < D)
                tl.store(slopes + place + e, g2, mask=e < D)
                tl.store(dA + place + d, total, mask=d < D)
                tl.store(dA + place + e, total2, mask=e < D)
                pairs = ()
                for i in tl.static_range(2 * SPAN):
                    pairs = pairs + (both[i] + both2[i],)
                found = sum_lanes(pairs, lane, FAST)
                to = sums + (goal + n * tl.num_programs(0)) * 2 * SPAN + lane
                tl.store(to, found, mask=lane < 2 * SPAN)
                a_n, h, g, a_n2, h2, g2 = a_next, h_next, g_next, a_next2, h_next2, g_next2
            end_sums(u, du, ddelta, steps, inner, decays, row * D, d, D, left, SPAN)
            end_sums(u, du, ddelta, steps2, inner2, decays2, row * D, e, D, left, SPAN)


def columns_first(x: Tensor) -> Tensor:
    """(…, D, N) as (…, N, D) in float32, whole in memory"""
    return x.float().mT.contiguous()


def chunks_kept(keep: Tensor | None, chunks: int) -> Tensor | None:
    """(B, chunks): 0 where a chunk forgets what came before it"""
    if keep is None:
        return None
    padded = F.pad(keep, (0, chunks * CHUNK - keep.shape[1]), value=1.0)
    return padded.unflatten(1, (chunks, CHUNK)).amin(2)


def starts_of_chunks(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, keep: Tensor | None, first: Tensor, slots: int, back: bool
) -> tuple[Tensor, Tensor]:
    """What enters every chunk, (B, slots, N, D), and what leaves the last one: two kernels."""
    (rows, T, D), N = x.shape, len(A)
    chunks = -(-T // CHUNK)
    ends, sums = A.new_empty(rows, chunks, N, D), A.new_empty(rows, chunks, D)
    starts, last = A.new_empty(rows, slots, N, D), A.new_empty(rows, N, D)
    forgets, nothing = keep is not None, sums
    chunk_ends[(triton.cdiv(D, 2 * WIDTH), chunks, rows)](
        x, delta, A, B, keep if forgets else nothing, ends, sums, T, D, N=N, CHUNK=CHUNK, BD=2 * WIDTH,
        FORGETS=forgets, BACK=back, num_warps=1, maxnreg=FEW_REGISTERS,
    )  # fmt: skip
    chunk_starts[(triton.cdiv(D, 128), N, rows)](
        ends, sums, A, chunks_kept(keep, chunks) if forgets else nothing, first, starts, last,
        chunks, slots, D, N, RATIO=1 if back else CHUNK // SPAN, TILE=TILE, BD=128, FORGETS=forgets,
        BACK=back, num_warps=4,
    )  # fmt: skip
    return starts, last


def launch_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, T, D), the last h (B, D, N) and the states kept for the gradient (B, spans, N, D)"""
    (rows, T, D), N, spans = u.shape, A.shape[1], -(-u.shape[1] // SPAN)
    u, delta, A = u.contiguous(), delta.contiguous(), columns_first(A)
    B, C = B.float().contiguous(), C.float().contiguous()
    states, last = starts_of_chunks(u, delta, A, B, keep, columns_first(h), spans, back=False)
    y = torch.empty_like(u)
    chunk_outputs[(triton.cdiv(D, 2 * WIDTH), triton.cdiv(T, CHUNK), rows)](
        u, delta, A, B, C, last if keep is None else keep, states, y, T, D, spans, N=N, CHUNK=CHUNK,
        SPAN=SPAN, BD=2 * WIDTH, FORGETS=keep is not None, num_warps=1,
    )  # fmt: skip
    return y, last.mT.contiguous(), states


def launch_backward(
    dy: Tensor, dlast: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None,
    states: Tensor, registers: int | None = REGISTERS,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of u, Δ, A, B, C and h"""
    (rows, T, D), N, spans = u.shape, A.shape[1], states.shape[1]
    dy, u, delta, A = dy.contiguous(), u.contiguous(), delta.contiguous(), columns_first(A)
    slopes, dh = starts_of_chunks(
        dy, delta, A, C.float().contiguous(), keep, columns_first(dlast), -(-T // CHUNK), back=True
    )
    by_state = [F.pad(x.float().mT, (0, spans * SPAN - T)).contiguous() for x in (B, C)]
    du, ddelta, dA = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(slopes)
    programs = triton.cdiv(D, 2 * WIDTH)
    sums = A.new_empty(rows, spans, N, programs, 2 * SPAN)
    chunk_gradients[(programs, triton.cdiv(T, CHUNK), rows)](
        u, delta, A, *by_state, dh if keep is None else keep, dy, states, slopes, du, ddelta, dA, sums,
        T, D, N, spans, CHUNK=CHUNK, SPAN=SPAN, BD=WIDTH, FORGETS=keep is not None,
        FAST=not triton.knobs.runtime.interpret, num_warps=1, maxnreg=registers,
    )  # fmt: skip
    both = sums.sum(3).transpose(2, 3)  # (B, spans, 2 · SPAN, N)
    dB, dC = (half.flatten(1, 2)[:, :T].contiguous() for half in both.split(SPAN, 2))
    return du, ddelta, dA.sum((0, 1)).t().contiguous(), dB, dC, dh.mT.contiguous()
