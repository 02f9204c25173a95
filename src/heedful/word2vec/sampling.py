"""What is drawn at random while training: which words stay, which noise words stand against a centre.

definition.Stream and definition.windows are the same in plain Python.
"""

from __future__ import annotations

import numpy as np

from heedful.word2vec.simd import Bits, Floats, Int, Ints, compiled, inlined

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inlined
def mix(state: Int) -> Int:
    """SplitMix64 (Steele et al. 2014): a counter, scrambled; neighbours in the stream do not wait for each
    other.
    """
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def draw_noise(bits: Int, alias: Bits, size: Int) -> Int:
    """One word by the alias method (Walker 1977): a column by the high half, its word or its alias by the
    low.
    """
    column = np.int64(((bits >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))
    low = bits & np.uint64(0xFFFFFFFF)
    if low < np.uint64(alias[2 * column]):
        return column
    return np.int64(alias[2 * column + 1])


@compiled
def subsample(ids: Ints, start: Int, keep: Bits, kept: Ints, state: Int) -> tuple[Int, Int, Int]:
    """Copy the words of the sentence at ids[start] that survive to `kept`; returns (end, number kept, rng
    state).
    """
    n: Int = 0
    i = start
    while i < ids.shape[0] and ids[i] >= 0:
        state += GOLDEN
        kept[n] = ids[i]
        n += np.int64((mix(state) >> np.uint64(32)) <= np.uint64(keep[ids[i]]))
        i += 1
    return i, n, state


@compiled
def choose_outputs(
    centre: Int,
    negatives: Int,
    alias: Bits,
    paths: Ints,
    nodes: Ints,
    turns: Floats,
    outputs: Ints,
    signs: Floats,
    state: Int,
) -> tuple[Int, Int]:
    """The rows the centre is told by: itself and noise words other than itself, or its Huffman path."""
    if negatives == 0:
        first, M = paths[centre], paths[centre + 1] - paths[centre]
        for j in range(M):
            outputs[j], signs[j] = nodes[first + j], turns[first + j]
        return M, state
    outputs[0], signs[0] = centre, np.float32(1.0)
    M = np.int64(1)
    size = alias.shape[0] // 2
    for _ in range(negatives):
        state += GOLDEN
        noise = draw_noise(mix(state), alias, size)
        outputs[M], signs[M] = noise, np.float32(-1.0)
        M += np.int64(noise != centre)
    return M, state


@compiled
def draw_window(
    centre: Int,
    window: Int,
    dynamic: bool,
    negatives: Int,
    alias: Bits,
    paths: Ints,
    nodes: Ints,
    turns: Floats,
    outputs: Ints,
    signs: Floats,
    state: Int,
) -> tuple[Int, Int, Int]:
    """(reach, number of outputs, rng state) of the window around `centre`."""
    reach = window
    if dynamic:
        state += GOLDEN
        reach = 1 + np.int64(((mix(state) >> np.uint64(32)) * np.uint64(window)) >> np.uint64(32))
    M, state = choose_outputs(centre, negatives, alias, paths, nodes, turns, outputs, signs, state)
    return reach, M, state
