"""Batches for encoders: masked tokens, masked sentence pairs, replaced tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError
from heedful.core.files import split_lines
from heedful.data.batch import Row
from heedful.data.batch_options import BatchKeywords, BatchOptions, TextKeywords, takes_options
from heedful.data.batches import Batches, seeded_generator
from heedful.data.corruption import Masking, mask_tokens, replace_tokens
from heedful.data.readers import Documents, split_paragraphs
from heedful.data.tables import Source, open_documents
from heedful.data.token_cache import RaggedArray, tokenize_documents
from heedful.data.tokenization import (
    Ids,
    TokenizerProtocol,
    continuation_flags,
    find_template,
    require_special_token,
    special_flags,
    tokenizer_signature,
)
from heedful.data.windows import split_into_pieces, text_rows

FIXED = 0x57A71C  # tells draws that are the same every epoch from others


def row_generators(seed: int, static: int) -> Callable[[int, int], np.random.Generator]:
    """Return the generator of each row and epoch: new every epoch, or one of `static` that take turns."""
    if static < 0:
        raise InputError(
            f"static={static}: how many fixed maskings a row has", hint="0 draws anew every epoch"
        )
    if static:
        return lambda row, epoch: seeded_generator(seed, epoch % static, row, FIXED)
    return lambda row, epoch: seeded_generator(seed, epoch, row)


def make_masking(
    tokenizer: TokenizerProtocol, rate: float, whole_words: bool, masked: float = 0.8, random: float = 0.1
) -> Masking:
    """Return the settings of masking for a vocabulary."""
    mask = require_special_token(tokenizer, "mask", "masking")
    continues = continuation_flags(tokenizer) if whole_words else None
    return Masking(mask, special_flags(tokenizer), continues, rate, masked, random)


@takes_options(TextKeywords)
def masked(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    apart: bool = True,
    rate: float = 0.15,
    keep: float = 0.1,
    random: float = 0.1,
    whole: bool = False,
    static: int = 0,
    **keywords: Unpack[TextKeywords],
) -> Batches:
    """Masked tokens (Devlin et al. 2019): `rate` of them predicted, 80 % hidden, 10 % random, 10 % kept.

    Drawn anew every epoch (RoBERTa), or `static` fixed maskings in turn (BERT had 10). `whole`: whole words.
    """
    options, template = BatchOptions(**keywords), find_template(tokenizer)
    masking = make_masking(tokenizer, rate, whole, 1 - keep - random, random)
    width = options.check_room(template.single_count)
    rows = text_rows(source, tokenizer, width, options, turn=not static, separate=apart)
    rng = row_generators(options.seed, static)

    def make(row: int, epoch: int) -> Row:
        ids, inside = rows.read(row, epoch)
        tokens, labels = mask_tokens(template.wrap(ids), rng(row, epoch), masking)
        if inside is None:
            return {"tokens": tokens, "labels": labels}
        nearest = np.clip(np.arange(len(tokens)) - len(template.before), 0, len(ids) - 1)
        return {"tokens": tokens, "labels": labels, "documents": inside[nearest]}

    return rows.build(
        "masked", make, apart=apart, rate=rate, keep=keep, random=random, whole=whole, static=static
    )


@takes_options(TextKeywords)
def replaced(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    rate: float = 0.15,
    generated: bool = False,
    **keywords: Unpack[TextKeywords],
) -> Batches:
    """Replaced-token detection (Clark et al. 2020): extra["replaced"] is 1 where a token was put in, else 0.

    `generated` leaves the replacing to a generator: `tokens` has masks, `labels` what stood there, and
    extra["original"] the whole text.
    """
    options, template = BatchOptions(**keywords), find_template(tokenizer)
    if generated:
        masking = make_masking(tokenizer, rate, False, 1.0, 0.0)
    else:
        masking = Masking(0, special_flags(tokenizer), None, rate, 0.0, 1.0)
    rows = text_rows(source, tokenizer, options.check_room(template.single_count), options)

    def make(row: int, epoch: int) -> Row:
        ids, rng = template.wrap(rows.read(row, epoch)[0]), seeded_generator(options.seed, epoch, row)
        if generated:
            tokens, labels = mask_tokens(ids, rng, masking)
            return {"tokens": tokens, "labels": labels, "original": ids}
        tokens, flags = replace_tokens(ids, rng, masking)
        return {"tokens": tokens, "replaced": flags}

    return rows.build("replaced", make, rate=rate, generated=generated)


@takes_options(BatchKeywords)
def pairs(
    source: Source, tokenizer: TokenizerProtocol, *, rate: float = 0.15, whole: bool = False, static: int = 0,
    cache: str | Path | None = None, **keywords: Unpack[BatchKeywords],
) -> Batches:  # fmt: skip
    """[CLS] a [SEP] b [SEP], masked; half of the b follow their a, half are of another document (BERT §3.1).

    The file has one sentence a line and blank lines between documents. A row is a stretch of a document,
    parted between two of its sentences (inside one if it has no other place). extra["follows"] tells the two
    kinds apart.
    """
    options, template = BatchOptions(cache=cache, **keywords), find_template(tokenizer)
    if not template.between:
        raise InputError(
            "sentence pairs need a token between the two and this tokenizer has none", hint="give it [SEP]"
        )
    width = options.check_room(template.pair_count, minimum=2)
    masking = make_masking(tokenizer, rate, whole)
    lines, documents = _tokenize_sentences(source, tokenizer, options)
    if (documents.lengths > 0).sum() < 2:
        raise InputError(
            f"{lines.name} has one document and pairs need two", hint="put blank lines between them"
        )
    pieces = split_into_pieces(documents, width)
    kept = np.flatnonzero(pieces.lengths > 1)
    order, generators = options.bucket(pieces.lengths[kept], lines.name), row_generators(options.seed, static)

    def make(row: int, epoch: int) -> Row:
        rng = generators(row, epoch)
        a, b, follows = _sentence_pair(lines, documents, pieces.bounds(int(kept[row])), width, rng)
        ids, types = template.wrap_pair(a, b)
        tokens, labels = mask_tokens(ids, rng, masking)
        return {"tokens": tokens, "labels": labels, "types": types, "follows": follows}

    return options.build(
        "pairs", tokenizer, order, make, lines.fingerprint,
        tokenizer=tokenizer_signature(tokenizer), rate=rate, whole=whole, draws=static,
    )  # fmt: skip


def _tokenize_sentences(
    source: Source, tokenizer: TokenizerProtocol, options: BatchOptions
) -> tuple[RaggedArray, RaggedArray]:
    """Return the ids by sentences and by documents; a line is a sentence, blank lines part documents."""
    files = open_documents(source, "file", options.encoding)

    def read_lines() -> Iterator[list[str]]:
        for document in files:
            yield from split_paragraphs(split_lines(document))

    settings = (*files.settings, "sentences")
    sentences = Documents(
        lambda: ([s] for lines in read_lines() for s in lines), files.files, settings, files.name
    )
    lines = tokenize_documents(sentences, tokenizer, empty=True, cache=options.cache)
    ends = np.fromiter((len(document) for document in read_lines()), np.int64).cumsum()
    offsets = lines.offsets[np.concatenate(([0], ends))]
    return lines, RaggedArray(lines.flat, offsets, lines.fingerprint, lines.name, lines)


def _sentence_pair(
    lines: RaggedArray, documents: RaggedArray, bounds: tuple[int, int], width: int, rng: np.random.Generator
) -> tuple[Ids, Ids, bool]:
    """Return the first part of a stretch, and its second part or as much of another document."""
    start, end = bounds
    low, high = np.searchsorted(lines.offsets, (start + 1, end))
    # Between two sentences, or in the middle of the only one.
    cut = int(lines.offsets[rng.integers(low, high)]) if high > low else int(rng.integers(start + 1, end))
    a, b = lines.flat[start:cut].astype(np.int64), lines.flat[cut:end].astype(np.int64)
    if rng.random() < 0.5:
        return a, b, True
    return a, _other_document(lines, documents, start, width - len(a), rng).astype(np.int64), False


def _other_document(
    lines: RaggedArray, documents: RaggedArray, start: int, max_tokens: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return up to `max_tokens` of another document, from the beginning of one of its sentences."""
    own = int(np.searchsorted(documents.offsets, start, "right")) - 1
    other, offsets = own, documents.offsets
    while other == own or offsets[other] == offsets[other + 1]:
        other = int(rng.integers(len(documents)))
    low, high = np.searchsorted(lines.offsets, (documents.offsets[other], documents.offsets[other + 1]))
    first = int(lines.offsets[rng.integers(low, high)])
    return lines.flat[first : min(first + max_tokens, int(documents.offsets[other + 1]))]
