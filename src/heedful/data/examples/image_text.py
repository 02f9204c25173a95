"""Batches of images and what is to be written for each, or the class of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.errors import InputError, count_of
from heedful.core.images import ImageProcessor, image_identity
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions, TaskKeywords, takes_options
from heedful.data.batches import Batches, Indices, fingerprint_arrays, join_fingerprints
from heedful.data.examples.classification import LabelNames
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


def image_reader(
    images: Sequence[Any] | Draw, processor: ImageProcessor, count: int, what: str
) -> tuple[Callable[[Indices, Indices], Tensor], str]:
    """Return the function that gives the pixels (B, C, H, W) of rows in their epochs, and a fingerprint.

    There must be `count` images, as many as `what`, unless a function draws them.
    """
    if callable(images):
        draw, names = images, [getattr(images, "__name__", "drawn")]
    else:
        pictures: Sequence[Any] = images
        draw, names = (lambda row, epoch: pictures[row]), [image_identity(image) for image in pictures]
        if len(pictures) != count:
            given = f"{count_of(len(pictures), 'images')} and {count_of(count, what)}"
            raise InputError(given, hint="give one for each image")

    def pixels(rows: Indices, epochs: Indices) -> Tensor:
        return processor(
            [draw(row, epoch) for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)]
        )

    return pixels, hashlib.sha256("\n".join(names).encode()).hexdigest()


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
    pixels, names = image_reader(images, processor, len(texts), "texts")
    encoded = encode_texts(texts, tokenizer, "the texts")
    template = find_template(tokenizer, end=True)
    if len(encoded) and not encoded.lengths.min():
        empty = int(encoded.lengths.argmin())
        raise InputError(f"the text of image {empty} is empty", hint="leave it out")
    notes = options.check_lengths(encoded.lengths + template.single_count, "texts", "the texts")
    first = start_token_id(tokenizer, start, ("bos", "pad", "eos"))
    settings = options.settings(
        "image_text", tokenizer=tokenizer_signature(tokenizer), start=first, processor=repr(processor)
    )
    data, pad = join_fingerprints(encoded.fingerprint, names), pad_id(tokenizer)

    def make_batch(rows: Indices, epochs: Indices) -> Batch:
        written = decoder_fields(encoded, rows, template, options.length, first, pad)
        return Batch(pixels(rows, epochs), extra={"row": torch.from_numpy(rows)}, **written)

    order = options.shuffle(len(encoded), "the table")
    return Batches(make_batch, order, data, settings, notes=notes, pad=pad)


def image_classify(
    images: Sequence[Any] | Draw, classes: Sequence[str] | NDArray[Any], processor: ImageProcessor, *,
    labels: Sequence[str] | None = None, batch: int = 32, seed: int = 0,
) -> Batches:  # fmt: skip
    """Images and the class of each, extra["label"]; batches.labels are the names of the classes.

    `images` are those of `image_text`. `classes` are names, or an array of what extra["label"] is made of.
    For evaluation pass `labels=train.labels`: numbers stay, and a label training did not have is an error.
    """
    options = BatchOptions(batch=batch, seed=seed)
    if isinstance(classes, np.ndarray):
        values, settled = classes, tuple(labels or ())
    else:
        names = LabelNames(labels)
        codes = [names.number(name, f"image {i}") for i, name in enumerate(classes)]
        values, settled = names.sort(np.array(codes, np.int64))
    pixels, images_fingerprint = image_reader(images, processor, len(values), "classes")
    data = join_fingerprints(images_fingerprint, fingerprint_arrays((values,)))
    settings = options.settings("image_classify", labels=list(settled), processor=repr(processor))

    def make_batch(rows: Indices, epochs: Indices) -> Batch:
        extra = {"label": torch.from_numpy(values[rows]), "row": torch.from_numpy(rows)}
        return Batch(pixels(rows, epochs), extra=extra)

    order = options.shuffle(len(values), "the images")
    return Batches(make_batch, order, data, settings, settled)
