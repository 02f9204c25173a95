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

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from heedful.word2vec.huffman import HuffmanTree

Array = np.ndarray
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


def compile_cached(function: Any) -> Any:
    """Compile a function and keep its machine code on disk, if there is a folder for it."""
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither this folder nor the user's cache may be written
        return njit(**OPTIONS)(function)


class Sampling(NamedTuple):
    """What is drawn: which words stay, how far a window reaches, and the noise words."""

    keep: Array  # (V,) uint32: a word stays if 32 random bits are at most this
    noise: Array  # (V, 2) uint32: the alias table of the noise distribution
    window: int
    dynamic: bool  # draw the reach of each window from 1 to `window`
    negatives: int  # 0: hierarchical softmax


class Workspace(NamedTuple):
    """Memory of one thread, for windows of at most C context words and M outputs."""

    sentence: Array  # int32: the words of a sentence that subsampling kept
    inputs: Array  # (C,) int64: rows of the input table
    outputs: Array  # (M,) int64: rows of the output table
    signs: Array  # (M,) float32
    scores: Array  # (C · M,) float32: X, then G
    weights: Array  # (C,) float32
    hidden: Array  # (D,) float32: CBOW's input
    gradient: Array  # (M, D) float32


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
    column = scale_bits(bits, len(noise))
    if bits & np.uint64(0xFFFFFFFF) < np.uint64(noise[column, 0]):
        return column
    return np.int64(noise[column, 1])


@njit(**INLINE)
def dot_rows(vector: Array, table: Array, rows: Array, count: Number, result: Array) -> None:
    """result[k] = vector · table[rows[k]], three rows at a time: each loaded number serves three products."""
    k = 0
    while k + 3 <= count:
        a, b, c = table[rows[k]], table[rows[k + 1]], table[rows[k + 2]]
        x = y = z = ZERO
        for d in range(len(vector)):
            x += vector[d] * a[d]
            y += vector[d] * b[d]
            z += vector[d] * c[d]
        result[k], result[k + 1], result[k + 2] = x, y, z
        k += 3
    while k < count:
        a, x = table[rows[k]], ZERO
        for d in range(len(vector)):
            x += vector[d] * a[d]
        result[k] = x
        k += 1


@njit(**INLINE)
def add_rows(vector: Array, weights: Array, table: Array, rows: Array, count: Number) -> None:
    """vector += Σ_k weights[k] table[rows[k]], three rows at a time."""
    k = 0
    while k + 3 <= count:
        a, b, c = table[rows[k]], table[rows[k + 1]], table[rows[k + 2]]
        x, y, z = weights[k], weights[k + 1], weights[k + 2]
        for d in range(len(vector)):
            vector[d] += x * a[d] + y * b[d] + z * c[d]
        k += 3
    while k < count:
        a, x = table[rows[k]], weights[k]
        for d in range(len(vector)):
            vector[d] += x * a[d]
        k += 1


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
def skipgram_window(V: Array, U: Array, C: Number, M: Number, rate: Number, work: Workspace) -> Number:
    """One step with every context word as an input; returns the loss before the step."""
    inputs, outputs, gradient = work.inputs, work.outputs, work.gradient
    flat = work.scores[: C * M]
    x = flat.reshape(C, M)
    for c in range(C):
        dot_rows(V[inputs[c]], U, outputs, M, x[c])
        for j in range(M):
            x[c, j] *= work.signs[j]
    loss = losses_and_gradients(flat, rate)
    for c in range(C):
        for j in range(M):
            x[c, j] *= work.signs[j]
    for j in range(M):
        gradient[j, :] = ZERO
        add_rows(gradient[j], x[:, j], V, inputs, C)
    for c in range(C):
        add_rows(V[inputs[c]], x[c], U, outputs, M)
    for j in range(M):
        add_scaled(U[outputs[j]], ONE, gradient[j])
    return loss


@njit(**INLINE)
def cbow_window(
    V: Array, U: Array, C: Number, M: Number, scale: Number, rate: Number, work: Workspace
) -> Number:
    """One step with scale · Σ v_c as the only input; returns the loss before the step."""
    inputs, outputs, hidden, gradient = work.inputs, work.outputs, work.hidden, work.gradient[0]
    x = work.scores[:M]
    work.weights[:] = scale
    hidden[:] = ZERO
    add_rows(hidden, work.weights, V, inputs, C)
    dot_rows(hidden, U, outputs, M, x)
    for j in range(M):
        x[j] *= work.signs[j]
    loss = losses_and_gradients(x, rate)
    for j in range(M):
        x[j] *= work.signs[j]
    gradient[:] = ZERO
    add_rows(gradient, x, U, outputs, M)
    for j in range(M):
        add_scaled(U[outputs[j]], x[j], hidden)
    for c in range(C):
        add_scaled(V[inputs[c]], scale, gradient)
    return loss


@njit(**INLINE)
def choose_outputs(
    centre: Number, sampling: Sampling, tree: HuffmanTree, work: Workspace, state: Number
) -> tuple[Number, Number]:
    """Write the centre and noise words other than it, or the nodes of its path; return (count, rng state)."""
    outputs, signs = work.outputs, work.signs
    if sampling.negatives == 0:
        start, M = tree.first[centre], tree.first[centre + 1] - tree.first[centre]
        outputs[:M], signs[:M] = tree.nodes[start : start + M], tree.turns[start : start + M]
        return M, state
    outputs[0], signs[0], M = centre, ONE, 1
    for _ in range(sampling.negatives):
        state += GOLDEN
        word = draw_noise(mix(state), sampling.noise)
        outputs[M], signs[M] = word, -ONE
        M += np.int64(word != centre)
    return M, state


@compile_cached
def train_job(
    ids: Array, V: Array, U: Array, sampling: Sampling, tree: HuffmanTree, skipgram: Number, mean: Number,
    rate: Number, seed: Number, work: Workspace,
) -> tuple[Number, Number]:  # fmt: skip
    """Train on the sentences in `ids`, each ended by -1; return (summed loss, number of examples)."""
    sentence, inputs = work.sentence, work.inputs
    loss, examples, at, state = 0.0, 0, 0, mix(np.uint64(seed))
    length: Number
    C: Number
    while at < len(ids):
        length = 0
        while at < len(ids) and ids[at] >= 0:
            state += GOLDEN
            sentence[length] = ids[at]
            length += np.int64(mix(state) >> np.uint64(32) <= np.uint64(sampling.keep[ids[at]]))
            at += 1
        at += 1
        for i in range(length):
            reach = sampling.window
            if sampling.dynamic:
                state += GOLDEN
                reach = 1 + scale_bits(mix(state), sampling.window)
            M, state = choose_outputs(sentence[i], sampling, tree, work, state)
            C = 0
            for k in range(max(0, i - reach), min(length, i + reach + 1)):
                inputs[C] = sentence[k]
                C += np.int64(k != i)
            if C == 0:
                continue
            if skipgram:
                loss += skipgram_window(V, U, C, M, rate, work)
                examples += C
            else:
                scale = ONE / np.float32(C) if mean else ONE
                loss += cbow_window(V, U, C, M, scale, rate, work)
                examples += 1
    return loss, examples
