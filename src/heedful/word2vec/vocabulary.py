"""The words, how often each occurs, and the two distributions made from the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from heedful.errors import InputError
from heedful.word2vec.corpus import Corpus

PRUNE_AT = 10_000_000  # distinct words held while counting
WHOLE = 2**32


@dataclass
class Vocabulary:
    """Words from the most frequent to the least, with counts; `total` counts every word read, kept or not."""

    words: list[str]
    counts: np.ndarray
    total: int
    index: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.counts = np.asarray(self.counts, dtype=np.int64)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def keep(self, threshold: float) -> np.ndarray:
        """P(keep w) = √(t/f) + t/f, f the share of w (the authors' program; 2013b eq. 5 has 1 - √(t/f) for
        dropping).

        As whole numbers k: a draw of 32 bits keeps the word if it is ≤ k.
        """
        if threshold == 0:
            return np.full(len(self), WHOLE - 1, dtype=np.uint32)
        ratio = threshold * self.counts.sum() / np.maximum(self.counts, 1)
        return (np.clip(np.round((np.sqrt(ratio) + ratio) * WHOLE), 1, WHOLE) - 1).astype(np.uint32)

    def noise(self, exponent: float) -> np.ndarray:
        """P(w) ∝ count(w)^exponent (2013b §2.2)."""
        weight = self.counts.astype(np.float64) ** exponent
        return weight / weight.sum()


def count_words(corpus: Corpus, prune_at: int = PRUNE_AT) -> tuple[Counter[str], int]:
    """Counts of every word and their sum; above `prune_at` distinct words the rarest are dropped as it reads.

    Each pruning drops what was seen once more often than the last one did, so memory is bounded and the
    counts of frequent words are exact; a rare word may be undercounted, as in the authors' program.
    """
    counts: Counter[str] = Counter()
    total, floor = 0, 0
    pieces: Iterable[list[str]] = (
        (b.split() for b in corpus.blocks()) if corpus.plain() else corpus.sentences()
    )
    for words in pieces:
        counts.update(words)
        total += len(words)
        while len(counts) > prune_at:
            floor += 1
            counts = Counter({word: n for word, n in counts.items() if n > floor})
    return counts, total


def build_vocabulary(
    corpus: Corpus, min_count: int = 5, max_vocab: int | None = None, prune_at: int = PRUNE_AT
) -> Vocabulary:
    """Count, drop the words seen fewer than `min_count` times, keep the `max_vocab` most frequent."""
    counts, total = count_words(corpus, prune_at)
    if total == 0:
        raise InputError(
            f"the corpus {describe(corpus)} has no words; give text, one sentence or paragraph a line"
        )
    kept = sorted(
        ((word, n) for word, n in counts.items() if n >= min_count), key=lambda pair: (-pair[1], pair[0])
    )
    kept = kept[:max_vocab]
    check_size(len(kept), total, min_count)
    return Vocabulary([word for word, _ in kept], np.array([n for _, n in kept]), total)


def check_size(size: int, total: int, min_count: int) -> None:
    """Word vectors compare words: fewer than two cannot be trained."""
    if size < 2:
        raise InputError(
            f"{size} word{'' if size == 1 else 's'} of {total:,} read occur at least min_count={min_count} "
            "times and training needs two; give more text or a lower min_count"
        )


def describe(corpus: Corpus) -> str:
    return str(corpus.source) if corpus.files() else "given"


def alias_table(probability: np.ndarray) -> np.ndarray:
    """Draw from any distribution with one look-up (Walker 1977): [threshold, alias] per column, flat, uint32.

    Column i holds its own word below the threshold (of 2³²) and one other above it.
    """
    size = len(probability)
    share = (probability * size).tolist()
    alias = list(range(size))
    small = [i for i in range(size) if share[i] < 1.0]
    large = [i for i in range(size) if share[i] >= 1.0]
    while small and large:
        i, j = small.pop(), large[-1]
        alias[i] = j
        share[j] -= 1.0 - share[i]
        if share[j] < 1.0:
            small.append(large.pop())
    table = np.empty((size, 2), dtype=np.uint32)
    table[:, 0] = np.clip(np.round(np.array(share) * WHOLE), 0, WHOLE - 1)
    table[:, 1] = alias
    return table.reshape(-1)
