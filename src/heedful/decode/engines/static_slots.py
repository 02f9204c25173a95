"""Texts side by side for every family: one step of the model's own parts over static state.

Prompts are read text by text in the plain pass; a text whose prompt is read gets a seat in the static state.
A step computes every seat, also those that stand still, so that its shape, and with it the arithmetic of a
row, is always the same. On a GPU it is recorded as one graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.decode.engines.graph_stepper import MIN_MEMORY, Recording, rounded_capacity
from heedful.decode.engines.static_state import StaticState
from heedful.decode.slots import EagerSlots, Slot, kv_parts
from heedful.models.base import LM, Seq2Seq, State, evaluation_mode

CAPACITY_STEP = 256  # of positions on a GPU


class StaticSlots(EagerSlots):
    """Seats of a static state; it grows when a text or a source is longer than any before."""

    def __init__(self, model: LM | Seq2Seq, max_rows: int, context: int | None = None) -> None:
        super().__init__(model, max_rows, context)
        self.max_rows = max(1, min(max_rows, self.positions // self.context))  # every seat may become as long
        self.seats: list[Slot | None] = [None] * self.max_rows
        self.recording: Recording | None = None
        if model.device.type == "cuda":
            self.chunk, self.prompt_tokens = 512, (512, 2048)
        StaticState(self.example, 1, self.example.past)  # a TypeError if a layer remembers something else

    def open(self, ids: Sequence[int], length: int) -> Slot:
        slot = super().open(ids, min(length, self.context))
        if isinstance(self.model, LM):  # what is written later stands in the static state
            for kv in kv_parts(slot.state.parts):
                kv.capacity = len(ids)
        return slot

    @torch.no_grad()
    def forward(self, feeds: Sequence[tuple[Slot, Sequence[int]]]) -> Tensor:
        steps = [i for i, (slot, ids) in enumerate(feeds) if slot.past and len(ids) == 1]
        out: list[Tensor | None] = [
            None if i in steps else self.append_tokens(*feed) for i, feed in enumerate(feeds)
        ]
        if steps:
            logits = self.step([feeds[i][0] for i in steps], [feeds[i][1][0] for i in steps])
            if len(steps) == len(feeds):
                return logits
            for i, row in zip(steps, logits, strict=True):
                out[i] = row[None]
        return torch.cat([row for row in out if row is not None])

    def step(self, slots: Sequence[Slot], tokens: Sequence[int]) -> Tensor:
        """Append a token to each of these texts; those with a seat that are not among them stand still."""
        for slot in slots:
            again = slot.past in self.example.reread_lengths and slot.past >= int(slot.state.prompt)
            if slot not in self.seats:
                self.take_seat(slot)
            if again:
                self.read_again(slot)
        assert self.recording is not None
        places = [self.seats.index(slot) for slot in slots]
        static, column = self.recording.static, torch.zeros(self.max_rows, dtype=torch.long)
        column[places] = torch.tensor(tokens)
        active = torch.zeros(self.max_rows, dtype=torch.long)
        active[places] = 1
        self.recording.buffer(1).copy_(column[:, None], non_blocking=True)
        static.active.copy_(active, non_blocking=True)
        with evaluation_mode(self.model):
            logits = self.recording.run(self.model)[:, -1]
        for slot, token in zip(slots, tokens, strict=True):
            slot.ids.append(token)
        return logits[places]

    def take_seat(self, slot: Slot) -> None:
        """Let a text whose prompt was read stand in the static state."""
        memory = 0 if slot.state.memory is None else slot.state.memory.shape[1]
        static = None if self.recording is None else self.recording.static
        if static is None or slot.capacity > static.capacity or memory > static.memory_capacity:
            self.grow(slot, slot.capacity, memory)
        assert self.recording is not None
        place = self.seats.index(None)
        self.recording.static.write_row(place, slot.state)
        self.seats[place] = slot
        if slot.reusable < self.chunk:  # no other text will begin with it
            slot.state, slot.reusable = State(None), 0

    def read_again(self, slot: Slot) -> None:
        """Write a text into its seat as the beginning of one that is a token longer (see nn/position.py)."""
        assert isinstance(self.model, LM)
        assert self.recording is not None
        state = self.model.new_state(1, slot.past)
        state.prompt = slot.past + 1
        with evaluation_mode(self.model):
            self.model.start(torch.tensor([slot.ids], device=self.model.device), state=state)
        self.recording.static.write_row(self.seats.index(slot), state)

    def grow(self, slot: Slot, capacity: int, memory: int) -> None:
        """Make a larger static state, and copy into it the texts that have a seat."""
        old = None if self.recording is None else self.recording.static
        if old is not None:
            capacity, memory = max(capacity, old.capacity), max(memory, old.memory_capacity)
        if self.model.device.type == "cuda":  # a step reads all of it
            capacity = -(-capacity // CAPACITY_STEP) * CAPACITY_STEP
        else:
            capacity = rounded_capacity(capacity)
        memory = rounded_capacity(memory, MIN_MEMORY) if memory else 0
        self.recording = None  # its memory is free for the new one, unless texts stand in it
        with torch.inference_mode(False), torch.no_grad():
            new = StaticState(slot.state, self.max_rows, capacity, memory)
            places = [i for i, seated in enumerate(self.seats) if seated is not None]
            if old is not None and places:
                taken = torch.tensor(places, device=new.past.device)
                new.write(old.to_state(), taken, taken)
        self.recording = Recording(None, new)

    def close(self, slot: Slot) -> None:
        super().close(slot)
        if slot in self.seats:
            assert self.recording is not None
            place = self.seats.index(slot)
            self.seats[place] = None
            self.recording.static.release(place)
