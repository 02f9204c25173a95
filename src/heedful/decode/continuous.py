"""Continuous batching: texts of many requests in one batch that each joins and leaves at any step.

    batch = ContinuousBatch(choose_slots(model, max_rows=64))
    batch.add(GenerationTask(make_request(model, GenerationSettings(max_tokens=32)), prompts, on_piece=print))
    while batch.busy:
        batch.step()

A step appends one token to every text that is being written, and reads a piece of the prompts that are new,
so that a long prompt holds nobody up. Who came first is let in first. In float32 a text is what it would be
alone: its numbers, its random draws and its rules are its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from heedful.core.devices import one_thread
from heedful.core.errors import HeedfulError
from heedful.decode.engines.fallback import UnsupportedPart
from heedful.decode.engines.static_slots import StaticSlots
from heedful.decode.request import Request
from heedful.decode.rows import GeneratedRow, Piece, choose_for_rows
from heedful.decode.slots import POSITIONS_AHEAD, EagerSlots, Slot
from heedful.kernels.cpu import find_obstacle
from heedful.models.base import LM, Seq2Seq

MAX_STATIC_ROWS = 8  # of a step on a CPU, which computes as many even for one text


log = logging.getLogger("heedful.decode")
NO_NUMBER = "the model computed a probability that is not a number; its weights or its precision are at fault"


class NotANumber(HeedfulError):
    """The model computed something that is not a number."""


@dataclass(eq=False)
class GenerationTask:
    """Prompts to continue, n times each, by one request's settings."""

    request: Request
    prompts: Sequence[list[int]]
    on_piece: Callable[[Piece | Exception], None] = lambda piece: None  # called in the batch's thread
    left: int = field(init=False)  # texts that are not finished

    def __post_init__(self) -> None:
        self.left = len(self.prompts) * self.request.settings.samples

    @property
    def is_done(self) -> bool:
        return self.left == 0


@dataclass(eq=False)
class BatchRow:
    """One text in the batch."""

    task: GenerationTask
    row: GeneratedRow
    slot: Slot


class ContinuousBatch:
    """The texts of one model that are being written, and those that wait for room."""

    def __init__(self, slots: EagerSlots) -> None:
        self.slots = slots
        self.rows: list[BatchRow] = []
        self.waiting: deque[tuple[GenerationTask, int, int]] = deque()  # the numbers of prompt and sample too

    @property
    def busy(self) -> bool:
        return bool(self.rows or self.waiting)

    @property
    def has_room(self) -> bool:
        """Whether a text could be let in at once."""
        return len(self.rows) + len(self.waiting) < self.slots.max_rows

    def add(self, task: GenerationTask) -> None:
        """Put a task's texts behind those that wait."""
        samples = range(task.request.settings.samples)
        self.waiting += [(task, number, sample) for number in range(len(task.prompts)) for sample in samples]

    def remove(self, task: GenerationTask) -> None:
        """Forget a task's texts and free their memory at once."""
        for row in [row for row in self.rows if row.task is task]:
            self.close(row)
        self.waiting = deque(waiting for waiting in self.waiting if waiting[0] is not task)
        task.left = 0

    def close(self, row: BatchRow) -> None:
        self.rows.remove(row)
        self.slots.close(row.slot)

    def step(self) -> None:
        """Let texts in, append a token to those that are written, and hand on what they say."""
        self.admit()
        feeds = list(self.plan())
        if not feeds:
            return
        try:
            logits = self.slots.forward([(row.slot, ids) for row, ids in feeds])
        except Exception as error:  # nobody knows how far it came: none of its texts can go on
            for task in {row.task for row, _ in feeds}:
                self.fail(task, error)
            return
        ready = [i for i, (row, _) in enumerate(feeds) if row.slot.past >= len(row.row.prompt)]
        rows = [feeds[i][0] for i in ready]
        self.take(rows, logits if len(ready) == len(feeds) else logits[ready])

    def admit(self) -> None:
        """Open the texts that wait, in their order, while there is room; samples share what one has read."""
        while self.waiting:
            task, number, sample = self.waiting[0]
            if sample and any(r.task is task and r.row.number == number and not r.row.ids for r in self.rows):
                return  # the first sample is still reading the prompt
            row = GeneratedRow(self.slots.model, task.request, task.prompts[number], number, sample)
            row.limit = min(row.limit, self.slots.context + 1 - len(row.before))
            length = len(row.before) + row.limit
            if not self.slots.fits(min(length, len(row.prompt) + POSITIONS_AHEAD)):
                return
            self.waiting.popleft()
            try:
                slot = self.slots.open(row.prompt, length)
            except Exception as error:  # as likely as not for want of memory
                self.fail(task, error)
                continue
            self.rows.append(BatchRow(task, row, slot))

    def plan(self) -> Iterator[tuple[BatchRow, list[int]]]:
        """Yield which tokens each text reads now: its newest one, or a piece of its prompt."""
        written = [row for row in self.rows if row.row.ids]
        yield from ((row, row.row.ids[-1:]) for row in written)
        budget = self.slots.prompt_tokens[0 if written else 1]
        for row in self.rows:
            if budget > 0 and not row.row.ids:
                rest = row.row.prompt[row.slot.past :]
                size = self.slots.piece(row.slot, len(rest), budget)
                budget -= size
                yield row, rest[:size]

    def take(self, rows: list[BatchRow], logits: Any) -> None:
        """Choose a token for each text and hand it on; those that are finished leave."""
        if not rows:
            return
        with one_thread():
            chosen, largest = choose_for_rows([row.row for row in rows], logits), logits.amax(-1).tolist()
        for row, choice, top in zip(rows, chosen, largest, strict=True):
            if row.task.is_done:  # another of its texts failed
                continue
            if math.isnan(top) or isinstance(choice, Exception):
                self.fail(row.task, choice if isinstance(choice, Exception) else NotANumber(NO_NUMBER))
                continue
            piece = row.row.take(*choice)
            if piece.finish is not None:
                self.close(row)
                row.task.left -= 1
            row.task.on_piece(piece)

    def fail(self, task: GenerationTask, error: Exception) -> None:
        """End a task by an error."""
        self.remove(task)
        task.on_piece(error)


def choose_slots(model: LM | Seq2Seq, max_rows: int, context: int | None = None) -> EagerSlots:
    """Return what continues up to `max_rows` texts of this model at once, on its device.

    On a CPU that is machine code for the parts it knows, else the model's own parts, for a few rows at once;
    on a GPU a recorded step of those. A model that can neither is stepped text by text.
    """
    if model.mesh is not None:  # its processes step together, with the model's own parts
        return EagerSlots(model, max_rows, context)
    if model.device.type == "cpu" and find_obstacle() is None:
        from heedful.decode.engines.numba_program import NumbaSlots

        with contextlib.suppress(UnsupportedPart):
            return NumbaSlots(model, max_rows, context)
    on_cpu = model.device.type == "cpu"
    try:
        slots = StaticSlots(model, min(max_rows, MAX_STATIC_ROWS) if on_cpu else max_rows, context)
        if not on_cpu:  # record a step now, and not before the first answer
            slot = slots.open([0], 2)
            slots.forward([(slot, [0])])
            slots.forward([(slot, [0])])
            slots.close(slot)
    except Exception as error:
        log.warning("texts are written one by one: %s", error)
        return EagerSlots(model, max_rows, context)
    return slots


def run_tasks(batch: ContinuousBatch, tasks: Sequence[GenerationTask]) -> None:
    """Write the texts of these tasks to their end."""
    for task in tasks:
        batch.add(task)
    while batch.busy:
        batch.step()
