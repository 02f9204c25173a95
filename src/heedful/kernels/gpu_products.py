"""One row's products in one launch with what stands beside them, and norms of rows (Triton).

products   act(W norm(x) + b) + r, up to four W at once, or one that a second one gates
normalise  a norm of rows
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from heedful.kernels.gpu_rows import (
    GELU,
    GELU_TANH,
    LAYER,
    NONE,
    PLAIN,
    RELU,
    RMS,
    SILU,
    TANH,
    apply_activation,
    normalise_row,
)

ACTS = {None: NONE, "relu": RELU, "gelu": GELU, "gelu_tanh": GELU_TANH, "silu": SILU, "tanh": TANH}


def power_of_two(n: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, n - 1).bit_length()


@triton.jit
def product_rows(  # type: ignore[no-untyped-def]
    program, x, gamma, beta, w, bias, w_up, b_up, y, residual, size, count, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, ACT: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS numbers of act(W norm(x) + b) + r, or of that product times a second one, GATED.

    ONE_BLOCK reaches over all columns, so that x can be normalised on the way.
    """
    r = program * ROWS + tl.arange(0, ROWS)
    live = r < count
    far = r.to(tl.int64)[:, None] * size
    base = w + far
    k = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        inside = k < size
        mask = live[:, None] & inside[None, :]
        a = tl.load(base + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        if GATED:
            b = tl.load(w_up + far + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        v = normalise_row(v, gamma, beta, k, inside, size, eps, NORM, BETA)
        value = tl.sum(a.to(tl.float32) * v[None, :], 1)
        up = value
        if GATED:
            up = tl.sum(b.to(tl.float32) * v[None, :], 1)
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        second = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, size, BLOCK):
            inside = start + k < size
            mask = live[:, None] & inside[None, :]
            v = tl.load(x + start + k, mask=inside, other=0.0).to(tl.float32)
            a = tl.load(base + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first")
            total += a.to(tl.float32) * v[None, :]
            if GATED:
                b = tl.load(
                    w_up + far + start + k[None, :], mask=mask, other=0, eviction_policy="evict_first"
                )
                second += b.to(tl.float32) * v[None, :]
        value, up = tl.sum(total, 1), tl.sum(second, 1)
    if BIAS:
        value += tl.load(bias + r, mask=live, other=0.0).to(tl.float32)
    value = apply_activation(value, ACT)
    if GATED:
        if BIAS:
            up += tl.load(b_up + r, mask=live, other=0.0).to(tl.float32)
        value = value * up
    if RESIDUAL:
        value += tl.load(residual + r, mask=live, other=0.0).to(tl.float32)
    tl.store(y + r, value.to(y.dtype.element_ty), mask=live)


@triton.jit
def products_kernel(  # type: ignore[no-untyped-def]
    x, gamma, beta, w0, w1, w2, w3, b0, b1, b2, b3, y0, y1, y2, y3, residual, size, n0, n1, n2, n3, eps,
    NORM: tl.constexpr, BETA: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, COUNT: tl.constexpr,
    A0: tl.constexpr, A1: tl.constexpr, A2: tl.constexpr, A3: tl.constexpr,
    B0: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Up to four products of one x, one after the other in the grid."""
    program = tl.program_id(0)
    first = tl.cdiv(n0, ROWS)
    if COUNT == 1:
        product_rows(
            program, x, gamma, beta, w0, b0, w1, b1, y0, residual, size, n0, eps, NORM, BETA, A0, B0,
            RESIDUAL, GATED, ROWS, BLOCK, ONE_BLOCK,
        )  # fmt: skip
    else:
        second = first + tl.cdiv(n1, ROWS)
        third = second + tl.cdiv(n2, ROWS)
        if program < first:
            product_rows(
                program, x, gamma, beta, w0, b0, w0, b0, y0, residual, size, n0, eps, NORM, BETA, A0, B0,
                False, False, ROWS, BLOCK, ONE_BLOCK,
            )  # fmt: skip
        elif program < second:
            product_rows(
                program - first, x, gamma, beta, w1, b1, w1, b1, y1, residual, size, n1, eps, NORM, BETA, A1,
                B1, False, False, ROWS, BLOCK, ONE_BLOCK,
            )  # fmt: skip
        elif program < third:
            if COUNT > 2:
                product_rows(
                    program - second, x, gamma, beta, w2, b2, w2, b2, y2, residual, size, n2, eps, NORM, BETA,
                    A2, B2, False, False, ROWS, BLOCK, ONE_BLOCK,
                )  # fmt: skip
        else:
            if COUNT > 3:
                product_rows(
                    program - third, x, gamma, beta, w3, b3, w3, b3, y3, residual, size, n3, eps, NORM, BETA,
                    A3, B3, False, False, ROWS, BLOCK, ONE_BLOCK,
                )  # fmt: skip


def products(
    x: Tensor, norm: Any, products: list[Any], residual: Tensor | None, dtype: torch.dtype
) -> list[Tensor]:
    """act(W norm(x) + b) + r of one row for up to four W, or for one that is gated by a second."""
    count, columns, gated = len(products), x.numel(), products[0].gated
    found = [torch.empty(len(p.weight), dtype=dtype, device=x.device) for p in products]
    fill = lambda items, rest: [*items, *[rest] * (4 - count)]
    whole, nothing = power_of_two(columns), found[0]
    rows, block = (2 if whole >= 2048 else 4, whole) if whole <= 4096 else (4, 1024)
    read = products if gated is None else [products[0], gated]
    weights = [p.weight for p in read] + [nothing] * (4 - len(read))
    biases = [nothing if p.bias is None else p.bias for p in read] + [nothing] * (4 - len(read))
    sizes = [len(p.weight) for p in products]
    beta = None if norm is None else norm.bias
    acts = {f"A{i}": act for i, act in enumerate(fill([ACTS[p.act] for p in products], 0))}
    biased = {f"B{i}": b for i, b in enumerate(fill([p.bias is not None for p in products], False))}
    products_kernel[(sum(-(-n // rows) for n in sizes),)](
        x, nothing if norm is None else norm.weight, nothing if beta is None else beta,
        *weights, *biases, *fill(found, nothing),
        nothing if residual is None else residual, columns, *fill(sizes, 0),
        0.0 if norm is None else norm.eps,
        NORM=PLAIN if norm is None else LAYER if norm.kind == "layer" else RMS, BETA=beta is not None,
        RESIDUAL=residual is not None, GATED=gated is not None, COUNT=count, **acts, **biased,
        ROWS=rows, BLOCK=block, ONE_BLOCK=block >= columns, num_warps=4,
    )  # fmt: skip
    return found


@triton.jit
def normalise_kernel(  # type: ignore[no-untyped-def]
    x, gamma, beta, y, size, eps, NORM: tl.constexpr, BETA: tl.constexpr, BLOCK: tl.constexpr
):
    """norm(x) in the type of y; an RMSNorm is rounded to it before it meets γ, as its definition has it"""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = k < size
    value = tl.load(x + row * size + k, mask=inside, other=0.0).to(y.dtype.element_ty).to(tl.float32)
    if NORM == 1:
        value = normalise_row(value, gamma, beta, k, inside, size, eps, NORM, BETA)
    else:
        gain = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
        value = (value * gain).to(y.dtype.element_ty).to(tl.float32)
        value = value * tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * size + k, value.to(y.dtype.element_ty), mask=inside)


def normalise(x: Tensor, norm: Any) -> Tensor:
    size, weight = x.shape[-1], norm.weight
    y = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    normalise_kernel[(x.numel() // size,)](
        x.contiguous(), weight, weight if norm.bias is None else norm.bias, y, size, norm.eps,
        NORM=LAYER if norm.kind == "layer" else RMS, BETA=norm.bias is not None, BLOCK=power_of_two(size),
        num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return y
