"""The binary tree of hierarchical softmax: frequent words near the root (Huffman 1952; Mikolov et al. 2013b
§2.1).

P(w | h) = Π_j σ(s_j u_j · h) over the inner nodes j on the path to w, s_j = +1 to the left and -1 to the
right; σ(x) + σ(-x) = 1 at every node, so the probabilities of all words sum to one.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np


class HuffmanTree(NamedTuple):
    """The path of word w from the root: nodes[first[w]:first[w + 1]], with the same slice of `turns`."""

    first: np.ndarray  # (V + 1,) int64
    nodes: np.ndarray  # (sum of lengths,) int64: rows of the output table
    turns: np.ndarray  # the same, float32: +1 or -1

    @classmethod
    def from_paths(cls, paths: list[list[tuple[int, float]]]) -> HuffmanTree:
        """Build the arrays from one list of (node, turn) per word."""
        first = np.zeros(len(paths) + 1, dtype=np.int64)
        np.cumsum([len(path) for path in paths], out=first[1:])
        nodes = np.array([node for path in paths for node, _ in path], dtype=np.int64)
        turns = np.array([turn for path in paths for _, turn in path], dtype=np.float32)
        return cls(first, nodes, turns)

    @property
    def words(self) -> int:
        return len(self.first) - 1

    @property
    def inner_nodes(self) -> int:
        return self.words - 1

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return int(np.diff(self.first).max())

    def path(self, word: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes and turns on the path to a word."""
        span = slice(int(self.first[word]), int(self.first[word + 1]))
        return self.nodes[span], self.turns[span]

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and turns as (V, depth), with turn 0 after the end of a path."""
        inside = np.arange(self.depth) < np.diff(self.first)[:, None]
        nodes, turns = np.zeros(inside.shape, np.int64), np.zeros(inside.shape, np.float32)
        nodes[inside], turns[inside] = self.nodes, self.turns
        return nodes, turns


def build_tree(counts: np.ndarray, first_node: int = 0) -> HuffmanTree:
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
    return HuffmanTree.from_paths(paths)


def extend_tree(old: HuffmanTree, new_counts: np.ndarray) -> HuffmanTree:
    """Return a tree with new words: a new root, the old tree on its left, one of the new words on its right.

    Every old inner node keeps its row and its meaning, so what was learnt stays valid.
    """
    if len(new_counts) == 0:
        return old
    root = old.inner_nodes
    paths = []
    for tree, turn in ((old, 1.0), (build_tree(new_counts, root + 1), -1.0)):
        for word in range(tree.words):
            nodes, turns = tree.path(word)
            paths.append([(root, turn), *zip(nodes.tolist(), turns.tolist())])
    return HuffmanTree.from_paths(paths)
