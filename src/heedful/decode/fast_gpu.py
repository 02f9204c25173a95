"""A decoder's step on a GPU as one recorded graph of few kernels, written from the model's parts.

q, k and v are one matrix, gate and up another; the model's own matrices become views of those. Norms, biases,
activations and residuals are done where a product reads or writes. Each product is cuBLAS's or a kernel of
`kernels/gpu_rows.py`, whichever is faster for its shape: `tune` asks the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.kernels import gpu_rows as R
from heedful.models.base import LM
from heedful.nn.attention import Attention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, Activation, GatedMLP, gelu_tanh, squared_relu
from heedful.nn.head import LMHead
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.position import ALiBi, Learned, Rotary, Sinusoidal
from heedful.nn.quantised import Int8Embedding, Int8Linear, TiedLinear

ACTS: dict[Activation, int] = {
    F.relu: R.RELU, F.gelu: R.GELU, gelu_tanh: R.GELU_TANH, F.silu: R.SILU, F.tanh: R.TANH,
    torch.tanh: R.TANH, squared_relu: R.SQUARED_RELU,
}  # fmt: skip


class Unknown(Exception):
    """A part that no kernel computes: why there is no graph."""


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


def candidates(columns: int) -> list[Kernel]:
    """Kernels worth trying for one row of so many columns. One that reads whole rows can normalise too."""
    whole = power(columns)
    looped = [Kernel(4, 1024, 4), Kernel(8, 512, 4), Kernel(2, 2048, 4), Kernel(1, 4096, 4)]
    if whole > 4096:
        return [CUBLAS, *looped]
    full = [Kernel(rows, whole, warps) for rows, warps in ((1, 4), (2, 4), (4, 8), (8, 8))]
    return [CUBLAS, *full, *looped[:2]]


def usual(columns: int) -> Kernel:
    """A fair kernel without measuring."""
    whole = power(columns)
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


def merged(*layers: nn.Module) -> Matrix:
    """The matrices of several layers as one. The layers keep views of it, so that nothing is held twice."""
    if all(type(layer) is nn.Linear for layer in layers):
        scales: list[Tensor] = []
    elif all(isinstance(layer, (Int8Linear, TiedLinear)) for layer in layers):
        scales = [cast(Tensor, layer.scale) for layer in layers]
    else:
        raise Unknown(", ".join(type(layer).__name__ for layer in layers))
    weights, biases = [cast(nn.Parameter, layer.weight) for layer in layers], [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat(cast(list[Tensor], biases))
    scale = torch.cat(scales).float() if scales else None
    if len(layers) == 1:
        return Matrix(weights[0].detach(), scale, bias)
    whole, start = torch.cat([w.detach() for w in weights]), 0
    for weight in weights:
        weight.data = whole[start : start + len(weight)]
        start += len(weight)
    return Matrix(whole, scale, bias)


@dataclass
class Matrices:
    """The merged matrices of a model, made once and kept for every number of rows."""

    model: LM
    made: dict[int, dict[str, Matrix]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in self.model.modules():
            if isinstance(part, Attention):
                self.made[id(part)] = {"qkv": merged(part.q, part.k, part.v), "o": merged(part.o)}
            elif isinstance(part, GatedMLP):
                self.made[id(part)] = {"up": merged(part.gate, part.up), "down": merged(part.down)}
            elif isinstance(part, MLP):
                self.made[id(part)] = {"up": merged(part.up), "down": merged(part.down)}
            elif isinstance(part, LMHead):
                self.made[id(part)] = {"head": merged(part.out)}

    def __getitem__(self, part: nn.Module) -> dict[str, Matrix]:
        return self.made[id(part)]

    def named(self, name: str) -> list[tuple[nn.Module | None, Matrix]]:
        """All matrices called so, with the part they are of."""
        parts = {id(m): m for m in self.model.modules()}
        return [(parts[i], matrices[name]) for i, matrices in self.made.items() if name in matrices]


class Launches:
    """The kernels of one step for `rows` rows, in order, over buffers that never move."""

    def __init__(
        self, matrices: Matrices, rows: int, room: int, choice: Choice, splits: int = 0, only: str = ""
    ) -> None:
        model = matrices.model
        self.model, self.matrices, self.rows, self.room, self.choice = model, matrices, rows, room, choice
        self.device, self.dtype = model.device, working(model)
        heads = max((m.kv_heads for m in model.modules() if isinstance(m, Attention)), default=1)
        self.splits = splits or max(1, min(8, 132 // max(1, rows * heads)))
        self.tokens = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.past = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.first = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self.written = torch.zeros(rows, room + 1, dtype=torch.long, device=self.device)
        self.none = torch.zeros(1, device=self.device)
        self.x = self.buffer(model.config.dim, torch.float32)
        self.pending: Tensor | None = None  # what is to be added to x
        self.only, self.current = only, ""  # to time one product alone
        self.logits = self.x  # until the head has its own
        self.caches: list[tuple[Tensor, Tensor]] = []
        self.list: list[Callable[[], Any]] = []
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}
        self.write()

    def write(self) -> None:
        model = self.model
        self.slopes = None
        if isinstance(model.blocks.bias, ALiBi):
            self.slopes = model.blocks.bias.slopes(self.device)
        elif model.blocks.bias is not None:
            raise Unknown(type(model.blocks.bias).__name__)
        self.embed(model.embed)
        for i in range(len(model.blocks)):
            self.block(model.blocks[i])
        if not isinstance(model.head, LMHead) or (model.head.shift is not None):
            raise Unknown(type(model.head).__name__)
        self.logits = self.buffer(
            model.head.out.out_features, torch.float32 if self.triton("head") else self.dtype
        )
        matrix = self.matrices[model.head]["head"]
        self.product("head", matrix, self.x, model.blocks.norm, self.logits, R.SET, R.NONE, model.head.scale)
        self.current = ""
        self.add(lambda: self.past.add_(1))

    def buffer(self, size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(self.rows, size, dtype=dtype or self.dtype, device=self.device)

    def add(self, launch: Callable[[], Any]) -> None:
        if not self.only or self.only == self.current:
            self.list.append(launch)

    def triton(self, name: str) -> bool:
        return self.rows == 1 and self.choice.get(name, CUBLAS).rows > 0

    def embed(self, part: Embedding) -> None:
        if part.types is not None or part.project is not None:
            raise Unknown("an embedding with types or a projection")
        where, position = None, part.position
        if isinstance(position, Learned):
            where = position.weight[position.offset :]
        elif isinstance(position, Sinusoidal):
            where = position(torch.arange(self.room, device=self.device)[None])[0]
        scale = part.token.scale if isinstance(part.token, Int8Embedding) else None
        table, size = part.token.weight.detach(), self.x.shape[1]
        arguments = (
            self.tokens,
            table,
            self.or_none(scale),
            self.or_none(where),
            self.past,
            self.first,
            self.x,
        )
        kinds = {"INT8": scale is not None, "POSITION": where is not None, "BLOCK": power(size)}
        self.add(lambda: R.embed[(self.rows,)](*arguments, size, part.scale, **kinds, num_warps=4))
        if part.norm is not None:
            self.normalise(part.norm, self.x)

    def or_none(self, tensor: Tensor | None) -> Tensor:
        return self.none if tensor is None else tensor.detach()

    def normalise(self, norm: nn.Module | None, to: Tensor) -> Tensor:
        """x += what is pending; to = norm(x)"""
        kind, gamma, beta, eps = described(norm)
        added, size = self.pending, self.x.shape[1]
        self.pending = None
        tensors = (self.x, self.or_none(added), to, self.or_none(gamma), self.or_none(beta))
        kinds = {"NORM": kind, "BETA": beta is not None, "ADDED": added is not None, "BLOCK": power(size)}
        warps = 8 if size >= 2048 else 4
        self.add(lambda: R.normalise[(self.rows,)](*tensors, size, eps, **kinds, num_warps=warps))
        return to

    def product(
        self, name: str, w: Matrix, source: Tensor, norm: nn.Module | None, to: Tensor, mode: int,
        act: int = R.NONE, factor: float = 1.0,
    ) -> None:  # fmt: skip
        """to = act(factor · W norm(source) + b): set, added, or gated. ADD goes to x."""
        self.current = name
        if not self.triton(name):
            return self.by_cublas(w, source, norm, to, mode, act, factor)
        kernel, whole = self.choice[name], self.choice[name].block >= w.columns
        if source is self.x and (self.pending is not None or (norm is not None and not whole)):
            source, norm = self.normalise(norm, self.buffer(w.columns)), None
        kind, gamma, beta, eps = described(norm)
        count = w.rows // 2 if mode == R.GATED else w.rows
        tensors = (source, w.weight, to, self.or_none(w.scale), self.or_none(w.bias), self.or_none(gamma))
        kinds = {
            "NORM": kind, "BETA": beta is not None, "MODE": mode, "ACT": act, "BIAS": w.bias is not None,
            "INT8": w.scale is not None, "ROWS": kernel.rows, "BLOCK": kernel.block, "WHOLE": whole,
        }  # fmt: skip
        rest = (self.or_none(beta), w.columns, count, eps, factor)
        grid = (-(-count // kernel.rows),)
        self.add(lambda: R.product[grid](*tensors, *rest, **kinds, num_warps=kernel.warps))
        return None

    def by_cublas(
        self,
        w: Matrix,
        source: Tensor,
        norm: nn.Module | None,
        to: Tensor,
        mode: int,
        act: int,
        factor: float,
    ) -> None:
        if source is self.x:
            source = self.normalise(norm, self.buffer(w.columns))
        out = to if mode == R.SET and not act else self.buffer(w.rows)
        self.add(lambda: multiply(source, w, out, factor))
        if mode == R.ADD:
            if self.pending is not None:
                self.normalise(None, self.buffer(w.rows))
            self.pending = out
            if self.only:  # timed alone, a product pays for its own addition
                self.normalise(None, self.buffer(w.rows))
        elif act or mode == R.GATED:
            gated, size = mode == R.GATED, to.shape[1]
            grid = (self.rows, -(-size // 1024))
            kinds = {"ACT": act, "GATED_": gated, "BLOCK": 1024}
            self.add(lambda: R.gate[grid](out, to, size, **kinds, num_warps=4))

    def attend(self, part: Attention, source: Tensor, norm: nn.Module | None) -> None:
        """x += o(softmax(q kᵀ · scale + bias) v)"""
        H, G, K = part.heads, part.kv_heads, part.head_dim
        if K % 2:
            raise Unknown("heads of odd size")
        qkv, y = self.buffer((H + 2 * G) * K), self.buffer(H * K)
        self.product("qkv", self.matrices[part]["qkv"], source, norm, qkv, R.SET)
        k, v = (
            torch.zeros(self.rows, G, self.room, K, dtype=self.dtype, device=self.device) for _ in range(2)
        )
        self.caches.append((k, v))
        cos, sin = self.turn(part.rotary, K)
        self.current = "attend"
        parts = torch.zeros(self.rows * H * self.splits * (K + 2), device=self.device)
        tensors = (qkv, k, v, y, parts, self.past, self.first, cos, sin, self.or_none(self.slopes))
        numbers = (self.room, H, G, K // 2, part.scale, part.window or 0, self.splits)
        kinds = {
            "SHARED": power(H // G), "HALF": power(K // 2), "BLOCK": 64 if H == G else 16,
            "SPLIT": self.splits > 1, "ROTARY": part.rotary is not None,
            "ALIBI": self.slopes is not None, "WINDOW": part.window is not None,
        }  # fmt: skip
        grid = (self.rows, G, self.splits)
        self.add(lambda: R.attend[grid](*tensors, *numbers, **kinds, num_warps=4))
        if self.splits > 1:
            blocks = {"SPLITS": power(self.splits), "BLOCK": power(K)}
            self.add(lambda: R.combine[(self.rows * H,)](parts, y, K, self.splits, **blocks, num_warps=1))
        self.product("o", self.matrices[part]["o"], y, None, self.x, R.ADD)

    def turn(self, rotary: Rotary | None, size: int) -> tuple[Tensor, Tensor]:
        """cos and sin of every position there is room for."""
        if rotary is None:
            return self.none, self.none
        if rotary.by_length or rotary.dim != size:
            raise Unknown("angles that change with the length, or heads turned in part")
        if id(rotary) not in self.tables:
            reach = torch.arange(self.room + 1, device=self.device)[None]
            cos, sin = rotary.table(reach, reach[:, -1:])
            self.tables[id(rotary)] = cos[0, 0].float().contiguous(), sin[0, 0].float().contiguous()
        return self.tables[id(rotary)]

    def part(self, part: Part, source: Tensor, norm: nn.Module | None) -> None:
        """x += part(norm(source))"""
        if isinstance(part, Attention):
            return self.attend(part, source, norm)
        if not isinstance(part, (MLP, GatedMLP)) or part.act not in ACTS:
            raise Unknown(type(part).__name__)
        matrices, mode = self.matrices[part], R.GATED if isinstance(part, GatedMLP) else R.SET
        hidden = self.buffer(part.up.out_features)
        self.product("up", matrices["up"], source, norm, hidden, mode, ACTS[part.act])
        self.product("down", matrices["down"], hidden, None, self.x, R.ADD)
        return None

    def block(self, block: Part) -> None:
        if isinstance(block, ParallelBlock):  # both parts read the norm of what x was before
            n = self.normalise(block.norm, self.buffer(self.x.shape[1]))
            for name in block.names:
                self.part(block.part(name), n, None)
        elif isinstance(block, Block):
            for name in block.names:
                norm = block.get_submodule(f"{name}_norm")
                self.part(block.part(name), self.x, norm if block.order == "pre" else None)
                if block.order == "post":
                    self.normalise(norm, self.x)
        else:
            raise Unknown(type(block).__name__)

    def run(self) -> None:
        for launch in self.list:
            launch()


def working(model: nn.Module) -> torch.dtype:
    """What the model computes in: the type of its weights, scales of whole numbers apart."""
    found = (p for n, p in model.named_parameters() if p.is_floating_point() and not n.endswith(".scale"))
    return next(found).dtype


def described(norm: nn.Module | None) -> tuple[int, Tensor | None, Tensor | None, float]:
    """Kind, γ, β and ε of a norm."""
    if norm is None:
        return R.PLAIN, None, None, 0.0
    if isinstance(norm, LayerNorm):
        return R.LAYER, norm.weight, norm.bias, norm.eps
    if isinstance(norm, RMSNorm):
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
