"""The binary tree of hierarchical softmax: frequent words near the root (Huffman 1952; Mikolov et al. 2013b
§2.1).

P(w | h) = Π_j σ(s_j u_j · h) over the inner nodes j on the way to w, s_j = +1 to the left and -1 to the
right; σ(x) + σ(-x) = 1 at every node, so the probabilities of all words sum to one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Paths:
    """Word w passes nodes[first[w]:first[w + 1]], from the root, turning by `turns` there."""

    first: np.ndarray  # (V + 1,) int64
    nodes: np.ndarray  # (sum of lengths,) int64: rows of the output table
    turns: np.ndarray  # the same, float32: +1 or -1

    @property
    def inner(self) -> int:
        """How many inner nodes there are: one fewer than words."""
        return len(self.first) - 2

    @property
    def longest(self) -> int:
        return int(np.diff(self.first).max())

    def of(self, word: int) -> tuple[np.ndarray, np.ndarray]:
        span = slice(int(self.first[word]), int(self.first[word + 1]))
        return self.nodes[span], self.turns[span]

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and turns as (V, longest), with turn 0 after the end of a path."""
        shape = (len(self.first) - 1, self.longest)
        lengths = np.diff(self.first)
        there = np.arange(shape[1]) < lengths[:, None]
        nodes, turns = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        nodes[there], turns[there] = self.nodes, self.turns
        return nodes, turns


def pack(paths: list[list[tuple[int, float]]]) -> Paths:
    first = np.zeros(len(paths) + 1, dtype=np.int64)
    np.cumsum([len(path) for path in paths], out=first[1:])
    nodes = np.array([node for path in paths for node, _ in path], dtype=np.int64)
    turns = np.array([turn for path in paths for _, turn in path], dtype=np.float32)
    return Paths(first, nodes, turns)


def huffman(counts: np.ndarray, first_node: int = 0) -> Paths:
    """Join the two rarest until one is left; inner nodes are numbered from `first_node` as they are made."""
    size = len(counts)
    heap = [(int(count), i) for i, count in enumerate(counts)]
    heapq.heapify(heap)
    parent = [0] * (2 * size - 1)
    turn = [0.0] * (2 * size - 1)
    for inner in range(size, 2 * size - 1):
        left, right = heapq.heappop(heap), heapq.heappop(heap)
        parent[left[1]] = parent[right[1]] = inner
        turn[left[1]], turn[right[1]] = 1.0, -1.0
        heapq.heappush(heap, (left[0] + right[0], inner))
    paths = []
    for word in range(size):
        path, at = [], word
        while at != 2 * size - 2:
            path.append((parent[at] - size + first_node, turn[at]))
            at = parent[at]
        paths.append(path[::-1])
    return pack(paths)


def graft(old: Paths, new_counts: np.ndarray) -> Paths:
    """Room for new words: a new root with the old tree on its left and a tree of the new words on its right.

    Every old inner node keeps its row and its meaning, so what was learnt stays valid.
    """
    root, size = old.inner, len(new_counts)
    if size == 0:
        return old
    young = huffman(new_counts, root + 1)
    paths = []
    for tree, turn, count in ((old, 1.0, len(old.first) - 1), (young, -1.0, size)):
        for word in range(count):
            nodes, turns = tree.of(word)
            paths.append([(root, turn), *zip(nodes.tolist(), turns.tolist())])
    return pack(paths)
