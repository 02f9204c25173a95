"""Batches for learning from plain text: next tokens, masked tokens, sentence pairs, replaced tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heedful.data.batch import Row
from heedful.data.batches import Batches, BucketedOrder, ShuffledOrder, check_counts
from heedful.data.readers import Documents, Unit, documents
from heedful.data.tables import Table
from heedful.data.token_cache import RaggedArray, tokenize_documents
from heedful.data.tokenization import TokenizerProtocol, find_template, pad_id, tokenizer_signature
from heedful.data.windows import CollatedRows, NextTokenRows, TokenWindows, fitted
from heedful.files import Paths, expand_paths, stem_path

Source = Paths | Documents


def open_documents(source: Source, unit: Unit, encoding: str) -> Documents:
    """What was passed as the text, opened. JSON Lines are known by their name; they have a field "text"."""
    if isinstance(source, Documents):
        return source
    if all(stem_path(path).suffix.lower() == ".jsonl" for path in expand_paths(source)):
        return Table(source, encoding=encoding).column("text")
    return documents(source, unit, encoding)


def next_token(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    packed: bool = True,
    apart: bool = True,
    unit: Unit = "file",
    truncate: bool = False,
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """labels[t] = tokens[t + 1].

    Packed: rows of `length` tokens over all documents, each with its special tokens and an end; `apart` keeps
    them from seeing and predicting each other (False: one stream, as GPT-2 was trained). Not packed: one
    document a row, padded, documents of like length together.
    """
    around = find_template(tokenizer, end=True)
    tokens = tokenize_documents(
        open_documents(source, unit, encoding),
        tokenizer,
        before=around.before,
        after=around.after,
        cache=cache,
    )
    pad = pad_id(tokenizer)
    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="next_token",
        length=length,
        batch=batch,
        seed=seed,
        packed=packed,
        apart=apart,
    )
    if packed:
        rows = NextTokenRows(TokenWindows(tokens, length, seed, ahead=1), apart and len(tokens) > 1, pad)
        check_counts(len(rows), batch, seed, tokens.name)
        return Batches(rows, ShuffledOrder(len(rows), batch, seed), tokens.fingerprint, settings, pad=pad)
    return _padded(tokens, length, batch, seed, truncate, pad, settings)


def _padded(
    tokens: RaggedArray,
    length: int,
    batch: int,
    seed: int,
    truncate: bool,
    pad: int,
    settings: dict[str, Any],
) -> Batches:
    lengths = tokens.lengths - 1
    kept = np.flatnonzero(lengths > 0)  # a single token predicts nothing
    check_counts(len(kept), batch, seed, tokens.name)
    ways = "raise length, pass packed=True to cut them into rows"
    notes = fitted(lengths[kept], length, truncate, "documents", ways, tokens.name)

    def make(row: int, epoch: int) -> Row:
        ids = tokens[int(kept[row])][: length + 1]
        return {"tokens": ids[:-1], "labels": ids[1:]}

    order = BucketedOrder(np.minimum(lengths[kept], length), batch, seed)
    return Batches(
        CollatedRows(len(kept), make, pad), order, tokens.fingerprint, settings, notes=notes, pad=pad
    )
