"""The way back through a GELU on a GPU, in one visit to memory (Triton).

    h = ½ u (1 + tanh t),  t = √(2/π) (u + 0.044715 u³);   d = up · dh/du;   Σ_rows d

h is wanted by the product below, d by the product above and the sums by its bias; kept is u alone.
`reference` is the definition.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

TILE = (128, 64, 8)  # rows, columns, warps


def reference(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d, h and the sums"""
    d = torch.ops.aten.gelu_backward(up, u, approximate="tanh")
    return d, F.gelu(u, approximate="tanh"), d.float().sum(0, keepdim=True)


@functools.cache
def kernel() -> Any:
    """The kernel, made when a GPU first asks for it."""
    import triton
    import triton.language as tl

    @triton.jit
    def back(up, u, d, h, sums, M, N, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
        m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        at = m[:, None] * N + n[None, :]
        inside = (m[:, None] < M) & (n[None, :] < N)
        v = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
        bend = 0.03567740813630013 * v * v
        gate = tl.sigmoid(2.0 * v * (0.7978845608028654 + bend))
        tl.store(h + at, (v * gate).to(h.dtype.element_ty), mask=inside)
        slope = gate + 2.0 * v * gate * (1.0 - gate) * (0.7978845608028654 + 3.0 * bend)
        g = (g * slope).to(d.dtype.element_ty)
        tl.store(d + at, g, mask=inside)
        tl.store(sums + tl.program_id(0) * N + n, tl.sum(g.to(tl.float32), 0), mask=n < N)

    return back


@torch.library.custom_op("heedful::gelu_back", mutates_args=())
def gelu_back(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d, h and the sums, the last in parts; of matrices."""
    if not u.is_cuda:
        return reference(up, u)
    return launched(up.contiguous(), u.contiguous())


def launched(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel over whole matrices."""
    (M, N), (rows, columns, warps) = u.shape, TILE
    d, h = torch.empty_like(up), torch.empty_like(u)
    grid = (-(-M // rows), -(-N // columns))
    sums = torch.empty(grid[0], N, device=u.device, dtype=torch.float32)
    kernel()[grid](up, u, d, h, sums, M, N, BM=rows, BN=columns, num_warps=warps)
    return d, h, sums


@gelu_back.register_fake
def _(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = -(-len(u) // TILE[0]) if u.is_cuda else 1
    return torch.empty_like(up), torch.empty_like(u), u.new_empty(parts, u.shape[1], dtype=torch.float32)


class _MLP(Function):
    """W₂ gelu(W₁ x + b₁) + b₂"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        u = F.linear(x, w1, b1)
        ctx.save_for_backward(x, u, w1, w2)
        return F.linear(F.gelu(u, approximate="tanh"), w2, b2)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, ...]:
        x, u, w1, w2 = ctx.saved_tensors
        d, h, sums = gelu_back(up @ w2, u)
        return (
            d @ w1,
            d.t() @ x,
            sums.sum(0).to(w1.dtype),
            up.t() @ h,
            up.sum(0, dtype=torch.float32).to(w2.dtype),
        )


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """W₂ gelu(W₁ x + b₁) + b₂ with tanh's GELU, for x (…, D); every factor in one type."""
    y: Tensor = _MLP.apply(x.reshape(-1, x.shape[-1]), w1, b1, w2, b2)
    return y.unflatten(0, x.shape[:-1])
