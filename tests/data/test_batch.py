"""A batch: counting, moving, choosing and splitting rows, padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.core.errors import InputError
from heedful.data.batch import IGNORE, Batch, collate


@pytest.fixture
def batch() -> Batch:
    row = lambda n: {"tokens": np.arange(n), "labels": np.r_[np.arange(1, n), IGNORE], "label": n}
    return collate([row(3), row(5), row(4)], pad=9)


def test_rows_are_padded_at_the_end_and_padding_is_not_valid(batch: Batch) -> None:
    assert batch.tokens[0].tolist() == [0, 1, 2, 9, 9]
    assert batch.valid is not None
    assert batch.valid[0].tolist() == [True, True, True, False, False]
    assert batch.labels is not None
    assert batch.labels[0].tolist() == [1, 2, IGNORE, IGNORE, IGNORE]


def test_rows_of_one_length_have_no_padding() -> None:
    assert collate([{"tokens": np.arange(3)}] * 2, pad=0).valid is None


def test_predicted_counts_labels_and_tokens_read_leaves_out_padding(batch: Batch) -> None:
    assert batch.label_count == 2 + 4 + 3
    assert batch.tokens_read == 12


def test_without_labels_every_row_counts_as_one_answer() -> None:
    assert Batch(torch.zeros(4, 2)).label_count == 4


def test_micro_batches_together_are_the_batch(batch: Batch) -> None:
    for parts in (1, 2, 3, 7):
        split = batch.split(parts)
        assert len(split) == min(parts, 3)
        assert torch.equal(torch.cat([p.tokens for p in split]), batch.tokens)
        assert torch.equal(torch.cat([p.extra["label"] for p in split]), batch.extra["label"])
        assert sum(p.label_count for p in split) == batch.label_count


def test_one_row_stays_a_batch(batch: Batch) -> None:
    assert batch.rows(1).tokens.shape == (1, 5)
    assert batch.rows([2, 0]).extra["label"].tolist() == [4, 3]
    with pytest.raises(InputError, match="row 3 of a batch of 3"):
        batch.rows(3)


def test_trimming_drops_columns_without_a_valid_token(batch: Batch) -> None:
    small = batch.rows([0, 2]).trim()
    assert small.tokens.shape == small.labels.shape == small.valid.shape == (2, 4)


def test_moving_keeps_what_is_not_there(batch: Batch) -> None:
    moved = batch.to("cpu")
    assert moved.types is None
    assert moved.extra["label"].tolist() == [3, 5, 4]
