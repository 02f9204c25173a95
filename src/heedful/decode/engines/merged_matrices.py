"""What a decoder's step on a GPU multiplies with: a model's merged matrices, and kernels to choose from."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from heedful.decode.engines.fallback import UnsupportedPart
from heedful.kernels import gpu_rows as R
from heedful.models.base import LM
from heedful.nn.attention import Attention
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import LMHead
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.quantised import Int8Linear, TiedLinear


@dataclass(frozen=True)
class Kernel:
    """A kernel that multiplies one row: rows of W a program, columns a block, warps. `rows` 0: cuBLAS."""

    rows: int = 0
    block: int = 0
    warps: int = 4

    def __str__(self) -> str:
        return f"{self.rows}x{self.block}/{self.warps}" if self.rows else "cublas"


CUBLAS = Kernel()
KernelChoice = dict[str, Kernel]  # by the name of a product: qkv, o, up, down, head


@dataclass(frozen=True)
class AttentionPlan:
    """A way of attention over the cache: keys a block, warps, blocks under way, pieces (0: by the rows)."""

    block: int = 64
    warps: int = 4
    stages: int = 3
    splits: int = 0

    def __str__(self) -> str:
        return f"{self.block}/{self.warps}/{self.stages}" + (f" in {self.splits}" if self.splits else "")


@dataclass
class MergedMatrix:
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


def concat_in_place(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor with the rows of several, which become views of it: nothing is held twice.

    Tensors that already stand one after the other in memory stay where they are.
    """
    ends = [(t.untyped_storage().data_ptr(), t.data_ptr() + t.nbytes) for t in tensors[:-1]]
    starts = [(t.untyped_storage().data_ptr(), t.data_ptr()) for t in tensors[1:]]
    first, rows = tensors[0].detach(), sum(len(t) for t in tensors)
    if any(t.dtype != first.dtype for t in tensors):
        raise UnsupportedPart("layers that are multiplied as one, of different types")
    if ends == starts:
        return first.as_strided((rows, *first.shape[1:]), first.stride())
    whole, start = torch.cat([t.detach() for t in tensors]), 0
    for tensor in tensors:
        tensor.data = whole[start : start + len(tensor)]
        start += len(tensor)
    return whole


def merge_layers(*layers: nn.Module) -> MergedMatrix:
    """The matrices of several layers as one. The layers keep views of it: what they learn is in it too."""
    if all(type(layer) is nn.Linear for layer in layers):
        scales: list[Tensor] = []
    elif all(type(layer) is Int8Linear or type(layer) is TiedLinear for layer in layers):
        scales = [cast(Tensor, layer.scale) for layer in layers]
    else:
        raise UnsupportedPart(", ".join(type(layer).__name__ for layer in layers))
    weights, biases = [cast(Tensor, layer.weight) for layer in layers], [layer.bias for layer in layers]
    added = [cast(Tensor, bias) for bias in biases if bias is not None]
    if len(added) not in (0, len(layers)):
        raise UnsupportedPart("layers that are multiplied as one, some of them with a bias and some without")
    return MergedMatrix(
        concat_in_place(weights),
        concat_in_place(scales) if scales else None,
        concat_in_place(added) if added else None,
    )


class MergedMatrices:
    """The merged matrices of a model, made once and kept for every number of rows; they do not keep it."""

    def __init__(self, model: LM) -> None:
        self.owner = weakref.ref(model)
        self.by_part: dict[int, dict[str, MergedMatrix]] = {}
        self.owners: Counter[int] = Counter()  # how many layers have each tensor, by its id
        for part in self.model.modules():
            if isinstance(part, Attention):
                if part.q_norm is not None or part.k_norm is not None:
                    raise UnsupportedPart("queries and keys that are normalised")
                self.by_part[id(part)] = {
                    "qkv": merge_layers(*self.check_unshared(part.q, part.k, part.v)),
                    "o": merge_layers(part.o),
                }
            elif isinstance(part, GatedMLP):
                self.by_part[id(part)] = {
                    "up": merge_layers(*self.check_unshared(part.gate, part.up)),
                    "down": merge_layers(part.down),
                }
            elif isinstance(part, MLP):
                self.by_part[id(part)] = {"up": merge_layers(part.up), "down": merge_layers(part.down)}
            elif isinstance(part, LMHead):
                self.by_part[id(part)] = {"head": merge_layers(part.out)}

    @property
    def model(self) -> LM:
        model = self.owner()
        assert model is not None, "the model is gone"
        return model

    def check_unshared(self, *layers: nn.Module) -> tuple[nn.Module, ...]:
        """The layers, if no other has one of their tensors: merging would leave that one's behind."""
        if not self.owners:
            self.owners.update(id(p) for m in self.model.modules() for p in m._parameters.values())
        if any(self.owners[id(p)] > 1 for layer in layers for p in layer.parameters()):
            raise UnsupportedPart("a matrix that two layers share")
        return layers

    def __getitem__(self, part: nn.Module) -> dict[str, MergedMatrix]:
        return self.by_part[id(part)]

    def find(self, name: str) -> list[tuple[nn.Module | None, MergedMatrix]]:
        """All matrices called so, with the part they are of."""
        parts = {id(m): m for m in self.model.modules()}
        return [(parts[i], matrices[name]) for i, matrices in self.by_part.items() if name in matrices]


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of any type: not every fill knows 8-bit floats, whose zero is the byte 0."""
    if dtype.itemsize > 1:
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.zeros(*shape, dtype=torch.uint8, device=device).view(dtype)


def norm_fields(norm: nn.Module | None) -> tuple[int, Tensor | None, Tensor | None, float]:
    """Kind, γ, β and ε of a norm."""
    if norm is None:
        return R.PLAIN, None, None, 0.0
    if type(norm) is LayerNorm:
        return R.LAYER, norm.weight, norm.bias, norm.eps
    if type(norm) is RMSNorm:
        return R.RMS, norm.weight, None, norm.eps
    raise UnsupportedPart(type(norm).__name__)


def multiply(x: Tensor, w: MergedMatrix, out: Tensor, factor: float) -> None:
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
