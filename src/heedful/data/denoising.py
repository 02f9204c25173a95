"""Batches of plain text for encoder-decoders: span corruption and denoising.

`tokens` is what the encoder reads, `labels` what the decoder writes, `target` what it reads: the labels moved
right by the start token. Models differ in that token, so pass `start=model.start_token`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.data.batch import Row
from heedful.data.batch_options import BatchOptions, TextKeywords, takes_options
from heedful.data.batches import Batches, seeded_generator
from heedful.data.corruption import NOISES, Noise, corrupt_spans, span_lengths
from heedful.data.tables import Source
from heedful.data.tokenization import (
    Ids,
    TokenizerProtocol,
    find_template,
    require_special_token,
    sentence_end_flags,
    start_token_id,
    vocabulary_names,
)
from heedful.data.windows import text_rows


def decoder_row(labels: Ids, start: int) -> dict[str, Ids]:
    """Return what the decoder reads and writes. A text that begins with the start token already has it."""
    labels = labels[1:] if len(labels) > 1 and labels[0] == start else labels
    return {"target": np.concatenate(([start], labels[:-1])).astype(np.int64), "labels": labels}


def sentinel_ids(tokenizer: TokenizerProtocol) -> list[int]:
    """<extra_id_0>, <extra_id_1> … of the vocabulary; in T5 their ids descend."""
    ids = {name: i for i, name in enumerate(vocabulary_names(tokenizer)) if name.startswith("<extra_id_")}
    sentinels = [ids[f"<extra_id_{i}>"] for i in range(len(ids)) if f"<extra_id_{i}>" in ids]
    if not sentinels:
        size = len(tokenizer)
        own = f"sentinels=range({size + 99}, {size - 1}, -1), with a model of vocab={size + 100}"
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
        raise InputError(f"density={density} must lie between 0 and 1, mean={mean} be at least 1")
    marks = sentinel_ids(tokenizer) if sentinels is None else list(sentinels)
    first = start_token_id(tokenizer, start, ("pad", "bos", "eos"))
    end = find_template(tokenizer, end=True).after
    width, _ = span_lengths(options.length - len(end) + 1, density, mean)
    rows = text_rows(source, tokenizer, width, options, min_tokens=2)

    def make(row: int, epoch: int) -> Row:
        ids, _ = rows.read(row, epoch)
        kept, cut = corrupt_spans(ids, seeded_generator(options.seed, epoch, row), marks, density, mean)
        with_end = lambda ids: np.concatenate((ids, end)).astype(np.int64)
        return {"tokens": with_end(kept), **decoder_row(with_end(cut), first)}

    return rows.build("spans", make, density=density, mean=mean, sentinels=marks, start=first)


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
    mask = require_special_token(tokenizer, "mask", "denoising") if {"blank", "infill"} & set(noises) else 0
    noise = Noise(mask, sentence_end_flags(tokenizer), rate, mean)
    first = start_token_id(tokenizer, start, ("eos", "bos", "pad"))
    template = find_template(tokenizer, end=True)
    width = options.check_room(template.single_count)
    rows = text_rows(source, tokenizer, width, options, min_tokens=2)

    def make(row: int, epoch: int) -> Row:
        ids, _ = rows.read(row, epoch)
        noisy, rng = ids, seeded_generator(options.seed, epoch, row)
        for name in noises:
            noisy = NOISES[name](noisy, rng, noise)
        return {"tokens": template.wrap(noisy), **decoder_row(template.wrap(ids), first)}

    return rows.build("denoise", make, noises=list(noises), rate=rate, mean=mean, start=first)
