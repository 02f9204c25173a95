"""Matrices in whole numbers: layers swapped in after training. No other part knows them.

w ≈ s · n with n of 8 bits and one s for each output (Dettmers et al. 2022 §2, without their outliers), or n
of 4 bits with a scale and an offset for each group of inputs. Only weights are rounded: less memory is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import is_grad_enabled as grads

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.nn.attention.attentive import Additive, FromBack, Maxout
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import LMHead
from heedful.nn.recurrent import GatedUnit
from heedful.nn.state_space.ssm import Mamba

KINDS = ("int8", "int4")
GROUP = 32
ALIGNED = 32  # bytes: what torch's product of whole numbers wants of addresses
# Parts that call their matrices and never read them. Others keep theirs as they are.
PARTS = (Attention, CrossAttention, MLP, GatedMLP, LMHead, GatedUnit, Additive, Maxout, FromBack, Mamba)


def frozen_parameter(tensor: Tensor) -> nn.Parameter:
    """A parameter that is stored and moved, never trained."""
    return nn.Parameter(tensor, requires_grad=False)


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """n = round(w / s), s = max |w| / 127 over each row"""
    if weight.is_meta:  # shapes alone: arithmetic on `meta` imports torch's compiler, which takes a second
        return weight.new_empty(weight.shape, dtype=torch.int8), weight.new_empty(len(weight)).float()
    scale = weight.float().abs().amax(1).clamp(min=1e-12) / 127
    return (weight.float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def round_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """n = round((w − m) / s) in 0 … 15, m = min w and s = (max w − min w) / 15 over each group of inputs.

    Two numbers to a byte: the first half of a group in the low bits, the second in the high ones. s and m
    together are (N, K/group, 2).
    """
    if weight.is_meta:
        rows, inputs = weight.shape
        scales = weight.new_empty(rows, inputs // group, 2).float()
        return weight.new_empty(rows, inputs // 2, dtype=torch.uint8), scales
    parts = weight.float().unflatten(1, (-1, group))  # (N, K/group, group)
    low = parts.amin(2, keepdim=True)
    scale = ((parts.amax(2, keepdim=True) - low) / 15).clamp(min=1e-12)
    first, second = ((parts - low) / scale).round().to(torch.uint8).chunk(2, -1)
    return (first | (second << 4)).flatten(1), torch.cat((scale, low), 2)


def packed(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's product of a few rows with 8-bit numbers may be given these tensors.

    It reads 16 inputs at a time from aligned addresses and checks neither: with another number of inputs it
    reads past the end of a row, with another address the process dies.
    """
    supported = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if not supported or x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return x.shape[-1] % 16 == 0 and weight.data_ptr() % ALIGNED == 0


class RoundedModule(nn.Module):
    """Whole numbers and their scales. `to(dtype)` sets the type of the result; scales stay float32."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        scale = self._parameters.get("scale")
        exact = None if scale is None else scale.data
        super()._apply(fn, recurse)
        moved = self._parameters.get("scale")
        if exact is not None and moved is not None and moved.dtype != exact.dtype:
            moved.data = exact.to(moved.device)
        return self


class Quantised(RoundedModule):
    """y = W x + b, W from whole numbers. `dequantise` gives W, by the layer's own definition."""

    bits: int
    weight: nn.Parameter
    scale: nn.Parameter
    bias: nn.Parameter | None
    in_features: int
    out_features: int

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """W (out, in)"""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """The definition."""
        return F.linear(x, self.dequantise(x.dtype), self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bits={self.bits}, bias={self.bias is not None}"


class ByOutput(Quantised):
    """W = s n, n of 8 bits and one s for each output"""

    bits = 8

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        return self.weight.to(dtype) * self.scale[:, None].to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """s (n x) + b: whole numbers are widened exactly, and the scale is for a vector, not a matrix."""
        rows = x.numel() // self.in_features
        if rows <= 4 and packed(x, self.weight) and not (x.requires_grad and grads()):
            # So few rows read n as it is. The function has no derivative: who asks for one takes the other.
            flat = x.reshape(-1, self.in_features)
            flat = flat if flat.data_ptr() % ALIGNED == 0 else flat.clone()
            y = torch._weight_int8pack_mm(flat, self.weight, self.scale.to(x.dtype)).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias


class Int8Linear(ByOutput):
    """A separate layer in 8 bits"""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        weight, scale = round_int8(base.weight.detach())
        self.weight, self.scale, self.bias = frozen_parameter(weight), frozen_parameter(scale), base.bias


class Int4Linear(Quantised):
    """W = s n + m, n of 4 bits and one s and m for each `group` inputs of each output"""

    bits = 4

    def __init__(self, base: nn.Linear, group: int = GROUP) -> None:
        super().__init__()
        self.in_features, self.out_features, self.group = base.in_features, base.out_features, group
        weight, scale = round_int4(base.weight.detach(), group)
        self.weight, self.scale, self.bias = frozen_parameter(weight), frozen_parameter(scale), base.bias

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        halves = self.weight.unflatten(1, (-1, self.group // 2))
        whole = torch.cat((halves & 15, halves >> 4), -1)  # (N, K/group, group)
        return (whole * self.scale[..., :1] + self.scale[..., 1:]).flatten(1).to(dtype)


class Int8Embedding(RoundedModule):
    """table[w] = s_w n_w: the rows of an embedding in 8 bits. A tied head reads the same numbers."""

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = base.num_embeddings, base.embedding_dim
        self.dtype = base.weight.dtype
        weight, scale = round_int8(base.weight.detach())
        self.weight, self.scale = frozen_parameter(weight), frozen_parameter(scale)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.weight[tokens] * self.scale[tokens][..., None]).to(self.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bits=8"


class TiedLinear(ByOutput):
    """u = E x: the table of an embedding as output matrix. It is the embedding itself, so both stay one."""

    bias = None

    def __init__(self, table: Int8Embedding) -> None:
        super().__init__()
        self.in_features, self.out_features, self.table = table.embedding_dim, table.num_embeddings, table

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        return self.table.weight

    @property
    def scale(self) -> nn.Parameter:  # type: ignore[override]
        return self.table.scale


def quantise_modules(model: nn.Module, kind: str, group: int = GROUP, tables: bool = False) -> int:
    """Replace the matrices of `PARTS` by quantised layers; return their number. Works on `meta` as well.

    A table that a head shares with the embedding stays shared. It, and a matrix whose inputs are not a
    multiple of the group, take 8 bits in any case. With `tables`, tables of tokens that no head shares do as
    well.
    """
    check_choice("quantize", kind, KINDS, ConfigError)
    count, embeddings = 0, {id(m.weight): m for m in model.modules() if type(m) is nn.Embedding}
    rounded: dict[int, Int8Embedding] = {}
    for part in [m for m in model.modules() if isinstance(m, PARTS)]:
        for name, layer in list(part.named_children()):
            if type(layer) is not nn.Linear:
                continue
            if isinstance(part, LMHead) and id(layer.weight) in embeddings:
                if layer.bias is None:
                    table = rounded.setdefault(id(layer.weight), Int8Embedding(embeddings[id(layer.weight)]))
                    part.tied, part.out = False, TiedLinear(table)
                    count += 1
                continue
            by_four = kind == "int4" and layer.in_features % group == 0 and not isinstance(part, LMHead)
            setattr(part, name, Int4Linear(layer, group) if by_four else Int8Linear(layer))
            count += 1
    shared = {id(m.weight) for m in model.modules() if type(m) is nn.Linear}  # by heads that stay as they are
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Embedding:
                continue
            of_tokens = isinstance(parent, Embedding) and name == "token"
            if tables and of_tokens and id(child.weight) not in shared:
                rounded.setdefault(id(child.weight), Int8Embedding(child))
            if id(child.weight) in rounded:
                setattr(parent, name, rounded[id(child.weight)])
    return count


def dequantise_modules(model: nn.Module) -> None:
    """Put plain layers in the place of quantised ones: what `quantise_modules` did, but for the rounding."""
    tables: dict[int, nn.Embedding] = {}
    for table in [m for m in model.modules() if isinstance(m, Int8Embedding)]:
        weight = table.weight.to(torch.float32) * table.scale[:, None]
        rows, dim = weight.shape
        tables[id(table)] = nn.Embedding(rows, dim, _weight=weight.to(table.dtype))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Int8Embedding):
                setattr(parent, name, tables[id(child)])
            elif isinstance(child, Quantised):
                dtype = child.bias.dtype if child.bias is not None else torch.float32
                layer = nn.Linear(child.in_features, child.out_features, child.bias is not None, "meta")
                layer.weight = nn.Parameter(child.dequantise(dtype))
                layer.register_parameter("bias", child.bias)
                if isinstance(parent, LMHead) and isinstance(child, TiedLinear):
                    parent.tied, layer.weight = True, tables[id(child.table)].weight
                setattr(parent, name, layer)
