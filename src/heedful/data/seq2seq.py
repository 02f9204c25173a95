"""Batches for encoder-decoders: span corruption, denoising, translation.

`tokens` is what the encoder reads, `labels` what the decoder writes, `target` what it reads: the labels moved
right by the start token. Models differ in that token, so pass `start=model.start_token`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from heedful.data import corruption as corrupt
from heedful.data.batch import Row
from heedful.data.batches import (
    Batches,
    BucketedOrder,
    RowSource,
    ShuffledOrder,
    check_counts,
    join_fingerprints,
    seeded_generator,
)
from heedful.data.corruption import Noise
from heedful.data.language import Source, open_documents
from heedful.data.paired import Pairs
from heedful.data.readers import Documents, Unit
from heedful.data.tables import Column, Table, parallel_documents
from heedful.data.token_cache import tokenize_documents
from heedful.data.tokenization import (
    Ids,
    TokenizerProtocol,
    find_template,
    pad_id,
    require_special_token,
    sentence_end_flags,
    special_token_ids,
    token_names,
    tokenizer_signature,
)
from heedful.data.windows import CollatedRows, FixedShapeRows, TokenWindows, fitted, round_up, split_documents
from heedful.errors import InputError, nearest
from heedful.files import Paths


def shifted(labels: Ids, start: int) -> dict[str, Ids]:
    """What the decoder reads and writes. A text that begins with the start token already has it."""
    labels = labels[1:] if len(labels) > 1 and labels[0] == start else labels
    return {"target": np.concatenate(([start], labels[:-1])).astype(np.int64), "labels": labels}


def start_id(tokenizer: TokenizerProtocol, start: int | None, roles: Sequence[str]) -> int:
    """The start token: what was passed, or the first of these that the tokenizer has."""
    found = special_token_ids(tokenizer)
    usual = next((found[role] for role in roles if role in found), None)
    if start is None and usual is None:
        raise InputError(
            "a decoder needs a token to start with and this tokenizer has none", hint="pass start="
        )
    return int(usual if start is None else start)  # type: ignore[arg-type]


Stretch = tuple[Callable[[int, int], Ids], BucketedOrder | ShuffledOrder, int, str]


def stretches(
    source: Documents, tokenizer: TokenizerProtocol, width: int, batch: int, seed: int, packed: bool,
    cache: str | Path | None,
) -> Stretch:  # fmt: skip
    """Rows of at most `width` tokens: the reader of a row, their order, number and fingerprint.

    Packed rows run over the ends of documents; an end token stands between two.
    """
    if packed:
        tokens = tokenize_documents(
            source, tokenizer, after=find_template(tokenizer, end=True).after, cache=cache
        )
        windows = TokenWindows(tokens, width, seed)
        check_counts(len(windows), batch, seed, tokens.name)
        read = lambda row, epoch: tokens.flat[windows.place(row, epoch)[0]].astype(np.int64)
        return read, ShuffledOrder(len(windows), batch, seed), len(windows), tokens.fingerprint
    tokens = tokenize_documents(source, tokenizer, cache=cache)
    parts = split_documents(tokens, width)
    kept = np.flatnonzero(parts.lengths > 1)
    check_counts(len(kept), batch, seed, tokens.name)
    order = BucketedOrder(parts.lengths[kept], batch, seed)
    return lambda row, epoch: parts[int(kept[row])], order, len(kept), tokens.fingerprint


def sentinel_ids(tokenizer: TokenizerProtocol) -> list[int]:
    """<extra_id_0>, <extra_id_1> … of the vocabulary; in T5 their ids descend."""
    ids = {name: i for i, name in enumerate(token_names(tokenizer)) if name.startswith("<extra_id_")}
    found = [ids[f"<extra_id_{i}>"] for i in range(len(ids)) if f"<extra_id_{i}>" in ids]
    if not found:
        size = len(tokenizer)
        raise InputError(
            "span corruption needs sentinels and this tokenizer has no <extra_id_0>",
            hint=(
                f"pass ids of your own: sentinels=range({size + 99}, {size - 1}, -1), with a model of "
                f"vocab={size + 100}"
            ),
            shell="--set tokenizer.sentinels=100 puts some into a vocabulary that is learnt",
        )
    return found


def spans(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    packed: bool = True,
    density: float = 0.15,
    mean: float = 3.0,
    sentinels: Sequence[int] | None = None,
    start: int | None = None,
    unit: Unit = "file",
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """T5's span corruption: a share `density` is cut out in spans of `mean`, a sentinel for each.

    The text read for a row is as long as makes the encoder's input `length` (512 → 568, targets 114).
    """
    if not 0 < density < 1 or mean < 1:
        raise InputError(f"density={density} must lie between 0 and 1, mean={mean} be at least 1")
    marks = sentinel_ids(tokenizer) if sentinels is None else list(sentinels)
    first = start_id(tokenizer, start, ("pad", "bos", "eos"))
    end = find_template(tokenizer, end=True).after
    raw, _ = corrupt.span_lengths(length - len(end) + 1, density, mean)
    texts = open_documents(source, unit, encoding)
    read, order, count, data = stretches(texts, tokenizer, raw, batch, seed, packed, cache)

    def make(row: int, epoch: int) -> Row:
        kept, cut = corrupt.corrupt_spans(
            read(row, epoch), seeded_generator(seed, epoch, row), marks, density, mean
        )
        closed = lambda ids: np.concatenate((ids, end)).astype(np.int64)
        return {"tokens": closed(kept), **shifted(closed(cut), first)}

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="spans", length=length, batch=batch, seed=seed, packed=packed, density=density, mean=mean,
        sentinels=marks, start=first,
    )  # fmt: skip
    pad = pad_id(tokenizer)
    return Batches(CollatedRows(count, make, pad), order, data, settings, pad=pad)


def denoise(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    packed: bool = True,
    noises: Sequence[str] = ("permute", "infill"),
    rate: float = 0.3,
    mean: float = 3.0,
    start: int | None = None,
    unit: Unit = "file",
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """BART's denoising: the noises one after another, and the text as it was to be written.

    blank, delete, infill, permute, rotate; BART itself used sentence permutation and infilling.
    """
    _check_noises(noises, rate)
    hide = require_special_token(tokenizer, "mask", "denoising") if {"blank", "infill"} & set(noises) else 0
    how = Noise(hide, sentence_end_flags(tokenizer), rate, mean)
    first = start_id(tokenizer, start, ("eos", "bos", "pad"))
    around = find_template(tokenizer, end=True)
    if length <= around.single_count:
        raise InputError(f"length={length} leaves no room beside {around.single_count} special tokens")
    texts = open_documents(source, unit, encoding)
    read, order, count, data = stretches(
        texts, tokenizer, length - around.single_count, batch, seed, packed, cache
    )

    def make(row: int, epoch: int) -> Row:
        ids, rng = read(row, epoch), seeded_generator(seed, epoch, row)
        noised = ids
        for name in noises:
            noised = corrupt.NOISES[name](noised, rng, how)
        return {"tokens": around.wrap(noised), **shifted(around.wrap(ids), first)}

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="denoise", length=length, batch=batch, seed=seed, packed=packed, noises=list(noises), rate=rate,
        mean=mean, start=first,
    )  # fmt: skip
    pad = pad_id(tokenizer)
    return Batches(CollatedRows(count, make, pad), order, data, settings, pad=pad)


def _check_noises(noises: Sequence[str], rate: float) -> None:
    for name in noises:
        if name not in corrupt.NOISES:
            hint = nearest(name, corrupt.NOISES) or f"one of {', '.join(corrupt.NOISES)}"
            raise InputError(f"no noise {name!r}", hint=hint)
    if not 0 < rate <= 1:
        raise InputError(
            f"rate={rate} of the tokens cannot be noised", hint="it must be above 0 and at most 1"
        )


def parallel(
    paths: Paths | Table,
    tokenizer: TokenizerProtocol,
    target_tokenizer: TokenizerProtocol | None = None,
    *,
    columns: tuple[Column, Column] | None = None,
    prefix: str = "",
    length: int = 256,
    batch: int = 32,
    max_tokens: int | None = None,
    seed: int = 0,
    start: int | None = None,
    truncate: bool = False,
    multiple: int = 1,
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """A text and what is to be written for it: two files of as many lines, or two columns of a table.

    Pairs of like length stand together. `max_tokens` bounds rows × longest row (batch then only the rows), as
    translation is usually trained. `prefix` goes before every source text. extra["row"] is the pair's number.
    `multiple` rounds lengths up and fills batches with empty rows (of number −1): the loss is the same, and
    few shapes are left, as recorded steps want (TrainConfig(graph=True)).
    """
    if multiple < 1:
        raise InputError(f"multiple={multiple}: lengths are rounded up to a multiple of 1 or more")
    sides = parallel_documents(paths, columns, encoding)
    theirs = target_tokenizer or tokenizer
    around, beyond = find_template(tokenizer, end=True), find_template(theirs, end=True)
    first = start_id(theirs, start, ("bos", "pad", "eos"))
    sources = tokenize_documents(_prefixed(sides[0], prefix), tokenizer, empty=True, cache=cache)
    targets = tokenize_documents(sides[1], theirs, empty=True, cache=cache)
    kept = np.flatnonzero((sources.lengths > 0) & (targets.lengths > 0))
    check_counts(len(kept), batch, seed, sources.name)
    lengths = np.stack(
        (sources.lengths[kept] + around.single_count, targets.lengths[kept] + beyond.single_count)
    )
    notes = fitted(lengths.max(0), length, truncate, "pairs", "raise length", sources.name)
    if len(kept) < len(sources):
        gone = len(sources) - len(kept)
        notes += (f"{gone:,} of {len(sources):,} pairs have an empty side and are left out",)

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="parallel",
        length=length,
        batch=batch,
        max_tokens=max_tokens,
        seed=seed,
        start=first,
    ) | ({"multiple": multiple} if multiple > 1 else {})
    pad = pad_id(tokenizer) if pad_id(tokenizer) < len(theirs) else 0
    order = BucketedOrder(round_up(np.minimum(lengths.max(0), length), multiple), batch, seed, max_tokens)
    data = join_fingerprints(
        sources.fingerprint, targets.fingerprint, f"({around.signature}, {beyond.signature})"
    )
    rows: RowSource = Pairs(sources, targets, kept, around, beyond, length, first, pad)
    if multiple > 1:
        rows = FixedShapeRows(rows, multiple, batch, max_tokens, pad)
    return Batches(rows, order, data, settings, notes=notes, pad=pad)


def _prefixed(texts: Documents, prefix: str) -> Documents:
    if not prefix:
        return texts
    put = lambda: ([prefix, whole] if whole else [] for whole in map("".join, texts))
    return Documents(put, texts.files, (*texts.settings, prefix), texts.name)
