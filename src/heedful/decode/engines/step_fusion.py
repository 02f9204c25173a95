"""Products of few rows with what stands next to them, in one launch: a norm before, a sum after.

    y = act(W norm(x) + b) + r

Inside a recorded step a norm and a product of few rows give a tensor that is not computed yet. An activation
or a residual sum that follows becomes part of it. Products of the same x are launched together. Any other
operation on the tensor computes it first. So the parts stay as they are written, and a step launches little
more than its products. Nothing waits longer than to the next write in place, or the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from heedful.decode.engines.step_operators import MAX_PRODUCTS, Definitions, Norm, Product
from heedful.nn.position import Rotary

if TYPE_CHECKING:
    from heedful.kernels.gpu.step import Kernels

R = TypeVar("R")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MAX_ROWS = 16  # of x, beyond which the vendor's library multiplies
MAX_COLUMNS = 4096  # of a row of which a product can take mean and variance on its way


@dataclass(eq=False)
class NormNode:
    """norm(source), not computed yet; `source` may not be either.

    If its source is a product, that multiplies by γ and adds up squares when it is launched: `scaled` is then
    what products of the norm read in the place of the source.
    """

    source: Tensor
    norm: Norm
    value: Tensor | None = None
    scaled: tuple[Tensor, Norm] | None = None


@dataclass(eq=False)
class ProductNode:
    """act(W norm(x) + b) + r, not computed yet; x and r are."""

    x: Tensor
    norm: Norm | None
    product: Product
    shape: tuple[int, ...]
    dtype: torch.dtype
    residual: Tensor | None = None
    after: NormNode | None = None
    value: Tensor | None = None


class Deferred(Tensor):
    """A tensor that is not computed yet: it has a shape and a type, and what it will be."""

    node: NormNode | ProductNode
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, node: NormNode | ProductNode
    ) -> Deferred:
        tensor = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=device)
        tensor.node = node
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} was given a tensor that is not computed yet")


ACTIVATIONS: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", torch.Tensor.relu: "relu", F.silu: "silu", torch._C._nn.silu: "silu",
    F.gelu: "gelu", F.tanh: "tanh", torch.tanh: "tanh", torch.Tensor.tanh: "tanh",
}  # fmt: skip
PRODUCTS = {torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__}
SUMS = {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__}
DESCRIBED = ("shape", "dtype", "device", "is_cuda", "ndim", "requires_grad")
DESCRIPTIONS = {
    *(vars(torch._C.TensorBase)[name].__get__ for name in DESCRIBED),
    torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__len__,
}  # fmt: skip


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is what its memory holds, in a type that kernels read, and not a subclass."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.dtype in FLOATS and tensor.is_contiguous()


def writes_in_place(name: str) -> bool:
    """Whether a function of this name writes over a tensor: add_, __iadd__, __setitem__."""
    return (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__setitem__"))


def run(function: Callable[..., R], *args: Any, **more: Any) -> R:
    """Call a function whose tensors are all computed, and which is not looked into."""
    with torch._C.DisableTorchFunction():
        return function(*args, **more)


class FusedOperators(TorchFunctionMode):
    """The operators of a step as parts see them: `base` computes, this decides when and how much at once."""

    def __init__(self, base: Definitions | Kernels) -> None:
        super().__init__()
        self.base = base
        self.pending: list[ProductNode] = []
        self.tables: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DESCRIPTIONS:
            return func(*args, **kwargs)
        deferred = self.defer(func, args, kwargs)
        if deferred is not None:
            return deferred
        if writes_in_place(getattr(func, "__name__", "")):
            self.flush()  # what is written over may be what a product reads
        args, kwargs = tree_map(self.compute, (args, kwargs))
        return func(*args, **kwargs)

    def defer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the result of a function as one that is not computed yet; None if it must be computed."""
        if func is F.linear:
            return self.defer_linear(*args, **kwargs)
        if func is F.layer_norm:
            return self.defer_layer_norm(*args, **kwargs)
        if func in (F.dropout, torch.dropout):
            training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
            return None if training else args[0]
        if func in SUMS and len(args) == 2 and not kwargs:
            deferred = self.defer_sum(*args)
            return self.defer_sum(args[1], args[0]) if deferred is None else deferred
        if func in PRODUCTS and len(args) == 2 and not kwargs:
            deferred = self.defer_gate(*args)
            return self.defer_gate(args[1], args[0]) if deferred is None else deferred
        if func in ACTIVATIONS:
            tanh = (
                kwargs.get("approximate", args[1] if func is F.gelu and len(args) > 1 else "none") == "tanh"
            )
            return self.defer_activation(args[0], "gelu_tanh" if tanh else ACTIVATIONS[func])
        return None

    def defer_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        if not is_plain(weight) or (bias is not None and not is_plain(bias)) or x.dtype != weight.dtype:
            return None
        return self.defer_product(x, Product(weight, bias))

    def defer_product(self, x: Tensor, product: Product) -> Tensor | None:
        """W x + b of few rows, not computed yet; None for many"""
        columns, rows = product.columns, x.numel() // product.columns
        if rows > MAX_ROWS or x.shape[-1] != columns or not rows:
            return None
        norm = x.node if isinstance(x, Deferred) and isinstance(x.node, NormNode) else None
        if norm is not None:
            fits = columns <= MAX_COLUMNS or norm.norm.kind == "rms"
            if norm.value is not None or rows > 1 or not fits or product.bits == 4:
                norm = None
        shape = (*x.shape[:-1], len(product.weight))
        if norm is None:
            return self.append_node(ProductNode(self.compute(x).contiguous(), None, product, shape, x.dtype))
        if isinstance(norm.source, Deferred) and norm.norm.kind == "rms":
            before = norm.source.node
            if isinstance(before, ProductNode) and before in self.pending and before.after is None:
                before.after = norm
        norm.source = self.compute(norm.source).contiguous()
        source, kind = norm.scaled or (norm.source, norm.norm)
        return self.append_node(ProductNode(source, kind, product, shape, x.dtype))

    def append_node(self, node: ProductNode, *parts: ProductNode) -> Deferred:
        """Let a product wait in the place of those that have become parts of it."""
        self.pending = [*(other for other in self.pending if other not in parts), node]
        return Deferred(node.shape, node.dtype, node.x.device, node)

    def defer_layer_norm(
        self,
        x: Tensor,
        shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        if weight is None or not is_plain(weight) or weight.dim() != 1:
            return None
        if x.shape[-1] != weight.numel() or x.numel() > MAX_ROWS * weight.numel() or x.dtype != weight.dtype:
            return None
        node = NormNode(x, Norm("layer", weight, bias, eps))
        return Deferred(x.shape, weight.dtype, x.device, node)

    def defer_sum(self, residual: Tensor, x: Tensor) -> Tensor | None:
        """residual + x, where x is a product that nothing was added to"""
        if not isinstance(residual, Tensor) or not isinstance(x, Deferred) or residual.shape != x.shape:
            return None
        node = x.node
        if not isinstance(node, ProductNode) or node.value is not None or node.residual is not None:
            return None
        self.pending = [other for other in self.pending if other is not node]  # what follows may flush
        dtype = torch.promote_types(residual.dtype, node.dtype)
        added = self.compute(residual).contiguous()
        return self.append_node(replace(node, residual=added, dtype=dtype))

    def defer_activation(self, x: Tensor, name: str) -> Tensor | None:
        node = x.node if isinstance(x, Deferred) else None
        if not isinstance(node, ProductNode) or node.value is not None or node.residual is not None:
            return None
        if node.product.act is not None or node.product.gated is not None:
            return None
        return self.append_node(replace(node, product=replace(node.product, act=name)), node)

    def defer_gate(self, x: Tensor, up: Tensor) -> Tensor | None:
        """act(gate) · up of two products of one x that wait; `up` has no activation"""
        a, b = (t.node if isinstance(t, Deferred) else None for t in (x, up))
        if not isinstance(a, ProductNode) or not isinstance(b, ProductNode) or a is b or a.shape != b.shape:
            return None
        bare = all(n.value is None and n.residual is None and n.product.gated is None for n in (a, b))
        if not bare or b.product.act is not None or a.x is not b.x or a.norm is not b.norm:
            return None
        if (a.product.bias is None) != (b.product.bias is None) or a.product.bits != b.product.bits:
            return None
        return self.append_node(replace(a, product=replace(a.product, gated=b.product)), a, b)

    def compute(self, x: Any) -> Any:
        """Return the tensor itself, computed; anything else as it is."""
        if not isinstance(x, Deferred):
            return x
        node = x.node
        if node.value is None:
            if isinstance(node, NormNode):
                node.value = run(self.base.normalise, self.compute(node.source), node.norm).view(x.shape)
            elif node in self.pending:
                self.flush()
            else:  # it had become part of another, and is looked at itself
                self.launch([node])
        return node.value

    def flush(self) -> None:
        """Compute all products that wait, those of the same x together."""
        while self.pending:
            first = self.pending[0]
            alone = lambda node: bool(node.residual is not None or node.product.gated or node.after)
            alike = [n for n in self.pending if n.x is first.x and n.norm is first.norm and not alone(n)]
            group = [first] if alone(first) else alike[:MAX_PRODUCTS]
            kind = (first.dtype, first.product.bits)
            group = [node for node in group if (node.dtype, node.product.bits) == kind]
            self.pending = [node for node in self.pending if node not in group]
            self.launch(group)

    def launch(self, nodes: list[ProductNode]) -> None:
        first, products = nodes[0], [node.product for node in nodes]
        after = None if first.after is None else first.after.norm
        x = first.x.view(-1, products[0].columns)
        residual = None if first.residual is None else first.residual.view(len(x), -1)
        outputs = run(self.base.products, x, first.norm, products, residual, first.dtype, after)
        for node, value in zip(nodes, outputs, strict=False):
            node.value = value.view(node.shape)
        if first.after is not None:
            scaled, squares = outputs[1:]
            kind = Norm("scaled", squares, None, first.after.norm.eps)
            first.after.scaled = scaled.view(first.shape), kind

    # What rows of the table of parts call by name.

    def call(self, operator: Callable[..., R], *args: Any, **more: Any) -> R:
        """Compute all that waits, the tensors given, and an operator of them."""
        self.flush()
        return run(operator, *map(self.compute, args), **more)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = Norm("rms", weight, None, eps)
        if x.shape[-1] == weight.numel() and x.numel() <= MAX_ROWS * weight.numel() and is_plain(weight):
            return Deferred(x.shape, weight.dtype, x.device, NormNode(x, norm))
        return run(self.base.normalise, self.compute(x), norm)

    def angles(self, rotary: Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (S, ·) at positions (1, S), made once: a recorded step reads them"""
        if rotary not in self.tables:
            cos, sin = run(rotary.table, positions, positions[:, -1:] + 1)
            self.tables[rotary] = cos[0, 0].float().contiguous(), sin[0, 0].float().contiguous()
        return self.tables[rotary]
