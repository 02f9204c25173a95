"""A corpus as numbers, once: a file of int32 word ids, sentences ended by -1, cut into jobs of about 10,000
words.

A job is the unit of everything: its random stream is a function of (seed, epoch, job), its learning rate of
where it stands in the text, its loss is summed apart. So nothing depends on which thread ran it, and to
resume is to know the number of the next job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from heedful.errors import InputError
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.vocabulary import Vocabulary, describe

JOB = 10_000  # words
END, UNKNOWN = -1, -2  # end of a sentence; a word outside the vocabulary, dropped before windows are made


@dataclass(frozen=True)
class Encoded:
    """Job j is ids[starts[j]:starts[j + 1]] of the file and stands for read[j + 1] - read[j] words of the
    text.
    """

    path: Path
    starts: np.ndarray
    read: np.ndarray
    digest: str
    paired: bool  # whether two words stand side by side in any sentence

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def words(self) -> int:
        """Words of text read, kept or not: what words/s counts."""
        return int(self.read[-1])

    @property
    def longest(self) -> int:
        return int(np.diff(self.starts).max())

    def job(self, number: int) -> np.ndarray:
        """Read one job from disk; the file is not mapped, so memory holds one job per thread."""
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        return np.fromfile(self.path, dtype=np.int32, count=stop - start, offset=4 * start)


def encode(corpus: Corpus, vocabulary: Vocabulary, path: Path) -> Encoded:
    """Write the ids of `corpus` to `path`."""
    starts, read, paired = [0], [0], False
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for ids, words in jobs(corpus, vocabulary):
            data = ids.tobytes()
            file.write(data)
            digest.update(data)
            starts.append(starts[-1] + len(ids))
            read.append(read[-1] + words)
            paired = paired or bool(((ids[1:] != END) & (ids[:-1] != END)).any())
    if starts[-1] == 0:
        raise InputError(
            f"no sentence of the corpus {describe(corpus)} has a word of the vocabulary; "
            "give text in the language and case the vectors were trained on"
        )
    ends = np.array(starts, dtype=np.int64), np.array(read, dtype=np.int64)
    return Encoded(path, *ends, digest=digest.hexdigest(), paired=paired)


def jobs(corpus: Corpus, vocabulary: Vocabulary) -> Iterator[tuple[np.ndarray, int]]:
    """(ids, words read) of each stretch of at least JOB words that ends with a sentence."""
    look_up = vocabulary.index.get
    ids: list[int] = []
    words = 0
    for sentence in corpus.sentences():
        ids.extend(map(look_up, sentence, repeat(UNKNOWN)))
        ids.append(END)
        words += len(sentence)
        if words >= JOB:
            yield known(ids), words
            ids, words = [], 0
    if ids:
        yield known(ids), words


def known(ids: list[int]) -> np.ndarray:
    """Without the unknown words and the sentences they leave empty."""
    array = np.array(ids, dtype=np.int32)
    array = array[array != UNKNOWN]
    ends = array == END
    doubled = ends.copy()
    doubled[1:] &= ends[:-1]
    return array[~doubled]
