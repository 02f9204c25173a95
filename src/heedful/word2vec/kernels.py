"""The fast updates: one window at a time, as a small dense block, for all four combinations.

All four are the same block (definition.py says it with autograd):

    x_cj = s_j u_j · h_c                  loss = Σ softplus(-x_cj)
    h_c += η Σ_j σ(-x_cj) s_j u_j         u_j += η Σ_c σ(-x_cj) s_j h_c

inputs h_c: the context words one by one (skip-gram) or their mean or sum as one (CBOW); outputs u_j: the
centre word (s = +1) and the noise words drawn for this window (s = -1), or the nodes on the centre's Huffman
path (s by turn). Every x of a block is taken before any vector of it moves, so that a block is one step of
gradient descent.
"""

from __future__ import annotations

import numpy as np

from heedful.word2vec.sampling import draw_window, mix, subsample
from heedful.word2vec.simd import (
    LANES,
    Bits,
    Float,
    Floats,
    Int,
    Ints,
    Lanes,
    add,
    compiled,
    fma,
    inlined,
    load,
    prefetch,
    sigmoid,
    softplus,
    splat,
    store,
    total,
)

NOTHING = np.float32(100.0)  # σ(-100) and softplus(-100) vanish: what fills the last vector of a block


@compiled
def scores(h: Floats, u: Floats, x: Floats, C: Int, M: Int, width: Int) -> None:
    """x[c, j] = h_c · u_j, two inputs by three outputs at a time so that each loaded vector serves several
    products.
    """
    for c in range(0, C - 1, 2):
        a, b = c * width, (c + 1) * width
        for j in range(0, M - 2, 3):
            p, q, r = j * width, (j + 1) * width, (j + 2) * width
            zero = splat(np.float32(0.0))
            ap, aq, ar, bp, bq, br = zero, zero, zero, zero, zero, zero
            for d in range(0, width, LANES):
                ha, hb = load(h, a + d), load(h, b + d)
                up, uq, ur = load(u, p + d), load(u, q + d), load(u, r + d)
                ap, aq, ar = fma(ha, up, ap), fma(ha, uq, aq), fma(ha, ur, ar)
                bp, bq, br = fma(hb, up, bp), fma(hb, uq, bq), fma(hb, ur, br)
            x[c * M + j], x[c * M + j + 1], x[c * M + j + 2] = total(ap), total(aq), total(ar)
            x[c * M + M + j], x[c * M + M + j + 1], x[c * M + M + j + 2] = total(bp), total(bq), total(br)
        for j in range(M - M % 3, M):
            x[c * M + j] = dot(h, a, u, j * width, width)
            x[c * M + M + j] = dot(h, b, u, j * width, width)
    if C % 2:
        for j in range(M):
            x[(C - 1) * M + j] = dot(h, (C - 1) * width, u, j * width, width)


@inlined
def dot(a: Floats, i: Int, b: Floats, j: Int, width: Int) -> Float:
    value = splat(np.float32(0.0))
    for d in range(0, width, LANES):
        value = fma(load(a, i + d), load(b, j + d), value)
    return total(value)


@compiled
def losses_and_steps(x: Floats, count: Int, rate: Float) -> Float:
    """Turn scores into steps, x := η σ(-x), and return Σ softplus(-x)."""
    while count % LANES:
        x[count] = NOTHING
        count += 1
    loss = splat(np.float32(0.0))
    minus, rates, nothing = splat(np.float32(-1.0)), splat(rate), splat(np.float32(0.0))
    for i in range(0, count, LANES):
        negated = fma(load(x, i), minus, nothing)
        loss = add(loss, softplus(negated))
        store(x, i, fma(sigmoid(negated), rates, nothing))
    return total(loss)


@compiled
def apply(
    h: Floats,
    u: Floats,
    x: Floats,
    C: Int,
    M: Int,
    width: Int,
    inputs: Ints,
    into: Floats,
    outputs: Ints,
    table: Floats,
    signs: Floats,
) -> None:
    """into[inputs_c] += Σ_j x_cj u_j   and   table[outputs_j] += s_j Σ_c x_cj h_c, six outputs at a time."""
    j = 0
    while j + 6 <= M:
        apply6(h, u, x, C, M, j, width, inputs, into, outputs, table, signs)
        j += 6
    while j + 3 <= M:
        apply3(h, u, x, C, M, j, width, inputs, into, outputs, table, signs)
        j += 3
    while j < M:
        apply1(h, u, x, C, M, j, width, inputs, into, outputs, table, signs)
        j += 1


@inlined
def move(table: Floats, row: Int, sign: Float, step: Lanes) -> None:
    store(table, row, fma(splat(sign), step, load(table, row)))


@compiled
def apply6(
    h: Floats,
    u: Floats,
    x: Floats,
    C: Int,
    M: Int,
    j: Int,
    width: Int,
    inputs: Ints,
    into: Floats,
    outputs: Ints,
    table: Floats,
    signs: Floats,
) -> None:
    for d in range(0, width, LANES):
        at = j * width + d
        u0, u1, u2 = load(u, at), load(u, at + width), load(u, at + 2 * width)
        u3, u4, u5 = load(u, at + 3 * width), load(u, at + 4 * width), load(u, at + 5 * width)
        zero = splat(np.float32(0.0))
        g0, g1, g2, g3, g4, g5 = zero, zero, zero, zero, zero, zero
        for c in range(C):
            i, row = c * M + j, inputs[c] * width + d
            value, step = load(h, c * width + d), load(into, row)
            x0, x1, x2, x3, x4, x5 = (
                splat(x[i]),
                splat(x[i + 1]),
                splat(x[i + 2]),
                splat(x[i + 3]),
                splat(x[i + 4]),
                splat(x[i + 5]),
            )
            even = fma(x4, u4, fma(x2, u2, fma(x0, u0, step)))
            store(into, row, add(even, fma(x5, u5, fma(x3, u3, fma(x1, u1, zero)))))
            g0, g1, g2 = fma(x0, value, g0), fma(x1, value, g1), fma(x2, value, g2)
            g3, g4, g5 = fma(x3, value, g3), fma(x4, value, g4), fma(x5, value, g5)
        move(table, outputs[j] * width + d, signs[j], g0)
        move(table, outputs[j + 1] * width + d, signs[j + 1], g1)
        move(table, outputs[j + 2] * width + d, signs[j + 2], g2)
        move(table, outputs[j + 3] * width + d, signs[j + 3], g3)
        move(table, outputs[j + 4] * width + d, signs[j + 4], g4)
        move(table, outputs[j + 5] * width + d, signs[j + 5], g5)


@compiled
def apply3(
    h: Floats,
    u: Floats,
    x: Floats,
    C: Int,
    M: Int,
    j: Int,
    width: Int,
    inputs: Ints,
    into: Floats,
    outputs: Ints,
    table: Floats,
    signs: Floats,
) -> None:
    for d in range(0, width, LANES):
        at = j * width + d
        u0, u1, u2 = load(u, at), load(u, at + width), load(u, at + 2 * width)
        zero = splat(np.float32(0.0))
        g0, g1, g2 = zero, zero, zero
        for c in range(C):
            i, row = c * M + j, inputs[c] * width + d
            value, step = load(h, c * width + d), load(into, row)
            x0, x1, x2 = splat(x[i]), splat(x[i + 1]), splat(x[i + 2])
            store(into, row, fma(x2, u2, fma(x1, u1, fma(x0, u0, step))))
            g0, g1, g2 = fma(x0, value, g0), fma(x1, value, g1), fma(x2, value, g2)
        move(table, outputs[j] * width + d, signs[j], g0)
        move(table, outputs[j + 1] * width + d, signs[j + 1], g1)
        move(table, outputs[j + 2] * width + d, signs[j + 2], g2)


@compiled
def apply1(
    h: Floats,
    u: Floats,
    x: Floats,
    C: Int,
    M: Int,
    j: Int,
    width: Int,
    inputs: Ints,
    into: Floats,
    outputs: Ints,
    table: Floats,
    signs: Floats,
) -> None:
    for d in range(0, width, LANES):
        u0, g0 = load(u, j * width + d), splat(np.float32(0.0))
        for c in range(C):
            row, x0 = inputs[c] * width + d, splat(x[c * M + j])
            g0 = fma(x0, load(h, c * width + d), g0)
            store(into, row, fma(x0, u0, load(into, row)))
        move(table, outputs[j] * width + d, signs[j], g0)


@compiled
def copy_row(source: Floats, row: Int, target: Floats, slot: Int, width: Int, sign: Float) -> None:
    signs, zero = splat(sign), splat(np.float32(0.0))
    for d in range(0, width, LANES):
        store(target, slot * width + d, fma(load(source, row * width + d), signs, zero))


@compiled
def gather_mean(table: Floats, inputs: Ints, C: Int, h: Floats, width: Int, scale: Float) -> None:
    """h = scale · Σ_c v_c: CBOW's one input."""
    scales, zero = splat(scale), splat(np.float32(0.0))
    for d in range(0, width, LANES):
        value = zero
        for c in range(C):
            value = add(value, load(table, inputs[c] * width + d))
        store(h, d, fma(value, scales, zero))


@compiled
def scatter_mean(table: Floats, inputs: Ints, C: Int, step: Floats, width: Int, scale: Float) -> None:
    """v_c += scale · step for every context word, the chain rule of gather_mean; step is left at zero."""
    scales, zero = splat(scale), splat(np.float32(0.0))
    for d in range(0, width, LANES):
        value = load(step, d)
        store(step, d, zero)
        for c in range(C):
            row = inputs[c] * width + d
            store(table, row, fma(value, scales, load(table, row)))


@compiled
def train_window(
    V: Floats,
    U: Floats,
    inputs: Ints,
    C: Int,
    outputs: Ints,
    signs: Floats,
    M: Int,
    width: Int,
    cbow: Int,
    rate: Float,
    h: Floats,
    u: Floats,
    x: Floats,
    step: Floats,
    only: Ints,
) -> Float:
    """One step of gradient descent on one window; returns its loss before the step."""
    for j in range(M):
        copy_row(U, outputs[j], u, j, width, signs[j])
    if cbow == 0:
        for c in range(C):
            copy_row(V, inputs[c], h, c, width, np.float32(1.0))
        scores(h, u, x, C, M, width)
        loss = losses_and_steps(x, C * M, rate)
        apply(h, u, x, C, M, width, inputs, V, outputs, U, signs)
        return loss
    scale = np.float32(1.0) / np.float32(C) if cbow == 1 else np.float32(1.0)
    gather_mean(V, inputs, C, h, width, scale)
    scores(h, u, x, 1, M, width)
    loss = losses_and_steps(x, M, rate)
    apply(h, u, x, 1, M, width, only, step, outputs, U, signs)
    scatter_mean(V, inputs, C, step, width, scale)
    return loss


@compiled
def fetch_ahead(
    U: Floats, outputs: Ints, M: Int, V: Floats, kept: Ints, entering: Int, n: Int, width: Int
) -> None:
    """Ask for the rows of the window to come: its outputs, and the one word that enters its context."""
    for j in range(M):
        for d in range(0, width, LANES):
            prefetch(U, outputs[j] * width + d)
    if entering < n:
        for d in range(0, width, LANES):
            prefetch(V, kept[entering] * width + d)


@compiled
def train_job(
    ids: Ints,
    keep: Bits,
    alias: Bits,
    paths: Ints,
    nodes: Ints,
    turns: Floats,
    V: Floats,
    U: Floats,
    width: Int,
    window: Int,
    dynamic: bool,
    negatives: Int,
    cbow: Int,
    rate: Float,
    seed: Int,
    kept: Ints,
    h: Floats,
    u: Floats,
    x: Floats,
    step: Floats,
    inputs: Ints,
    outputs: Ints,
    signs: Floats,
    only: Ints,
) -> tuple[Float, Int, Int]:
    """All windows of one stretch of text, in order; returns (summed loss, examples, words trained).

    `ids` is sentences ended by -1. An example is one prediction of a centre word with its noise words or its
    path. Each window is drawn while the one before it is trained, so that its rows are under way from memory;
    `outputs` and `signs` have room for two.
    """
    loss, examples, words = 0.0, 0, 0
    state, at = mix(np.uint64(seed)), 0
    half = outputs.shape[0] // 2
    rows, next_rows, turned, next_turned = outputs[:half], outputs[half:], signs[:half], signs[half:]
    while at < ids.shape[0]:
        at, n, state = subsample(ids, at, keep, kept, state)
        at += 1
        words += n
        reach, M = window, 0
        for i in range(-1, n):
            rows, next_rows, turned, next_turned = next_rows, rows, next_turned, turned
            now, m = reach, M
            if i + 1 < n:
                reach, M, state = draw_window(
                    kept[i + 1],
                    window,
                    dynamic,
                    negatives,
                    alias,
                    paths,
                    nodes,
                    turns,
                    next_rows,
                    next_turned,
                    state,
                )
                fetch_ahead(U, next_rows, M, V, kept, i + 1 + window, n, width)
            if i < 0:
                continue
            C = 0
            for k in range(max(0, i - now), min(n, i + now + 1)):
                if k != i:
                    inputs[C] = kept[k]
                    C += 1
            if C > 0:
                loss += train_window(V, U, inputs, C, rows, turned, m, width, cbow, rate, h, u, x, step, only)
                examples += 1 if cbow else C
    return loss, examples, words
