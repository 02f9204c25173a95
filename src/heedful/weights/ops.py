"""Reversible changes between a published tensor and ours. `save` undoes `load` bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Op:
    """theirs → ours (load) and back (save). The identity."""

    def moves_rows(self, stored: torch.Size) -> bool:
        """Whether it only moves whole rows of a tensor stored in this shape.

        Then rows of blocks are moved alike, and some of the rows can be read without the others.
        """
        return type(self) in (Op, PerHead) or (isinstance(self, Fused) and not self.transposed)

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Our tensors, which have these shapes, from theirs."""
        return list(theirs)

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Their tensors from ours."""
        return list(ours)


@dataclass(frozen=True)
class Transposed(Op):
    """Matrices stored (in, out), as GPT-2's Conv1D does, or stacks of them; vectors stay."""

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [t.mT if t.ndim > 1 else t for t in theirs]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [t.mT.contiguous() if t.ndim > 1 else t for t in ours]


@dataclass(frozen=True)
class Fused(Op):
    """One published tensor holds several of ours one after the other; `transposed` along its columns."""

    transposed: bool = False

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        whole = theirs[0].t() if self.transposed and theirs[0].ndim == 2 else theirs[0]
        return list(whole.split([s[0] for s in shapes]))

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        whole = torch.cat(list(ours))
        return [whole.t().contiguous() if self.transposed and whole.ndim == 2 else whole]


@dataclass(frozen=True)
class Concatenation(Op):
    """Several published tensors one after the other are one of ours; `sizes` are their rows."""

    sizes: tuple[int, ...]

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [torch.cat(list(theirs))]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [t.contiguous() for t in ours[0].split(self.sizes)]


@dataclass(frozen=True)
class PerHead(Op):
    """q, k and v fused head by head: rows run over (head, which of the three, head size), as in BLOOM.

    Where groups of query heads share a key, `heads` counts the groups, each with all its queries first.
    """

    heads: int

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        split = theirs[0].unflatten(0, (self.heads, -1))
        return [t.flatten(0, 1) for t in split.split([shape[0] // self.heads for shape in shapes], 1)]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([t.unflatten(0, (self.heads, -1)) for t in ours], 1).flatten(0, 1)]


@dataclass(frozen=True)
class Pairs(Op):
    """Rotary pairs stored side by side (x₀ x₁ | x₂ x₃ …); ours stand half a head apart.

    `rotary` turns the last N rows of each head (None: all), or the first of them. A norm with weights
    per head, (H, K), is one column.
    """

    heads: int
    rotary: int | None = None
    first: bool = False

    def _permute(self, t: Tensor, *, inverse: bool) -> Tensor:
        rows = t.flatten() if t.shape[0] == self.heads else t
        size = rows.shape[0] // self.heads
        turned = self.rotary or size
        order = torch.arange(turned).view(-1, 2).t().flatten()
        if inverse:
            order = order.argsort()
        start = 0 if self.first else size - turned
        index = torch.arange(size)
        index[start : start + turned] = order + start
        return rows.unflatten(0, (self.heads, size)).index_select(1, index).reshape(t.shape)

    def moves_rows(self, stored: torch.Size) -> bool:
        return stored[0] != self.heads

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [self._permute(t, inverse=False) for t in theirs]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [self._permute(t, inverse=True) for t in ours]


@dataclass(frozen=True)
class HeadsLast(Op):
    """A matrix stored as (in, heads, entries of a head), as XLNet's einsums have it."""

    heads: int

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [t.flatten(1).t() for t in theirs]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [t.t().unflatten(1, (self.heads, -1)).contiguous() for t in ours]


@dataclass(frozen=True)
class Each(Op):
    """Split one published tensor by `first`, and change each part by its op in `ops`."""

    first: Op
    ops: tuple[Op, ...]

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        parts = zip(self.ops, self.first.load(theirs, shapes), shapes, strict=True)
        return [op.load([t], [shape])[0] for op, t, shape in parts]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return self.first.save([op.save([t])[0] for op, t in zip(self.ops, ours, strict=True)])


@dataclass(frozen=True)
class Stacked(Op):
    """One published tensor per expert; ours is one tensor with the experts first."""

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [torch.stack(list(theirs))]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [t.contiguous() for t in ours[0].unbind(0)]


@dataclass(frozen=True)
class Reshape(Op):
    """The same numbers in the same order, stored in another shape; one side of it may be −1."""

    shape: tuple[int, ...]

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [t.reshape(shape) for t, shape in zip(theirs, shapes, strict=True)]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [t.reshape(self.shape) for t in ours]


@dataclass(frozen=True)
class NegatedExp(Op):
    """Stored as −exp(x) where ours is x: the decays of state spaces in GGUF. `shape` is the stored one."""

    shape: tuple[int, ...] | None = None

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [(-t).log().reshape(shape) for t, shape in zip(theirs, shapes, strict=True)]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [-t.exp().reshape(self.shape or t.shape) for t in ours]


@dataclass(frozen=True)
class MinusOne(Op):
    """Stored as 1 + γ where ours is γ: norms of Gemma in GGUF."""

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [t - 1 for t in theirs]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [t + 1 for t in ours]


@dataclass(frozen=True)
class Alternating(Op):
    """Two stacks in one, column by column in turn: (E, in, 2 out), or biases (E, 2 out)."""

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        parts = [theirs[0][..., i::2] for i in range(2)]
        return [(t.mT if t.ndim == 3 else t).contiguous() for t in parts]

    def save(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.stack([t.mT if t.ndim == 3 else t for t in ours], -1).flatten(-2)]


SAME = Op()
