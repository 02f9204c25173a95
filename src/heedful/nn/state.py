"""The memory of layers between steps: keys and values (KV, SlidingKV), hidden states (RecurrentState).

One word, state, for a KV cache and for a hidden state. The model counts positions; a state only holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.nn.context import Context, Part, PartState

SPARE_SLOTS = 16  # slots a rolling state has beyond its window: so many tokens can be guessed and taken back


class Cache:
    """Two tensors (B, G, S, ·), which grow until they have as many `slots` as positions need, or fewer.

    The buffer doubles when it is full, so that n steps copy O(n) and not O(n²).
    """

    slots: float = math.inf

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def fits(self, end: int) -> bool:
        """Return whether there is room for `end` positions now."""
        return self.k is not None and self.k.shape[2] >= min(end, self.slots)

    def grow(self, buffer: Tensor | None, new: Tensor, end: int) -> Tensor:
        """Return what is held in a buffer with room for `end` positions; zeros where nothing was written."""
        size = 0 if buffer is None else buffer.shape[2]
        if buffer is not None and size >= min(end, self.slots):
            return buffer
        grown = new.new_zeros(
            *new.shape[:2], int(min(max(end, self.capacity, 2 * size), self.slots)), new.shape[3]
        )
        if buffer is not None:
            grown[:, :, :size] = buffer
        return grown

    def reorder(self, index: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[index], self.v[index]


class KV(Cache):
    """Two tensors that grow along time: keys and values, or a latent and its rotary key."""

    def append(self, k: Tensor, v: Tensor, past: int | Tensor) -> tuple[Tensor, Tensor]:
        """Write after the first `past` positions and give back everything held."""
        start = int(past)
        end = start + k.shape[2]
        self.k, self.v = self.grow(self.k, k, end), self.grow(self.v, v, end)
        self.k[:, :, start:end], self.v[:, :, start:end] = k, v
        return self.k[:, :, :end], self.v[:, :, :end]

    def crop(self, length: int) -> None:
        """Do nothing: positions from `length` on are overwritten by the next append."""


class SlidingKV(Cache):
    """The keys and values of the last `window` tokens, (B, G, S, ·): position p stands in slot p mod S.

    A new token takes the place of the oldest, so memory does not grow with the text; padding takes none. What
    stands in a slot follows from how many tokens there are, so nothing else is kept. A few `spare` slots let
    guessed tokens be taken back: what they had overwritten was out of every window already.
    """

    def __init__(self, window: int, capacity: int = 0) -> None:
        super().__init__(capacity)
        self.window, self.spare = window, min(window, SPARE_SLOTS)
        self.slots: int = window + self.spare
        self.reached = 0  # the most positions there ever were, padding included

    def append(self, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, values, their positions and which of them count, for queries that stand where k does.

        A few new tokens are written first, and looked for among the slots. Many may overwrite what the first
        of them sees: these look at what was held, then at themselves.
        """
        past, T = int(ctx.past), k.shape[2]
        valid = ctx.mask.valid
        # (B or 1, 1): how many tokens there are, those of this pass included; padding is none
        total = ctx.q_pos.new_full((1, 1), past + T) if valid is None else valid.sum(1, keepdim=True)
        if past and self.spare >= T:
            self._write(k, v, ctx)
            return self._slots_in_use(total, past + T)
        valid = torch.ones_like(ctx.q_pos, dtype=torch.bool) if ctx.valid_new is None else ctx.valid_new
        seen = (k, v, ctx.q_pos, valid)
        if past:
            rolled = self._slots_in_use(total - valid.sum(1, keepdim=True), past)
            keys, values, pos, known = (
                torch.cat(pair, -2 if pair[0].dim() == 4 else 1) for pair in zip(rolled, seen, strict=True)
            )
            seen = (keys, values, pos, known)
        self._write(k, v, ctx)
        return seen

    def _slots_in_use(self, total: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The slots in use when `total` tokens were read, at most `limit` of them in a row."""
        assert self.k is not None
        assert self.v is not None
        size = self.k.shape[2]
        used = min(limit, size)
        return self.k[:, :, :used], self.v[:, :, :used], *slot_positions(total, size, used)

    def _write(self, k: Tensor, v: Tensor, ctx: Context) -> None:
        end = int(ctx.past) + k.shape[2]
        # While the text is shorter than the window, slots are positions: the buffer may still grow.
        self.k, self.v = self.grow(self.k, k, end), self.grow(self.v, v, end)
        self.reached, size = max(self.reached, end), self.k.shape[2]
        if ctx.valid_new is None and len(ctx.q_pos) == 1:  # all rows write to the same slots
            slot = ctx.q_pos[0, -size:] % size
            self.k.index_copy_(2, slot, k[:, :, -size:])
            self.v.index_copy_(2, slot, v[:, :, -size:])
            return
        pos = ctx.q_pos.expand(len(k), -1)
        late = pos > pos.amax(1, keepdim=True) - size
        row, t = (late if ctx.valid_new is None else late & ctx.valid_new).nonzero(as_tuple=True)
        slot = pos[row, t] % size
        self.k[row, :, slot], self.v[row, :, slot] = k[row, :, t], v[row, :, t]

    def crop(self, length: int) -> None:
        """Do nothing within the spare slots: further back, what the window held is overwritten."""
        if self.reached > self.slots and self.reached - length > self.spare:
            raise InputError(
                (
                    f"a window's state cannot go back from {self.reached} positions to {length}: at most "
                    f"{self.spare}, older keys are overwritten"
                ),
                hint="copy it before you speculate",
            )


def slot_positions(total: Tensor, size: int, count: int) -> tuple[Tensor, Tensor]:
    """(B, used): the newest of `total` positions that falls on each of `size` slots; whether there is one."""
    newest = total - 1
    pos = newest - (newest - torch.arange(count, device=total.device)) % size
    return pos.clamp(min=0), pos >= 0


class RecurrentState:
    """Named tensors, batch first: h, c of an LSTM; window, h of a state space; S of linear attention."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors: dict[str, Tensor] = tensors
        self.length = 0

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    def update(self, **tensors: Tensor) -> None:
        """The part's new memory, after it has read its input."""
        self.tensors.update(tensors)

    def reorder(self, index: Tensor) -> None:
        self.tensors = {name: tensor[index] for name, tensor in self.tensors.items()}

    def crop(self, length: int) -> None:
        raise InputError(
            "a recurrent state cannot be cropped: it keeps a summary, not the positions",
            hint="copy it before you speculate",
        )


class StatefulPart(Part):
    """A part that remembers tensors of a fixed size, by name, from step to step."""

    def new_state(self, batch: int, length: int) -> RecurrentState:
        return RecurrentState()


def recall(state: PartState | None, name: str) -> Tensor | None:
    """Return what a part remembers under a name; None at the start of a text, and without a state."""
    return state.get(name) if isinstance(state, RecurrentState) else None


def remember(state: PartState | None, **tensors: Tensor) -> None:
    """Keep tensors in a part's state, if it has one."""
    if isinstance(state, RecurrentState):
        state.update(**tensors)


class FixedState(RecurrentState):
    """A state that stays the same while decoding, never cropped: keys and values of an encoder's memory."""

    def crop(self, length: int) -> None:
        """Do nothing."""


class StateGroup:
    """The states of a container's children, by name."""

    def __init__(self, parts: Mapping[str, PartState | None]) -> None:
        self.parts = dict(parts)

    def __getitem__(self, name: str) -> PartState | None:
        return self.parts[name]

    def reorder(self, index: Tensor) -> None:
        for part in self.parts.values():
            if part is not None:
                part.reorder(index)

    def crop(self, length: int) -> None:
        for part in self.parts.values():
            if part is not None:
                part.crop(length)


def state_leaves(state: PartState | None) -> Iterator[PartState]:
    """Yield the states of all parts inside a state, in order."""
    if isinstance(state, StateGroup):
        for part in state.parts.values():
            yield from state_leaves(part)
    elif state is not None:
        yield state


def keep_all_keys(state: PartState | None) -> PartState | None:
    """An empty state whose windows forget nothing, so that a watch sees the keys in the order of the text."""
    if isinstance(state, StateGroup):
        return StateGroup({name: keep_all_keys(part) for name, part in state.parts.items()})
    return KV(state.capacity) if isinstance(state, SlidingKV) else state


def child(state: PartState | None, name: str) -> PartState | None:
    """The state of one child of a container; None where nothing is remembered."""
    return state[name] if isinstance(state, StateGroup) else None
