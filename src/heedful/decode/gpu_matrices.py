"""What a decoder's step on a GPU multiplies with: a model's merged matrices, and kernels to choose from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from heedful.decode.fallback import Unknown
from heedful.kernels import gpu_rows as R
from heedful.models.base import LM
from heedful.nn.attention import Attention
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import LMHead
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.quantised import Int8Linear, TiedLinear


@dataclass(frozen=True)
class Kernel:
    """How one row is multiplied: so many rows of W a program, columns a block, warps. `rows` 0: cuBLAS."""

    rows: int = 0
    block: int = 0
    warps: int = 4

    def __str__(self) -> str:
        return f"{self.rows}x{self.block}/{self.warps}" if self.rows else "cublas"


CUBLAS = Kernel()
Choice = dict[str, Kernel]  # by the name of a product: qkv, o, up, down, head


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True)
class Attending:
    """How attention goes over the cache: keys a block, warps, blocks under way, pieces (0: by the rows)."""

    block: int = 64
    warps: int = 4
    stages: int = 3
    splits: int = 0

    def __str__(self) -> str:
        return f"{self.block}/{self.warps}/{self.stages}" + (f" in {self.splits}" if self.splits else "")


def candidates(columns: int, int8: bool) -> list[Kernel]:
    """Kernels worth trying for one row of so many columns. One that reads whole rows can normalise too.

    With weights of 8 bits a block counts words, and digits are read whatever the block is.
    """
    if int8:
        return [Kernel(4, 1024, 8), Kernel(8, 1024, 8), Kernel(2, 1024, 4), Kernel(4, 512, 4),
                Kernel(8, 512, 4), Kernel(1, 1024, 4)]  # fmt: skip
    whole = power(columns)
    looped = [Kernel(4, 1024, 4), Kernel(8, 512, 4), Kernel(2, 2048, 4), Kernel(1, 4096, 4)]
    if whole > 4096:
        return [CUBLAS, *looped]
    full = [Kernel(rows, whole, warps) for rows, warps in ((1, 4), (2, 4), (4, 8), (8, 8))]
    return [CUBLAS, *full, *looped[:2]]


def usual(columns: int, int8: bool) -> Kernel:
    """A fair kernel without measuring."""
    whole = power(columns)
    if int8:
        return Kernel(4, min(1024, max(16, whole // 4)), 8 if whole >= 4096 else 4)
    return Kernel(2 if whole >= 2048 else 4, whole, 4) if whole <= 4096 else Kernel(4, 1024, 4)


@dataclass
class Matrix:
    """W (rows, columns), float or int8 with a scale for each row, and its bias."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    @property
    def rows(self) -> int:
        return self.weight.shape[0]

    @property
    def columns(self) -> int:
        return self.weight.shape[1]

    @property
    def words(self) -> bool:
        """Whether rows are bytes that can be read as words, 16 at a time."""
        return self.scale is not None and self.columns % R.GROUP == 0


@dataclass(frozen=True)
class Digits:
    """A row v ≈ gain · (256 hi + lo): hi and lo one after the other, a gain for each group of columns."""

    bytes: Tensor
    gains: Tensor


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor with the rows of several, which become views of it: nothing is held twice.

    Tensors that already stand one after the other in memory stay where they are.
    """
    ends = [(t.untyped_storage().data_ptr(), t.data_ptr() + t.nbytes) for t in tensors[:-1]]
    starts = [(t.untyped_storage().data_ptr(), t.data_ptr()) for t in tensors[1:]]
    first, rows = tensors[0].detach(), sum(len(t) for t in tensors)
    if any(t.dtype != first.dtype for t in tensors):
        raise Unknown("layers that are multiplied as one, of different types")
    if ends == starts:
        return first.as_strided((rows, *first.shape[1:]), first.stride())
    whole, start = torch.cat([t.detach() for t in tensors]), 0
    for tensor in tensors:
        tensor.data = whole[start : start + len(tensor)]
        start += len(tensor)
    return whole


def merged(*layers: nn.Module) -> Matrix:
    """The matrices of several layers as one. The layers keep views of it: what they learn is in it too."""
    if all(type(layer) is nn.Linear for layer in layers):
        scales: list[Tensor] = []
    elif all(type(layer) is Int8Linear or type(layer) is TiedLinear for layer in layers):
        scales = [cast(Tensor, layer.scale) for layer in layers]
    else:
        raise Unknown(", ".join(type(layer).__name__ for layer in layers))
    weights, biases = [cast(Tensor, layer.weight) for layer in layers], [layer.bias for layer in layers]
    added = [cast(Tensor, bias) for bias in biases if bias is not None]
    if len(added) not in (0, len(layers)):
        raise Unknown("layers that are multiplied as one, some of them with a bias and some without")
    return Matrix(joined(weights), joined(scales) if scales else None, joined(added) if added else None)


@dataclass
class Matrices:
    """The merged matrices of a model, made once and kept for every number of rows."""

    model: LM
    made: dict[int, dict[str, Matrix]] = field(default_factory=dict)
    owners: Counter[int] = field(default_factory=Counter)  # how many layers have each tensor, by its id

    def __post_init__(self) -> None:
        for part in self.model.modules():
            if isinstance(part, Attention):
                self.made[id(part)] = {"qkv": merged(*self.own(part.q, part.k, part.v)), "o": merged(part.o)}
            elif isinstance(part, GatedMLP):
                self.made[id(part)] = {"up": merged(*self.own(part.gate, part.up)), "down": merged(part.down)}
            elif isinstance(part, MLP):
                self.made[id(part)] = {"up": merged(part.up), "down": merged(part.down)}
            elif isinstance(part, LMHead):
                self.made[id(part)] = {"head": merged(part.out)}

    def own(self, *layers: nn.Module) -> tuple[nn.Module, ...]:
        """The layers, if no other has one of their tensors: merging would leave that one's behind."""
        if not self.owners:
            self.owners.update(id(p) for m in self.model.modules() for p in m._parameters.values())
        if any(self.owners[id(p)] > 1 for layer in layers for p in layer.parameters()):
            raise Unknown("a matrix that two layers share")
        return layers

    def __getitem__(self, part: nn.Module) -> dict[str, Matrix]:
        return self.made[id(part)]

    def named(self, name: str) -> list[tuple[nn.Module | None, Matrix]]:
        """All matrices called so, with the part they are of."""
        parts = {id(m): m for m in self.model.modules()}
        return [(parts[i], matrices[name]) for i, matrices in self.made.items() if name in matrices]


def attendings(matrices: Matrices, rows: int) -> list[Attending]:
    """Ways over the cache worth trying: in pieces where rows and heads alone do not fill the device."""
    heads = max((m.kv_heads for m in matrices.model.modules() if isinstance(m, Attention)), default=1)
    if rows * heads >= 132:
        sizes = ((64, 4, 3), (32, 4, 4), (64, 8, 3), (128, 4, 2), (128, 8, 2), (32, 2, 4))
        return [Attending(*size, splits=1) for size in sizes]
    return [Attending(block, 4, 2, splits) for block in (32, 64) for splits in (1, 2, 4, 8)]


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of any type: not every fill knows 8-bit floats, whose zero is the byte 0."""
    if dtype.itemsize > 1:
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.zeros(*shape, dtype=torch.uint8, device=device).view(dtype)


def working(model: nn.Module) -> torch.dtype:
    """What the model computes in: the type of its weights, scales of whole numbers apart."""
    found = (p for n, p in model.named_parameters() if p.is_floating_point() and not n.endswith(".scale"))
    return next(found).dtype


def described(norm: nn.Module | None) -> tuple[int, Tensor | None, Tensor | None, float]:
    """Kind, γ, β and ε of a norm."""
    if norm is None:
        return R.PLAIN, None, None, 0.0
    if type(norm) is LayerNorm:
        return R.LAYER, norm.weight, norm.bias, norm.eps
    if type(norm) is RMSNorm:
        return R.RMS, norm.weight, None, norm.eps
    raise Unknown(type(norm).__name__)


def multiply(x: Tensor, w: Matrix, out: Tensor, factor: float) -> None:
    """out = factor · x Wᵀ + b, by the vendor's library."""
    weight = w.weight if w.scale is None else w.weight.to(x.dtype)
    plain = w.scale is None and factor == 1.0
    if plain and w.bias is not None:
        torch.addmm(w.bias, x, weight.t(), out=out)
        return
    torch.mm(x, weight.t(), out=out)
    if not plain:
        out.mul_(factor if w.scale is None else w.scale * factor)
        if w.bias is not None:
            out.add_(w.bias)
