"""The words, how often each occurs, and the distributions and the tree that are made from the counts.

Hierarchical softmax has a binary tree with frequent words near the root (Huffman 1952; Mikolov et al. 2013b
§2.1): P(w | h) = Π_j σ(s_j u_j · h) over the inner nodes j on the path to w, s_j = +1 to the left and -1 to
the right. σ(x) + σ(-x) = 1 at every node, so the probabilities of all words sum to one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from heedful.core.errors import InputError
from heedful.word2vec.corpus import MAX_DISTINCT_WORDS, Corpus

TWO_32 = 2**32


@dataclass
class WordCounts:
    """Words from the most frequent to the least with their counts; `total` is the number of words read."""

    words: list[str]
    counts: np.ndarray
    total: int
    index: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.counts = np.asarray(self.counts, dtype=np.int64)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def keep_probabilities(self, threshold: float) -> np.ndarray:
        """P(keep w) = min(1, √(t/f) + t/f), f the share of w; all stay for t = 0.

        This is the authors' program; 2013b eq. 5 has 1 - √(t/f) for dropping.
        """
        if threshold == 0:
            return np.ones(len(self))
        ratio = threshold * self.counts.sum() / np.maximum(self.counts, 1)
        return np.minimum(np.sqrt(ratio) + ratio, 1.0)

    def keep_limits(self, threshold: float) -> np.ndarray:
        """P(keep w) as whole numbers: 32 random bits ≤ limit keep the word."""
        limits = np.round(self.keep_probabilities(threshold) * TWO_32)
        return (np.clip(limits, 1, TWO_32) - 1).astype(np.uint32)

    def noise_distribution(self, exponent: float) -> np.ndarray:
        """P(w) ∝ count(w)^exponent (2013b §2.2)."""
        weight = self.counts.astype(np.float64) ** exponent
        return weight / weight.sum()


def count_words(corpus: Corpus, max_distinct: int = MAX_DISTINCT_WORDS) -> tuple[Counter[str], int]:
    """Return the count of every word, and their sum; above `max_distinct` words the rarest are dropped.

    Each pruning drops what was seen once more often than the last one did, so memory is bounded and the
    counts of frequent words are exact; a rare word may be undercounted, as in the authors' program.
    """
    counts: Counter[str] = Counter()
    total, floor = 0, 0
    by_block = corpus.files() and not corpus.phrases  # where a sentence ends does not matter then
    pieces: Iterable[list[str]] = map(str.split, corpus.blocks()) if by_block else corpus.sentences()
    for words in pieces:
        counts.update(words)
        total += len(words)
        while len(counts) > max_distinct:
            floor += 1
            counts = Counter({word: n for word, n in counts.items() if n > floor})
    return counts, total


def build_vocabulary(corpus: Corpus, min_count: int = 5, max_vocab: int | None = None) -> WordCounts:
    """Count the words and keep those seen `min_count` times or more, at most `max_vocab` of them."""
    counts, total = count_words(corpus)
    if total == 0:
        raise InputError(
            f"{corpus.describe()} has no words", hint="give text, one sentence or paragraph a line"
        )
    words = sort_by_count(counts, min_count)[:max_vocab]
    check_vocabulary_size(len(words), total, min_count)
    return WordCounts(words, np.array([counts[word] for word in words]), total)


def sort_by_count(counts: Counter[str], min_count: int) -> list[str]:
    """Return the words seen at least `min_count` times, most frequent first, equal ones by name."""
    return sorted((w for w, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))


def check_vocabulary_size(size: int, total: int, min_count: int) -> None:
    """Raise InputError for fewer than two words: training compares words."""
    if size < 2:
        raise InputError(
            f"{size} word{'' if size == 1 else 's'} of {total:,} read occur at least `min_count={min_count}` "
            "times and training needs two",
            hint="give more text or a lower `min_count=`",
        )


def alias_table(probabilities: np.ndarray) -> np.ndarray:
    """Return a table (V, 2) by which one draw and one look-up sample the distribution (Walker 1977).

    Row i holds a limit of 2³² and an alias: below the limit a draw of column i means i, above it the alias.
    """
    size = len(probabilities)
    share = (probabilities * size).tolist()
    alias = list(range(size))
    small = [i for i in range(size) if share[i] < 1.0]
    large = [i for i in range(size) if share[i] >= 1.0]
    while small and large:
        i, j = small.pop(), large[-1]
        alias[i] = j
        share[j] -= 1.0 - share[i]
        if share[j] < 1.0:
            small.append(large.pop())
    limits = np.clip(np.round(np.array(share) * TWO_32), 0, TWO_32 - 1)
    return np.column_stack((limits, alias)).astype(np.uint32)


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
