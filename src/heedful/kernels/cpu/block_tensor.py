"""A matrix of float32 values that stays in memory as a GGUF file stores it: in blocks, or in 16 bits.

To PyTorch it is a float32 tensor of the matrix's shape. Looking up rows widens these rows, every other
operation computes with `widen()`, and an operation that writes to it makes it an ordinary matrix inside.
The decoder for CPUs multiplies with the blocks themselves (kernels/cpu/blocks.py).

Rows of blocks are held in stripes: the same bytes in another order, with the numbers of 16 rows side by side.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from heedful.kernels.cpu import find_obstacle

# Numbers and bytes of a block; floats are taken in blocks, too, since kernels read 32 at a time.
SIZES = {
    "F32": (32, 128), "F16": (32, 64), "BF16": (32, 64), "I8": (32, 32),
    "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20),
    "Q5_0": (32, 22), "Q5_1": (32, 24), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
STRIPE = 16  # rows side by side
# The 16-bit scales that a block begins with; what follows are words of 32 bits, and perhaps one more scale.
SCALES = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2, "Q6_K": 0}
MIN_VALUES = 1 << 16  # a smaller matrix is widened when it is read: it would gain nothing
SLAB_VALUES = 1 << 20  # that are widened at once for a product
MIN_THREAD_VALUES = 1 << 18  # that its own thread widens


def can_keep(kind: str, shape: Sequence[int]) -> bool:
    """Whether a tensor of this kind and shape can stay as it is stored: there are kernels that read it."""
    known = kind not in ("F32", "I8") and kind in SIZES and len(shape) == 2 and shape[1] % SIZES[kind][0] == 0
    return known and math.prod(shape) >= MIN_VALUES and find_obstacle() is None


def block_layouts(kind: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return what a block of one row consists of, and a block of a stripe."""
    stored, scales = SIZES[kind][1], SCALES[kind]
    words, more = divmod(stored - 2 * scales, 4)
    units = [("scales", "<u2", scales), ("words", "<u4", words), ("last", "<u2", more // 2)]
    units = [unit for unit in units if unit[2]]
    row: np.dtype[Any] = np.dtype([(name, number, (count,)) for name, number, count in units])
    return row, np.dtype([(name, number, (count, STRIPE)) for name, number, count in units])


def interleave(rows: np.ndarray, kind: str) -> np.ndarray:
    """Return rows of blocks (N, bytes) as stripes (⌈N / 16⌉, 16 · bytes); zeros fill the last one."""
    row, stripe = block_layouts(kind)
    rows = np.pad(rows, ((0, -len(rows) % STRIPE), (0, 0))) if len(rows) % STRIPE else rows
    source = np.ascontiguousarray(rows).view(row).reshape(len(rows) // STRIPE, STRIPE, -1)
    stripes = np.empty((source.shape[0], source.shape[2]), stripe)
    for name in stripe.names or ():
        stripes[name] = source[name].transpose(0, 2, 3, 1)
    return stripes.view(np.uint8)


def separate(stripes: np.ndarray, kind: str) -> np.ndarray:
    """Return the rows of stripes, as a file stores them: what `interleave` was given."""
    row, stripe = block_layouts(kind)
    source = stripes.view(stripe)
    rows = np.empty((len(source), STRIPE, source.shape[1]), row)
    for name in row.names or ():
        rows[name] = source[name].transpose(0, 3, 1, 2)
    return rows.reshape(-1, source.shape[1]).view(np.uint8)


class BlockTensor(Tensor):
    """W (N, K) in float32 for whoever computes with it; `blocks` is what is held.

    Floats of 16 bits are rows of bytes, all else are stripes.
    """

    blocks: Tensor
    kind: str
    dense: Tensor | None  # its values, once something was written to it

    @staticmethod
    def __new__(cls, blocks: Tensor, kind: str, rows: int) -> BlockTensor:
        size, stored = SIZES[kind]
        shape = (rows, blocks.shape[1] // stored // stripe_rows(kind) * size)
        cpu = torch.device("cpu")
        made: BlockTensor = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=cpu)
        made.blocks, made.kind, made.dense = blocks, kind, None
        return made

    @classmethod
    def from_rows(cls, rows: np.ndarray, kind: str) -> BlockTensor:
        """Return rows of bytes as a file stores them as a matrix; their memory is used if it can be."""
        if stripe_rows(kind) > 1:
            stripes = interleave(rows, kind)
            if stripes.nbytes == rows.nbytes:
                rows.reshape(stripes.shape)[:] = stripes
                stripes = rows.reshape(stripes.shape)
            return cls(torch.from_numpy(stripes), kind, len(rows))
        return cls(torch.from_numpy(rows), kind, len(rows))

    def widen(self) -> Tensor:
        """Return the values as an ordinary float32 tensor in new memory."""
        return widen(self.blocks, self.kind)[: len(self)] if self.dense is None else self.dense

    def take_rows(self, order: Tensor) -> BlockTensor:
        """Return these rows as a matrix of blocks; rows that follow each other are not copied."""
        rows, low, side = order.numpy(), int(order[0]), stripe_rows(self.kind)
        if low % side == len(rows) % side == 0 and np.array_equal(rows, np.arange(low, low + len(rows))):
            return BlockTensor(self.blocks[low // side : (low + len(rows)) // side], self.kind, len(rows))
        stored = self.blocks.numpy() if side == 1 else separate(self.blocks.numpy(), self.kind)
        return BlockTensor.from_rows(stored[rows], self.kind)

    def data_ptr(self) -> int:
        return (self.blocks if self.dense is None else self.dense).data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        return self.widen().numpy(force=force)

    def tolist(self) -> Any:
        return self.widen().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.kind}, {tuple(self.shape)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            same = self.detach() if self.dense is None else self.dense.clone()
            memo[id(self)] = (
                nn.Parameter(same, self.requires_grad) if isinstance(self, nn.Parameter) else same
            )
        found: Tensor = memo[id(self)]
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and torch.save keep the values, which every other program can read."""
        dense = self.widen()
        dense = nn.Parameter(dense, self.requires_grad) if isinstance(self, nn.Parameter) else dense
        return dense.__reduce_ex__(protocol)

    def as_parameter(self) -> nn.Parameter:
        """Make it a parameter: what `nn.Parameter` does, without its detour over torch's dispatcher.

        The first call that goes through it imports torch.distributed, which takes longer than all of loading.
        """
        self.requires_grad_()
        self._is_param = True
        return cast(nn.Parameter, self)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.linear, F.embedding) and len(args) > 1 and isinstance(args[1], BlockTensor):
            x, weight, *rest = args
            if weight.dense is None and not (torch.is_grad_enabled() and weight.requires_grad):
                side = stripe_rows(weight.kind)
                if func is F.embedding:  # the rows that are looked up, or stripes with them, each once
                    stripes, at = x.div(side, rounding_mode="floor").unique(return_inverse=True)
                    return F.embedding(at * side + x % side, widen(weight.blocks[stripes], weight.kind))
                bias = rest[0] if rest else kwargs.get("bias")
                count = max(1, SLAB_VALUES // (weight.shape[1] * side))  # at a time, which stay in the cache
                slabs = [F.linear(x, widen(some, weight.kind)) for some in weight.blocks.split(count)]
                product = slabs[0] if len(slabs) == 1 else torch.cat(slabs, -1)
                product = product[..., : len(weight)]
                return product if bias is None else product + bias
        with torch._C.DisableTorchFunctionSubclass():  # results are ordinary tensors
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        aten, kwargs = torch.ops.aten, kwargs or {}
        first: Any = args[0] if args else None
        if func in (aten.detach.default, aten.alias.default) and first.dense is None:
            return BlockTensor(first.blocks, first.kind, len(first))
        written: dict[int, BlockTensor] = {}
        if func._schema.is_mutable:
            for name, value in zip(func._schema.arguments, args, strict=False):
                if name.alias_info is not None and name.alias_info.is_write:
                    for tensor in value if isinstance(value, (list, tuple)) else (value,):
                        if isinstance(tensor, BlockTensor):
                            tensor.dense = tensor.widen()
                            tensor.blocks = tensor.blocks[:0]
                            written[id(tensor.dense)] = tensor
        result = func(*tree_map(widened, args), **tree_map(widened, kwargs))
        return written.get(id(result), result)


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor that holds its values as they are: the same one, unless it is a BlockTensor."""
    return tensor.widen() if isinstance(tensor, BlockTensor) else tensor


def stripe_rows(kind: str) -> int:
    """Return how many rows of a format are held side by side."""
    return STRIPE if kind in SCALES else 1


def widen(blocks: Tensor, kind: str) -> Tensor:
    """Return the values of rows, or of whole stripes, in float32."""
    from heedful.kernels.cpu.blocks import values_kernel, widen_blocks

    (size, stored), side, kernel = SIZES[kind], stripe_rows(kind), values_kernel(kind)
    blocks = blocks.contiguous()
    count, length = len(blocks), blocks.shape[1] // (stored * side)  # of blocks in a row
    out = torch.empty(count * side, length * size)
    start, to, step = blocks.data_ptr(), out.data_ptr(), 4 * side * length * size
    widen_rows = lambda low, high: widen_blocks(
        kernel, start + low * blocks.shape[1], high - low, length, to + low * step
    )
    pieces = max(1, min(torch.get_num_threads(), out.numel() // MIN_THREAD_VALUES))
    bounds = [i * count // pieces for i in range(pieces + 1)]
    others = widening_threads(os.getpid()).map(widen_rows, bounds[1:-1], bounds[2:]) if pieces > 1 else ()
    widen_rows(0, bounds[1])
    list(others)
    return out


@cache
def widening_threads(process: int) -> ThreadPoolExecutor:
    """Threads that share the widening of a matrix; a forked process has its own."""
    return ThreadPoolExecutor(os.cpu_count(), "heedful-widen")


def widen_parameters(model: nn.Module) -> None:
    """Make ordinary float32 parameters of those that are held in blocks; shared ones stay shared."""
    widened: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if isinstance(parameter, BlockTensor):
                if id(parameter) not in widened:
                    widened[id(parameter)] = nn.Parameter(parameter.widen(), parameter.requires_grad)
                module._parameters[name] = widened[id(parameter)]
