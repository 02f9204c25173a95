"""How tokenised documents become rows: packed windows over all of them, or pieces of one document each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import Row
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches, BucketedOrder, ShuffledOrder, seeded_generator
from heedful.data.tables import Source, open_documents
from heedful.data.token_cache import RaggedArray, tokenize_documents
from heedful.data.tokenization import Ids, TokenizerProtocol, find_template, tokenizer_signature

SHIFT = 0x5A1F7  # tells the draw of an epoch's shift from that of a row


@dataclass(frozen=True)
class TokenWindows:
    """All documents as one circle of tokens, cut into rows of equal width.

    Every position stands in exactly one row. The last row reaches back to be as wide as the others. Later
    epochs turn the circle by less than a row, so that the cuts fall elsewhere.
    """

    tokens: RaggedArray
    width: int
    seed: int
    ahead: int = 0  # how many tokens after a position it needs: 1 if it is to predict the next
    turn: bool = True

    @property
    def position_count(self) -> int:
        return len(self.tokens.flat) - self.ahead

    def __len__(self) -> int:
        return max(-(-self.position_count // self.width), 0)

    def positions(self, row: int, epoch: int) -> tuple[NDArray[np.int64], int]:
        """Return where the tokens of a row stand, and how many of its first ones an earlier row has."""
        count = self.position_count
        start = max(min(row * self.width, count - self.width), 0)
        repeated, shift = row * self.width - start, 0
        if epoch and self.turn:
            shift = int(seeded_generator(self.seed, epoch, SHIFT).integers(self.width))
        return (np.arange(start + shift, start + shift + min(self.width, count)) % count), repeated

    def documents(self, positions: NDArray[np.int64]) -> Ids:
        """Return the document of each position, counted from 0 in the row; the circle's seam parts two."""
        offsets = self.tokens.offsets
        if positions[0] > positions[-1]:
            seam = int(np.argmin(positions))
            before, after = self.documents(positions[:seam]), self.documents(positions[seam:])
            return np.concatenate((before, after + before[-1] + 1))
        low, high = np.searchsorted(offsets, (positions[0], positions[-1]), "right")
        return np.searchsorted(offsets[low:high], positions, "right")


@dataclass(frozen=True)
class DocumentPieces:
    """Each document by itself, cut into as few equal pieces as fit into `width` tokens."""

    tokens: RaggedArray
    firsts: NDArray[np.int64]  # (documents + 1) the number of the first piece of each

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def bounds(self, row: int) -> tuple[int, int]:
        """Return where a piece starts and ends in the flat array."""
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


def split_into_pieces(tokens: RaggedArray, width: int) -> DocumentPieces:
    """Return the pieces of every document."""
    counts = -(-tokens.lengths // width)
    return DocumentPieces(tokens, np.concatenate(([0], counts.cumsum())))


@dataclass(frozen=True)
class TextRows:
    """Rows of plain text: read(row, epoch) gives the ids, and their documents if these are kept apart."""

    read: Callable[[int, int], tuple[Ids, Ids | None]]
    order: BucketedOrder | ShuffledOrder
    fingerprint: str
    tokenizer: TokenizerProtocol
    options: BatchOptions

    def build(self, kind: str, make: Callable[[int, int], Row], **settings: Any) -> Batches:
        """Return the batches of what make(row, epoch) does to these rows."""
        return self.options.build(
            kind, self.tokenizer, self.order, make, self.fingerprint,
            tokenizer=tokenizer_signature(self.tokenizer), packed=self.options.packed, **settings,
        )  # fmt: skip


def text_rows(
    source: Source, tokenizer: TokenizerProtocol, width: int, options: BatchOptions, *,
    min_tokens: int = 1, turn: bool = True, separate: bool = False,
) -> TextRows:  # fmt: skip
    """Return rows of at most `width` tokens, without special tokens: windows if packed, else pieces.

    Packed rows run over the ends of documents; an end token stands between two. If they are kept
    `separate`, each token comes with the number of its document.
    """
    documents = open_documents(source, options.unit, options.encoding)
    end = find_template(tokenizer, end=True).after if options.packed else ()
    tokens = tokenize_documents(documents, tokenizer, after=end, cache=options.cache)
    order: BucketedOrder | ShuffledOrder
    if options.packed:
        windows = TokenWindows(tokens, width, options.seed, turn=turn)
        order = options.shuffle(len(windows), tokens.name)
    else:
        pieces = split_into_pieces(tokens, width)
        kept = np.flatnonzero(pieces.lengths >= min_tokens)
        options.check_rows(len(kept), tokens.name)
        order = BucketedOrder(pieces.lengths[kept], options.batch, options.seed)

    def read_row(row: int, epoch: int) -> tuple[Ids, Ids | None]:
        if not options.packed:
            return pieces[int(kept[row])], None
        positions, _ = windows.positions(row, epoch)
        ids = tokens.flat[positions].astype(np.int64)
        return ids, windows.documents(positions) if separate and len(tokens) > 1 else None

    return TextRows(read_row, order, tokens.fingerprint, tokenizer, options)
