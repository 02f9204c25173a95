"""What parts compute in one step of decoding, as operators: a definition in plain torch each, and a kernel.

`Definitions` defines them; kernels/gpu/step.py has the same functions as Triton kernels. Rows of the table in
step_parts.py call them, and step_fusion.py, which launches products with the norm, the activation and the sum
next to them. States are written over in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.decode.engines.static_state import as_indexable, round_to
from heedful.decode.sampling import choose_token
from heedful.decode.settings import GenerationSettings

MAX_PRODUCTS = 4  # that are launched together
ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Norm:
    """γ (x − mean) / √(var + ε) + β, or γ x / √(mean x² + ε)

    Of a "scaled" one x has been multiplied by γ, and `weight` are numbers that add up to Σ x².
    """

    kind: Literal["layer", "rms", "scaled"]
    weight: Tensor
    bias: Tensor | None
    eps: float


@dataclass(frozen=True, eq=False)
class Product:
    """act(W x + b), multiplied by what another product gives if there is a `gated` one

    W is `weight` (N, K) itself. With a `scale` (N,) it is that times whole numbers of 8 bits. With a `group`
    the numbers have 4 bits, two to a byte, and scale (N, K / group, 2) has a factor and an offset for each
    group (nn/quantised.py:Int4Linear).
    """

    weight: Tensor
    bias: Tensor | None = None
    act: str | None = None
    gated: Product | None = None
    scale: Tensor | None = None
    group: int = 0

    @property
    def columns(self) -> int:
        """K"""
        return self.weight.shape[1] * (2 if self.group else 1)

    @property
    def bits(self) -> int:
        """Return 4 or 8 for whole numbers, 16 for floats of any size."""
        return 16 if self.scale is None else 4 if self.group else 8


@dataclass(frozen=True, eq=False)
class Newest:
    """A key and a value (B, G, 1, ·) that belong into slot past[b] mod S of each row, and are not there yet.

    With `angles`, the cosines and sines of every position there is room for, (S, ·) each, the key and the
    query are turned first. A `window` hides keys that are so far away.
    """

    k: Tensor
    v: Tensor
    past: Tensor
    angles: tuple[Tensor, Tensor] | None = None
    window: int | None = None


def whole_matrix(product: Product, dtype: torch.dtype) -> Tensor:
    """W (N, K)"""
    if product.scale is None:
        return product.weight
    if not product.group:
        return (product.weight.float() * product.scale[:, None]).to(dtype)
    halves = product.weight.unflatten(1, (-1, product.group // 2))
    numbers = torch.cat((halves & 15, halves >> 4), -1)
    return (numbers * product.scale[..., :1] + product.scale[..., 1:]).flatten(1).to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[a cos − b sin ; b cos + a sin] of the halves a and b of what is turned; the rest as it is"""
    size = 2 * cos.shape[-1]
    a, b = x[..., :size].float().chunk(2, -1)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
    return torch.cat((turned, x[..., size:]), -1)


class Definitions:
    """The operators in plain torch. `Kernels` of kernels/gpu/step.py has the same functions."""

    def products(
        self, x: Tensor, norm: Norm | None, products: list[Product], residual: Tensor | None,
        dtype: torch.dtype, after: Norm | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """act(W norm(x) + b) + r of rows x (M, K) for each product; r belongs to the only one there is

        With an RMSNorm that comes `after` the only product y of one row, γ y and Σ y² follow it.
        """
        n = x if norm is None else self.normalise(x, norm)
        outputs = []
        for p in products:
            y = F.linear(n, whole_matrix(p, n.dtype), p.bias)
            y = y if p.act is None else ACTS[p.act](y)
            if p.gated is not None:
                y = y * F.linear(n, whole_matrix(p.gated, n.dtype), p.gated.bias)
            outputs.append((y if residual is None else residual + y).to(dtype))
        if after is not None:
            y = outputs[0].to(after.weight.dtype)
            outputs += [y * after.weight, y.float().square().sum(1)]
        return outputs

    def normalise(self, x: Tensor, norm: Norm) -> Tensor:
        """The norm over the last dimension, of x rounded to the type of its weights."""
        if norm.kind == "scaled":
            return (x.float() * (norm.weight.sum() / x.shape[-1] + norm.eps).rsqrt()).to(x.dtype)
        wide = x.to(norm.weight.dtype).float()
        if norm.kind == "layer":
            bias = None if norm.bias is None else norm.bias.float()
            return F.layer_norm(wide, norm.weight.shape, norm.weight.float(), bias, norm.eps).to(
                norm.weight.dtype
            )
        return norm.weight * F.rms_norm(wide, norm.weight.shape, None, norm.eps).to(norm.weight.dtype)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, scale: float, *, newest: Newest | None = None,
        keep: Tensor | None = None, bias: Tensor | None = None, softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """softmax(q kᵀ · scale + bias, kept) v of one query (B, H, 1, K), keep (B, S); 0 if none is

        The newest key and value are put where they belong first; then keys count that a row has written and
        that its window reaches. Scores are bent by a `softcap`, and `sinks` (H,) stand next to them.
        """
        if newest is not None:
            k, past, slots = newest.k, newest.past, keys.shape[2]
            if newest.angles is not None:
                cos, sin = (table[past][:, None, None] for table in newest.angles)
                q, k = turn(q, cos, sin), turn(k, cos, sin)
            row, slot = torch.arange(len(k), device=keys.device), past % slots
            for cache, new in ((keys, k), (values, newest.v)):
                as_indexable(cache)[row, :, slot] = as_indexable(round_to(new[:, :, 0], cache.dtype))
            away = (slot[:, None] - torch.arange(slots, device=keys.device)) % slots
            keep = away <= past[:, None]
            keep = keep if newest.window is None else keep & (away < newest.window)
        repeat = q.shape[1] // keys.shape[1]
        k, v = (t.float().repeat_interleave(repeat, 1) for t in (keys, values))
        u = q.float() @ k.mT * scale  # (B, H, 1, S)
        u = u if softcap is None else softcap * torch.tanh(u / softcap)
        u = u if bias is None else u + bias
        if keep is not None:
            u = u.masked_fill(~keep[:, None, None], -math.inf)
        if sinks is not None:
            u = torch.cat((u, sinks.float()[:, None, None].expand(len(u), -1, 1, 1)), -1)
        return (u.softmax(-1).nan_to_num(0.0)[..., : v.shape[2]] @ v).to(q.dtype)

    def lstm_cell(self, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """c = σ(f) c + σ(i) tanh(g),  h = σ(o) tanh(c) from i, f, g and o side by side, (B, 4 H)"""
        i, f, g, o = gates.float().chunk(4, -1)
        wide = f.sigmoid() * c.float() + i.sigmoid() * g.tanh()
        return (o.sigmoid() * wide.tanh()).to(c.dtype), wide.to(c.dtype)

    def conv_silu(self, x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """silu(b + Σ_j w_j x_j), x (B, 1, D) and the W − 1 before it, which the window keeps for the next"""
        row = torch.cat((window, x), 1)  # (B, W, D)
        y = (row.float() * weight[:, 0].t().float()).sum(1, keepdim=True)
        window.copy_(row[:, 1:])
        return F.silu(y if bias is None else y + bias.float()).to(x.dtype)

    def selective_step(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A_log: Tensor, D: Tensor, gate: Tensor, h: Tensor
    ) -> Tensor:
        """h = exp(Δ A) h + Δ u B,  y = (h C + D u) silu(gate); Δ = softplus(dt), A = −exp(A_log)"""
        step = F.softplus(dt.float())[:, 0, :, None]  # (B, D, 1)
        x = u.float()[:, 0]
        decay = torch.exp(-step * A_log.float().exp())
        h.copy_(decay * h + step * x[..., None] * B.float())
        y = (h * C.float()).sum(-1) + D.float() * x
        return (y[:, None] * F.silu(gate.float())).to(u.dtype)

    def gated_linear_step(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, S: Tensor, tau: float, scale: float
    ) -> Tensor:
        """S = diag(σ(decay)^(1/τ)) S + k vᵀ,  y = Sᵀ q · scale; rows (B, 1, H·K) → (B, H, 1, K′)"""
        split = lambda t: t.float()[:, 0].unflatten(-1, (S.shape[1], -1))  # (B, H, ·)
        a = torch.exp(F.logsigmoid(split(decay)) / tau)
        S.copy_(a[..., None] * S + split(k)[..., None] * split(v)[..., None, :])
        return (split(q)[..., None, :] * scale @ S).to(v.dtype)

    def choose(
        self, settings: GenerationSettings, logits: Tensor, uniforms: Tensor, generated: Tensor,
        tokens: Tensor, cursor: Tensor,
    ) -> None:  # fmt: skip
        """Choose a token for every row of logits (B, V), put it into `tokens` (B, 1) and `generated` (B, n)

        The column of `generated`, and of the random numbers that decide, is cursor[b], which moves on by one.
        """
        column = cursor[:, None]
        chosen = choose_token(settings, logits, uniforms.gather(1, column)[:, 0])[:, None]
        generated.scatter_(1, column, chosen)
        tokens.copy_(chosen)
        cursor.add_(1)
