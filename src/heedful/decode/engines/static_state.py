"""What a batch of texts remembers, at fixed addresses, each text at its own position: slots to join or leave.

    slots = StaticState(model.start(prompt), rows=8, capacity=1024)     shaped like any prompt's state
    slots.write_row(3, model.start(prompt))        slot 3 goes on where that prompt ended
    logits = slots.step(model, tokens)             tokens (rows, 1), one for every slot → logits (rows, 1, V)
    slots.release(3)                               the slot stands still and may be written again

`step` runs the model's own parts and nothing else, on the device alone: `past` (rows,) counts each row's
positions there, and positions that a row has not written are masked. So a step can be recorded as one CUDA
graph (engines/graph_stepper.py), and rows need neither one length nor one beginning. A prompt's padding is
left out when it is copied. A row may hold `capacity` positions at most; the caller counts. A row that is not
`active` keeps its positions, but not a recurrent state: every row is computed in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.models.base import LM, Seq2Seq, State
from heedful.nn.context import Context, Mask, PartState
from heedful.nn.state import (
    KV,
    FixedState,
    RecurrentState,
    SlidingKV,
    StateGroup,
    slot_positions,
    state_leaves,
)

# Tensors of a part that run along an encoder's memory, and the axis that does.
MEMORY_AXES = {"k": 2, "v": 2, "keys": 1}
Rows = Tensor | slice  # numbers (n,) of rows, or all of them


class Size(NamedTuple):
    """What a static state has room for, and the type that keys and values are kept in; None: their own."""

    rows: int
    capacity: int  # positions of a row
    memory_capacity: int  # tokens of a source
    cache_dtype: torch.dtype | None


def positions_after(past: Tensor, count: int) -> Tensor:
    """(B, T): the positions of `count` tokens that follow `past` (B,) others."""
    start = past[:, None]
    return start if count == 1 else start + torch.arange(count, device=past.device)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the type of a cache; an 8-bit float holds numbers beyond its largest at that."""
    if dtype.itemsize > 1:
        return x.to(dtype)
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def as_indexable(x: Tensor) -> Tensor:
    """Return 8-bit floats as the bytes they are: not every function that copies by an index knows them."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


class StaticCache:
    """Keys and values (B, G, S, ·) that never move; row b's token at position p stands in slot p mod S.

    The newest entries of a window replace the oldest. Otherwise every position has a slot, and what lies
    beyond a row's own is hidden by the mask of the pass. They may be kept in 8-bit floats: they are rounded
    once, when they are written.
    """

    k: Tensor
    v: Tensor

    def allocate(self, like: KV | SlidingKV, size: Size, slots: int) -> None:
        assert like.k is not None
        assert like.v is not None
        self.dtype = like.k.dtype  # what is appended, and given back
        dtype = size.cache_dtype or like.k.dtype
        make = lambda t: torch.empty(size.rows, t.shape[1], slots, t.shape[3], dtype=dtype, device=t.device)
        self.k, self.v = (as_indexable(make(t)).zero_().view(dtype) for t in (like.k, like.v))

    def put(self, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Write tokens (B, G, T, ·) at positions (B, T); return all slots."""
        slot = (position % self.k.shape[2])[:, None, :, None]
        for mine, new in ((self.k, k), (self.v, v)):
            rounded = as_indexable(round_to(new, mine.dtype))
            as_indexable(mine).scatter_(2, slot.expand(rounded.shape), rounded)
        return self.k.to(self.dtype), self.v.to(self.dtype)

    def write(
        self, source: KV | SlidingKV, slots: Rows, rows: Rows, length: int, order: Tensor | None
    ) -> None:
        """Copy the first `length` slots of some rows; `order` (n, length) has the valid ones first."""
        for mine, other in ((self.k, source.k), (self.v, source.v)):
            assert other is not None
            used = min(mine.shape[2], other.shape[2], length)
            rounded = round_to(other[rows, :, :used], mine.dtype)
            if order is not None:
                rounded = as_indexable(rounded).gather(2, order[:, None, :, None].expand_as(rounded))
            as_indexable(mine)[slots, :, :used] = as_indexable(rounded)

    def reorder(self, index: Tensor) -> None:
        for tensor in (as_indexable(self.k), as_indexable(self.v)):
            tensor.copy_(tensor[index])


class StaticKV(StaticCache, KV):  # type: ignore[misc]  # its tensors are never None
    """A KV of which row b has `past[b]` positions: `append` writes there and gives back all slots."""

    def __init__(self, like: KV, size: Size) -> None:
        KV.__init__(self, size.capacity)
        self.allocate(like, size, size.capacity)

    def append(self, k: Tensor, v: Tensor, past: int | Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(past, Tensor), "a static state counts on the device"
        return self.put(k, v, positions_after(past, k.shape[2]))

    def ordinary(self, length: int) -> KV:
        """A KV over the same memory; keys kept in 8 bits are widened."""
        kv = KV(self.capacity)
        kv.k, kv.v = self.k.to(self.dtype), self.v.to(self.dtype)
        return kv


class StaticSlidingKV(StaticCache, SlidingKV):  # type: ignore[misc]
    """A SlidingKV whose slots, few or as many as its window needs, are all given back."""

    def __init__(self, like: SlidingKV, size: Size) -> None:
        SlidingKV.__init__(self, like.window, size.capacity)
        self.allocate(like, size, min(size.capacity, self.slots))

    def append(self, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As SlidingKV; at most `spare` tokens at once, or the first would not see its whole window."""
        size = self.k.shape[2]
        return *self.put(k, v, ctx.q_pos), *slot_positions(ctx.q_pos[:, -1:] + 1, size, size)

    def write(
        self, source: KV | SlidingKV, slots: Rows, rows: Rows, length: int, order: Tensor | None
    ) -> None:
        """Copy the slots: windows of one size place positions alike, and a shorter one has not wrapped."""
        assert source.k is not None
        super().write(source, slots, rows, source.k.shape[2], None)

    def ordinary(self, length: int) -> SlidingKV:
        sliding = SlidingKV(self.window, self.capacity)
        sliding.k, sliding.v, sliding.reached = self.k.to(self.dtype), self.v.to(self.dtype), length
        return sliding


class StaticRecurrentState(RecurrentState):
    """Named tensors that are written over in place; those along an encoder's memory have room for it."""

    def __init__(self, like: RecurrentState, size: Size) -> None:
        super().__init__()
        for name, tensor in like.tensors.items():
            shape = [size.rows, *tensor.shape[1:]]
            if name in MEMORY_AXES:
                shape[MEMORY_AXES[name]] = size.memory_capacity
            self.tensors[name] = tensor.new_zeros(shape)

    def update(self, **tensors: Tensor) -> None:
        for name, new in tensors.items():
            if new is not self.tensors[name]:
                self.tensors[name].copy_(new)

    def write(
        self, source: RecurrentState, slots: Rows, rows: Rows, length: int, order: Tensor | None
    ) -> None:
        """Copy some rows; of a tensor along the memory as much as there is."""
        for name, other in source.tensors.items():
            mine = self.tensors[name]
            if name in MEMORY_AXES:
                mine = mine.narrow(MEMORY_AXES[name], 0, other.shape[MEMORY_AXES[name]])
            mine[slots] = other[rows]

    def reorder(self, index: Tensor) -> None:
        for tensor in self.tensors.values():
            tensor.copy_(tensor[index])

    def ordinary(self, length: int) -> RecurrentState:
        return RecurrentState(**self.tensors)


class StaticFixedState(StaticRecurrentState, FixedState):
    """A FixedState at fixed addresses."""

    def ordinary(self, length: int) -> FixedState:
        return FixedState(**self.tensors)


STATIC_FORMS: dict[type, type] = {
    KV: StaticKV, SlidingKV: StaticSlidingKV, RecurrentState: StaticRecurrentState,
    FixedState: StaticFixedState,
}  # fmt: skip


def static_form(part: Any, size: Size) -> PartState:
    """Return the empty static state of a part, shaped like one in which a prompt was read."""
    if type(part) not in STATIC_FORMS:
        raise TypeError(f"a {type(part).__name__} has no static form")
    form: PartState = STATIC_FORMS[type(part)](part, size)
    return form


def map_state(function: Callable[[Any], PartState], state: PartState | None) -> PartState | None:
    """Return function(part) of every part's state, in the groups in which they are."""
    if isinstance(state, StateGroup):
        return StateGroup({name: map_state(function, part) for name, part in state.parts.items()})
    return None if state is None else function(state)


def all_tensors(state: PartState | None) -> Iterator[Tensor]:
    """Yield every tensor that a static state holds."""
    for part in state_leaves(state):
        yield from part.tensors.values() if isinstance(part, RecurrentState) else (part.k, part.v)  # type: ignore[attr-defined]


class StaticState:
    """The memory of `rows` texts, in tensors that never move.

    `example` is the state of any prompt of the model, for the shapes. `capacity` is the most positions of a
    row, `memory_capacity` the most tokens of a source (by default the example's), `cache_dtype` the type that
    keys and values are kept in (by default their own).
    """

    def __init__(
        self, example: State, rows: int, capacity: int, memory_capacity: int | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.rows, self.capacity = rows, capacity
        memory = example.memory
        self.memory_capacity = 0 if memory is None else memory_capacity or memory.shape[1]
        size = Size(rows, capacity, self.memory_capacity, cache_dtype)
        self.parts = map_state(lambda part: static_form(part, size), example.parts)
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

    def write_row(self, slot: int, state: State) -> None:
        """Let a slot go on from a state that has read one prompt."""
        self.write(state, slice(slot, slot + 1))

    def write(self, state: State, slots: Rows = slice(None), rows: Rows = slice(None)) -> None:
        """Let slots (n,) go on from rows (n,) of a state; by default each from the row of its number."""
        if state.past > self.capacity:
            raise InputError(f"{state.past} positions do not fit into {self.capacity}")
        valid = None if state.valid is None else state.valid[rows]
        order = None if valid is None else (~valid).int().argsort(dim=1, stable=True)
        for static, part in zip(state_leaves(self.parts), state_leaves(state.parts), strict=True):
            static.write(part, slots, rows, state.past, order)  # type: ignore[attr-defined]
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
            memory_valid = None if state.memory_mask is None else state.memory_mask.valid
            # A copy: it may be ours, and is overwritten.
            valid_rows = True if memory_valid is None else memory_valid[rows].clone()
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

    @torch.no_grad()
    def read(self, model: LM, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Read prompts (rows, T) from their start, of which row b has lengths[b] tokens; logits (rows, V).

        What follows a row's tokens is read too, and forgotten: for layers that remember keys alone.
        """
        self.past.zero_()
        ctx = self.context(tokens.shape[1])
        hidden = model.decode(tokens, ctx, self.parts)
        last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))
        self.past.copy_(lengths)
        return model.head.predict(last, ctx)[:, -1]

    def reorder(self, index: Tensor) -> None:
        """Let row b go on as row index[b] was."""
        if self.parts is not None:
            self.parts.reorder(index)
        for tensor in (self.past, self.active, self.tokens, self.memory, self.memory_valid):
            if tensor is not None:
                tensor.copy_(tensor[index])

    def to_state(self) -> State:
        """Return an ordinary state over the same memory; shorter rows are padded at their end."""
        reached = int(self.past.max())
        valid = self.slot_numbers[:, :reached] < self.past[:, None]
        return State(
            map_state(lambda part: part.ordinary(reached), self.parts), reached,
            None if bool(valid.all()) else valid, self.memory,
            None if self.memory_valid is None else Mask(valid=self.memory_valid),
            reread_lengths=self.reread_lengths,
            tokens=None if self.tokens is None else self.tokens[:, :reached],
        )  # fmt: skip

    def changed_by_step(self) -> Iterator[Tensor]:
        """Yield what to put back after a step so that the same step can be taken again."""
        yield self.past
        for leaf in state_leaves(self.parts):
            if isinstance(leaf, RecurrentState) and not isinstance(leaf, FixedState):
                yield from leaf.tensors.values()

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(t.nbytes for t in all_tensors(self.parts))
