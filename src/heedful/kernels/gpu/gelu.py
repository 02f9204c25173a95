"""A GELU forward and back on a GPU, each in one visit to memory (Triton).

    h = u g,   g = ½ (1 + tanh t) = 1 / (1 + e⁻²ᵗ),   t = √(2/π) (u + 0.044715 u³)
    d = up · dh/du;   Σ_rows d

d is wanted by the products of the layer above u and the sums by its bias. u and h are both kept from forward
to backward: at 65,536 × 3,072 numbers writing h again costs more than the 0.4 GB it takes. `reference` is the
definition.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from heedful.kernels.gpu.linear_group import STRIPE, Tile, stripe_count

BLOCK = 4096  # numbers a program of the forward kernel takes
TILE = Tile(16, 128, 4)


def gelu_backward_reference(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """d and the sums"""
    d = torch.ops.aten.gelu_backward(up, u, approximate="tanh")
    return d, d.float().sum(0, keepdim=True)


@functools.cache
def gelu_kernels() -> tuple[Any, Any]:
    """Forward and back, made when a GPU first asks for them."""
    import triton
    import triton.language as tl

    @triton.jit
    def forward_kernel(u, h, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(u + at, mask=at < size, other=0.0).to(tl.float32)
        # −2 log₂e · √(2/π), and the same times 0.044715
        gate = 1.0 / (1.0 + tl.exp2(v * (-2.302208198 - 0.10294324 * v * v)))
        tl.store(h + at, (v * gate).to(h.dtype.element_ty), mask=at < size)

    @triton.jit
    def backward_kernel(up, u, d, sums, M, N, STRIPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, STRIPE, BM):
            m = tl.program_id(1).to(tl.int64) * STRIPE + start + tl.arange(0, BM)
            at = m[:, None] * N + n[None, :]
            inside = (m[:, None] < M) & (n[None, :] < N)
            v = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
            bend = 0.03567740813630013 * v * v
            gate = 1.0 / (1.0 + tl.exp2(v * (-2.302208198 - 0.10294324 * v * v)))
            slope = gate + 2.0 * v * gate * (1.0 - gate) * (0.7978845608028654 + 3.0 * bend)
            g = (g * slope).to(d.dtype.element_ty)
            tl.store(d + at, g, mask=inside)
            total += g.to(tl.float32)
        tl.store(sums + tl.program_id(1) * N + n, tl.sum(total, 0), mask=n < N)

    return forward_kernel, backward_kernel


@torch.library.custom_op("heedful::gelu", mutates_args=())
def gelu(u: Tensor) -> Tensor:
    """h; the compiler does not see into it, and so keeps h instead of making it again."""
    return launch_gelu(u.contiguous()) if u.is_cuda else F.gelu(u, approximate="tanh")


def launch_gelu(u: Tensor) -> Tensor:
    """The kernel over all of u."""
    h = torch.empty_like(u)
    gelu_kernels()[0][(-(-u.numel() // BLOCK),)](u, h, u.numel(), BLOCK=BLOCK, num_warps=8)
    return h


@gelu.register_fake
def _(u: Tensor) -> Tensor:
    return torch.empty_like(u)


@torch.library.custom_op("heedful::gelu_back", mutates_args=())
def gelu_backward(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """d and the sums, the latter in parts; of matrices."""
    if not u.is_cuda:
        return gelu_backward_reference(up, u)
    return launch_gelu_backward(up.contiguous(), u.contiguous())


def launch_gelu_backward(up: Tensor, u: Tensor, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The kernel over whole matrices."""
    (M, N), (rows, columns, warps) = u.shape, tile or TILE
    d, sums = torch.empty_like(up), torch.empty(stripe_count(M), N, device=u.device, dtype=torch.float32)
    grid = (-(-N // columns), stripe_count(M))
    gelu_kernels()[1][grid](up, u, d, sums, M, N, STRIPE=STRIPE, BM=rows, BN=columns, num_warps=warps)
    return d, sums


@gelu_backward.register_fake
def _(up: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    parts = stripe_count(len(u)) if u.is_cuda else 1
    return torch.empty_like(up), u.new_empty(parts, u.shape[1], dtype=torch.float32)


class _MLP(Function):
    """W₂ gelu(W₁ x + b₁) + b₂"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        u = F.linear(x, w1, b1)
        h = gelu(u)
        ctx.save_for_backward(x, u, h, w1, w2)
        return F.linear(h, w2, b2)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, ...]:
        x, u, h, w1, w2 = ctx.saved_tensors
        d, sums = gelu_backward(up @ w2, u)
        return (
            d @ w1,
            d.t() @ x,
            sums.sum(0).to(w1.dtype),
            up.t() @ h,
            up.sum(0, dtype=torch.float32).to(w2.dtype),
        )


def gelu_mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """W₂ gelu(W₁ x + b₁) + b₂ with tanh's GELU, for x (…, D); every factor in one type."""
    y: Tensor = _MLP.apply(x.reshape(-1, x.shape[-1]), w1, b1, w2, b2)
    return y.unflatten(0, x.shape[:-1])
