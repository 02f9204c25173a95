"""Batches of images and what is to be written for each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from heedful.core.errors import InputError
from heedful.core.images import ImageProcessor
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions, TaskKeywords, takes_options
from heedful.data.batches import Batches, Indices, join_fingerprints
from heedful.data.examples.translation import decoder_fields
from heedful.data.token_cache import encode_texts
from heedful.data.tokenization import (
    TokenizerProtocol,
    find_template,
    pad_id,
    start_token_id,
    tokenizer_signature,
)

Draw = Callable[[int, int], Any]  # row, epoch → an image


@takes_options(TaskKeywords)
def image_text(
    images: Sequence[Any] | Draw, texts: Sequence[str], tokenizer: TokenizerProtocol,
    processor: ImageProcessor, *, start: int | None = None, **keywords: Unpack[TaskKeywords],
) -> Batches:  # fmt: skip
    """Images and the text that is to be written for each: a model's `image_processor` makes them its input.

    `images` are paths, arrays or Pillow's images, opened when their batch is made; or a function (row, epoch)
    that draws one. `start` is the token that the decoder reads first. extra["row"] is the image's number.
    """
    options = BatchOptions(**keywords)
    if callable(images):
        draw, names = images, [getattr(images, "__name__", "drawn")]
    else:
        pictures: Sequence[Any] = images
        draw, names = (lambda row, epoch: pictures[row]), [_image_name(image) for image in pictures]
        if len(pictures) != len(texts):
            raise InputError(f"{len(pictures)} images and {len(texts)} texts", hint="give a text for each")
    encoded = encode_texts(texts, tokenizer, "the texts")
    template = find_template(tokenizer, end=True)
    if len(encoded) and not encoded.lengths.min():
        empty = int(encoded.lengths.argmin())
        raise InputError(f"the text of image {empty} is empty", hint="leave it out")
    notes = options.check_lengths(encoded.lengths + template.single_count, "texts", "the texts")
    first = start_token_id(tokenizer, start, ("bos", "pad", "eos"))
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    settings = options.settings(
        "image_text", tokenizer=tokenizer_signature(tokenizer), start=first, processor=repr(processor)
    )
    data, pad = join_fingerprints(encoded.fingerprint, digest), pad_id(tokenizer)

    def make_batch(rows: Indices, epochs: Indices) -> Batch:
        pairs = zip(rows.tolist(), epochs.tolist(), strict=True)
        pixels = processor([draw(row, epoch) for row, epoch in pairs])
        written = decoder_fields(encoded, rows, template, options.length, first, pad)
        return Batch(pixels, extra={"row": torch.from_numpy(rows)}, **written)

    order = options.shuffle(len(encoded), "the table")
    return Batches(make_batch, order, data, settings, notes=notes, pad=pad)


def _image_name(image: Any) -> str:
    """Return what tells images apart: the path and its size in bytes, or the pixels themselves."""
    if isinstance(image, str | Path):
        path = Path(image)
        return f"{path} {path.stat().st_size if path.is_file() else 'missing'}"
    is_image = isinstance(image, np.ndarray) or type(image).__module__.partition(".")[0] == "PIL"
    return hashlib.sha256(np.asarray(image).tobytes()).hexdigest() if is_image else repr(image)
