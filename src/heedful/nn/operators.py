"""What parts compute in one step of decoding, as operators: a definition in plain torch each, and a kernel.

    with step_operators("kernels"):      a step on a GPU uses the kernels (kernels/gpu_step.py)
    with step_operators("definitions"):  the same way through the parts in plain torch, which defines it

Outside, `operators()` is None, and parts compute as they are written. Inside, a part that reads one token and
remembers in a static state may use them, and every nn.Linear of one row is a kernel. A function that cannot
take what it is given returns None. States are written over in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Kind = Literal["definitions", "kernels"]


class Operators(Protocol):
    """The functions of this module, or of kernels/gpu_step.py."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None: ...
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def append(self, keys: Tensor, values: Tensor, k: Tensor, v: Tensor, past: Tensor) -> bool: ...
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> Tensor | None: ...
    def conv_silu(self, x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...
    def selective_step(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A_log: Tensor, D: Tensor, gate: Tensor, h: Tensor
    ) -> Tensor: ...
    def gated_linear_step(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, S: Tensor, tau: float, scale: float
    ) -> Tensor: ...


ACTIVE: ContextVar[Operators | None] = ContextVar("operators of a step", default=None)


def operators() -> Operators | None:
    """Return the operators of the step that is being computed; None if parts compute as they are written."""
    return None if torch.compiler.is_compiling() else ACTIVE.get()


@contextmanager
def step_operators(kind: Kind | None) -> Iterator[None]:
    """Let parts use the operators of this kind inside; None changes nothing."""
    if kind is None:
        yield
        return
    chosen = Definitions()
    if kind == "kernels":
        from heedful.kernels import gpu_step

        chosen = cast(Any, gpu_step)
    token = ACTIVE.set(chosen)
    try:
        with LinearOperator(chosen):
            yield
    finally:
        ACTIVE.reset(token)


class LinearOperator(TorchFunctionMode):
    """Every F.linear inside is the operator's, where it takes the call: so are layers of any part."""

    def __init__(self, chosen: Operators) -> None:
        super().__init__()
        self.chosen = chosen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            out = self.chosen.linear(*args, **(kwargs or {}))
            if out is not None:
                return out
        return func(*args, **(kwargs or {}))


class Definitions:
    """The definitions."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """x Wᵀ + b"""
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """γ x / √(mean x² + ε), x rounded to the type of γ first"""
        normed = F.rms_norm(x.to(weight.dtype).float(), weight.shape, None, eps)
        return weight * normed.to(weight.dtype)

    def append(self, keys: Tensor, values: Tensor, k: Tensor, v: Tensor, past: Tensor) -> bool:
        """keys[b, :, past[b]] = k[b, :, 0], and the values likewise; True if it was done"""
        row = torch.arange(len(k), device=k.device)
        keys[row, :, past], values[row, :, past] = k[:, :, 0], v[:, :, 0]
        return True

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> Tensor | None:
        """softmax(q kᵀ · scale + bias, kept) v of one query (B, H, 1, K), keep (B or 1, S); 0 if none is"""
        repeat = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(repeat, 1).float() for t in (k, v))
        u = q.float() @ k.mT * scale  # (B, H, 1, S)
        u = u if bias is None else u + bias
        if keep is not None:
            u = u.masked_fill(~keep[:, None, None], -math.inf)
        return (u.softmax(-1).nan_to_num(0.0) @ v).to(q.dtype)

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
