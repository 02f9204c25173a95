"""What a batch of texts remembers, at fixed addresses, each text at its own position: slots to join or leave.

    slots = StaticState(model.start(prompt), rows=8, capacity=1024)     shaped like any prompt's state
    slots.write_row(3, model.start(prompt))        slot 3 goes on where that prompt ended
    logits = slots.step(model, tokens)             tokens (rows, 1), one for every slot → logits (rows, 1, V)
    slots.release(3)                               the slot stands still and may be written again

`step` runs the model's own parts and nothing else, on the device alone: `past` (rows,) counts each row's
positions there, and what a row has not written is masked. So a step can be recorded as one CUDA graph
(engines/graph_stepper.py), and rows need neither one length nor one beginning. A prompt's padding is left out
when it is copied. A row may hold `capacity` positions at most; the caller counts. A row that is not `active`
keeps its positions, but not a recurrent state: every row is computed in every step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.errors import InputError
from heedful.models.base import LM, Seq2Seq, State
from heedful.nn.context import Context, Mask
from heedful.nn.static_state import (
    all_tensors,
    ordinary,
    positions_after,
    recurrent_tensors,
    static_like,
    write_static,
)


class StaticState:
    """The memory of `rows` texts, in tensors that never move.

    `example` is the state of any prompt of the model, for the shapes. `capacity` is the most positions of a
    row, `memory_capacity` the most tokens of a source (by default the example's).
    """

    def __init__(self, example: State, rows: int, capacity: int, memory_capacity: int | None = None) -> None:
        self.rows, self.capacity = rows, capacity
        memory = example.memory
        self.memory_capacity = 0 if memory is None else memory_capacity or memory.shape[1]
        self.parts = static_like(example.parts, rows, capacity, self.memory_capacity)
        device = next(all_tensors(self.parts)).device
        self.past = torch.zeros(rows, dtype=torch.long, device=device)  # positions that each row holds
        self.active = torch.zeros(rows, dtype=torch.long, device=device)  # 1 where a step moves the row on
        self.slot_numbers = torch.arange(capacity, device=device)[None]
        self.reread_lengths = example.reread_lengths
        self.tokens: Tensor | None = None  # of each row, if the model must read them again at some length
        if example.reread_lengths:
            self.tokens = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self.memory: Tensor | None = None
        self.memory_valid: Tensor | None = None
        if memory is not None:
            self.memory = memory.new_zeros(rows, self.memory_capacity, memory.shape[2])
            self.memory_valid = torch.zeros(rows, self.memory_capacity, dtype=torch.bool, device=device)
            self.memory_valid[:, 0] = True  # a row that attends to nothing is slower and of no use

    def write_row(self, slot: int, state: State, row: int = 0) -> None:
        """Let a slot go on from a row of a state that has read its prompt."""
        device = self.past.device
        self.write(state, torch.tensor([slot], device=device), torch.tensor([row], device=device))

    def write(self, state: State, slots: Tensor | None = None, rows: Tensor | None = None) -> None:
        """Let slots (n,) go on from rows (n,) of a state; by default each from the row of its number."""
        every = torch.arange(self.rows, device=self.past.device)
        slots, rows = every if slots is None else slots, every if rows is None else rows
        if state.past > self.capacity:
            raise InputError(f"{state.past} positions do not fit into {self.capacity}")
        valid = None if state.valid is None else state.valid[rows]
        order = None if valid is None else (~valid).int().argsort(dim=1, stable=True)
        write_static(self.parts, state.parts, slots, rows, state.past, order)
        self.past[slots] = state.past if valid is None else valid.sum(1)
        self.active[slots] = 1
        if self.tokens is not None and state.tokens is not None:
            tokens = state.tokens[rows]
            self.tokens[slots, : state.past] = tokens if order is None else tokens.gather(1, order)
        if self.memory is not None and self.memory_valid is not None:
            assert state.memory is not None
            length = state.memory.shape[1]
            if length > self.memory_capacity:
                raise InputError(f"a source of {length} tokens does not fit into {self.memory_capacity}")
            known = None if state.memory_mask is None else state.memory_mask.valid
            valid_rows = True if known is None else known[rows]  # before it is overwritten: it may be ours
            self.memory[slots, :length] = state.memory[rows]
            self.memory_valid[slots] = False
            self.memory_valid[slots, :length] = valid_rows

    def release(self, slot: int) -> None:
        """Let a slot stand still at its beginning: a step computes it, and nobody looks."""
        self.past[slot] = 0
        self.active[slot] = 0

    def context(self, count: int) -> Context:
        """The context of `count` new tokens in every row: position p stands in slot p."""
        q_pos = positions_after(self.past, count)
        valid = self.slot_numbers <= q_pos[:, -1:]
        memory_mask = None if self.memory_valid is None else Mask(valid=self.memory_valid)
        return Context(
            q_pos, self.slot_numbers, Mask(causal=count > 1, valid=valid), past=self.past, text_length=0,
            memory=self.memory, memory_mask=memory_mask,
        )  # fmt: skip

    @torch.no_grad()
    def step(self, model: LM | Seq2Seq, tokens: Tensor) -> Tensor:
        """Read tokens (rows, T) behind what each row holds; logits (rows, T, V). Nothing here is on the host.

        With T above 1, no layer's window may be shorter than its spare slots (see SlidingKV).
        """
        ctx = self.context(tokens.shape[1])
        logits = model.head.predict(model.decode(tokens, ctx, self.parts), ctx)
        if self.tokens is not None:
            self.tokens.scatter_(1, ctx.q_pos, tokens)
        self.past.add_(self.active, alpha=tokens.shape[1])
        return logits

    def reorder(self, index: Tensor) -> None:
        """Let row b go on as row index[b] was."""
        if self.parts is not None:
            self.parts.reorder(index)
        for held in (self.past, self.active, self.tokens, self.memory, self.memory_valid):
            if held is not None:
                held.copy_(held[index])

    def to_state(self) -> State:
        """Return an ordinary state over the same memory; shorter rows are padded at their end."""
        reached = int(self.past.max())
        known = self.slot_numbers[:, :reached] < self.past[:, None]
        return State(
            ordinary(self.parts, reached), reached, None if bool(known.all()) else known, self.memory,
            None if self.memory_valid is None else Mask(valid=self.memory_valid),
            reread_lengths=self.reread_lengths,
            tokens=None if self.tokens is None else self.tokens[:, :reached],
        )  # fmt: skip

    def changed_by_step(self) -> Iterator[Tensor]:
        """Yield what to put back after a step so that the same step can be taken again."""
        yield self.past
        yield from recurrent_tensors(self.parts)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(t.nbytes for t in all_tensors(self.parts))
