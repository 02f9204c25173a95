"""The fast updates: one window at a time, as a small dense block, for all four combinations.

All four are the same block (definition.py says it with autograd):

    x_cj = s_j u_j · h_c      loss = Σ softplus(-x_cj)      h_c += η Σ_j σ(-x_cj) s_j u_j      u_j += η Σ_c σ(-x_cj) s_j h_c

inputs h_c: the context words one by one (skip-gram) or their mean or sum as one (CBOW); outputs u_j: the centre word
(s = +1) and the noise words drawn for this window (s = -1), or the nodes on the centre's Huffman path (s by turn).
Every x of a block is taken before any vector of it moves, so that a block is one step of gradient descent.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from heedful.word2vec.simd import LANES, add, fma, load, sigmoid, softplus, splat, store, total

FAST = {"nogil": True, "cache": True, "fastmath": True, "boundscheck": False}
NOTHING = np.float32(100.0)     # σ(-100) and softplus(-100) vanish: what fills the last vector of a block


@njit(inline="always")
def mix(state):
    """SplitMix64 (Steele et al. 2014): a counter, scrambled; neighbours in the stream do not wait for each other."""
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def draw_noise(bits, alias, size):
    """One word by the alias method (Walker 1977): a column by the high half, its word or its alias by the low."""
    column = np.int64(((bits >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))
    low = bits & np.uint64(0xFFFFFFFF)
    if low < np.uint64(alias[2 * column]):
        return column
    return np.int64(alias[2 * column + 1])


@njit(**FAST)
def scores(h, u, x, C, M, width):
    """x[c, j] = h_c · u_j, two inputs by three outputs at a time so that each loaded vector serves several products."""
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


@njit(inline="always")
def dot(a, i, b, j, width):
    value = splat(np.float32(0.0))
    for d in range(0, width, LANES):
        value = fma(load(a, i + d), load(b, j + d), value)
    return total(value)


@njit(**FAST)
def losses_and_steps(x, count, rate):
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


@njit(**FAST)
def apply(h, u, x, C, M, width, inputs, into, outputs, table, signs):
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


@njit(inline="always")
def move(table, row, sign, step):
    store(table, row, fma(splat(sign), step, load(table, row)))


@njit(**FAST)
def apply6(h, u, x, C, M, j, width, inputs, into, outputs, table, signs):
    for d in range(0, width, LANES):
        at = j * width + d
        u0, u1, u2 = load(u, at), load(u, at + width), load(u, at + 2 * width)
        u3, u4, u5 = load(u, at + 3 * width), load(u, at + 4 * width), load(u, at + 5 * width)
        zero = splat(np.float32(0.0))
        g0, g1, g2, g3, g4, g5 = zero, zero, zero, zero, zero, zero
        for c in range(C):
            i, row = c * M + j, inputs[c] * width + d
            value, step = load(h, c * width + d), load(into, row)
            x0, x1, x2, x3, x4, x5 = (splat(x[i]), splat(x[i + 1]), splat(x[i + 2]), splat(x[i + 3]),
                                      splat(x[i + 4]), splat(x[i + 5]))
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


@njit(**FAST)
def apply3(h, u, x, C, M, j, width, inputs, into, outputs, table, signs):
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


@njit(**FAST)
def apply1(h, u, x, C, M, j, width, inputs, into, outputs, table, signs):
    for d in range(0, width, LANES):
        u0, g0 = load(u, j * width + d), splat(np.float32(0.0))
        for c in range(C):
            row, x0 = inputs[c] * width + d, splat(x[c * M + j])
            g0 = fma(x0, load(h, c * width + d), g0)
            store(into, row, fma(x0, u0, load(into, row)))
        move(table, outputs[j] * width + d, signs[j], g0)


@njit(**FAST)
def copy_row(source, row, target, slot, width, sign):
    signs, zero = splat(sign), splat(np.float32(0.0))
    for d in range(0, width, LANES):
        store(target, slot * width + d, fma(load(source, row * width + d), signs, zero))


@njit(**FAST)
def gather_mean(table, inputs, C, h, width, scale):
    """h = scale · Σ_c v_c: CBOW's one input."""
    scales, zero = splat(scale), splat(np.float32(0.0))
    for d in range(0, width, LANES):
        value = zero
        for c in range(C):
            value = add(value, load(table, inputs[c] * width + d))
        store(h, d, fma(value, scales, zero))


@njit(**FAST)
def scatter_mean(table, inputs, C, step, width, scale):
    """v_c += scale · step for every context word, the chain rule of gather_mean; step is left at zero."""
    scales, zero = splat(scale), splat(np.float32(0.0))
    for d in range(0, width, LANES):
        value = load(step, d)
        store(step, d, zero)
        for c in range(C):
            row = inputs[c] * width + d
            store(table, row, fma(value, scales, load(table, row)))


@njit(**FAST)
def subsample(ids, start, keep, kept, state):
    """Copy the words of the sentence at ids[start] that survive to `kept`; returns (end, number kept, rng state)."""
    n, i = 0, start
    while i < ids.shape[0] and ids[i] >= 0:
        state += np.uint64(0x9E3779B97F4A7C15)
        kept[n] = ids[i]
        n += np.int64((mix(state) >> np.uint64(32)) <= np.uint64(keep[ids[i]]))
        i += 1
    return i, n, state


@njit(**FAST)
def choose_outputs(centre, negatives, alias, paths, nodes, turns, outputs, signs, state):
    """The rows the centre is told by: itself and noise words other than itself, or its Huffman path."""
    if negatives == 0:
        first, M = paths[centre], paths[centre + 1] - paths[centre]
        for j in range(M):
            outputs[j], signs[j] = nodes[first + j], turns[first + j]
        return M, state
    outputs[0], signs[0] = centre, np.float32(1.0)
    M, size = 1, alias.shape[0] // 2
    for _ in range(negatives):
        state += np.uint64(0x9E3779B97F4A7C15)
        noise = draw_noise(mix(state), alias, size)
        outputs[M], signs[M] = noise, np.float32(-1.0)
        M += np.int64(noise != centre)
    return M, state


@njit(**FAST)
def train_job(ids, keep, alias, paths, nodes, turns, V, U, width, window, dynamic, negatives, cbow, rate, seed,
              kept, h, u, x, step, inputs, outputs, signs, slots):
    """All windows of one stretch of text, in order; returns (summed loss, examples, words trained).

    `ids` is sentences ended by -1. An example is one prediction of a centre word with its noise words or its path.
    """
    loss, examples, words = 0.0, 0, 0
    state, at = mix(np.uint64(seed)), 0
    while at < ids.shape[0]:
        at, n, state = subsample(ids, at, keep, kept, state)
        at += 1
        words += n
        for i in range(n):
            reach = window
            if dynamic:
                state += np.uint64(0x9E3779B97F4A7C15)
                reach = 1 + np.int64(((mix(state) >> np.uint64(32)) * np.uint64(window)) >> np.uint64(32))
            M, state = choose_outputs(kept[i], negatives, alias, paths, nodes, turns, outputs, signs, state)
            C = 0
            for k in range(max(0, i - reach), min(n, i + reach + 1)):
                if k != i:
                    inputs[C] = kept[k]
                    C += 1
            if C == 0:
                continue
            for j in range(M):
                copy_row(U, outputs[j], u, j, width, signs[j])
            if cbow:
                scale = np.float32(1.0) / np.float32(C) if cbow == 1 else np.float32(1.0)
                gather_mean(V, inputs, C, h, width, scale)
                scores(h, u, x, 1, M, width)
                loss += losses_and_steps(x, M, rate)
                apply(h, u, x, 1, M, width, slots, step, outputs, U, signs)
                scatter_mean(V, inputs, C, step, width, scale)
                examples += 1
            else:
                for c in range(C):
                    copy_row(V, inputs[c], h, c, width, np.float32(1.0))
                scores(h, u, x, C, M, width)
                loss += losses_and_steps(x, C * M, rate)
                apply(h, u, x, C, M, width, inputs, V, outputs, U, signs)
                examples += C
    return loss, examples, words
