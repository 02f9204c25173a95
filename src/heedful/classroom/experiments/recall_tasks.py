"""Synthetic tasks that ask for something seen before, at a distance that is chosen, and who solves them.

    copy        a b c d · · · > a b c d          repeat a string after a gap   (Graves et al. 2014)
    recall      k₁ v₁ k₂ v₂ k₃ v₃ · · k₂ → v₂    the value of a key            (Arora et al. 2024)
    induction   f c ! a q … ! → a                what stood behind a mark      (Olsson et al. 2022)
    needle      · · k v · · · ? k → v            one fact in a long filler

Every row is as long as the others; the loss is that of the answers alone. Distance is counted from an answer
to where it stood. Behind the pairs of `recall` as many keys are asked for as there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches, Indices, ShuffledOrder, seeded_generator
from heedful.models.base import LM, evaluation_mode

BLANK, COPY, MARK, ASK = range(4)  # the special tokens
SYMBOLS = 8  # keys, and as many values
KEYS, VALUES = 4, 4 + SYMBOLS
VOCAB = 4 + 2 * SYMBOLS
COPIED = 3  # symbols of a string that is copied
Ints = NDArray[np.int64]
Rows = tuple[Ints, Ints]  # symbols (B, T + 1), and how far back each stood before, 0 if it is not an answer
Task = Callable[[np.random.Generator, int, int], Rows]  # how many rows, and T


def draw_copy(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """A string, blanks, a mark, the string again."""
    whole, back = np.full((rows, length + 1), BLANK, np.int64), np.zeros((rows, length + 1), np.int64)
    at = np.arange(length + 1 - COPIED, length + 1)
    back[:, at] = rng.integers(COPIED + 1, at[0] + 1, rows)[:, None]
    whole[:, at] = rng.integers(VALUES, VALUES + SYMBOLS, (rows, COPIED))
    np.put_along_axis(whole, at - back[:, at], whole[:, at], 1)
    whole[:, at[0] - 1] = COPY
    return whole, back


def draw_recall(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """One to eight pairs of a key and a value, no key twice, a gap, keys in another order with their values.

    Rows of few pairs are what teaches to bind a value to its key; with eight alone that takes far longer.
    """
    whole, back = np.full((rows, length + 1), BLANK, np.int64), np.zeros((rows, length + 1), np.int64)
    asked = min((length + 1) // 2 - SYMBOLS, SYMBOLS)
    second = length + 1 - 2 * asked
    first = rng.integers(0, second - 2 * SYMBOLS + 1, rows)[:, None]  # where the pairs begin
    there = np.arange(SYMBOLS) >= SYMBOLS - rng.integers(1, SYMBOLS + 1, rows)[:, None]
    keys = np.where(there, _shuffle_rows(rng, rows) + KEYS, BLANK)
    values = np.where(there, rng.integers(VALUES, VALUES + SYMBOLS, (rows, SYMBOLS)), BLANK)
    places = first + 2 * np.arange(SYMBOLS)
    np.put_along_axis(whole, places, keys, 1)
    np.put_along_axis(whole, places + 1, values, 1)
    order = np.argsort(rng.random((rows, SYMBOLS)) + ~there, axis=1)[:, :asked]  # pairs that are there first
    whole[:, second::2] = np.take_along_axis(keys, order, 1)
    whole[:, second + 1 :: 2] = np.take_along_axis(values, order, 1)
    far = np.arange(second + 1, length + 1, 2) - (first + 1 + 2 * order)
    back[:, second + 1 :: 2] = np.where(np.take_along_axis(there, order, 1), far, 0)
    return whole, back


def draw_induction(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Random symbols with a mark among them, and the mark again: the symbol behind the first comes next."""
    whole = rng.integers(VALUES, VALUES + SYMBOLS, (rows, length + 1))
    back = np.zeros((rows, length + 1), int)
    back[:, length] = rng.integers(2, length, rows)
    line, at = np.arange(rows), length - back[:, length]
    whole[line, at - 1] = whole[:, length - 1] = MARK
    whole[:, length] = whole[line, at]
    return whole, back


def draw_needle(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """A key and its value among blanks, another pair elsewhere, and at the end the question for the key."""
    whole, back = np.full((rows, length + 1), BLANK, np.int64), np.zeros((rows, length + 1), np.int64)
    back[:, length] = rng.integers(4, length, rows)
    line, at = np.arange(rows), length - back[:, length]
    keys, values = _shuffle_rows(rng, rows)[:, :2] + KEYS, rng.integers(VALUES, VALUES + SYMBOLS, (rows, 2))
    other = rng.integers(1, length - 3, rows)
    whole[line, other - 1], whole[line, other] = keys[:, 1], values[:, 1]
    whole[line, at - 1], whole[line, at] = keys[:, 0], values[:, 0]  # over the other pair, if they meet
    whole[:, length - 2], whole[:, length - 1], whole[:, length] = ASK, keys[:, 0], values[:, 0]
    return whole, back


def _shuffle_rows(rng: np.random.Generator, rows: int) -> Ints:
    return rng.permuted(np.tile(np.arange(SYMBOLS), (rows, 1)), axis=1)


TASKS: dict[str, Task] = {
    "copy": draw_copy, "recall": draw_recall, "induction": draw_induction, "needle": draw_needle,
}  # fmt: skip


SHORTEST = 2 * (SYMBOLS + 1)  # the least T: all pairs, and one question


def task_batches(task: str, *, length: int, batch: int, seed: int) -> Batches:
    """Return endless batches of a task with rows of `length` tokens."""
    if task not in TASKS:
        raise InputError(f"unknown task {task!r}", hint=f"there are {', '.join(TASKS)}")
    check_integer("length", length, SHORTEST)
    settings: dict[str, Any] = {"task": task, "length": length, "batch": batch, "seed": seed}
    order = ShuffledOrder(1 << 40, batch, seed, shuffle=False)

    def make_batch(rows: Indices, epochs: Indices) -> Batch:
        """Return a batch of as many rows, whose labels are the answers; it follows from its first row."""
        rng = seeded_generator(seed, int(rows[0]), int(epochs[0]))
        whole, back = TASKS[task](rng, len(rows), length)
        labels = np.where(back > 0, whole, IGNORE)[:, 1:]
        return Batch(torch.from_numpy(whole[:, :-1]), torch.from_numpy(labels))

    return Batches(make_batch, order, "drawn", settings)


@torch.no_grad()
def score_task(model: LM, task: str, *, length: int, rows: int = 512) -> dict[str, list[float]]:
    """Return how many answers a model gets right, by distance: [2, 4), [4, 8), [8, 16) …

    `distance` is where an interval begins, `right` and `count` the answers; chance is 1 / SYMBOLS.
    """
    whole, back = TASKS[task](seeded_generator(1, 0x7E57), rows, length)
    with evaluation_mode(model):
        guess = model(torch.from_numpy(whole[:, :-1]).to(model.device)).argmax(-1).cpu().numpy()
    right, back = (guess == whole[:, 1:])[back[:, 1:] > 0], back[back > 0]
    ends = 2 ** np.floor(np.log2(back)).astype(int)
    distances = sorted(set(ends.tolist()))
    return {
        "distance": distances, "right": [int(right[ends == d].sum()) for d in distances],
        "count": [int((ends == d).sum()) for d in distances],
    }  # fmt: skip
