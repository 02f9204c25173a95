"""Plain text with a part hidden: masked tokens, sentence pairs and replaced tokens; spans and noise to undo.

Encoders predict the hidden tokens (`masked`, `pairs`, `replaced`). Encoder-decoders write them (`spans`,
`denoise`): `tokens` is the input of the encoder, `labels` the output of the decoder, and `target` its input,
the labels moved right by the start token. Models differ in that token, so pass `start=model.start_token`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from heedful.core.checks import check_choice, check_integer, check_number
from heedful.core.errors import InputError
from heedful.core.files import split_lines
from heedful.data.batch import IGNORE, Row
from heedful.data.batch_options import BatchKeywords, BatchOptions, TextKeywords, takes_options
from heedful.data.batches import Batches, BucketedOrder, ShuffledOrder, seeded_generator
from heedful.data.examples.corruption import (
    NOISES,
    Masking,
    Noise,
    corrupt_spans,
    mask_tokens,
    replace_tokens,
    span_lengths,
)
from heedful.data.examples.language_modeling import TokenWindows, cut_into_pieces
from heedful.data.readers import Documents, Source, open_documents, split_paragraphs
from heedful.data.token_cache import RaggedArray, tokenize_documents
from heedful.data.tokenization import (
    Ids,
    TokenizerProtocol,
    continuation_flags,
    find_template,
    mask_id,
    sentence_end_flags,
    special_flags,
    start_token_id,
    tokenizer_signature,
    vocabulary_names,
)

FIXED = 0x57A71C  # tells draws that are the same every epoch from others


def row_generators(seed: int, static: int) -> Callable[[int, int], np.random.Generator]:
    """Return the generator of each row and epoch: new every epoch, or one of `static` that take turns."""
    if check_integer("static", static, minimum=0):
        return lambda row, epoch: seeded_generator(seed, epoch % static, row, FIXED)
    return lambda row, epoch: seeded_generator(seed, epoch, row)


def change_rows(
    kind: str, source: Source, tokenizer: TokenizerProtocol, width: int, options: BatchOptions,
    change: Callable[[Ids, np.random.Generator, Ids | None], Row], settings: dict[str, Any], *,
    min_tokens: int = 1, static: int = 0, apart: bool = False,
) -> Batches:  # fmt: skip
    """Return the batches of what `change` makes of rows of at most `width` tokens, without special tokens.

    Rows are windows if packed, else pieces of documents. Packed rows run over the ends of documents; an end
    token stands between two. `change` gets the ids, the generator of the row, and the document of each token
    if they are kept `apart`.
    """
    documents = open_documents(source, options.unit, options.encoding)
    end = find_template(tokenizer, end=True).after if options.packed else ()
    tokens = tokenize_documents(documents, tokenizer, after=end, cache=options.cache)
    generators = row_generators(options.seed, static)
    order: BucketedOrder | ShuffledOrder
    if options.packed:
        windows = TokenWindows(tokens, width, options.seed, turn=not static)
        order = options.shuffle(len(windows), tokens.name)
    else:
        pieces = cut_into_pieces(tokens, width)
        pieces = pieces[np.diff(pieces)[:, 0] >= min_tokens]
        options.check_rows(len(pieces), tokens.name)
        order = BucketedOrder(np.diff(pieces)[:, 0], options.batch, options.seed)

    def make(row: int, epoch: int) -> Row:
        if not options.packed:
            ids = tokens.flat[slice(*pieces[row])].astype(np.int64)
            return change(ids, generators(row, epoch), None)
        positions, _ = windows.positions(row, epoch)
        ids = tokens.flat[positions].astype(np.int64)
        inside = windows.documents(positions) if apart and len(tokens) > 1 else None
        return change(ids, generators(row, epoch), inside)

    return options.build(
        kind, tokenizer, order, make, tokens.fingerprint,
        tokenizer=tokenizer_signature(tokenizer), packed=options.packed, **settings,
    )  # fmt: skip


def make_masking(
    tokenizer: TokenizerProtocol, rate: float, whole_words: bool, masked: float = 0.8, random: float = 0.1
) -> Masking:
    """Return the settings of masking for a vocabulary."""
    mask = mask_id(tokenizer, "masking")
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

    Drawn again every epoch (RoBERTa), or `static` fixed maskings in turn (BERT had 10). `whole`: whole words.
    """
    options, template = BatchOptions(**keywords), find_template(tokenizer)
    masking = make_masking(tokenizer, rate, whole, 1 - keep - random, random)
    width = options.check_room(template.single_count)

    def change(ids: Ids, rng: np.random.Generator, inside: Ids | None) -> Row:
        tokens, labels = mask_tokens(template.wrap(ids), rng, masking)
        if inside is None:
            return {"tokens": tokens, "labels": labels}
        nearest = np.clip(np.arange(len(tokens)) - len(template.before), 0, len(ids) - 1)
        return {"tokens": tokens, "labels": labels, "documents": inside[nearest]}

    settings = dict(apart=apart, rate=rate, keep=keep, random=random, whole=whole, static=static)
    return change_rows(
        "masked", source, tokenizer, width, options, change, settings, static=static, apart=apart
    )


@takes_options(TextKeywords)
def permuted(
    source: Source, tokenizer: TokenizerProtocol, *, rate: float = 1 / 6, **keywords: Unpack[TextKeywords]
) -> Batches:
    """Words predicted in a drawn order (Yang et al. 2019 §2.3): the last `rate` of it, from all before.

    extra["order"] is the rank of each token, drawn again every epoch. Special tokens come first.
    """
    check_number("rate", rate, maximum=1, above=0)
    options, template = BatchOptions(**keywords), find_template(tokenizer)
    width, special = options.check_room(template.single_count), special_flags(tokenizer)

    def change(text: Ids, rng: np.random.Generator, inside: Ids | None) -> Row:
        ids = template.wrap(text)
        fixed = special[ids]
        order = (rng.random(len(ids)) - fixed).argsort().argsort()
        last = len(ids) - max(1, round(rate * int((~fixed).sum())))
        return {"tokens": ids, "labels": np.where((order >= last) & ~fixed, ids, IGNORE), "order": order}

    return change_rows("permuted", source, tokenizer, width, options, change, {"rate": rate})


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
    width = options.check_room(template.single_count)

    def change(text: Ids, rng: np.random.Generator, inside: Ids | None) -> Row:
        ids = template.wrap(text)
        if generated:
            tokens, labels = mask_tokens(ids, rng, masking)
            return {"tokens": tokens, "labels": labels, "original": ids}
        tokens, flags = replace_tokens(ids, rng, masking)
        return {"tokens": tokens, "replaced": flags}

    settings = {"rate": rate, "generated": generated}
    return change_rows("replaced", source, tokenizer, width, options, change, settings)


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
            f"{lines.name} has one document, but sentence pairs need two", hint="put blank lines between them"
        )
    pieces = cut_into_pieces(documents, width)
    pieces = pieces[np.diff(pieces)[:, 0] > 1]
    order = options.bucket(np.diff(pieces)[:, 0], lines.name)
    generators = row_generators(options.seed, static)

    def make(row: int, epoch: int) -> Row:
        rng = generators(row, epoch)
        a, b, follows = _sentence_pair(lines, documents, pieces[row], width, rng)
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
    return lines, RaggedArray(lines.flat, offsets, lines.fingerprint, lines.name)


def _sentence_pair(
    lines: RaggedArray, documents: RaggedArray, piece: Ids, width: int, rng: np.random.Generator
) -> tuple[Ids, Ids, bool]:
    """Return the first part of a stretch, and its second part or as much of another document."""
    start, end = piece.tolist()
    low, high = np.searchsorted(lines.offsets, (start + 1, end))
    # Between two sentences, or in the middle of the only one.
    cut = int(lines.offsets[rng.integers(low, high)]) if high > low else int(rng.integers(start + 1, end))
    a, b = lines.flat[start:cut].astype(np.int64), lines.flat[cut:end].astype(np.int64)
    if rng.random() < 0.5:
        return a, b, True
    # As much of another document, from the beginning of one of its sentences.
    own = int(np.searchsorted(documents.offsets, start, "right")) - 1
    other, offsets = own, documents.offsets
    while other == own or offsets[other] == offsets[other + 1]:
        other = int(rng.integers(len(documents)))
    low, high = np.searchsorted(lines.offsets, (offsets[other], offsets[other + 1]))
    first = int(lines.offsets[rng.integers(low, high)])
    stop = min(first + width - len(a), int(offsets[other + 1]))
    return a, lines.flat[first:stop].astype(np.int64), False


def decoder_row(labels: Ids, start: int) -> dict[str, Ids]:
    """Return the decoder's input and output. A text that begins with the start token already has it."""
    labels = labels[1:] if len(labels) > 1 and labels[0] == start else labels
    return {"target": np.concatenate(([start], labels[:-1])).astype(np.int64), "labels": labels}


def sentinel_ids(tokenizer: TokenizerProtocol) -> list[int]:
    """<extra_id_0>, <extra_id_1> … of the vocabulary; in T5 their ids descend."""
    ids = {name: i for i, name in enumerate(vocabulary_names(tokenizer)) if name.startswith("<extra_id_")}
    sentinels = [ids[f"<extra_id_{i}>"] for i in range(len(ids)) if f"<extra_id_{i}>" in ids]
    if not sentinels:
        size = len(tokenizer)
        own = f"`sentinels=range({size + 99}, {size - 1}, -1)`, with a model of `vocab={size + 100}`"
        raise InputError(
            "span corruption needs sentinels and this tokenizer has no <extra_id_0>",
            hint=f"pass ids of your own: {own}",
        )
    return sentinels


@takes_options(TextKeywords)
def spans(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    density: float = 0.15,
    mean: float = 3.0,
    sentinels: Sequence[int] | None = None,
    start: int | None = None,
    **keywords: Unpack[TextKeywords],
) -> Batches:
    """T5's span corruption: a share `density` is cut out in spans of `mean`, a sentinel for each.

    The text read for a row is as long as makes the encoder's input `length` (512 → 568, targets 114).
    """
    options = BatchOptions(**keywords)
    if not 0 < density < 1 or mean < 1:
        raise InputError(f"`density={density}` must lie between 0 and 1, `mean={mean}` be at least 1")
    marks = sentinel_ids(tokenizer) if sentinels is None else list(sentinels)
    first = start_token_id(tokenizer, start, ("pad", "bos", "eos"))
    end = find_template(tokenizer, end=True).after
    width, _ = span_lengths(options.length - len(end) + 1, density, mean)

    def change(ids: Ids, rng: np.random.Generator, inside: Ids | None) -> Row:
        rest, cut = corrupt_spans(ids, rng, marks, density, mean)
        with_end = lambda ids: np.concatenate((ids, end)).astype(np.int64)
        return {"tokens": with_end(rest), **decoder_row(with_end(cut), first)}

    settings = dict(density=density, mean=mean, sentinels=marks, start=first)
    return change_rows("spans", source, tokenizer, width, options, change, settings, min_tokens=2)


@takes_options(TextKeywords)
def denoise(
    source: Source,
    tokenizer: TokenizerProtocol,
    *,
    noises: Sequence[str] = ("permute", "infill"),
    rate: float = 0.3,
    mean: float = 3.0,
    start: int | None = None,
    **keywords: Unpack[TextKeywords],
) -> Batches:
    """BART's denoising: the noises one after another, and the text as it was to be written.

    blank, delete, infill, permute, rotate; BART itself used sentence permutation and infilling.
    """
    options = BatchOptions(**keywords)
    for name in noises:
        check_choice("noise", name, NOISES)
    mask = mask_id(tokenizer, "denoising") if {"blank", "infill"} & set(noises) else 0
    noise = Noise(mask, sentence_end_flags(tokenizer), rate, mean)
    first = start_token_id(tokenizer, start, ("eos", "sep", "bos", "pad"))
    template = find_template(tokenizer, end=True)
    width = options.check_room(template.single_count)

    def change(ids: Ids, rng: np.random.Generator, inside: Ids | None) -> Row:
        noisy = ids
        for name in noises:
            noisy = NOISES[name](noisy, rng, noise)
        return {"tokens": template.wrap(noisy), **decoder_row(template.wrap(ids), first)}

    settings = dict(noises=list(noises), rate=rate, mean=mean, start=first)
    return change_rows("denoise", source, tokenizer, width, options, change, settings, min_tokens=2)
