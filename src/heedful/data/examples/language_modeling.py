"""Batches for models that read from left to right: next tokens of plain text, and completions of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack, cast

import numpy as np
from numpy.typing import NDArray

from heedful.core.files import Paths, name_files
from heedful.data.batch import IGNORE, Row
from heedful.data.batch_options import BatchOptions, TaskKeywords, TextKeywords, takes_options
from heedful.data.batches import (
    Batches,
    BucketedOrder,
    ShuffledOrder,
    fingerprint_arrays,
    join_fingerprints,
    seeded_generator,
)
from heedful.data.readers import Column, Source, Table, are_examples, open_documents
from heedful.data.token_cache import RaggedArray, encode_texts, tokenize_documents
from heedful.data.tokenization import Ids, TokenizerProtocol, find_template, tokenizer_signature


@takes_options(TextKeywords)
def next_token(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    apart: bool = True,
    truncate: bool = False,
    **keywords: Unpack[TextKeywords],
) -> Batches:
    """labels[t] = tokens[t + 1].

    Packed: rows of `length` tokens over all documents, each with its special tokens and an end; `apart` keeps
    them from seeing and predicting each other (False: one stream, as GPT-2 was trained). Not packed: one
    document a row, padded, documents of like length together.
    """
    options = BatchOptions(truncate=truncate, **keywords)
    template = find_template(tokenizer, end=True)
    tokens = tokenize_documents(
        open_documents(source, options.unit, options.encoding), tokenizer,
        before=template.before, after=template.after, cache=options.cache,
    )  # fmt: skip
    notes: tuple[str, ...] = ()
    order: ShuffledOrder | BucketedOrder
    make: Callable[[int, int], Row]
    if options.packed:
        windows = TokenWindows(tokens, options.length, options.seed, ahead=1)
        order, separate = options.shuffle(len(windows), tokens.name), apart and len(tokens) > 1
        make = lambda row, epoch: _window_row(windows, row, epoch, separate)
    else:
        lengths = tokens.lengths - 1
        usable = np.flatnonzero(lengths > 0)  # a single token predicts nothing
        order = options.bucket(lengths[usable], tokens.name)
        hint = "raise `length=`, pass `packed=True` to cut them into rows"
        notes = options.check_lengths(lengths[usable], "documents", tokens.name, hint)
        whole = lambda row: tokens[int(usable[row])][: options.length + 1]
        make = lambda row, epoch: {"tokens": whole(row)[:-1], "labels": whole(row)[1:]}
    return options.build(
        "next_token", tokenizer, order, make, tokens.fingerprint, notes=notes,
        tokenizer=tokenizer_signature(tokenizer), packed=options.packed, apart=apart,
    )  # fmt: skip


def _window_row(windows: TokenWindows, row: int, epoch: int, separate: bool) -> Row:
    """Return a packed row; labels stay inside one document if documents are kept `separate`."""
    positions, repeated = windows.positions(row, epoch)
    flat = windows.tokens.flat
    if positions[0] <= positions[-1]:  # one slice of the map, the usual case
        run = flat[positions[0] : positions[-1] + 2].astype(np.int64)
        tokens, labels = run[:-1], run[1:].copy()
    else:
        tokens, labels = flat[positions].astype(np.int64), flat[positions + 1].astype(np.int64)
    labels[:repeated] = IGNORE
    if not separate:
        return {"tokens": tokens, "labels": labels}
    documents, ends, last = windows.documents(positions), windows.tokens.offsets, positions[-1] + 1
    # At the seam of the circle the label is still the text's own next token.
    labels[:-1][(documents[1:] != documents[:-1]) & (positions[1:] > positions[:-1])] = IGNORE
    if ends[np.searchsorted(ends, last)] == last:
        labels[-1] = IGNORE
    return {"tokens": tokens, "labels": labels, "documents": documents}


@takes_options(TaskKeywords)
def completion(
    source: Paths | Table | Sequence[tuple[str, str]],
    tokenizer: TokenizerProtocol,
    *,
    prompt: Column = "prompt",
    completion: Column = "completion",
    **keywords: Unpack[TaskKeywords],
) -> Batches:
    """labels[t] = tokens[t + 1] where that is part of the completion or its end; the prompt has no loss.

    Each is tokenised by itself, as the prompt will be when the model is used, with a space between them where
    neither has white space. A row that is too long loses the beginning of its prompt, then the end of its
    completion.
    """
    options, template = BatchOptions(**keywords), find_template(tokenizer, end=True)
    length, before, name = options.length, template.before, "the file"
    pairs: Iterable[tuple[str, ...]]
    if are_examples(source, tuple):
        pairs = cast(Sequence[tuple[str, str]], source)
    else:
        table = Table.of(cast(Paths | Table, source), options.encoding)
        pairs, name = (values for _, values in table.rows(prompt, completion)), name_files(table.files)

    def read_texts() -> Iterator[str]:
        for asked, written in pairs:
            parted = not asked or asked[-1].isspace() or written[:1].isspace()
            yield from (asked, written if parted else f" {written}")

    encoded = encode_texts(read_texts(), tokenizer, name)
    lengths = encoded.lengths.reshape(-1, 2).sum(1) + template.single_count - 1
    order = options.bucket(lengths, encoded.name)
    notes = options.check_lengths(lengths, "rows", encoded.name)

    def make(row: int, epoch: int) -> Row:
        written = np.concatenate((encoded[2 * row + 1], template.after)).astype(np.int64)
        written = written[: max(length - len(before), 1)]
        space = max(length + 1 - len(before) - len(written), 0)
        asked = encoded[2 * row]
        ids = np.concatenate((before, asked[max(len(asked) - space, 0) :], written)).astype(np.int64)
        labels = ids[1:].copy()
        labels[: len(ids) - len(written) - 1] = IGNORE
        return {"tokens": ids[:-1], "labels": labels}

    data = join_fingerprints(encoded.fingerprint, fingerprint_arrays((lengths,)))
    signature = tokenizer_signature(tokenizer)
    return options.build("completion", tokenizer, order, make, data, notes=notes, tokenizer=signature)


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


def cut_into_pieces(tokens: RaggedArray, width: int) -> NDArray[np.int64]:
    """(pieces, 2): where each piece of a document starts and ends in the flat array.

    A document is cut into as few equal pieces as fit into `width` tokens.
    """
    counts = -(-tokens.lengths // width)
    document = np.repeat(np.arange(len(counts)), counts)
    k = np.arange(len(document)) - (counts.cumsum() - counts)[document]  # its number in the document
    start, size, count = tokens.offsets[document], tokens.lengths[document], counts[document]
    return np.stack((start + size * k // count, start + size * (k + 1) // count), 1)
