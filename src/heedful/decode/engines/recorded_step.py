"""A decoder's step on a GPU as one recorded graph of few kernels, written from the model's parts.

q, k and v are one matrix, gate and up another; the model's own matrices become views of those. Norms, biases,
activations and residuals are done where a product reads or writes. Each product is cuBLAS's or a kernel of
`kernels/gpu_rows.py` or `gpu_int8.py`, whichever is faster for its shape: tuning.py asks the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.decode.engines.fallback import UnsupportedPart
from heedful.decode.engines.merged_matrices import (
    CUBLAS,
    AttentionPlan,
    Digits,
    Kernel,
    KernelChoice,
    MergedMatrices,
    MergedMatrix,
    multiply,
    norm_fields,
    zeros,
)
from heedful.kernels import gpu_attend as A
from heedful.kernels import gpu_int8 as I
from heedful.kernels import gpu_rows as R
from heedful.kernels.gpu_products import power_of_two
from heedful.models.base import LM
from heedful.nn.adapt import KeptHeads
from heedful.nn.attention import Attention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, Activation, GatedMLP, gelu_tanh, squared_relu
from heedful.nn.head import LMHead
from heedful.nn.position import ALiBi, Learned, Rotary, Sinusoidal
from heedful.nn.quantised import Int8Embedding

ACTS: dict[Activation, int] = {
    F.relu: R.RELU, F.gelu: R.GELU, gelu_tanh: R.GELU_TANH, F.silu: R.SILU, F.tanh: R.TANH,
    torch.tanh: R.TANH, squared_relu: R.SQUARED_RELU,
}  # fmt: skip


class StepKernels:
    """The kernels of one step for `rows` rows, in order, over buffers that never move."""

    def __init__(
        self, matrices: MergedMatrices, rows: int, capacity: int, choice: KernelChoice,
        attending: AttentionPlan, cache_dtype: torch.dtype | None = None, only: str = "",
    ) -> None:  # fmt: skip
        model, self.matrices = matrices.model, matrices
        self.rows, self.capacity, self.choice = rows, capacity, choice
        # It computes in the type of its weights, scales of whole numbers apart.
        weights = (p for n, p in model.named_parameters() if not n.endswith(".scale"))
        self.device = model.device
        self.dtype = next(p.dtype for p in weights if p.is_floating_point())
        self.cache_dtype, self.attending = cache_dtype or self.dtype, attending
        heads = max((m.kv_heads for m in model.modules() if isinstance(m, Attention)), default=1)
        self.splits = attending.splits or max(1, min(8, 132 // max(1, rows * heads)))
        self.tokens = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.past = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.first = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self.written = torch.zeros(rows, capacity + 1, dtype=torch.long, device=self.device)
        self.none = torch.zeros(1, device=self.device)
        self.x = self.buffer(model.config.dim, torch.float32)
        self.pending: Tensor | None = None  # what is to be added to x
        self.only, self.current = only, ""  # to time one product alone
        self.logits = self.x  # until the head has its own
        self.caches: list[tuple[Tensor, Tensor]] = []
        self.launches: list[Callable[[], Any]] = []
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}
        self.write()

    @property
    def model(self) -> LM:
        return self.matrices.model

    @property
    def nbytes(self) -> int:
        """The bytes of its caches."""
        return sum(t.nbytes for cache in self.caches for t in cache)

    def write(self) -> None:
        model = self.model
        self.slopes = None
        if type(model.blocks.bias) is ALiBi:
            self.slopes = model.blocks.bias.slopes(self.device)
        elif model.blocks.bias is not None:
            raise UnsupportedPart(type(model.blocks.bias).__name__)
        if model.blocks.narrow is not None:
            raise UnsupportedPart("layers wider than the head")
        self.embed(model.embed)
        for i in range(len(model.blocks)):
            self.block(model.blocks[i])
        if type(model.head) is not LMHead or model.head.shift is not None:
            raise UnsupportedPart(type(model.head).__name__)
        matrix = self.matrices[model.head]["head"]
        self.logits = self.buffer(
            model.head.out.out_features, torch.float32 if self.triton("head", matrix) else self.dtype
        )
        self.product("head", matrix, self.x, model.blocks.norm, self.logits, R.SET, R.NONE, model.head.scale)
        self.current = ""
        self.add(lambda: self.past.add_(1))

    def buffer(self, size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(self.rows, size, dtype=dtype or self.dtype, device=self.device)

    def add(self, launch: Callable[[], Any]) -> None:
        if not self.only or self.only == self.current:
            self.launches.append(launch)

    def triton(self, name: str, w: MergedMatrix) -> bool:
        known = w.scale is None or w.words
        return self.rows == 1 and known and self.choice.get(name, CUBLAS).rows > 0

    def digits(self, size: int) -> Digits:
        return Digits(
            torch.zeros(2 * size, dtype=torch.int8, device=self.device),
            torch.zeros(size // R.GROUP, device=self.device),
        )

    def embed(self, part: Embedding) -> None:
        if part.types is not None or part.widen is not None or part.project is not None:
            raise UnsupportedPart("an embedding with types or a projection")
        where, position = None, part.position
        if type(position) is Learned:
            where = position.weight[position.offset :]
        elif type(position) is Sinusoidal:
            where = position(torch.arange(self.capacity, device=self.device)[None])[0]
        elif position is not None:
            raise UnsupportedPart(type(position).__name__)
        scale = part.token.scale if type(part.token) is Int8Embedding else None
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
        kinds = {"INT8": scale is not None, "POSITION": where is not None, "BLOCK": power_of_two(size)}
        self.add(lambda: R.embed_kernel[(self.rows,)](*arguments, size, part.scale, **kinds, num_warps=4))
        if part.norm is not None:
            self.normalise(part.norm, self.x)

    def or_none(self, tensor: Tensor | None) -> Tensor:
        return self.none if tensor is None else tensor.detach()

    def normalise(self, norm: nn.Module | None, to: Tensor | Digits) -> None:
        """x += what is pending; to = norm(x)"""
        kind, gamma, beta, eps = norm_fields(norm)
        added, size = self.pending, self.x.shape[1]
        self.pending = None
        n, gains = (to.bytes, to.gains) if isinstance(to, Digits) else (to, self.none)
        tensors = (self.x, self.or_none(added), n, gains, self.or_none(gamma), self.or_none(beta))
        kinds = {
            "NORM": kind, "BETA": beta is not None, "HAS_RESIDUAL": added is not None,
            "BLOCK": power_of_two(size), "DIGITS": isinstance(to, Digits),
        }  # fmt: skip
        warps = 8 if size >= 2048 else 4
        self.add(lambda: R.normalise_kernel[(self.rows,)](*tensors, size, eps, **kinds, num_warps=warps))

    def normalise_to_buffer(self, norm: nn.Module | None) -> Tensor:
        """norm(x) in a buffer of its own"""
        n = self.buffer(self.x.shape[1])
        self.normalise(norm, n)
        return n

    def product(
        self, name: str, w: MergedMatrix, source: Tensor | Digits, norm: nn.Module | None, to: Tensor,
        mode: int, act: int = R.NONE, factor: float = 1.0,
    ) -> None:  # fmt: skip
        """to = act(factor · W norm(source) + b): set, added, or gated. ADD goes to x."""
        self.current = name
        if not self.triton(name, w):
            assert isinstance(source, Tensor)
            return self.by_cublas(w, source, norm, to, mode, act, factor)
        kernel, count = self.choice[name], w.rows // 2 if mode == R.GATED else w.rows
        kinds = {
            "MODE": mode,
            "ACT": act,
            "BIAS": w.bias is not None,
            "ROWS": kernel.rows,
            "BLOCK": kernel.block,
        }
        if w.scale is not None:
            return self.by_digits(kernel, w, source, norm, to, factor, count, kinds)
        assert isinstance(source, Tensor)
        whole = kernel.block >= w.columns
        if source is self.x and (self.pending is not None or (norm is not None and not whole)):
            source, norm = self.normalise_to_buffer(norm), None
        kind, gamma, beta, eps = norm_fields(norm)
        tensors = (source, w.weight, to, self.or_none(w.bias), self.or_none(gamma), self.or_none(beta))
        kinds |= {"NORM": kind, "BETA": beta is not None, "ONE_BLOCK": whole}
        rest = (w.columns, count, eps, factor)
        grid = (-(-count // kernel.rows),)
        self.add(lambda: R.product_kernel[grid](*tensors, *rest, **kinds, num_warps=kernel.warps))
        return None

    def by_digits(
        self, kernel: Kernel, w: MergedMatrix, source: Tensor | Digits, norm: nn.Module | None, to: Tensor,
        factor: float, count: int, kinds: dict[str, Any],
    ) -> None:  # fmt: skip
        """Multiply by weights of 8 bits: the row becomes digits first, unless it is there so."""
        digits = source if isinstance(source, Digits) else self.digits(w.columns)
        if source is self.x:
            self.normalise(norm, digits)
        elif isinstance(source, Tensor):
            blocks, v = (-(-w.columns // 1024),), source
            v_to = (v, digits.bytes, digits.gains, w.columns)
            self.add(lambda: I.round_digits_kernel[blocks](*v_to, BLOCK=1024, num_warps=4))
        tensors = (
            digits.bytes.view(torch.int32), digits.gains, w.weight.view(torch.int32), to,
            self.or_none(w.scale), self.or_none(w.bias),
        )  # fmt: skip
        kinds |= {"WORDS": w.columns // 4, "COUNT": count, "DP4A": self.device.type == "cuda"}
        grid = (-(-count // kernel.rows),)
        self.add(lambda: I.int8_product_kernel[grid](*tensors, factor, **kinds, num_warps=kernel.warps))

    def by_cublas(
        self,
        w: MergedMatrix,
        source: Tensor,
        norm: nn.Module | None,
        to: Tensor,
        mode: int,
        act: int,
        factor: float,
    ) -> None:
        if source is self.x:
            source = self.normalise_to_buffer(norm)
        out = to if mode == R.SET and not act else self.buffer(w.rows)
        self.add(lambda: multiply(source, w, out, factor))
        if mode == R.ADD:
            if self.pending is not None:
                self.normalise_to_buffer(None)
            self.pending = out
            if self.only:  # timed alone, a product pays for its own addition
                self.normalise_to_buffer(None)
        elif act or mode == R.GATED:
            gated, size = mode == R.GATED, to.shape[1]
            grid = (self.rows, -(-size // 1024))
            kinds = {"ACT": act, "HAS_GATE": gated, "BLOCK": 1024}
            self.add(lambda: R.gate_kernel[grid](out, to, size, **kinds, num_warps=4))

    def attend(self, part: Attention, source: Tensor, norm: nn.Module | None) -> None:
        """x += o(softmax(q kᵀ · scale + bias) v)"""
        H, G, K = part.heads, part.kv_heads, part.head_dim
        if K % 2:
            raise UnsupportedPart("heads of odd size")
        qkv, o = self.buffer((H + 2 * G) * K), self.matrices[part]["o"]
        self.product("qkv", self.matrices[part]["qkv"], source, norm, qkv, R.SET)
        k, v = (
            zeros(self.rows, G, self.capacity, K, dtype=self.cache_dtype, device=self.device)
            for _ in range(2)
        )
        self.caches.append((k, v))
        cos, sin = self.turn(part.rotary, K)
        self.current, plan, unit = "attend", self.attending, self.dtype
        if self.cache_dtype != self.dtype:
            unit = torch.float16  # 8-bit floats widen to it in one instruction, and exactly
        parts = torch.zeros(self.rows * H * self.splits * (K + 2), device=self.device)
        y = self.buffer(H * K)
        slopes = self.weigh(part)
        tensors = (qkv, k, v, y, parts, self.past, self.first, cos, sin, self.or_none(slopes))
        numbers = (self.capacity, H, G, part.scale * math.log2(math.e), part.window or 0, self.splits)
        kinds = {
            "SIZE": K, "PADDED": max(A.MIN_TILE, power_of_two(K)),
            "SHARED": max(A.MIN_TILE, power_of_two(H // G)),
            "BLOCK": plan.block, "STAGES": plan.stages, "SPLIT": self.splits > 1, "UNIT": A.UNITS[unit],
            "PAIRS": self.cache_dtype.itemsize == 1, "PACKED": self.device.type == "cuda",
            "ROTARY": part.rotary is not None, "ALIBI": slopes is not None,
            "WINDOW": part.window is not None,
        }  # fmt: skip
        grid = (self.rows, G, self.splits)
        self.add(lambda: A.attention_kernel[grid](*tensors, *numbers, **kinds, num_warps=plan.warps))
        mixed: Tensor | Digits = y
        if self.splits > 1:
            if o.words and self.triton("o", o) and K % R.GROUP == 0:
                mixed = self.digits(H * K)
            to = (mixed.bytes, mixed.gains) if isinstance(mixed, Digits) else (y, self.none)
            blocks = {
                "SPLITS": power_of_two(self.splits),
                "BLOCK": power_of_two(K),
                "DIGITS": isinstance(mixed, Digits),
            }
            joined = (parts, *to, K, self.splits)
            self.add(lambda: A.combine_kernel[(self.rows * H,)](*joined, **blocks, num_warps=1))
        self.product("o", o, mixed, None, self.x, R.ADD)

    def weigh(self, part: Attention) -> Tensor | None:
        """The weights of distances for the heads of a part."""
        slopes = self.slopes
        if slopes is not None and type(part) is KeptHeads:
            slopes = slopes[list(part.kept)]
        if slopes is not None and len(slopes) != part.heads:
            raise UnsupportedPart(f"{part.heads} heads with slopes for {len(slopes)}")
        return slopes

    def turn(self, rotary: Rotary | None, size: int) -> tuple[Tensor, Tensor]:
        """cos and sin of every position there is room for."""
        if rotary is None:
            return self.none, self.none
        if rotary.by_length or rotary.dim != size:
            raise UnsupportedPart("angles that change with the length, or heads turned in part")
        if id(rotary) not in self.tables:
            reach = torch.arange(self.capacity + 1, device=self.device)[None]
            cos, sin = rotary.table(reach, reach[:, -1:])
            self.tables[id(rotary)] = cos[0, 0].float().contiguous(), sin[0, 0].float().contiguous()
        return self.tables[id(rotary)]

    def part(self, part: Part, source: Tensor, norm: nn.Module | None) -> None:
        """x += part(norm(source))"""
        if type(part) is Attention or type(part) is KeptHeads:
            return self.attend(part, source, norm)
        if not (type(part) is MLP or type(part) is GatedMLP) or part.act not in ACTS:
            raise UnsupportedPart(type(part).__name__)
        matrices, mode = self.matrices[part], R.GATED if type(part) is GatedMLP else R.SET
        hidden = self.buffer(part.up.out_features)
        self.product("up", matrices["up"], source, norm, hidden, mode, ACTS[part.act])
        self.product("down", matrices["down"], hidden, None, self.x, R.ADD)
        return None

    def block(self, block: Part) -> None:
        if type(block) is ParallelBlock:  # all parts read norms of what x was before
            normed = {name: self.normalise_to_buffer(block.get_submodule(name)) for name in block.norm_names}
            for name in block.names:
                self.part(block.part(name), normed[block.norm_name(name)], None)
        elif type(block) is Block:
            for name in block.names:
                norm = block.get_submodule(f"{name}_norm")
                self.part(block.part(name), self.x, norm if block.order == "pre" else None)
                if block.order == "post":
                    self.normalise(norm, self.x)
        else:
            raise UnsupportedPart(type(block).__name__)

    def run(self) -> None:
        for launch in self.launches:
            launch()
