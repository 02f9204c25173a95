"""Text for training: sentences from files or memory, and the same as numbers in a file of word ids.

The encoded text is cut into jobs of about 10,000 words. A job is the unit of everything: its random stream is
a function of (seed, epoch, job), its learning rate of its position in the text, its loss is summed apart. So
nothing depends on which thread trains it, and to resume a run is to know the number of the next job.

Bigrams that are one word can be joined first: "new york" → "new_york" (Mikolov et al. 2013b §4, eq. 6).

    score(a, b) = (count(ab) - δ) / (count(a) count(b)) · N

δ = min_count excludes chance pairs of rare words. A second pass makes phrases of three and four words.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from pathlib import Path
from typing import cast

import numpy as np

from heedful.core.checks import check_integer, check_number
from heedful.core.errors import ConfigError, InputError
from heedful.core.files import BLOCK_BYTES, Paths, expand_paths, read_blocks

MAX_SENTENCE_WORDS = 10_000  # longer sentences are cut, as the authors' program does
JOB_WORDS = 10_000
MAX_DISTINCT_WORDS = 10_000_000  # held while counting; above it the rarest are dropped
END, UNKNOWN = -1, -2  # end of a sentence; a word outside the vocabulary, dropped before windows are made

# Quotes and brackets anywhere, and marks at the end of a word: "(3.14," is ( 3.14 , and "don't" stays whole.
PUNCTUATION = re.compile(r"""(["“”„«»()\[\]{}…—]|[.,;:!?]+(?=["”»)\]}]*(?:\s|$)))""")

TextSource = Paths | Iterable[Sequence[str]]


@dataclass(frozen=True)
class Corpus:
    """Sentences: from a file (.txt, .gz, .bz2, .xz), a folder of files, or lists of words in memory."""

    source: TextSource
    lowercase: bool = False
    encoding: str = "utf-8"
    phrases: tuple[Phrases, ...] = ()
    split_punctuation: bool = True  # in files: a mark beside a word is a word of its own

    def __post_init__(self) -> None:
        if not isinstance(self.source, Path | Iterable):
            raise InputError(
                f"{type(self.source).__name__} is not a corpus",
                hint="pass a path, or a list of sentences, each a list of words",
            )
        if isinstance(self.source, Iterator):
            raise InputError(
                "a corpus is read more than once, and an iterator can be read only once",
                hint="pass a path, or list(sentences)",
            )

    def files(self) -> list[Path]:
        """Return the files in reading order; none if the sentences are in memory."""
        source = self.source
        listed = (
            isinstance(source, Sequence) and source and all(isinstance(one, str | Path) for one in source)
        )
        return expand_paths(cast(Paths, source)) if listed or isinstance(source, str | Path) else []

    def describe(self) -> str:
        return f"the corpus {self.source}" if self.files() else "the corpus"

    def blocks(self) -> Iterator[str]:
        """Yield the text of all files in pieces of about a megabyte that end with a line, or with a word in
        a text without line ends.
        """
        for path in self.files():
            tail = ""
            for block in read_blocks(path, self.encoding):
                tail += block.lower() if self.lowercase else block
                cut = tail.rfind("\n") + 1 or (tail.rfind(" ") + 1 if len(tail) > BLOCK_BYTES else 0)
                if cut:
                    yield self._split_marks(tail[:cut])
                    tail = tail[cut:]
            if tail:
                yield self._split_marks(tail)

    def _split_marks(self, text: str) -> str:
        return PUNCTUATION.sub(r" \1 ", text) if self.split_punctuation else text

    def sentences(self) -> Iterator[list[str]]:
        """Yield the words of each line, phrases joined, cut after MAX_SENTENCE_WORDS."""
        for words in self._lines():
            for phrases in self.phrases:
                words = phrases.join(words)
            for start in range(0, len(words), MAX_SENTENCE_WORDS):
                yield words[start : start + MAX_SENTENCE_WORDS]

    def _lines(self) -> Iterator[list[str]]:
        if self.files():
            for block in self.blocks():
                yield from filter(None, map(str.split, block.split("\n")))
            return
        for sentence in cast(Iterable[Sequence[str]], self.source):
            if isinstance(sentence, str):
                raise InputError(
                    f"a sentence must be a list of words, not the text {sentence[:40]!r}",
                    hint="split it, or pass a path",
                )
            words = [str(word).lower() if self.lowercase else str(word) for word in sentence]
            if words := [word for word in words if word]:
                yield words


@dataclass(frozen=True)
class EncodedCorpus:
    """A file of int32 word ids, each sentence ended by END.

    Job j is ids[starts[j]:starts[j + 1]]; before it stand words_before[j] words of the text, known or not.
    """

    path: Path
    starts: np.ndarray
    words_before: np.ndarray
    digest: str
    has_pairs: bool  # two known words stand side by side in some sentence

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def words(self) -> int:
        """Number of words of the text, known or not."""
        return int(self.words_before[-1])

    def job(self, number: int) -> np.ndarray:
        """Read the ids of one job; the file is not mapped, so memory holds one job per thread."""
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        return np.fromfile(self.path, dtype=np.int32, count=stop - start, offset=4 * start)

    def progress(self, epoch: int, job: int, epochs: int) -> float:
        """Return the share of all words of all epochs that stands before a job."""
        return (epoch * self.words + int(self.words_before[job])) / (epochs * self.words)


def encode_corpus(corpus: Corpus, index: Mapping[str, int], path: Path) -> EncodedCorpus:
    """Write the ids of all sentences to `path`; `index` maps each known word to its id."""
    starts, words_before, has_pairs = [0], [0], False
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for ids, words in _encode_jobs(corpus, index):
            file.write(ids.data)
            digest.update(ids.data)
            starts.append(starts[-1] + len(ids))
            words_before.append(words_before[-1] + words)
            has_pairs = has_pairs or bool(((ids[1:] != END) & (ids[:-1] != END)).any())
    if starts[-1] == 0:
        raise InputError(
            f"no sentence of {corpus.describe()} has a word of the vocabulary",
            hint="give text in the language and case the vectors were trained on",
        )
    return EncodedCorpus(path, np.array(starts), np.array(words_before), digest.hexdigest(), has_pairs)


def _encode_jobs(corpus: Corpus, index: Mapping[str, int]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield (ids, words read) of each stretch of at least JOB_WORDS words that ends with a sentence."""
    ids: list[int] = []
    words = 0
    for sentence in corpus.sentences():
        ids.extend(map(index.get, sentence, repeat(UNKNOWN)))
        ids.append(END)
        words += len(sentence)
        if words >= JOB_WORDS:
            yield drop_unknown(ids), words
            ids, words = [], 0
    if ids:
        yield drop_unknown(ids), words


def drop_unknown(ids: list[int]) -> np.ndarray:
    """Return the ids without unknown words and without the sentences that are then empty."""
    array = np.array(ids, dtype=np.int32)
    array = array[array != UNKNOWN]
    ends = array == END
    repeated = ends.copy()
    repeated[1:] &= ends[:-1]
    return array[~repeated]


@dataclass(frozen=True)
class Phrases:
    """The pairs to join, with their scores."""

    scores: dict[tuple[str, str], float] = field(repr=False)

    def join(self, words: Sequence[str]) -> list[str]:
        """Join pairs greedily from the left: each word joins at most one neighbour."""
        joined, at = [], 0
        while at < len(words):
            if at + 1 < len(words) and (words[at], words[at + 1]) in self.scores:
                joined.append(f"{words[at]}_{words[at + 1]}")
                at += 2
            else:
                joined.append(words[at])
                at += 1
        return joined


def find_phrases(corpus: Corpus, min_count: int = 5, threshold: float = 10.0) -> Phrases:
    """Return all pairs seen `min_count` times or more whose score is above `threshold`."""
    check_integer("min_count", min_count, error=ConfigError)
    check_number("threshold", threshold, error=ConfigError)
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    total, floor = 0, 0
    for sentence in corpus.sentences():
        words.update(sentence)
        pairs.update(pairwise(sentence))
        total += len(sentence)
        while len(pairs) > MAX_DISTINCT_WORDS:
            floor += 1
            pairs = Counter({pair: n for pair, n in pairs.items() if n > floor})
    scores = {
        (a, b): (n - min_count) / (words[a] * words[b]) * total
        for (a, b), n in pairs.items()
        if n >= min_count
    }
    return Phrases({pair: score for pair, score in scores.items() if score > threshold})


def join_phrases(
    corpus: Corpus, passes: int, report: Callable[[Phrases], None] = lambda phrases: None
) -> Corpus:
    """Return the corpus with the phrases of `passes` passes joined; `report` is given those of each."""
    for _ in range(check_integer("phrases", passes, 0, error=ConfigError)):
        phrases = find_phrases(corpus)
        report(phrases)
        corpus = replace(corpus, phrases=(*corpus.phrases, phrases))
    return corpus


# SplitMix64 (Steele et al. 2014): the seeds of the jobs' random streams, on Python integers.


GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def mix_bits(value: int) -> int:
    """Return the 64 bits of `value`, mixed: SplitMix64's last step."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def job_seed(seed: int, epoch: int, job: int) -> int:
    """Return the seed of the random stream that belongs to (seed, epoch, job)."""
    value = 0
    for part in (seed, epoch, job):
        value = mix_bits((value + part + GOLDEN) & MASK)
    return value
