"""How tokenised documents become rows: packed windows over all of them, or pieces of one document each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import IGNORE, Batch, Row, collate, pad_batch
from heedful.data.batches import Indices, RowSource, seeded_generator
from heedful.data.token_cache import RaggedArray
from heedful.data.tokenization import Ids
from heedful.errors import InputError

SHIFT = 0x5A1F7  # tells the draw of an epoch's shift from that of a row


@dataclass(frozen=True)
class CollatedRows:
    """Rows made one by one: make(row, epoch) is a row before padding."""

    count: int
    make: Callable[[int, int], Row]
    pad: int

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        made = [self.make(row, epoch) for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)]
        return collate(made, self.pad)


@dataclass(frozen=True)
class FixedShapeRows:
    """Rows in batches of few shapes: lengths are rounded up, and the same number of rows for each length.

    `tokens` bounds rows × longest row, as where the batches were cut.
    """

    source: RowSource
    multiple: int
    size: int
    tokens: int | None
    pad: int

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        batch = self.source.batch(rows, epochs)
        longest = max(batch.tokens.shape[1], 0 if batch.target is None else batch.target.shape[1])
        width = round_up(longest, self.multiple)
        full = self.size if self.tokens is None else min(self.size, self.tokens // width)
        return pad_batch(batch, full, self.multiple, self.pad)


def round_up(length: Any, multiple: int) -> Any:
    """The next multiple of a length, or of each of many."""
    return -(-length // multiple) * multiple


@dataclass(frozen=True)
class TokenWindows:
    """All documents as one circle of tokens, cut into rows of equal width.

    Every position stands in exactly one row. The last row reaches back to be as wide as the others; `new`
    says from where on it is new. Later epochs turn the circle by less than a row, so the cuts fall elsewhere.
    """

    tokens: RaggedArray
    width: int
    seed: int
    ahead: int = 0  # how many tokens after a position it needs: 1 if it is to predict the next
    turn: bool = True

    @property
    def positions(self) -> int:
        return len(self.tokens.flat) - self.ahead

    def __len__(self) -> int:
        return max(-(-self.positions // self.width), 0)

    def place(self, row: int, epoch: int) -> tuple[NDArray[np.int64], int]:
        """Where the tokens of a row stand, and how many of its first ones an earlier row has."""
        start = max(min(row * self.width, self.positions - self.width), 0)
        new = row * self.width - start
        shift = (
            int(seeded_generator(self.seed, epoch, SHIFT).integers(self.width)) if epoch and self.turn else 0
        )
        width = min(self.width, self.positions)
        return (np.arange(start + shift, start + shift + width) % self.positions), new

    def documents(self, place: NDArray[np.int64]) -> Ids:
        """The document of each position, counted from 0 in the row; the circle's seam parts two as well."""
        offsets = self.tokens.offsets
        if place[0] > place[-1]:
            seam = int(np.argmin(place))
            before, after = self.documents(place[:seam]), self.documents(place[seam:])
            return np.concatenate((before, after + before[-1] + 1))
        low, high = np.searchsorted(offsets, (place[0], place[-1]), "right")
        return np.searchsorted(offsets[low:high], place, "right")


@dataclass(frozen=True)
class NextTokenRows:
    """Rows for next-token prediction: labels[t] = tokens[t + 1], inside one document if kept apart."""

    windows: TokenWindows
    apart: bool
    pad: int

    def __len__(self) -> int:
        return len(self.windows)

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        made = [self.row(row, epoch) for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)]
        return collate(made, self.pad)

    def row(self, row: int, epoch: int) -> Row:
        windows = self.windows
        place, new = windows.place(row, epoch)
        flat = windows.tokens.flat
        if place[0] <= place[-1]:  # one slice of the map, the usual case
            run = flat[place[0] : place[-1] + 2].astype(np.int64)
            tokens, labels = run[:-1], run[1:].copy()
        else:
            tokens, labels = flat[place].astype(np.int64), flat[place + 1].astype(np.int64)
        labels[:new] = IGNORE
        if not self.apart:
            return {"tokens": tokens, "labels": labels}
        documents, ends, last = windows.documents(place), windows.tokens.offsets, place[-1] + 1
        # At the seam of the circle the label is still the text's own next token.
        labels[:-1][(documents[1:] != documents[:-1]) & (place[1:] > place[:-1])] = IGNORE
        if ends[np.searchsorted(ends, last)] == last:
            labels[-1] = IGNORE
        return {"tokens": tokens, "labels": labels, "documents": documents}


@dataclass(frozen=True)
class DocumentPieces:
    """Each document by itself, cut into as few equal pieces as fit into `width` tokens."""

    tokens: RaggedArray
    width: int
    firsts: NDArray[np.int64]  # (documents + 1) the number of the first piece of each

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def bounds(self, row: int) -> tuple[int, int]:
        """Where a piece starts and ends in the flat array."""
        document = int(np.searchsorted(self.firsts, row, "right")) - 1
        first, count = int(self.firsts[document]), int(self.firsts[document + 1] - self.firsts[document])
        start, end = int(self.tokens.offsets[document]), int(self.tokens.offsets[document + 1])
        cut = lambda k: start + (end - start) * k // count
        return cut(row - first), cut(row - first + 1)

    def __getitem__(self, row: int) -> Ids:
        start, end = self.bounds(row)
        return self.tokens.flat[start:end].astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        counts = np.diff(self.firsts)
        document = np.repeat(np.arange(len(counts)), counts)
        k = np.arange(len(self)) - self.firsts[document]
        n, size = counts[document], self.tokens.lengths[document]
        lengths: NDArray[np.int64] = size * (k + 1) // n - size * k // n
        return lengths


def split_documents(tokens: RaggedArray, width: int) -> DocumentPieces:
    """The pieces of every document."""
    counts = -(-tokens.lengths // width)
    return DocumentPieces(tokens, width, np.concatenate(([0], counts.cumsum())))


def fitted(
    lengths: NDArray[Any], limit: int, truncate: bool, what: str, ways: str, name: str
) -> tuple[str, ...]:
    """Refuse rows longer than the limit, or say how many are cut: never silently."""
    over = int((lengths > limit).sum())
    if not over:
        return ()
    many = f"{over:,} of {len(lengths):,} {what}"
    if not truncate:
        have = f"are longer than {limit} tokens (the longest has {int(lengths.max()):,})"
        raise InputError(f"{name}: {many} {have}", hint=f"{ways}, or pass truncate=True to cut them")
    lost = int((lengths[lengths > limit] - limit).sum())
    return (f"{many} were cut to {limit} tokens; {lost:,} tokens are not read",)
