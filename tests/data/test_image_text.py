"""Batches of images and texts: what is read, what is written, and that batch k follows from k."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful import data
from heedful.core.errors import InputError
from heedful.core.images import draw_text
from heedful.data.batch import IGNORE
from tests.image_toy import TEXTS, images, reader
from tests.refusal import refused


def test_an_image_is_read_and_its_text_written_behind_the_start_token(tmp_path: Path) -> None:
    model = reader(tmp_path)
    tokenizer, files = model.tokenizer, images(tmp_path)
    batches = data.image_text(
        files, TEXTS, tokenizer, model.image_processor, start=tokenizer.bos, batch=3, length=12
    )
    batch = batches[0]
    assert batch.tokens.shape == (3, 1, 16, 32)
    for row, (target, labels) in enumerate(zip(batch.target, batch.labels, strict=True)):
        number = int(batch.extra["row"][row])
        ids = [*tokenizer.encode(TEXTS[number], special=False), tokenizer.eos]
        assert labels[labels != IGNORE].tolist() == ids
        assert target[: len(ids)].tolist() == [tokenizer.bos, *ids[:-1]]
        assert torch.equal(batch.tokens[row], model.image_processor(files[number])[0])
    assert batch.tokens_read == 3 + int(batch.target_valid.sum() if batch.target_valid is not None else 0)


def test_batches_follow_from_the_step_and_every_row_comes_once(tmp_path: Path) -> None:
    model = reader(tmp_path)
    draw = lambda row, epoch: draw_text(TEXTS[row], 16 + epoch, 32)
    make = lambda seed: data.image_text(
        draw, TEXTS, model.tokenizer, model.image_processor, batch=4, seed=seed, length=12
    )
    one, again, other = make(0), make(0), make(1)
    assert torch.equal(one[5].tokens, again[5].tokens)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert sorted(int(i) for k in range(2) for i in one[k].extra["row"]) == list(range(8))
    second = next(one[k] for k in range(2, 4))
    shown = model.image_processor(draw(int(second.extra["row"][0]), 1))[0]
    assert torch.equal(second.tokens[0], shown)


def test_texts_that_are_missing_empty_or_too_long_are_refused(tmp_path: Path) -> None:
    model = reader(tmp_path)
    make = lambda texts, **more: data.image_text(
        [draw_text("1")] * 2, texts, model.tokenizer, model.image_processor, **more
    )
    with refused(InputError, "2 images and 1 text"):
        make(["1"])
    with refused(InputError, "image 1 is empty"):
        make(["1", ""])
    with pytest.raises(InputError, match="longer than 4 tokens"):
        make(["1", "12345"], length=4)
