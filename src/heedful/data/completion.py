"""Batches of prompts and what is to follow them, for models that read from left to right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heedful.data.batch import IGNORE, Row
from heedful.data.batches import Batches, BucketedOrder, check_counts, fingerprint_arrays, join_fingerprints
from heedful.data.labelled import CHUNK
from heedful.data.tables import Column, Table, open_table
from heedful.data.token_cache import ragged_array
from heedful.data.tokenization import (
    TokenizerProtocol,
    encode_many,
    find_template,
    pad_id,
    tokenizer_signature,
)
from heedful.data.windows import CollatedRows, fitted
from heedful.files import Paths, name_files


def joined(prompt: str, answer: str) -> str:
    """What follows the prompt, a space before it where neither has white space: as it will be written."""
    return answer if not prompt or prompt[-1].isspace() or answer[:1].isspace() else f" {answer}"


def completion(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    prompt: Column = "prompt",
    completion: Column = "completion",
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    truncate: bool = False,
) -> Batches:
    """labels[t] = tokens[t + 1] where that is part of the answer or its end; the prompt costs nothing.

    Each is tokenised by itself, as the prompt will be when the model is used. A row that is too long loses
    the beginning of its prompt, then the end of its answer.
    """
    rows = open_table(source)
    around = find_template(tokenizer, end=True)
    before = around.before

    def encoded() -> Iterator[list[int]]:
        held: list[str] = []
        for _, (asked, answer) in rows.rows(prompt, completion):
            held += (asked, joined(asked, answer))
            if len(held) >= CHUNK:
                yield from encode_many(tokenizer, held)
                held = []
        yield from encode_many(tokenizer, held)

    found = ragged_array(encoded(), name=name_files(rows.files))
    lengths = found.lengths.reshape(-1, 2).sum(1) + len(before) + len(around.after) - 1
    check_counts(len(lengths), batch, seed, found.name)
    notes = fitted(lengths, length, truncate, "rows", "raise length", found.name)

    def make(row: int, epoch: int) -> Row:
        answer = np.concatenate((found[2 * row + 1], around.after)).astype(np.int64)[
            : max(length - len(before), 1)
        ]
        room = max(length + 1 - len(before) - len(answer), 0)
        asked = found[2 * row]
        ids = np.concatenate((before, asked[max(len(asked) - room, 0) :], answer)).astype(np.int64)
        labels = ids[1:].copy()
        labels[: len(ids) - len(answer) - 1] = IGNORE
        return {"tokens": ids[:-1], "labels": labels}

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer), kind="completion", length=length, batch=batch, seed=seed
    )
    order = BucketedOrder(np.minimum(lengths, length), batch, seed)
    data = join_fingerprints(found.fingerprint, fingerprint_arrays((lengths,)))
    return Batches(
        CollatedRows(len(lengths), make, pad_id(tokenizer)),
        order,
        data,
        settings,
        notes=notes,
        pad=pad_id(tokenizer),
    )
