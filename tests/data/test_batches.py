"""Batches as a function of the step: the same for everyone, each row once an epoch, shards that add up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful import data
from heedful.core.errors import InputError
from heedful.data.batch import Batch
from heedful.data.batches import Batches, BucketedOrder, ShuffledOrder
from tests.data.toy import Letters
from tests.refusal import refused

Make = Callable[..., Batches]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list("abcdef "), rng.integers(1, 30))).strip() or "a" for _ in range(57)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    usual = {"length": 40, "batch": 8, "unit": "line"}
    return lambda **more: data.text(tmp_path / "lines.txt", Letters(), **usual | more)


def same(a: Batch, b: Batch) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.labels, b.labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [True, False])
def test_any_step_can_be_asked_for_at_any_time(make: Make, packed: bool) -> None:
    walked = list(islice(make(packed=packed), 20))
    fresh = make(packed=packed)
    for step in (13, 0, 19, 7):
        assert same(fresh[step], walked[step])


def test_another_seed_gives_other_batches_and_another_fingerprint(make: Make) -> None:
    assert not same(make(seed=0)[0], make(seed=1)[0])
    assert make(seed=0).fingerprint == make(seed=0).fingerprint
    assert len({make(seed=s, length=n).fingerprint for s in (0, 1) for n in (40, 32)}) == 4


def test_other_text_gives_another_fingerprint(tmp_path: Path) -> None:
    prints = set()
    for text in ("abc abc", "abc abd"):
        (tmp_path / "t.txt").write_text(text)
        prints.add(data.text(tmp_path / "t.txt", Letters(), length=4).fingerprint)
    assert len(prints) == 2


@pytest.mark.parametrize(("count", "size"), [(10, 3), (7, 7), (3, 8), (1, 2)])
def test_a_stream_reads_every_row_once_an_epoch_and_fills_every_batch(count: int, size: int) -> None:
    order = ShuffledOrder(count, size, seed=5)
    pairs = [p for step in range(3 * count) for p in zip(*order.rows(step), strict=True)]
    assert len(pairs) == 3 * count * size
    for epoch in range(3 * size - 1):
        assert sorted(row for row, e in pairs if e == epoch) == list(range(count))
    assert order.epoch(0) == 0
    assert order.epoch(len(order)) >= 1


def test_epochs_differ_in_order() -> None:
    order = ShuffledOrder(64, 64, seed=0)
    assert order.rows(0)[0].tolist() != order.rows(1)[0].tolist()


@pytest.mark.parametrize("tokens", [None, 120])
def test_buckets_read_every_row_once_an_epoch_and_pad_little(tokens: int | None) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    order = BucketedOrder(lengths, 16, seed=0, tokens=tokens)
    for epoch in (0, 1):
        batches = [order.rows(epoch * len(order) + i)[0] for i in range(len(order))]
        assert sorted(np.concatenate(batches)) == list(range(200))
        padded = sum(len(b) * lengths[b].max() for b in batches)
        assert padded < 1.25 * lengths.sum()
        if tokens:
            assert max(len(b) * lengths[b].max() for b in batches) <= tokens
    assert [b.tolist() for b in (order.rows(0)[0],)] != [order.rows(len(order))[0].tolist()]
    assert np.concatenate(list(order.once())).tolist() == list(range(200))


def test_a_row_longer_than_a_batch_of_tokens_is_refused() -> None:
    with refused(InputError, 50, "max_tokens=40"):
        BucketedOrder(np.array([3, 50]), 4, 0, tokens=40)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("world", [2, 3])
def test_the_shares_of_all_processes_are_the_batch(make: Make, packed: bool, world: int) -> None:
    batches = make(packed=packed)
    text = lambda b: [row[row != -100].tolist() for row in b.labels]
    for step in (0, 5, 11):
        shares = [batches.shard(rank, world)[step] for rank in range(world)]
        assert [row for s in shares for row in text(s)] == text(batches[step])
    once = [row for rank in range(world) for b in batches.shard(rank, world).once() for row in text(b)]
    assert sorted(once) == sorted(row for b in batches.once() for row in text(b))


def test_more_processes_than_rows_leave_some_an_empty_batch(make: Make) -> None:
    shares = [make(batch=2).shard(rank, 3)[0] for rank in range(3)]
    assert sorted(len(s) for s in shares) == [0, 1, 1]


def test_a_share_is_not_shared_again(make: Make) -> None:
    with refused(InputError, "process 0 of 2"):
        make().shard(0, 2).shard(0, 2)
    with pytest.raises(InputError, match="rank 2 of 2"):
        make().shard(2, 2)


def test_impossible_sizes_are_refused(make: Make) -> None:
    with pytest.raises(InputError, match="batch=0"):
        make(batch=0)
    with pytest.raises(InputError, match="seed=-1"):
        make(seed=-1)
    with pytest.raises(IndexError):
        make()[-1]
