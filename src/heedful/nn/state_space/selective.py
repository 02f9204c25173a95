"""The selective scan of a state space in fast forms; `nn.state_space.scan.selective` is the definition.

It is an operator that no compiler looks into, so that no loop over time is unrolled. On a GPU it is the
kernels of `kernels/gpu/state_space/scan.py`, elsewhere blocks of BLOCK positions. Both hold h for a few
positions only, keep it now and then, and compute the rest again for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heedful.nn.state_space.scan import (
    BLOCK,
    fast_scan,
    runs_on_gpu,
    same_document,
    shown_scan,
    to_float32,
    uncast,
)

GPU_SPAN, GPU_STATES = 8, 16  # what the kernels keep: h before so many positions, each with so many states


def fits_kernels(u: Tensor, A: Tensor) -> bool:
    """Whether the kernels take u (B, T, …) and A (D, N): few states, and places that 32 bits can count."""
    return runs_on_gpu(u) and A.shape[1] <= GPU_STATES and u.shape[1] * len(A) < 2**30


def fast_selective(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """`selective` with y in the type of u; h is never held for all positions at once."""
    y, last, _ = selective_scan(u, delta, A, B, C, keep, h)
    return y, last


@torch.library.custom_op("heedful::selective_scan", mutates_args=())
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last h, and the states that the gradient starts from."""
    if fits_kernels(u, A):
        from heedful.kernels.gpu.state_space.selective import launch_forward

        return launch_forward(u, delta, A, B, C, keep, h)
    with uncast(u):
        return block_forward(u, delta, A, B, C, keep, h)


@selective_scan.register_fake
def _(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (rows, T, D), N = u.shape, A.shape[1]
    gpu = fits_kernels(u, A)
    spans = -(-T // (GPU_SPAN if gpu else BLOCK))
    kept = (rows, spans, D, GPU_STATES) if gpu else (spans, rows, D, N)
    return u.new_empty(u.shape), A.new_empty(rows, D, N), A.new_empty(kept)


@torch.library.custom_op("heedful::selective_scan_back", mutates_args=())
def selective_scan_backward(
    dy: Tensor, dlast: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of u, Δ, A, B, C and the first h."""
    if fits_kernels(u, A):
        from heedful.kernels.gpu.state_space.selective import launch_backward

        du, ddelta, dA, dB, dC, dh = launch_backward(dy, dlast, u, delta, A, B, C, keep, states)
        return du, ddelta, dA, dB, dC, dh
    with uncast(u):
        return block_backward(dy, dlast, u, delta, A, B, C, keep, states)


@selective_scan_backward.register_fake
def _(
    dy: Tensor, dlast: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None,
    states: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (u, delta, A, B, C, dlast))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    u, delta, A, B, C, keep, _ = inputs
    ctx.save_for_backward(u, delta, A, B, C, keep, output[2])


def _backward(ctx: Any, dy: Tensor, dlast: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    du, ddelta, dA, dB, dC, dh = selective_scan_backward(dy, dlast, *ctx.saved_tensors)
    return du, ddelta, dA, dB, dC, None, dh


selective_scan.register_autograd(_backward, setup_context=_save)


def block_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`selective` block by block; the h before each block is kept, (blocks, B, D, N).

    For each block of c positions: a = exp(Δ A) and b = Δ u B are made at once, (c, B, D, N); the loop turns b
    into the states h_t = a_t h_{t−1} + b_t in place; y_t = h_t C_t is one product, (B, c, D).
    """
    given, starts = _time_first(u, delta, B, C, keep), []
    y = u.new_empty(u.shape)
    for s in _blocks(u.shape[1]):
        a, states, c = _coefficients(given, A, s)  # (c, B, D, N)
        starts.append(h.clone())  # a view would keep the block alive
        for a_t, b_t in zip(a.unbind(), states.unbind()):
            h = b_t.addcmul_(a_t, h)
        y[:, s] = (states @ c[..., None])[..., 0].transpose(0, 1)
    return y, h.clone(), torch.stack(starts)


def block_backward(
    dy: Tensor, dlast: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """G_t = dy_t C_t + a_{t+1} G_{t+1} is the gradient of h_t: the same recurrence read backwards

    ∂ log a_t = G_t h_{t−1} a_t,  ∂b_t = G_t,  ∂C_t = Σ_d dy_t h_t
    """
    up, given = to_float32(dy).transpose(0, 1), _time_first(u, delta, B, C, keep)
    du, ddelta, dB, dC = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (u, delta, B, C)
    )
    carry, dA = dlast, torch.zeros_like(A)
    for s, start in zip(reversed(_blocks(u.shape[1])), reversed(starts.unbind())):
        a, states, c = _coefficients(given, A, s)
        h = start
        for a_t, b_t in zip(a.unbind(), states.unbind()):
            h = b_t.addcmul_(a_t, h)
        G = up[s][..., None] * c[:, :, None]
        G[-1] += carry  # the decay after the last position is already in it
        for t in range(len(G) - 2, -1, -1):
            G[t].addcmul_(a[t + 1], G[t + 1])
        dlog = a.mul_(G)
        carry = dlog[0].clone()
        dlog[0] *= start
        dlog[1:] *= states[:-1]
        x, step, b = given[0][s], given[1][s], given[2][s]
        dA += (dlog * step[..., None]).sum((0, 1))
        inner = (G @ b[..., None])[..., 0]  # (c, B, D), the gradient of Δ u
        du[:, s] = (inner * step).transpose(0, 1)
        ddelta[:, s] = (inner * x + (dlog * A).sum(-1)).transpose(0, 1)
        dB[:, s] = ((step * x)[..., None, :] @ G)[..., 0, :].transpose(0, 1)
        dC[:, s] = (up[s][..., None, :] @ states)[..., 0, :].transpose(0, 1)
    return du, ddelta, dA, dB, dC, carry


def _blocks(length: int) -> list[slice]:
    return [slice(i, min(i + BLOCK, length)) for i in range(0, length, BLOCK)]


def _time_first(u: Tensor, delta: Tensor, B: Tensor, C: Tensor, keep: Tensor | None) -> list[Any]:
    major: list[Any] = [to_float32(x).transpose(0, 1) for x in (u, delta, B, C)]
    return [*major, None if keep is None else keep.transpose(0, 1)]


def _coefficients(inputs: list[Any], A: Tensor, s: slice) -> tuple[Tensor, Tensor, Tensor]:
    """a and b of h_t = a_t h_{t−1} + b_t at the positions s, (c, B, D, N), and C there; time comes first."""
    u, delta, B, C, keep = inputs
    a = torch.exp(delta[s][..., None] * A)
    if keep is not None:
        a = a * keep[s][..., None, None]
    return a, (delta[s] * u[s])[..., None] * B[s][:, :, None], C[s]


def selective_states(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, keep: Tensor | None, h: Tensor,
    see: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Every h_t of `selective`, (B, T, D, N): for those who look, and through `see` replace them."""
    a, b, _ = _coefficients(_time_first(u, delta, B, B, keep), A, slice(None))
    if see is None:
        return fast_scan(a, b, h).transpose(0, 1)
    return shown_scan(a, b, h, lambda states: see(states.transpose(0, 1)).transpose(0, 1)).transpose(0, 1)


def selective_pattern(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, fresh: Tensor | None) -> Tensor:
    """P_dts = Σ_n C_tn exp(A_dn Σ_{s<r≤t} Δ_rd) B_sn Δ_sd, so that y = P u: quadratic (B, D, T, T)"""
    keep = same_document(fresh, delta.shape[1], delta.device)[:, None]
    total = delta.cumsum(1).transpose(1, 2)  # (B, D, T)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~keep, 0.0)
    out = torch.zeros_like(between)
    for n in range(A.shape[1]):
        out = out + torch.exp(between * A[:, n, None, None]) * (C[:, :, None, n] * B[:, None, :, n])[:, None]
    return (out * delta.transpose(1, 2)[:, :, None]).masked_fill(~keep, 0.0)
