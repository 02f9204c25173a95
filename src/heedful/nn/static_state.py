"""States of a fixed size at fixed addresses: what KV, SlidingKV and RecurrentState hold, for a step that is
recorded once and replayed, and for texts that stand at different positions.

Row b of the batch holds `past[b]` positions, without padding: position p stands in slot p (of a window: in
slot p mod S). A step writes each row at its own position, which only the device knows, and nothing is ever
allocated. A row is filled from the state in which its prompt was read (`write`), whoever stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.nn.context import Context, PartState
from heedful.nn.operators import operators
from heedful.nn.state import KV, FixedState, RecurrentState, SlidingKV, StateGroup, slot_positions

if TYPE_CHECKING:
    from heedful.nn.fusion import FusedOperators

# Tensors of a part that run along an encoder's memory, and the axis that does.
MEMORY_AXES = {"k": 2, "v": 2, "keys": 1}


def write_slots(target: Tensor, new: Tensor, position: Tensor) -> None:
    """target[b, :, position[b, t]] = new[b, :, t] for (B, G, S, ·) and (B, G, T, ·)"""
    target.scatter_(2, position[:, None, :, None].expand(new.shape), new.to(target.dtype))


def positions_after(past: Tensor, count: int) -> Tensor:
    """(B, T): the positions of `count` tokens that follow `past` (B,) others."""
    start = past[:, None]
    return start if count == 1 else start + torch.arange(count, device=past.device)


class StaticKV(KV):
    """Keys and values (B, G, S, ·) of which row b has `past[b]`: `append` writes there and gives back all S.

    What lies beyond a row's own positions is hidden by the mask of the pass.
    """

    def __init__(self, like: KV, rows: int, capacity: int) -> None:
        super().__init__(capacity)
        assert like.k is not None
        assert like.v is not None
        self.k, self.v = (t.new_zeros(rows, t.shape[1], capacity, t.shape[3]) for t in (like.k, like.v))

    def append(self, k: Tensor, v: Tensor, past: int | Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(past, Tensor), "a static state counts on the device"
        assert self.k is not None
        assert self.v is not None
        fused = operators() if k.shape[2] == 1 else None
        if fused is not None:
            fused.append(self.k, self.v, k, v, past)
            return self.k, self.v
        where = positions_after(past, k.shape[2])
        write_slots(self.k, k, where)
        write_slots(self.v, v, where)
        return self.k, self.v

    def write(self, source: KV, slots: Tensor, rows: Tensor, length: int, order: Tensor | None) -> None:
        """Copy the first `length` positions of some rows; `order` (n, length) has the valid ones first."""
        for mine, other in ((self.k, source.k), (self.v, source.v)):
            assert mine is not None
            assert other is not None
            held = other[rows, :, :length]
            if order is not None:
                held = held.gather(2, order[:, None, :, None].expand_as(held))
            mine[slots, :, :length] = held

    def reorder(self, index: Tensor) -> None:
        for held in (self.k, self.v):
            assert held is not None
            held.copy_(held[index])


class StaticSlidingKV(SlidingKV):
    """Static keys and values of a window: position p of row b stands in slot p mod S, as in a SlidingKV."""

    def __init__(self, like: SlidingKV, rows: int, capacity: int) -> None:
        super().__init__(like.window, capacity)
        assert like.k is not None
        assert like.v is not None
        size = min(capacity, self.slots)
        self.k, self.v = (t.new_zeros(rows, t.shape[1], size, t.shape[3]) for t in (like.k, like.v))

    def append(self, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As SlidingKV; at most `spare` tokens at once, or the first would not see its whole window."""
        assert self.k is not None
        assert self.v is not None
        size = self.k.shape[2]
        where = ctx.q_pos % size
        write_slots(self.k, k, where)
        write_slots(self.v, v, where)
        return self.k, self.v, *slot_positions(ctx.q_pos[:, -1:] + 1, size, size)

    def write(
        self, source: SlidingKV, slots: Tensor, rows: Tensor, length: int, order: Tensor | None
    ) -> None:
        """Copy the slots: windows of one size place positions alike, and a shorter one has not wrapped."""
        for mine, other in ((self.k, source.k), (self.v, source.v)):
            assert mine is not None
            assert other is not None
            used = min(mine.shape[2], other.shape[2])
            mine[slots, :, :used] = other[rows, :, :used]

    def reorder(self, index: Tensor) -> None:
        for held in (self.k, self.v):
            assert held is not None
            held.copy_(held[index])


class StaticRecurrentState(RecurrentState):
    """Named tensors that are written over in place; those along an encoder's memory have room for it."""

    def __init__(self, like: RecurrentState, rows: int, memory_capacity: int) -> None:
        super().__init__()
        for name, tensor in like.tensors.items():
            shape = [rows, *tensor.shape[1:]]
            if name in MEMORY_AXES:
                shape[MEMORY_AXES[name]] = memory_capacity
            self.tensors[name] = tensor.new_zeros(shape)

    def update(self, **tensors: Tensor) -> None:
        for name, new in tensors.items():
            if new is not self.tensors[name]:
                self.tensors[name].copy_(new)

    def write(self, source: RecurrentState, slots: Tensor, rows: Tensor) -> None:
        """Copy some rows; of a tensor along the memory as much as there is."""
        for name, other in source.tensors.items():
            mine = self.tensors[name]
            if name in MEMORY_AXES:
                mine = mine.narrow(MEMORY_AXES[name], 0, other.shape[MEMORY_AXES[name]])
            mine[slots] = other[rows]

    def reorder(self, index: Tensor) -> None:
        for held in self.tensors.values():
            held.copy_(held[index])


class StaticFixedState(StaticRecurrentState, FixedState):
    """A FixedState at fixed addresses."""


def step_of(x: Tensor, state: PartState | None) -> FusedOperators | None:
    """Return the operators of a step, for a part that reads one token and remembers in a static state."""
    return operators() if x.shape[1] == 1 and isinstance(state, StaticRecurrentState) else None


def static_like(part: PartState | None, rows: int, capacity: int, memory_capacity: int) -> PartState | None:
    """Return empty static states for `rows` rows, shaped like those in which a prompt was read."""
    if isinstance(part, StateGroup):
        return StateGroup({n: static_like(p, rows, capacity, memory_capacity) for n, p in part.parts.items()})
    if isinstance(part, KV):
        return StaticKV(part, rows, capacity)
    if isinstance(part, SlidingKV):
        return StaticSlidingKV(part, rows, capacity)
    if isinstance(part, FixedState):
        return StaticFixedState(part, rows, memory_capacity)
    if isinstance(part, RecurrentState):
        return StaticRecurrentState(part, rows, memory_capacity)
    if part is None:
        return None
    raise TypeError(f"a {type(part).__name__} has no static form")


def write_static(
    static: PartState | None,
    source: PartState | None,
    slots: Tensor,
    rows: Tensor,
    length: int,
    order: Tensor | None,
) -> None:
    """Copy rows of a state into slots of a static one; `order` brings the valid positions to the front."""
    if isinstance(static, StateGroup):
        assert isinstance(source, StateGroup)
        for name, part in static.parts.items():
            write_static(part, source[name], slots, rows, length, order)
    elif isinstance(static, StaticKV):
        assert isinstance(source, KV)
        static.write(source, slots, rows, length, order)
    elif isinstance(static, StaticSlidingKV):
        assert isinstance(source, SlidingKV)
        static.write(source, slots, rows, length, order)
    elif isinstance(static, StaticRecurrentState):
        assert isinstance(source, RecurrentState)
        static.write(source, slots, rows)


def ordinary(part: PartState | None, length: int) -> PartState | None:
    """Return the ordinary states over the same memory, for a pass that is not recorded."""
    if isinstance(part, StateGroup):
        return StateGroup({name: ordinary(p, length) for name, p in part.parts.items()})
    if isinstance(part, StaticKV):
        kv = KV(part.capacity)
        kv.k, kv.v = part.k, part.v
        return kv
    if isinstance(part, StaticSlidingKV):
        sliding = SlidingKV(part.window, part.capacity)
        sliding.k, sliding.v, sliding.reached = part.k, part.v, length
        return sliding
    if isinstance(part, StaticFixedState):
        return FixedState(**part.tensors)
    if isinstance(part, StaticRecurrentState):
        return RecurrentState(**part.tensors)
    return part


def recurrent_tensors(part: PartState | None) -> Iterator[Tensor]:
    """Yield what a step changes so that a second one with the same token would give something else."""
    if isinstance(part, StateGroup):
        for child in part.parts.values():
            yield from recurrent_tensors(child)
    elif isinstance(part, RecurrentState) and not isinstance(part, FixedState):
        yield from part.tensors.values()


def all_tensors(part: PartState | None) -> Iterator[Tensor]:
    """Yield every tensor that a state holds."""
    if isinstance(part, StateGroup):
        for child in part.parts.values():
            yield from all_tensors(child)
    elif isinstance(part, RecurrentState):
        yield from part.tensors.values()
    elif isinstance(part, (KV, SlidingKV)) and part.k is not None and part.v is not None:
        yield from (part.k, part.v)
