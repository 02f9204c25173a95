"""What layers remember between steps: keys and values (KV), hidden states (Recurrent), Groups.

One word, state, for a KV cache and for a hidden state. The model counts positions; a state only holds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from heedful.errors import InputError
from heedful.nn.context import PartState


class KV:
    """Two tensors that grow along time, (B, G, S, ·): keys and values, or a latent and its rotary key.

    The buffer doubles when it is full, so that n steps copy O(n) and not O(n²).
    """

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor, past: int | Tensor) -> tuple[Tensor, Tensor]:
        """Write after the first `past` positions and give back everything held."""
        start = int(past)
        end = start + k.shape[2]
        self.k, self.v = self._room(self.k, k, end), self._room(self.v, v, end)
        self.k[:, :, start:end], self.v[:, :, start:end] = k, v
        return self.k[:, :, :end], self.v[:, :, :end]

    def _room(self, held: Tensor | None, new: Tensor, end: int) -> Tensor:
        if held is not None and held.shape[2] >= end:
            return held
        size = max(end, self.capacity, 2 * held.shape[2] if held is not None else 0)
        grown = new.new_empty(*new.shape[:2], size, new.shape[3])
        if held is not None:
            grown[:, :, : held.shape[2]] = held
        return grown

    def reorder(self, index: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[index], self.v[index]

    def crop(self, length: int) -> None:
        """Nothing to do: positions from `length` on are overwritten by the next append."""


class Recurrent:
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
            "a recurrent state cannot be cropped: it keeps a summary, not the positions; "
            "copy it before you speculate"
        )


class Fixed(Recurrent):
    """What stays the same while decoding, and so is never cropped: keys and values of an encoder's memory."""

    def crop(self, length: int) -> None:
        """Nothing to do."""


class Group:
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


def child(state: PartState | None, name: str) -> PartState | None:
    """The state of one child of a container; None where nothing is remembered."""
    return state[name] if isinstance(state, Group) else None
