"""Batches: a data set as a function of the step number.

batches[step] follows from (data, seed, step) alone. So a run that died at step 700 goes on with batches[700],
and the processes of a run each make their own rows of the same batch without talking to each other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError, count_of
from heedful.data.batch import Batch, as_batch

Indices = NDArray[np.int64]
BLUR = 0.1  # by how much of its length a row may be sorted wrongly


# Rows and the epoch of each → their batch; what is drawn at random follows from the row and its epoch.
MakeBatch = Callable[[Indices, Indices], Batch]


class Order(Protocol):
    """An order says which rows stand in which batch."""

    count: int  # of rows in an epoch

    def __len__(self) -> int:
        """The number of steps in an epoch."""

    def rows(self, step: int) -> tuple[Indices, Indices]:
        """Return the rows of a step, and the epoch each is read in."""

    def epoch(self, step: int) -> int: ...

    def once(self) -> Iterator[Indices]:
        """Yield every row once, in order."""


def seeded_generator(*seeds: int) -> np.random.Generator:
    """Return the generator of one random choice: the same numbers wherever and whenever it is made."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


def permutation(count: int, seed: int, epoch: int) -> NDArray[Any]:
    """Return the order of the rows in one epoch; four bytes a row while that is enough."""
    order = np.arange(count, dtype=np.uint32 if count < 2**32 else np.uint64)
    seeded_generator(seed, epoch).shuffle(order)
    return order


def split_rows(count: int, size: int) -> Iterator[Indices]:
    """Yield the numbers of `count` rows in order, `size` at a time."""
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


class ShuffledOrder:
    """One endless stream of rows, each epoch in its own order, cut into batches of equal size.

    An epoch may end inside a batch, so every row is read once per epoch and every batch is full.
    """

    def __init__(self, count: int, size: int, seed: int, shuffle: bool = True) -> None:
        self.count, self.size, self.seed, self.shuffle = count, size, seed, shuffle
        # Of two epochs: one may end inside a batch.
        self._order = lru_cache(maxsize=2)(partial(permutation, count, seed))

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def epoch(self, step: int) -> int:
        return step * self.size // self.count

    def rows(self, step: int) -> tuple[Indices, Indices]:
        positions = np.arange(step * self.size, (step + 1) * self.size, dtype=np.int64)
        epochs, within = np.divmod(positions, self.count)
        if not self.shuffle:
            return within, epochs
        rows = np.empty_like(within)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._order(int(epoch))[within[here]]
        return rows, epochs

    def once(self) -> Iterator[Indices]:
        return split_rows(self.count, self.size)


class BucketedOrder:
    """Rows of about the same length in one batch, so that little is padding; the batches in random order.

    `tokens` bounds rows × longest row, besides the number of rows. Rows of equal length change places every
    epoch, which leaves the cuts where they were: an epoch always has the same number of steps.
    """

    def __init__(self, lengths: NDArray[Any], size: int, seed: int, tokens: int | None = None) -> None:
        self.lengths, self.size, self.seed, self.tokens = np.asarray(lengths), size, seed, tokens
        self.count = len(self.lengths)
        if tokens is None:
            steps = -(-len(self.lengths) // size)
            self.cuts = np.linspace(0, len(self.lengths), steps + 1).round().astype(np.int64)
        else:
            if (longest := int(self.lengths.max())) > tokens:
                raise InputError(
                    f"a row has {longest} tokens, more than `max_tokens={tokens}` of a batch", hint="raise it"
                )
            self.cuts = cut_by_tokens(np.sort(self.lengths), size, tokens)
        # Without a bound on tokens lengths need not be exact, and rows meet more different neighbours.
        blur = BLUR if tokens is None else 0.0
        self._plan = lru_cache(maxsize=2)(partial(draw_plan, self.lengths, len(self), blur, seed))

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def epoch(self, step: int) -> int:
        return step // len(self)

    def rows(self, step: int) -> tuple[Indices, Indices]:
        epoch, within = divmod(step, len(self))
        order, batches = self._plan(epoch)
        which = int(batches[within])
        rows = order[self.cuts[which] : self.cuts[which + 1]]
        return rows, np.full(len(rows), epoch, dtype=np.int64)

    def once(self) -> Iterator[Indices]:
        if self.tokens is None:
            return split_rows(self.count, self.size)
        bounds = itertools.pairwise(cut_by_tokens(self.lengths, self.size, self.tokens))
        return (np.arange(start, end) for start, end in bounds)


def draw_plan(
    lengths: NDArray[Any], steps: int, blur: float, seed: int, epoch: int
) -> tuple[Indices, Indices]:
    """Return the rows of an epoch by length, and the order of the batches that they are cut into."""
    rng = seeded_generator(seed, epoch)
    noise = rng.random(len(lengths), dtype=np.float32)
    return np.lexsort((noise, lengths * (1 + blur * noise))), rng.permutation(steps)


def cut_by_tokens(lengths: NDArray[Any], size: int, tokens: int) -> Indices:
    """Return where batches end if each has at most `size` rows and rows × longest row ≤ tokens."""
    bounds, start, longest = [0], 0, 0
    for i, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if i > start and ((i + 1 - start) * longest > tokens or i - start >= size):
            bounds.append(i)
            start, longest = i, length
    return np.array([*bounds, len(lengths)], dtype=np.int64)


@dataclass(frozen=True)
class Batches:
    """batches[step] for every step ≥ 0, without end; `once()` for one pass in order.

    `labels` names the classes of a task, `notes` says what was cut or left out while reading.
    """

    make_batch: MakeBatch
    order: Order
    data: str  # fingerprint of what was read
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pad: int = 0
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        """The number of steps in an epoch; the next one reshuffles."""
        return len(self.order)

    @property
    def row_count(self) -> int:
        """The number of rows of an epoch."""
        return self.order.count

    @property
    def fingerprint(self) -> str:
        """sha256 of the data and all settings: two runs with the same one see the same batches."""
        text = json.dumps({"data": self.data, **self.settings}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def epoch(self, step: int) -> int:
        """Return the epoch in which a step begins."""
        return self.order.epoch(step)

    def shard(self, rank: int, world: int) -> Batches:
        """Return one process's rows of every batch. All shards together are the batch, in order.

        A batch with fewer rows than processes leaves some of them an empty batch (0, 1).
        """
        if not 0 <= rank < world:
            raise InputError(f"rank {rank} of {world} processes", hint=f"ranks are 0 … {world - 1}")
        if self.world != 1:
            raise InputError(f"these batches are already the share of process {self.rank} of {self.world}")
        return replace(self, rank=rank, world=world)

    def _mine(self, rows: Indices) -> slice:
        return slice(len(rows) * self.rank // self.world, len(rows) * (self.rank + 1) // self.world)

    def _make(self, rows: Indices, epochs: Indices) -> Batch:
        if len(rows):
            return self.make_batch(rows, epochs)
        return self.make_batch(np.zeros(1, np.int64), np.zeros(1, np.int64)).rows(slice(0, 0))

    def __getitem__(self, step: int) -> Batch:
        if step < 0:
            raise IndexError(f"step {step}: steps count from 0")
        rows, epochs = self.order.rows(step)
        mine = self._mine(rows)
        return self._make(rows[mine], epochs[mine])

    def __iter__(self) -> Iterator[Batch]:
        """Yield batch 0, 1, 2 … without end."""
        return (self[step] for step in itertools.count())

    def once(self) -> Iterator[Batch]:
        """Yield every row once, in order, for evaluation: the last batch is smaller, draws are epoch 0's."""
        for rows in self.order.once():
            mine = rows[self._mine(rows)]
            if len(mine):
                yield self._make(mine, np.zeros_like(mine))


class StepBatches(Protocol):
    """Batches as a function of the step number: what a training run needs of its data."""

    @property
    def fingerprint(self) -> str:
        """What tells these data from others: a run is only resumed with the same."""

    def __getitem__(self, step: int) -> Batch: ...

    def epoch(self, step: int) -> int: ...

    def shard(self, rank: int, world: int) -> StepBatches:
        """Return one process's rows of every batch."""

    def once(self) -> Iterator[Batch]:
        """Yield the batches of one pass, for evaluation."""


class IterableBatches:
    """The batches of an iterable, such as a DataLoader, in the order it yields them, pass after pass.

    A resumed run reads and drops the batches it has already seen. It continues exactly if the iterable yields
    the same batches again, which nothing here can check: the fingerprint is the same for all iterables.
    """

    fingerprint = "iterable"

    def __init__(self, items: Iterable[Batch | Mapping[str, Any]]) -> None:
        self.items = items
        self._rewind()

    def _rewind(self) -> None:
        self._iterator, self._count, self._epoch, self._starts = iter(self.items), 0, 0, 0
        self._batch: Batch | None = None

    def __getitem__(self, step: int) -> Batch:
        if step < self._count - 1:
            self._rewind()
        while self._count <= step:
            try:
                self._batch = as_batch(next(self._iterator))
            except StopIteration:
                if self._count == self._starts:  # the last pass gave nothing
                    batches = count_of(self._count, "batches")
                    given = f"the data ended after {batches}, before step {step + 1}"
                    raise InputError(
                        given if self._count else "the data has no batch",
                        hint="give data that can be iterated again (a list, a DataLoader), or fewer steps",
                    ) from None
                self._iterator, self._epoch, self._starts = iter(self.items), self._epoch + 1, self._count
            else:
                self._count += 1
        return cast(Batch, self._batch)

    def epoch(self, step: int) -> int:
        """Return the number of the pass that the newest batch is from."""
        return self._epoch

    def shard(self, rank: int, world: int) -> StepBatches:
        raise InputError(
            f"{world} processes cannot share an iterable whose rows are not known before they are read",
            hint="build the batches with a function of heedful.data, or train in one process",
        )

    def once(self) -> Iterator[Batch]:
        """Yield the batches of one pass."""
        return map(as_batch, self.items)


Data = StepBatches | Iterable[Batch | Mapping[str, Any]]


def as_batches(data: Data) -> StepBatches:
    """Return batches by step: data that already are, or an iterable of batches, read pass after pass."""
    if hasattr(data, "epoch") and hasattr(data, "__getitem__"):
        return cast(StepBatches, data)
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise InputError(
            f"{data!r:.80} is not data to train on",
            hint="give what a function of heedful.data returns, or an iterable of batches (a DataLoader)",
        )
    return IterableBatches(data)


def join_fingerprints(*parts: str) -> str:
    """Return one fingerprint of several."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def fingerprint_arrays(arrays: Sequence[NDArray[Any]]) -> str:
    """Return the sha256 of arrays: their types, shapes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


ROWS_OF_A_CLASS = 4  # in a batch that cannot hold them all


class BalancedOrder:
    """Each batch draws some classes and as many rows of each; few rows stand in every batch, all of them.

    `rows` are those that may be drawn and `labels` the class of every row, drawn or not. A class with fewer
    rows than a batch takes of it gives all it has.
    """

    def __init__(self, rows: Sequence[int], labels: NDArray[np.int64], size: int, seed: int) -> None:
        self.all, self.size, self.seed = np.asarray(rows, np.int64), size, seed
        self.count = len(self.all)
        own = labels[self.all]
        self.classes = [self.all[own == label] for label in np.unique(own)]

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def epoch(self, step: int) -> int:
        return step // len(self)

    def rows(self, step: int) -> tuple[Indices, Indices]:
        draw = seeded_generator(self.seed, step)
        if self.count <= self.size:
            chosen = draw.permutation(self.all)
        else:
            each = max(ROWS_OF_A_CLASS, self.size // len(self.classes))
            some = draw.permutation(len(self.classes))[: max(2, self.size // each)]
            chosen = np.concatenate([draw.permutation(self.classes[i])[:each] for i in some])
        return chosen, np.full(len(chosen), self.epoch(step), np.int64)

    def once(self) -> Iterator[Indices]:
        return (self.all[rows] for rows in split_rows(self.count, self.size))
