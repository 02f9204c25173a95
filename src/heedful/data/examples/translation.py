"""Batches of texts and what is to be written for them: translation, summaries and other pairs.

A step of a small translator takes as long as making its batch a row at a time would, so a whole batch is made
at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.core.checks import check_number
from heedful.core.errors import InputError, count_of
from heedful.core.files import Paths
from heedful.core.padding import round_up, valid_mask
from heedful.data.batch import IGNORE, Batch, pad_batch
from heedful.data.batch_options import BatchOptions, TaskKeywords, takes_options
from heedful.data.batches import Batches, Indices, MakeBatch, join_fingerprints, seeded_generator
from heedful.data.readers import Column, Documents, Table, parallel_documents
from heedful.data.token_cache import RaggedArray, tokenize_documents
from heedful.data.tokenization import (
    Template,
    TokenizerProtocol,
    find_template,
    pad_id,
    start_token_id,
    tokenizer_signature,
)

Matrix = NDArray[np.int64]  # (B, T)


def wrap_rows(
    texts: RaggedArray, rows: Indices, template: Template, max_length: int, pad: int
) -> tuple[Matrix, Indices]:
    """Return texts between their special tokens, cut to `max_length` tokens in all; and how long each is."""
    before, after = len(template.before), len(template.after)
    starts = texts.offsets[rows]
    lengths = np.minimum(texts.offsets[rows + 1] - starts, max_length - template.single_count)
    columns = np.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    out = np.full((len(rows), before + len(columns) + after), pad, np.int64)
    out[:, :before] = template.before
    out[:, before : before + len(columns)][inside] = texts.flat[(starts[:, None] + columns)[inside]]
    for i, token in enumerate(template.after):
        out[np.arange(len(rows)), before + lengths + i] = token
    return out, lengths + template.single_count


def shift_right(labels: Matrix, lengths: Indices, start: int, pad: int) -> tuple[Matrix, Matrix, Indices]:
    """Return the decoder's input and output and their lengths; an existing start token is not doubled."""
    twice = (labels[:, 0] == start) & (lengths > 1)
    lengths = lengths - twice
    columns = np.arange(int(lengths.max()))
    labels = np.take_along_axis(labels, np.minimum(columns + twice[:, None], labels.shape[1] - 1), 1)
    inside = columns < lengths[:, None]
    target = np.where(inside, np.roll(labels, 1, 1), pad)
    target[:, 0] = start
    return target, np.where(inside, labels, IGNORE), lengths


def valid_rows(lengths: Indices, width: int) -> torch.Tensor | None:
    return torch.from_numpy(valid_mask(lengths, width)) if (lengths < width).any() else None


def pair_batches(
    sources: RaggedArray, targets: RaggedArray, usable: Indices, template: Template,
    target_template: Template, length: int, start: int, pad: int,
    dropout: tuple[MergeDropout, MergeDropout] | None = None,
) -> MakeBatch:  # fmt: skip
    """Return the function that makes batches of the `usable` pairs: a source to read, a target to write.

    `dropout` is that of the source's and of the target's merges.
    """

    def make_batch(rows: Indices, epochs: Indices) -> Batch:
        numbers = places = usable[rows]
        read, written = sources, targets
        if dropout is not None:
            read, written = (
                drop.draw(texts, numbers, epochs)
                for drop, texts in zip(dropout, (sources, targets), strict=True)
            )
            places = np.arange(len(rows))
        tokens, lengths = wrap_rows(read, places, template, length, pad)
        return Batch(
            torch.from_numpy(tokens), valid=valid_rows(lengths, tokens.shape[1]),
            extra={"row": torch.from_numpy(numbers)},
            **decoder_fields(written, places, target_template, length, start, pad),
        )  # fmt: skip

    return make_batch


def decoder_fields(
    texts: RaggedArray, rows: Indices, template: Template, length: int, start: int, pad: int
) -> dict[str, Any]:
    """Return the fields of a batch that a decoder reads and writes, from these rows of the texts."""
    target, labels, lengths = shift_right(*wrap_rows(texts, rows, template, length, pad), start, pad)
    return {
        "labels": torch.from_numpy(labels), "target": torch.from_numpy(target),
        "target_valid": valid_rows(lengths, target.shape[1]),
    }  # fmt: skip


def fix_shapes(make_batch: MakeBatch, options: BatchOptions, pad: int) -> MakeBatch:
    """Make batches of few shapes: lengths are rounded up, and each length has its number of rows."""

    def make_padded(rows: Indices, epochs: Indices) -> Batch:
        batch, size = make_batch(rows, epochs), options.batch
        longest = max(batch.tokens.shape[1], 0 if batch.target is None else batch.target.shape[1])
        if options.max_tokens is not None:
            size = min(size, options.max_tokens // round_up(longest, options.multiple))
        return pad_batch(batch, size, options.multiple, pad)

    return make_padded


@takes_options(TaskKeywords)
def parallel(
    paths: Paths | Table | Sequence[tuple[str, str]], tokenizer: TokenizerProtocol,
    target_tokenizer: TokenizerProtocol | None = None, *,
    columns: tuple[Column, Column] | None = None, prefix: str = "", start: int | None = None,
    max_tokens: int | None = None, multiple: int = 1, dropout: float = 0.0, cache: str | Path | None = None,
    **keywords: Unpack[TaskKeywords],
) -> Batches:  # fmt: skip
    """A text and what is to be written for it: two files of as many lines, two columns of a table, or pairs.

    Pairs of like length stand together. `max_tokens` bounds rows × longest row (batch then only the rows), as
    translation is usually trained. `prefix` goes before every source text. extra["row"] is the pair's number.
    `multiple` rounds lengths up and fills batches with empty rows (of number −1): the loss is the same, and
    few shapes are left, as recorded steps want (TrainConfig(graph=True)). `dropout` is the share of BPE's
    merges that are undone, others in each epoch (`MergeDropout`); pairs stand together by whole pieces.
    """
    check_number("dropout", dropout, 0.0, 1.0)
    options = BatchOptions(multiple=multiple, max_tokens=max_tokens, cache=cache, **keywords)
    source, target = parallel_documents(paths, columns, options.encoding)
    target_tokenizer = target_tokenizer or tokenizer
    template, target_template = (find_template(t, end=True) for t in (tokenizer, target_tokenizer))
    first = start_token_id(target_tokenizer, start, ("bos", "pad", "eos"))
    if prefix:
        plain = source
        read = lambda: ([prefix, text] if text else [] for text in map("".join, plain))
        source = Documents(read, plain.files, (*plain.settings, prefix), plain.name)
    sources = tokenize_documents(source, tokenizer, empty=True, cache=cache)
    targets = tokenize_documents(target, target_tokenizer, empty=True, cache=cache)
    usable = np.flatnonzero((sources.lengths > 0) & (targets.lengths > 0))
    source_lengths = sources.lengths[usable] + template.single_count
    lengths = np.maximum(source_lengths, targets.lengths[usable] + target_template.single_count)
    notes = options.check_lengths(lengths, "pairs", sources.name)
    if len(usable) < len(sources):
        left_out = count_of(len(sources) - len(usable), "pairs", "are", len(sources))
        notes += (f"{left_out} left out because one side is empty",)
    signature = tokenizer_signature(tokenizer)
    settings = options.settings("parallel", tokenizer=signature, max_tokens=max_tokens, start=first)
    settings |= ({"multiple": multiple} if multiple > 1 else {}) | ({"dropout": dropout} if dropout else {})
    pad = pad_id(tokenizer) if pad_id(tokenizer) < len(target_tokenizer) else 0
    signatures = f"({template.signature}, {target_template.signature})"
    data = join_fingerprints(sources.fingerprint, targets.fingerprint, signatures)
    drop = lambda t: MergeDropout(merge_parts(t), dropout, options.seed)
    dropped = (drop(tokenizer), drop(target_tokenizer)) if dropout else None
    make_batch = pair_batches(
        sources, targets, usable, template, target_template, options.length, first, pad, dropped
    )
    if multiple > 1:
        make_batch = fix_shapes(make_batch, options, pad)
    return Batches(make_batch, options.bucket(lengths, sources.name), data, settings, notes=notes, pad=pad)


def merge_parts(tokenizer: Any) -> NDArray[np.int64]:
    """Return (V, 2): the two pieces each token was merged of; −1 for tokens that no merge made."""
    backend = getattr(tokenizer, "backend", None)
    model = {} if backend is None else json.loads(backend.to_str())["model"]
    if model.get("type") != "BPE":
        kind = model.get("type") or type(tokenizer).__name__
        raise InputError(
            f"only BPE tokenizers can drop merges, and this tokenizer is {kind}", hint="pass `dropout=0`"
        )
    ids: dict[str, int] = model["vocab"]
    parts = np.full((len(tokenizer), 2), -1, np.int64)
    for left, right in model["merges"]:
        whole = ids[left + right]
        if parts[whole, 0] < 0:  # the first merge that makes a token is the one that is used
            parts[whole] = ids[left], ids[right]
    return parts


@dataclass(frozen=True)
class MergeDropout:
    """Split merged pieces at random, so that every epoch reads other pieces   (Provilkov et al. 2020)

    A piece that a merge of BPE made is split with probability `rate`, its two parts again with the same
    probability, and so on. A word is mostly read whole and sometimes in parts, so rare words are also learnt
    by their parts. The same (seed, epoch, row) always gives the same pieces.
    """

    parts: NDArray[np.int64]  # (V, 2)
    rate: float
    seed: int

    def draw(self, texts: RaggedArray, rows: Indices, epochs: Indices) -> RaggedArray:
        """Return these rows of the texts, cut into new random pieces."""
        rng = seeded_generator(self.seed, int(epochs[0]), int(rows[0]))
        lengths = texts.offsets[rows + 1] - texts.offsets[rows]
        owners = np.repeat(np.arange(len(rows)), lengths)
        before = np.cumsum(lengths) - lengths  # pieces of the rows above
        ids = texts.flat[(texts.offsets[rows] - before)[owners] + np.arange(len(owners))]
        fresh = np.ones(len(ids), bool)  # pieces that were not asked yet
        while True:
            apart = fresh & (self.parts[ids, 0] >= 0) & (rng.random(len(ids)) < self.rate)
            if not apart.any():
                break
            counts = 1 + apart
            first = (np.cumsum(counts) - counts)[apart]  # where the left parts will stand
            left, right = self.parts[ids[apart]].T
            ids, owners = np.repeat(ids, counts), np.repeat(owners, counts)
            ids[first], ids[first + 1] = left, right
            fresh = np.zeros(len(ids), bool)
            fresh[first] = fresh[first + 1] = True
        ends = np.cumsum(np.bincount(owners, minlength=len(rows)))
        return RaggedArray(ids, np.concatenate(([0], ends)), texts.fingerprint, texts.name)
