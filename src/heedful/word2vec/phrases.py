"""Bigrams that are one word: "new york" → "new_york" (Mikolov et al. 2013b §4, eq. 6).

    score(a, b) = (count(ab) - δ) / (count(a) count(b)) · N

δ = min_count keeps chance pairs of rare words out. Passes may be chained: the second makes phrases of three
and four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from heedful.core.checks import check_integer
from heedful.core.errors import ConfigError
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.word_counts import MAX_DISTINCT_WORDS


@dataclass(frozen=True)
class Phrases:
    """The pairs to join, with their scores."""

    scores: dict[tuple[str, str], float] = field(repr=False)
    joiner: str = "_"

    def join(self, words: Sequence[str]) -> list[str]:
        """Join pairs greedily from the left: each word joins at most one neighbour."""
        joined, at = [], 0
        while at < len(words):
            if at + 1 < len(words) and (words[at], words[at + 1]) in self.scores:
                joined.append(words[at] + self.joiner + words[at + 1])
                at += 2
            else:
                joined.append(words[at])
                at += 1
        return joined


def find_phrases(
    corpus: Corpus, min_count: int = 5, threshold: float = 10.0, joiner: str = "_",
    max_distinct: int = MAX_DISTINCT_WORDS,
) -> Phrases:  # fmt: skip
    """Return all pairs seen `min_count` times or more whose score is above `threshold`."""
    check_integer("min_count", min_count, error=ConfigError)
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    total, floor = 0, 0
    for sentence in corpus.sentences():
        words.update(sentence)
        pairs.update(pairwise(sentence))
        total += len(sentence)
        while len(pairs) > max_distinct:
            floor += 1
            pairs = Counter({pair: n for pair, n in pairs.items() if n > floor})
    scores = {
        (a, b): (n - min_count) / (words[a] * words[b]) * total
        for (a, b), n in pairs.items()
        if n >= min_count
    }
    return Phrases({pair: score for pair, score in scores.items() if score > threshold}, joiner)


def join_phrases(
    corpus: Corpus, passes: int, report: Callable[[Phrases], None] = lambda phrases: None
) -> Corpus:
    """Return the corpus with the phrases of `passes` passes joined; `report` is given those of each."""
    for _ in range(check_integer("phrases", passes, 0, error=ConfigError)):
        phrases = find_phrases(corpus)
        report(phrases)
        corpus = replace(corpus, phrases=(*corpus.phrases, phrases))
    return corpus
