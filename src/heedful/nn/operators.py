"""What parts compute in one step of decoding, as operators: a definition in plain torch each, and a kernel.

    with step_operators("kernels"):      a step on a GPU uses the kernels (kernels/gpu_step.py)
    with step_operators("definitions"):  the same way through the parts in plain torch, which defines it

Outside, `operators()` is None, and parts compute as they are written. Inside, a part that reads one token and
remembers in a static state may use them, and products of one row are launched with the norm, the activation
and the sum beside them (nn/fusion.py). A function that cannot take what it is given returns None. States are
written over in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from heedful.nn.fusion import FusedOperators

Kind = Literal["definitions", "kernels"]
MAX_PRODUCTS = 4  # that are launched together
ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Norm:
    """γ (x − mean) / √(var + ε) + β, or γ x / √(mean x² + ε)"""

    kind: Literal["layer", "rms"]
    weight: Tensor
    bias: Tensor | None
    eps: float


@dataclass(frozen=True, eq=False)
class Product:
    """act(W x + b), multiplied by what another product gives if there is a `gated` one"""

    weight: Tensor
    bias: Tensor | None = None
    act: str | None = None
    gated: Product | None = None


@dataclass(frozen=True, eq=False)
class Newest:
    """A key and a value (B, G, 1, ·) that belong into slot past[b] of each row, and are not there yet."""

    k: Tensor
    v: Tensor
    past: Tensor


class Operators(Protocol):
    """The functions of `Definitions`, or of kernels/gpu_step.py."""

    def products(
        self,
        x: Tensor,
        norm: Norm | None,
        products: list[Product],
        residual: Tensor | None,
        dtype: torch.dtype,
    ) -> list[Tensor]: ...
    def normalise(self, x: Tensor, norm: Norm) -> Tensor: ...
    def append(self, keys: Tensor, values: Tensor, newest: Newest) -> None: ...
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float,
        newest: Newest | None,
    ) -> Tensor | None: ...  # fmt: skip
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None: ...
    def lstm_cell(self, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]: ...
    def conv_silu(self, x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...
    def selective_step(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A_log: Tensor, D: Tensor, gate: Tensor, h: Tensor
    ) -> Tensor: ...
    def gated_linear_step(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, S: Tensor, tau: float, scale: float
    ) -> Tensor: ...


ACTIVE: ContextVar[FusedOperators | None] = ContextVar("operators of a step", default=None)


def operators() -> FusedOperators | None:
    """Return the operators of the step that is being computed; None if parts compute as they are written."""
    return None if torch.compiler.is_compiling() else ACTIVE.get()


@contextmanager
def step_operators(kind: Kind | None) -> Iterator[Callable[[Tensor], Tensor]]:
    """Let parts use the operators of this kind inside; None changes nothing.

    What is yielded must be asked for any tensor that leaves: it may not be computed yet.
    """
    if kind is None:
        yield lambda x: x
        return
    from heedful.nn.fusion import FusedOperators

    base: Operators = Definitions()
    if kind == "kernels":
        from heedful.kernels import gpu_step

        base = cast(Any, gpu_step)
    fused = FusedOperators(base)
    token = ACTIVE.set(fused)
    try:
        with fused:
            yield fused.compute
    finally:
        ACTIVE.reset(token)


class Definitions:
    """The definitions."""

    def products(
        self,
        x: Tensor,
        norm: Norm | None,
        products: list[Product],
        residual: Tensor | None,
        dtype: torch.dtype,
    ) -> list[Tensor]:
        """act(W norm(x) + b) + r of one row for each product; r belongs to the only one there is"""
        n = x if norm is None else self.normalise(x, norm)
        found = []
        for p in products:
            y = F.linear(n, p.weight, p.bias).flatten()
            y = y if p.act is None else ACTS[p.act](y)
            if p.gated is not None:
                y = y * F.linear(n, p.gated.weight, p.gated.bias).flatten()
            found.append(y if residual is None else (residual.flatten() + y).to(dtype))
        return found

    def normalise(self, x: Tensor, norm: Norm) -> Tensor:
        """The norm over the last dimension, of x rounded to the type of its weights."""
        wide = x.to(norm.weight.dtype).float()
        if norm.kind == "layer":
            bias = None if norm.bias is None else norm.bias.float()
            return F.layer_norm(wide, norm.weight.shape, norm.weight.float(), bias, norm.eps).to(
                norm.weight.dtype
            )
        return norm.weight * F.rms_norm(wide, norm.weight.shape, None, norm.eps).to(norm.weight.dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        """[a cos − b sin ; b cos + a sin] of the halves a and b of what is turned; the rest as it is"""
        size = 2 * cos.shape[-1]
        a, b = x[..., :size].float().chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
        return torch.cat((turned, x[..., size:]), -1)

    def append(self, keys: Tensor, values: Tensor, newest: Newest) -> None:
        """keys[b, :, past[b]] = k[b, :, 0], and the values likewise"""
        row, past = torch.arange(len(newest.k), device=keys.device), newest.past
        keys[row, :, past], values[row, :, past] = newest.k[:, :, 0], newest.v[:, :, 0]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float,
        newest: Newest | None,
    ) -> Tensor | None:  # fmt: skip
        """softmax(q kᵀ · scale + bias, kept) v of one query (B, H, 1, K), keep (B or 1, S); 0 if none is

        The newest key and value are put where they belong first.
        """
        if newest is not None:
            self.append(k, v, newest)
        repeat = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(repeat, 1).float() for t in (k, v))
        u = q.float() @ k.mT * scale  # (B, H, 1, S)
        u = u if bias is None else u + bias
        if keep is not None:
            u = u.masked_fill(~keep[:, None, None], -math.inf)
        return (u.softmax(-1).nan_to_num(0.0) @ v).to(q.dtype)

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
        heads, size = S.shape[1], S.shape[2]
        split = lambda t: t.float()[:, 0].unflatten(-1, (heads, -1))  # (B, H, ·)
        a = torch.exp(F.logsigmoid(split(decay)) / tau)
        S.copy_(a[..., None] * S + split(k)[..., None] * split(v)[..., None, :])
        assert S.shape[2] == size
        return (split(q)[..., None, :] * scale @ S).to(v.dtype)
