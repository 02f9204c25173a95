"""The update of one window, and of all windows of a job, as Numba functions.

The four combinations of mode and loss are one block of small matrix products (definition.py has them with
autograd). With inputs H (C, D), outputs U (M, D) and their signs s (M):

    X = H Uᵀ · s                 loss = Σ log(1 + exp(-x))
    G = η σ(-X) · s              H += G U     U += Gᵀ H     from the old H and U

H: the vectors of the context words (skip-gram), or their mean or sum as one row (CBOW).
U: the output vectors of the centre word (s = +1) and of the window's noise words (s = -1), or of the inner
nodes on the centre's Huffman path (s by the turn). All of X is computed before any vector moves, so one
window is one step of gradient descent. Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray
Arrays = tuple[np.ndarray, ...]
Number = Any  # Numba's machine numbers, which Python's and NumPy's both become

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LOG_TERMS = 64  # factors (1 + e) ≤ 2 in a product before its logarithm is taken: it stays below 2⁶⁴
ZERO, ONE = np.float32(0), np.float32(1)

# "reassoc" lets LLVM sum a dot product in vector registers; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "boundscheck": False,
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
}  # fmt: skip
INLINE = OPTIONS | {"forceinline": True}  # a call would pass every array as seven words


def compile_kernel(function: Any) -> Any:
    """Compile a function and keep its machine code on disk, if there is a folder for it."""
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither this folder nor the user's cache may be written
        return njit(**OPTIONS)(function)


@njit(**INLINE)
def mix(state: Number) -> Number:
    """Return 64 random bits: SplitMix64 (Steele et al. 2014), a counter that is scrambled."""
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(**INLINE)
def scale_bits(bits: Number, limit: Number) -> Number:
    """Return an even draw from 0 … limit - 1 by the high 32 bits."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32))


@njit(**INLINE)
def draw_noise(bits: Number, noise: Array) -> Number:
    """Draw a word by the alias method (Walker 1977): a row by the high bits, it or its alias by the low."""
    row = scale_bits(bits, len(noise))
    if bits & np.uint64(0xFFFFFFFF) < np.uint64(noise[row, 0]):
        return row
    return np.int64(noise[row, 1])


@njit(**INLINE)
def dot_products(vector: Array, table: Array, rows: Array, result: Array) -> None:
    """result[k] = vector · table[rows[k]], three rows at a time: each loaded number serves three products."""
    whole = len(rows) - len(rows) % 3
    for k in range(0, whole, 3):
        a, b, c = table[rows[k]], table[rows[k + 1]], table[rows[k + 2]]
        x = y = z = ZERO
        for d in range(len(vector)):
            x += vector[d] * a[d]
            y += vector[d] * b[d]
            z += vector[d] * c[d]
        result[k], result[k + 1], result[k + 2] = x, y, z
    for k in range(whole, len(rows)):
        a, x = table[rows[k]], ZERO
        for d in range(len(vector)):
            x += vector[d] * a[d]
        result[k] = x


@njit(**INLINE)
def add_rows(vector: Array, weights: Array, table: Array, rows: Array) -> None:
    """vector += Σ_k weights[k] table[rows[k]], three rows at a time."""
    whole = len(rows) - len(rows) % 3
    for k in range(0, whole, 3):
        a, b, c = table[rows[k]], table[rows[k + 1]], table[rows[k + 2]]
        x, y, z = weights[k], weights[k + 1], weights[k + 2]
        for d in range(len(vector)):
            vector[d] += x * a[d] + y * b[d] + z * c[d]
    for k in range(whole, len(rows)):
        add_scaled(vector, weights[k], table[rows[k]])


@njit(**INLINE)
def add_scaled(target: Array, scale: Number, source: Array) -> None:
    for d in range(len(target)):
        target[d] += scale * source[d]


@njit(**INLINE)
def losses_and_gradients(x: Array, rate: Number) -> Number:
    """Return Σ log(1 + exp(-x)) and replace x by η σ(-x).

    With e = exp(-|x|) the loss is max(-x, 0) + log(1 + e); the logarithms are taken of products.
    """
    loss = 0.0
    for start in range(0, len(x), LOG_TERMS):
        product = ONE
        for i in range(start, min(start + LOG_TERMS, len(x))):
            e = np.exp(-abs(x[i]))
            loss += max(-x[i], ZERO)
            product *= ONE + e
            x[i] = rate * (e if x[i] >= ZERO else ONE) / (ONE + e)
        loss += np.log(np.float64(product))
    return loss


@njit(**INLINE)
def skipgram_window(
    V: Array, U: Array, inputs: Array, outputs: Array, signs: Array, rate: Number, x: Array, gradient: Array
) -> Number:
    """Take one step with each context word as an input; return the loss before it. x, gradient: scratch."""
    C, M = len(inputs), len(outputs)
    flat = x[: C * M]
    x = flat.reshape(C, M)
    for c in range(C):
        dot_products(V[inputs[c]], U, outputs, x[c])
        for j in range(M):
            x[c, j] *= signs[j]
    loss = losses_and_gradients(flat, rate)
    for c in range(C):
        for j in range(M):
            x[c, j] *= signs[j]
    for j in range(M):
        gradient[j, :] = ZERO
        add_rows(gradient[j], x[:, j], V, inputs)
    for c in range(C):
        add_rows(V[inputs[c]], x[c], U, outputs)
    for j in range(M):
        add_scaled(U[outputs[j]], ONE, gradient[j])
    return loss


@njit(**INLINE)
def cbow_window(
    V: Array, U: Array, inputs: Array, outputs: Array, signs: Array, rate: Number, mean: Number, x: Array,
    gradient: Array,
) -> Number:  # fmt: skip
    """Take one step with the mean or sum of the context words as the input; return the loss before it."""
    C, M = len(inputs), len(outputs)
    scale = ONE / np.float32(C) if mean else ONE
    hidden, to_hidden, weights, x = gradient[0], gradient[1], x[M : M + C], x[:M]
    weights[:] = scale
    hidden[:] = ZERO
    add_rows(hidden, weights, V, inputs)
    dot_products(hidden, U, outputs, x)
    x *= signs
    loss = losses_and_gradients(x, rate)
    x *= signs
    to_hidden[:] = ZERO
    add_rows(to_hidden, x, U, outputs)
    for j in range(M):
        add_scaled(U[outputs[j]], x[j], hidden)
    for c in range(C):
        add_scaled(V[inputs[c]], scale, to_hidden)
    return loss


@njit(**INLINE)
def choose_outputs(
    centre: Number, negatives: Number, noise: Array, tree: Arrays, outputs: Array, signs: Array, state: Number
) -> tuple[Number, Number]:
    """Write the centre and noise words other than it, or the nodes of its path; return (count, rng state)."""
    if negatives == 0:
        first, nodes, turns = tree
        start, M = first[centre], first[centre + 1] - first[centre]
        outputs[:M], signs[:M] = nodes[start : start + M], turns[start : start + M]
        return M, state
    outputs[0], signs[0], M = centre, ONE, 1
    for _ in range(negatives):
        state += GOLDEN
        word = draw_noise(mix(state), noise)
        outputs[M], signs[M] = word, -ONE
        M += np.int64(word != centre)
    return M, state


@compile_kernel
def train_job(
    ids: Array, V: Array, U: Array, keep: Array, noise: Array, tree: Arrays, window: Number, dynamic: Number,
    negatives: Number, max_outputs: Number, skipgram: Number, mean: Number, rate: Number, seed: Number,
) -> tuple[Number, Number]:  # fmt: skip
    """Train on the sentences in `ids`, each ended by -1; return (summed loss, number of examples).

    `keep` (V,) uint32: a word stays if 32 random bits are at most this. `noise` (V, 2) uint32: the alias
    table of the noise words. `tree`: the arrays of a HuffmanTree, used if `negatives` is 0. `dynamic`: draw
    the reach of each window. All are plain arrays and numbers: Numba's cache on disk cannot be read any more
    if a class in a signature has got another name.
    """
    C: Number = 2 * window + 1  # one more than used: what is left out is written there
    M = max_outputs + 1
    sentence, inputs = np.empty(len(ids), np.int32), np.empty(C, np.int64)
    outputs, signs = np.empty(M, np.int64), np.empty(M, np.float32)
    x, gradient = np.empty(C * M, np.float32), np.empty((M, V.shape[1]), np.float32)
    loss, examples, at, state = 0.0, 0, 0, mix(np.uint64(seed))
    length: Number
    while at < len(ids):
        length = 0
        while at < len(ids) and ids[at] >= 0:
            state += GOLDEN
            sentence[length] = ids[at]
            length += np.int64(mix(state) >> np.uint64(32) <= np.uint64(keep[ids[at]]))
            at += 1
        at += 1
        for i in range(length):
            reach = window
            if dynamic:
                state += GOLDEN
                reach = 1 + scale_bits(mix(state), window)
            M, state = choose_outputs(sentence[i], negatives, noise, tree, outputs, signs, state)
            C = 0
            for k in range(max(0, i - reach), min(length, i + reach + 1)):
                inputs[C] = sentence[k]
                C += np.int64(k != i)
            if C == 0:
                continue
            block = inputs[:C], outputs[:M], signs[:M]
            if skipgram:
                loss += skipgram_window(V, U, *block, rate, x, gradient)
                examples += C
            else:
                loss += cbow_window(V, U, *block, rate, mean, x, gradient)
                examples += 1
    return loss, examples
