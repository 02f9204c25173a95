"""Batches for models that read from left to right: next tokens of plain text, and completions of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Unpack

import numpy as np

from heedful.core.files import Paths, name_files
from heedful.data.batch import IGNORE, Row
from heedful.data.batch_options import BatchOptions, TaskKeywords, TextKeywords, takes_options
from heedful.data.batches import Batches, BucketedOrder, ShuffledOrder, fingerprint_arrays, join_fingerprints
from heedful.data.tables import Column, Source, Table, open_documents
from heedful.data.token_cache import encode_texts, tokenize_documents
from heedful.data.tokenization import Ids, TokenizerProtocol, find_template, tokenizer_signature
from heedful.data.windows import TokenWindows


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
        kept = np.flatnonzero(lengths > 0)  # a single token predicts nothing
        order = options.bucket(lengths[kept], tokens.name)
        hint = "raise length, pass packed=True to cut them into rows"
        notes = options.check_lengths(lengths[kept], "documents", tokens.name, hint)
        make = lambda row, epoch: _document_row(tokens[int(kept[row])][: options.length + 1])
    return options.build(
        "next_token", tokenizer, order, make, tokens.fingerprint, notes=notes,
        tokenizer=tokenizer_signature(tokenizer), packed=options.packed, apart=apart,
    )  # fmt: skip


def _document_row(ids: Ids) -> Row:
    return {"tokens": ids[:-1], "labels": ids[1:]}


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
    source: Paths | Table,
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
    table, length, before = Table.of(source, options.encoding), options.length, template.before

    def read_texts() -> Iterator[str]:
        for _, (asked, written) in table.rows(prompt, completion):
            parted = not asked or asked[-1].isspace() or written[:1].isspace()
            yield from (asked, written if parted else f" {written}")

    found = encode_texts(read_texts(), tokenizer, name_files(table.files))
    lengths = found.lengths.reshape(-1, 2).sum(1) + template.single_count - 1
    order = options.bucket(lengths, found.name)
    notes = options.check_lengths(lengths, "rows", found.name)

    def make(row: int, epoch: int) -> Row:
        written = np.concatenate((found[2 * row + 1], template.after)).astype(np.int64)
        written = written[: max(length - len(before), 1)]
        space = max(length + 1 - len(before) - len(written), 0)
        asked = found[2 * row]
        ids = np.concatenate((before, asked[max(len(asked) - space, 0) :], written)).astype(np.int64)
        labels = ids[1:].copy()
        labels[: len(ids) - len(written) - 1] = IGNORE
        return {"tokens": ids[:-1], "labels": labels}

    data = join_fingerprints(found.fingerprint, fingerprint_arrays((lengths,)))
    signature = tokenizer_signature(tokenizer)
    return options.build("completion", tokenizer, order, make, data, notes=notes, tokenizer=signature)
