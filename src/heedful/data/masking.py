"""Batches for encoders: masked tokens, masked sentence pairs, replaced tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data import corruption as corrupt
from heedful.data.batch import Row
from heedful.data.batches import Batches, BucketedOrder, ShuffledOrder, check_counts, seeded_generator
from heedful.data.corruption import Masking
from heedful.data.language import Source, open_documents
from heedful.data.readers import Documents, Unit, paragraphs
from heedful.data.token_cache import RaggedArray, tokenize_documents
from heedful.data.tokenization import (
    Ids,
    Template,
    TokenizerProtocol,
    continuation_flags,
    find_template,
    pad_id,
    require_special_token,
    special_flags,
    tokenizer_signature,
)
from heedful.data.windows import CollatedRows, TokenWindows, split_documents
from heedful.errors import InputError
from heedful.files import split_lines

FIXED = 0x57A71C  # tells draws that are the same every epoch from others


def draws(seed: int, static: int) -> Callable[[int, int], np.random.Generator]:
    """The generator of a row: new every epoch, or one of `static` that take turns."""
    if static < 0:
        raise InputError(
            f"static={static}: how many fixed maskings a row has", hint="0 draws anew every epoch"
        )
    if static:
        return lambda row, epoch: seeded_generator(seed, epoch % static, row, FIXED)
    return lambda row, epoch: seeded_generator(seed, epoch, row)


def masking(
    tokenizer: TokenizerProtocol, rate: float, whole: bool, masked: float = 0.8, random: float = 0.1
) -> Masking:
    """The settings of masking for a vocabulary."""
    hide = require_special_token(tokenizer, "mask", "masking")
    words = continuation_flags(tokenizer) if whole else None
    return Masking(hide, special_flags(tokenizer), words, rate, masked, random)


@dataclass(frozen=True)
class Framed:
    """Text between its special tokens, by row and epoch; `settings` and `fingerprint` say which."""

    read: Callable[[int, int], tuple[Ids, Ids | None]]  # tokens and, of packed rows, their documents
    order: BucketedOrder | ShuffledOrder
    count: int
    fingerprint: str


def framed(
    source: Documents, tokenizer: TokenizerProtocol, length: int, batch: int, seed: int, packed: bool, turn: bool,
    cache: str | Path | None,
) -> Framed:  # fmt: skip
    """Rows for an encoder: windows over all documents, or pieces of one each; never longer than `length`."""
    around = find_template(tokenizer)
    room = length - around.single_count
    if room < 1:
        raise InputError(f"length={length} leaves no room beside {around.single_count} special tokens")
    if not packed:
        tokens = tokenize_documents(source, tokenizer, cache=cache)
        parts = split_documents(tokens, room)
        check_counts(len(parts), batch, seed, tokens.name)
        order = BucketedOrder(parts.lengths, batch, seed)
        return Framed(
            lambda row, epoch: (around.wrap(parts[row]), None), order, len(parts), tokens.fingerprint
        )
    tokens = tokenize_documents(
        source, tokenizer, after=find_template(tokenizer, end=True).after, cache=cache
    )
    windows = TokenWindows(tokens, room, seed, turn=turn)
    check_counts(len(windows), batch, seed, tokens.name)
    several = len(tokens) > 1

    def read(row: int, epoch: int) -> tuple[Ids, Ids | None]:
        place, _ = windows.place(row, epoch)
        ids = around.wrap(tokens.flat[place])
        if not several:
            return ids, None
        inside = windows.documents(place)
        left, right = [inside[0]] * len(around.before), [inside[-1]] * len(around.after)
        return ids, np.concatenate((left, inside, right)).astype(np.int64)

    return Framed(read, ShuffledOrder(len(windows), batch, seed), len(windows), tokens.fingerprint)


def masked(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    packed: bool = True,
    apart: bool = True,
    rate: float = 0.15,
    keep: float = 0.1,
    random: float = 0.1,
    whole: bool = False,
    static: int = 0,
    unit: Unit = "file",
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """Masked tokens (Devlin et al. 2019): `rate` of them predicted, 80 % hidden, 10 % random, 10 % kept.

    Drawn anew every epoch (RoBERTa), or `static` fixed maskings in turn (BERT had 10). `whole`: whole words.
    """
    how = masking(tokenizer, rate, whole, 1 - keep - random, random)
    rows = framed(
        open_documents(source, unit, encoding), tokenizer, length, batch, seed, packed, not static, cache
    )
    rng = draws(seed, static)

    def make(row: int, epoch: int) -> Row:
        ids, inside = rows.read(row, epoch)
        tokens, labels = corrupt.mask_tokens(ids, rng(row, epoch), how)
        made: dict[str, Any] = {"tokens": tokens, "labels": labels}
        return made if inside is None or not apart else {**made, "documents": inside}

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="masked", length=length, batch=batch, seed=seed, packed=packed, apart=apart, rate=rate,
        keep=keep, random=random, whole=whole, static=static,
    )  # fmt: skip
    pad = pad_id(tokenizer)
    return Batches(CollatedRows(rows.count, make, pad), rows.order, rows.fingerprint, settings, pad=pad)


def replaced(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    packed: bool = True,
    rate: float = 0.15,
    generated: bool = False,
    unit: Unit = "file",
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """Replaced-token detection (Clark et al. 2020): extra["replaced"] is 1 where a token was put in, else 0.

    `generated` leaves the replacing to a generator: `tokens` has masks, `labels` what stood there, and
    extra["original"] the whole text.
    """
    how = masking(tokenizer, rate, False, 1.0, 0.0) if generated else _swapping(tokenizer, rate)
    rows = framed(open_documents(source, unit, encoding), tokenizer, length, batch, seed, packed, True, cache)

    def make(row: int, epoch: int) -> Row:
        ids, _ = rows.read(row, epoch)
        rng = seeded_generator(seed, epoch, row)
        if generated:
            tokens, labels = corrupt.mask_tokens(ids, rng, how)
            return {"tokens": tokens, "labels": labels, "original": ids}
        tokens, flags = corrupt.replace_tokens(ids, rng, how)
        return {"tokens": tokens, "replaced": flags}

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="replaced",
        length=length,
        batch=batch,
        seed=seed,
        packed=packed,
        rate=rate,
        generated=generated,
    )
    pad = pad_id(tokenizer)
    return Batches(CollatedRows(rows.count, make, pad), rows.order, rows.fingerprint, settings, pad=pad)


def _swapping(tokenizer: TokenizerProtocol, rate: float) -> Masking:
    return Masking(0, special_flags(tokenizer), None, rate, 0.0, 1.0)


def sentences(
    source: Source, tokenizer: TokenizerProtocol, encoding: str, cache: str | Path | None
) -> tuple[RaggedArray, RaggedArray]:
    """One sentence a line, blank lines between documents (BERT's own form): by sentences, by documents."""
    whole = open_documents(source, "file", encoding)

    def read() -> Iterator[list[str]]:
        for document in whole:
            yield from paragraphs(split_lines(document))

    settings = (*whole.settings, "sentences")
    each = Documents(lambda: ([s] for lines in read() for s in lines), whole.files, settings, whole.name)
    lines = tokenize_documents(each, tokenizer, empty=True, cache=cache)
    first = np.fromiter((len(held) for held in read()), np.int64).cumsum()
    documents = RaggedArray(
        lines.flat, lines.offsets[np.concatenate(([0], first))], lines.fingerprint, lines.name, lines
    )
    return lines, documents


def pairs(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
    rate: float = 0.15,
    whole: bool = False,
    static: int = 0,
    encoding: str = "utf-8",
    cache: str | Path | None = None,
) -> Batches:
    """[CLS] a [SEP] b [SEP], masked; half of the b follow their a, half are of another document (BERT §3.1).

    The file has one sentence a line and blank lines between documents. A row is a stretch of a document,
    parted between two of its sentences (inside one if it has no other place). extra["follows"] tells the two
    kinds apart.
    """
    around = _pairing(tokenizer, length)
    room = length - around.pair_count
    how = masking(tokenizer, rate, whole)
    lines, documents = sentences(source, tokenizer, encoding, cache)
    if (documents.lengths > 0).sum() < 2:
        raise InputError(
            f"{lines.name} has one document and pairs need two", hint="put blank lines between them"
        )
    parts = split_documents(documents, room)
    kept = np.flatnonzero(parts.lengths > 1)
    check_counts(len(kept), batch, seed, lines.name)
    rng = draws(seed, static)

    def make(row: int, epoch: int) -> Row:
        drawn = rng(row, epoch)
        a, b, follows = _pair(lines, documents, parts.bounds(int(kept[row])), room, drawn)
        ids, types = around.wrap_pair(a, b)
        tokens, labels = corrupt.mask_tokens(ids, drawn, how)
        return {"tokens": tokens, "labels": labels, "types": types, "follows": follows}

    settings = dict(
        tokenizer=tokenizer_signature(tokenizer),
        kind="pairs",
        length=length,
        batch=batch,
        seed=seed,
        rate=rate,
        whole=whole,
        draws=static,
    )
    pad = pad_id(tokenizer)
    order = BucketedOrder(parts.lengths[kept], batch, seed)
    return Batches(CollatedRows(len(kept), make, pad), order, lines.fingerprint, settings, pad=pad)


def _pairing(tokenizer: TokenizerProtocol, length: int) -> Template:
    """What goes around two sentences; an error if nothing parts them or they do not fit."""
    around = find_template(tokenizer)
    if not around.between:
        raise InputError(
            "sentence pairs need a token between the two and this tokenizer has none", hint="give it [SEP]"
        )
    if length - around.pair_count < 2:
        raise InputError(
            f"length={length} leaves no room for two sentences and {around.pair_count} special tokens"
        )
    return around


def _pair(
    lines: RaggedArray, documents: RaggedArray, bounds: tuple[int, int], room: int, rng: np.random.Generator
) -> tuple[Ids, Ids, bool]:
    """The first part of a stretch, and its second or as much of another document."""
    start, end = bounds
    cut = _parting(lines, start, end, rng)
    a, b = lines.flat[start:cut].astype(np.int64), lines.flat[cut:end].astype(np.int64)
    if rng.random() < 0.5:
        return a, b, True
    return a, _elsewhere(lines, documents, start, room - len(a), rng).astype(np.int64), False


def _parting(lines: RaggedArray, start: int, end: int, rng: np.random.Generator) -> int:
    """Where a stretch of text is parted in two: between two sentences, or in the middle of its only one."""
    low, high = np.searchsorted(lines.offsets, (start + 1, end))
    return int(lines.offsets[rng.integers(low, high)]) if high > low else int(rng.integers(start + 1, end))


def _elsewhere(
    lines: RaggedArray, documents: RaggedArray, start: int, room: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Up to `room` tokens of another document, from the beginning of one of its sentences."""
    own = int(np.searchsorted(documents.offsets, start, "right")) - 1
    other, offsets = own, documents.offsets
    while other == own or offsets[other] == offsets[other + 1]:
        other = int(rng.integers(len(documents)))
    low, high = np.searchsorted(lines.offsets, (documents.offsets[other], documents.offsets[other + 1]))
    first = int(lines.offsets[rng.integers(low, high)])
    return lines.flat[first : min(first + room, int(documents.offsets[other + 1]))]
