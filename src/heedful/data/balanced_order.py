"""BalancedOrder: batches in which every class is as frequent as any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.data.batches import Indices, seeded_generator

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
        for start in range(0, self.count, self.size):
            yield self.all[start : start + self.size]
