"""Rows for BERT's two objectives: parts of texts that follow each other or do not, with words hidden."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches, Indices, ShuffledOrder, seeded_generator
from heedful.data.tokenization import Ids, special_flags

SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]*[A-Z])")
SINGLE = 64  # tokens of a row of two single sentences
LEAST = 6  # tokens of a sentence that stands alone: of "Yes." nobody can tell what it follows


@dataclass(frozen=True)
class Told:
    """Novels as one row of tokens: where sentences begin, and which of them begin a novel."""

    flat: NDArray[np.int64]
    starts: NDArray[np.int64]  # (sentences + 1)
    books: NDArray[np.int64]  # (books + 1) sentences

    def book(self, sentence: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.books, sentence, "right") - 1


def novels(path: Path, most: int | None = None) -> Iterator[list[str]]:
    """The sentences of each novel, or of the first `most`."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in list(lines)[:most]:
            paragraphs = json.loads(line)["text"].split("\n")
            yield [s for p in paragraphs for s in SENTENCE.split(p) if s.strip()]


def told_of(books: Iterable[Sequence[str]], tokenizer: Any) -> Told:
    """Books, each a list of sentences, as one row of tokens."""
    ids: list[list[int]] = []
    ends = [0]
    for sentences in books:
        ids += [i for i in tokenizer.encode_all(list(sentences), special=False) if i]
        ends.append(len(ids))
    starts = np.concatenate(([0], np.cumsum([len(i) for i in ids])))
    return Told(np.concatenate([np.asarray(i, np.int64) for i in ids]), starts, np.array(ends))


@dataclass(frozen=True)
class Pairs:
    """[CLS] a [SEP] b [SEP]: half of the b follow their a, half are of another novel   (BERT §3.1)

    Row s begins with sentence s. A stretch fills the length and is parted between two of its sentences near
    the middle; in a share `short` of the batches both parts are one sentence. Both kinds of b begin with a
    sentence and are as long, so that nothing but what they say tells them apart. A share `plain` of the rows
    has no masks, for so it is asked about later.
    """

    told: Told
    tokenizer: Any
    length: int
    seed: int
    short: float = 0.3
    plain: float = 0.25
    rate: float = 0.15
    lone: Told | None = None  # sentences that stand alone, for a `share` of the batches
    share: float = 0.0
    crowd: int = 1  # how many of them stand for a row: they are short

    def __len__(self) -> int:
        return len(self.told.starts) - 3

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """(V) the ids that are never hidden."""
        return special_flags(self.tokenizer)

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        rng, t = seeded_generator(self.seed, int(epochs[0]), int(rows[0])), self.tokenizer
        if self.lone is not None and rng.random() < self.share:
            return self.lone_batch(self.lone, rows, rng)
        single = rng.random() < self.short
        length = min(self.length, SINGLE) if single else self.length
        tokens = np.full((len(rows), length), t.pad or 0, np.int64)
        types, follows = np.zeros_like(tokens), rng.random(len(rows)) < 0.5
        valid = np.zeros(tokens.shape, bool)
        made = self.sentences if single else self.stretches
        for r, (a, b) in enumerate(made(rows, follows, length - 3, rng)):
            n, m = len(a) + 2, len(a) + len(b) + 3
            tokens[r, 0], tokens[r, 1 : n - 1], tokens[r, n - 1] = t.cls, a, t.sep
            tokens[r, n : m - 1], tokens[r, m - 1] = b, t.sep
            types[r, n:m], valid[r, :m] = 1, True
        hidden, labels = self.hide(tokens, rng)
        arrays = dict(tokens=hidden, labels=labels, types=types, valid=valid)
        held = {name: torch.from_numpy(value) for name, value in arrays.items()}
        return Batch(**held, extra={"follows": torch.from_numpy(follows)})

    def lone_batch(self, lone: Told, rows: Indices, rng: np.random.Generator) -> Batch:
        """[CLS] a sentence [SEP] with masks; nothing follows, so nothing is asked about that."""
        chosen = rng.integers(len(lone.starts) - 1, size=self.crowd * len(rows))
        lengths = np.minimum(np.diff(lone.starts)[chosen], SINGLE - 2)
        tokens = np.full((len(chosen), int(lengths.max()) + 2), self.tokenizer.pad or 0, np.int64)
        for r, (start, length) in enumerate(zip(lone.starts[chosen], lengths, strict=True)):
            tokens[r, 0], tokens[r, length + 1] = self.tokenizer.cls, self.tokenizer.sep
            tokens[r, 1 : length + 1] = lone.flat[start : start + length]
        hidden, labels = replace(self, plain=0.0).hide(tokens, rng)
        valid = np.arange(tokens.shape[1]) < (lengths + 2)[:, None]
        types = torch.zeros(tokens.shape, dtype=torch.long)
        return Batch(torch.from_numpy(hidden), torch.from_numpy(labels), torch.from_numpy(valid), types=types)

    def away(self, rows: Indices, rng: np.random.Generator) -> NDArray[np.int64]:
        """A sentence of another novel for each row, any but its last."""
        books, count = self.told.books, len(rows)
        other = (self.told.book(rows) + rng.integers(1, len(books) - 1, count)) % (len(books) - 1)
        sizes = books[other + 1] - books[other] - 1
        found: NDArray[np.int64] = books[other] + (rng.random(count) * sizes).astype(np.int64)
        return found

    def sentences(
        self, rows: Indices, follows: NDArray[np.bool_], room: int, rng: np.random.Generator
    ) -> Iterator[tuple[Ids, Ids]]:
        """Two sentences: the end of the first and the beginning of the second if they are long."""
        first = self.alone(rows)
        second = np.where(follows, first, self.alone(self.away(first, rng))) + 1
        starts, flat = self.told.starts, self.told.flat
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            yield (
                flat[starts[a] : starts[a + 1]][-(room // 2) :],
                flat[starts[b] : starts[b + 1]][: room // 2],
            )

    def stretches(
        self, rows: Indices, follows: NDArray[np.bool_], room: int, rng: np.random.Generator
    ) -> Iterator[tuple[Ids, Ids]]:
        """A stretch in two; or its first part and as much of another novel."""
        starts, books, flat = self.told.starts, self.told.books, self.told.flat
        ends, away = starts[books[self.told.book(rows) + 1]], self.away(rows, rng)
        for row, end, other, true, where in zip(
            rows, ends, away, follows, rng.random(len(rows)), strict=True
        ):
            begin = int(starts[row])
            stop = min(begin + room, int(end))
            cut = self.parting(begin, stop, where)
            after = cut if true else int(starts[other])
            yield flat[begin:cut], flat[after : after + max(stop - cut, 1)]

    def parting(self, begin: int, stop: int, where: float) -> int:
        """The beginning of a sentence nearest to a place in the middle half; that place if there is none."""
        near, starts = begin + int((0.25 + 0.5 * where) * (stop - begin)), self.told.starts
        at = int(np.searchsorted(starts, near))
        found = min((int(starts[k]) for k in (at - 1, at)), key=lambda cut: abs(cut - near))
        return found if begin < found < stop else max(near, begin + 1)

    def alone(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next sentence of each row that is long enough, as is the one behind it, in the same novel."""
        lengths, last = np.diff(self.told.starts), len(self.told.starts) - 3
        found = rows.copy()
        for _ in range(50):
            ends = np.isin(found + 1, self.told.books)
            bad = ends | (lengths[found] < LEAST) | (lengths[np.minimum(found + 1, last)] < LEAST)
            if not bad.any():
                break
            found = np.where(bad, (found + 1) % last, found)
        return found

    def hide(
        self, tokens: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """BERT's masks: of the chosen 80 % hidden, 10 % random, 10 % as they are."""
        chosen = (rng.random(tokens.shape) < self.rate) & ~self.special[tokens]
        chosen &= (rng.random(len(tokens)) >= self.plain)[:, None]
        kind, any_word = rng.random(tokens.shape), rng.choice(np.flatnonzero(~self.special), tokens.shape)
        hidden = np.where(chosen & (kind < 0.8), self.tokenizer.mask, tokens)
        hidden = np.where(chosen & (kind >= 0.9), any_word, hidden)
        return hidden, np.where(chosen, tokens, IGNORE)


def batches(rows: Pairs, batch: int) -> Batches:
    """Every sentence begins a row once an epoch."""
    return Batches(rows.batch, ShuffledOrder(len(rows), batch, rows.seed), str(len(rows.told.flat)))
