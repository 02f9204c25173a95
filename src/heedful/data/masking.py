"""Batches for encoders: masked tokens, masked sentence pairs, replaced tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data import corrupt, vocabulary
from heedful.data.batch import Row
from heedful.data.batches import Batches, Bucketed, Shuffled, check_counts, generator
from heedful.data.corrupt import Masking
from heedful.data.language import Source, as_documents
from heedful.data.readers import Documents, Unit, paragraphs
from heedful.data.shards import Ragged, tokenise
from heedful.data.tokens import Frame, Ids, Tokenizer, ended, facts, frame, need, pad_id
from heedful.data.windows import Drawn, Windows, pieces
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
        return lambda row, epoch: generator(seed, epoch % static, row, FIXED)
    return lambda row, epoch: generator(seed, epoch, row)


def masking(
    tokenizer: Tokenizer, rate: float, whole: bool, masked: float = 0.8, random: float = 0.1
) -> Masking:
    """The settings of masking for a vocabulary."""
    hide = need(tokenizer, "mask", "masking")
    words = vocabulary.continues(tokenizer) if whole else None
    return Masking(hide, vocabulary.special(tokenizer), words, rate, masked, random)


@dataclass(frozen=True)
class Framed:
    """Text between its special tokens, by row and epoch; `settings` and `fingerprint` say which."""

    read: Callable[[int, int], tuple[Ids, Ids | None]]  # tokens and, of packed rows, their documents
    order: Bucketed | Shuffled
    count: int
    fingerprint: str


def framed(
    source: Documents, tokenizer: Tokenizer, length: int, batch: int, seed: int, packed: bool, turn: bool,
    cache: str | Path | None,
) -> Framed:  # fmt: skip
    """Rows for an encoder: windows over all documents, or pieces of one each; never longer than `length`."""
    around = frame(tokenizer)
    room = length - around.single
    if room < 1:
        raise InputError(f"length={length} leaves no room beside {around.single} special tokens")
    if not packed:
        tokens = tokenise(source, tokenizer, cache=cache)
        parts = pieces(tokens, room)
        check_counts(len(parts), batch, seed, tokens.name)
        order = Bucketed(parts.lengths, batch, seed)
        return Framed(
            lambda row, epoch: (around.one(parts[row]), None), order, len(parts), tokens.fingerprint
        )
    tokens = tokenise(source, tokenizer, after=ended(tokenizer, around).after, cache=cache)
    windows = Windows(tokens, room, seed, turn=turn)
    check_counts(len(windows), batch, seed, tokens.name)
    several = len(tokens) > 1

    def read(row: int, epoch: int) -> tuple[Ids, Ids | None]:
        place, _ = windows.place(row, epoch)
        ids = around.one(tokens.flat[place])
        if not several:
            return ids, None
        inside = windows.documents(place)
        left, right = [inside[0]] * len(around.before), [inside[-1]] * len(around.after)
        return ids, np.concatenate((left, inside, right)).astype(np.int64)

    return Framed(read, Shuffled(len(windows), batch, seed), len(windows), tokens.fingerprint)


def masked(
    source: Source,
    tokenizer: Tokenizer,
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
        as_documents(source, unit, encoding), tokenizer, length, batch, seed, packed, not static, cache
    )
    rng = draws(seed, static)

    def make(row: int, epoch: int) -> Row:
        ids, inside = rows.read(row, epoch)
        tokens, labels = corrupt.mask(ids, rng(row, epoch), how)
        made: dict[str, Any] = {"tokens": tokens, "labels": labels}
        return made if inside is None or not apart else {**made, "documents": inside}

    settings = dict(
        tokenizer=facts(tokenizer),
        kind="masked", length=length, batch=batch, seed=seed, packed=packed, apart=apart, rate=rate,
        keep=keep, random=random, whole=whole, static=static,
    )  # fmt: skip
    pad = pad_id(tokenizer)
    return Batches(Drawn(rows.count, make, pad), rows.order, rows.fingerprint, settings, pad=pad)


def replaced(
    source: Source,
    tokenizer: Tokenizer,
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
    rows = framed(as_documents(source, unit, encoding), tokenizer, length, batch, seed, packed, True, cache)

    def make(row: int, epoch: int) -> Row:
        ids, _ = rows.read(row, epoch)
        rng = generator(seed, epoch, row)
        if generated:
            tokens, labels = corrupt.mask(ids, rng, how)
            return {"tokens": tokens, "labels": labels, "original": ids}
        tokens, flags = corrupt.swap(ids, rng, how)
        return {"tokens": tokens, "replaced": flags}

    settings = dict(
        tokenizer=facts(tokenizer),
        kind="replaced",
        length=length,
        batch=batch,
        seed=seed,
        packed=packed,
        rate=rate,
        generated=generated,
    )
    pad = pad_id(tokenizer)
    return Batches(Drawn(rows.count, make, pad), rows.order, rows.fingerprint, settings, pad=pad)


def _swapping(tokenizer: Tokenizer, rate: float) -> Masking:
    return Masking(0, vocabulary.special(tokenizer), None, rate, 0.0, 1.0)


def sentences(
    source: Source, tokenizer: Tokenizer, encoding: str, cache: str | Path | None
) -> tuple[Ragged, Ragged]:
    """One sentence a line, blank lines between documents (BERT's own form): by sentences, by documents."""
    whole = as_documents(source, "file", encoding)

    def read() -> Iterator[list[str]]:
        for document in whole:
            yield from paragraphs(split_lines(document))

    settings = (*whole.settings, "sentences")
    each = Documents(lambda: ([s] for lines in read() for s in lines), whole.files, settings, whole.name)
    lines = tokenise(each, tokenizer, empty=True, cache=cache)
    first = np.fromiter((len(held) for held in read()), np.int64).cumsum()
    documents = Ragged(
        lines.flat, lines.offsets[np.concatenate(([0], first))], lines.fingerprint, lines.name, lines
    )
    return lines, documents


def pairs(
    source: Source,
    tokenizer: Tokenizer,
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
    room = length - around.double
    how = masking(tokenizer, rate, whole)
    lines, documents = sentences(source, tokenizer, encoding, cache)
    if (documents.lengths > 0).sum() < 2:
        raise InputError(
            f"{lines.name} has one document and pairs need two", hint="put blank lines between them"
        )
    parts = pieces(documents, room)
    kept = np.flatnonzero(parts.lengths > 1)
    check_counts(len(kept), batch, seed, lines.name)
    rng = draws(seed, static)

    def make(row: int, epoch: int) -> Row:
        drawn = rng(row, epoch)
        a, b, follows = _pair(lines, documents, parts.bounds(int(kept[row])), room, drawn)
        ids, types = around.two(a, b)
        tokens, labels = corrupt.mask(ids, drawn, how)
        return {"tokens": tokens, "labels": labels, "types": types, "follows": follows}

    settings = dict(
        tokenizer=facts(tokenizer),
        kind="pairs",
        length=length,
        batch=batch,
        seed=seed,
        rate=rate,
        whole=whole,
        draws=static,
    )
    pad = pad_id(tokenizer)
    order = Bucketed(parts.lengths[kept], batch, seed)
    return Batches(Drawn(len(kept), make, pad), order, lines.fingerprint, settings, pad=pad)


def _pairing(tokenizer: Tokenizer, length: int) -> Frame:
    """What goes around two sentences; an error if nothing parts them or they do not fit."""
    around = frame(tokenizer)
    if not around.between:
        raise InputError(
            "sentence pairs need a token between the two and this tokenizer has none", hint="give it [SEP]"
        )
    if length - around.double < 2:
        raise InputError(
            f"length={length} leaves no room for two sentences and {around.double} special tokens"
        )
    return around


def _pair(
    lines: Ragged, documents: Ragged, bounds: tuple[int, int], room: int, rng: np.random.Generator
) -> tuple[Ids, Ids, bool]:
    """The first part of a stretch, and its second or as much of another document."""
    start, end = bounds
    cut = _parting(lines, start, end, rng)
    a, b = lines.flat[start:cut].astype(np.int64), lines.flat[cut:end].astype(np.int64)
    if rng.random() < 0.5:
        return a, b, True
    return a, _elsewhere(lines, documents, start, room - len(a), rng).astype(np.int64), False


def _parting(lines: Ragged, start: int, end: int, rng: np.random.Generator) -> int:
    """Where a stretch of text is parted in two: between two sentences, or in the middle of its only one."""
    low, high = np.searchsorted(lines.offsets, (start + 1, end))
    return int(lines.offsets[rng.integers(low, high)]) if high > low else int(rng.integers(start + 1, end))


def _elsewhere(
    lines: Ragged, documents: Ragged, start: int, room: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Up to `room` tokens of another document, from the beginning of one of its sentences."""
    own = int(np.searchsorted(documents.offsets, start, "right")) - 1
    other, offsets = own, documents.offsets
    while other == own or offsets[other] == offsets[other + 1]:
        other = int(rng.integers(len(documents)))
    low, high = np.searchsorted(lines.offsets, (documents.offsets[other], documents.offsets[other + 1]))
    first = int(lines.offsets[rng.integers(low, high)])
    return lines.flat[first : min(first + room, int(documents.offsets[other + 1]))]
