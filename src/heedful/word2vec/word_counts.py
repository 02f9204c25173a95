"""The words, how often each occurs, and the two distributions made from the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from heedful.core.errors import InputError
from heedful.word2vec.corpus import Corpus

MAX_DISTINCT_WORDS = 10_000_000  # held while counting; above it the rarest are dropped
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
            f"{size} word{'' if size == 1 else 's'} of {total:,} read occur at least min_count={min_count} "
            "times and training needs two",
            hint="give more text or a lower min_count",
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
