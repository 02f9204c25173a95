"""Batches that processes of their own make ahead: what is drawn takes longer than a step on a GPU."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch

from heedful.data.batch import Batch
from heedful.data.batches import Batches

AHEAD = 4  # batches under way for each process
_drawn: list[Batches] = []  # in a process that makes batches: whose they are


@dataclass(frozen=True)
class BatchesAhead(Batches):
    """The same batches, of which the next ones are made by other processes while one is learnt from."""

    pool: ProcessPoolExecutor = field(kw_only=True)
    count: int = field(kw_only=True)
    pending: dict[int, Future[bytes]] = field(kw_only=True, default_factory=dict)

    def __getitem__(self, step: int) -> Batch:
        for number in range(step, step + self.count):
            if number not in self.pending:
                self.pending[number] = self.pool.submit(_pickled_batch, number)
        batch: Batch = pickle.loads(self.pending.pop(step).result())
        return batch


def _hold_batches(batches: Batches) -> None:
    torch.set_num_threads(1)
    _drawn.append(batches)


def _pickled_batch(step: int) -> bytes:
    return pickle.dumps(_drawn[0][step], protocol=5)  # as bytes: torch would hand over open files instead


@contextmanager
def made_ahead(batches: Batches, processes: int) -> Iterator[Batches]:
    """Batches made by so many processes while the `with` lasts; 0 makes each when it is asked for."""
    if not processes:
        yield batches
        return
    values = {each.name: getattr(batches, each.name) for each in fields(Batches)}
    context = multiprocessing.get_context("spawn")  # a fork would copy the state of CUDA
    pool = ProcessPoolExecutor(processes, context, initializer=_hold_batches, initargs=(batches,))
    try:
        yield BatchesAhead(**values, pool=pool, count=AHEAD * processes)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
