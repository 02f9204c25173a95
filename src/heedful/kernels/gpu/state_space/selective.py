"""The selective scan of Mamba on a GPU: how the kernels of `scan.py` are launched, forward and back.

A text is cut into as many segments as keep the device busy. With one, every position is read once each way;
with more, once before to find what enters each segment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from heedful.kernels.gpu.operators import launch
from heedful.kernels.gpu.state_space.scan import (
    order_shared,
    scan_backward,
    scan_forward,
    scan_segments,
    scan_slopes,
)

SPAN = 8  # positions between states that are kept for the gradient
WARPS = 4  # of a program: 32 channels
BUSY = 1536  # warps that keep the device busy; a text that is cut at all is cut for twice as many
STATES = 16  # the most a channel has
REGISTERS = 168  # the most a thread may hold, so that three programs share a multiprocessor


class Gate(NamedTuple):
    """z and D of out = (y + D u) silu(z), for a scan whose Δ is softplus of what it is given"""

    z: Tensor  # (B, T, D), columns of wider rows
    skip: Tensor  # (D,)


class Slopes(NamedTuple):
    """Gradients of a scan"""

    u: Tensor
    raw: Tensor  # of Δ, or of what softplus makes Δ of
    A: Tensor  # (D, N)
    bc: Tensor  # of B, then of C, (B, T, 2 N)
    h: Tensor  # (B, D, N)
    parts: Tensor  # of D and of the sum over all positions of raw, (2, D)


def cut_segments(rows: int, channels: int, spans: int) -> tuple[int, int]:
    """How many segments a text is cut into, and the spans of each"""
    warps = rows * triton.cdiv(channels, 8)
    segments = 1 if warps >= BUSY else triton.cdiv(2 * BUSY, warps)
    size = triton.cdiv(spans, min(segments, max(1, spans // 8)))
    return triton.cdiv(spans, size), size


def enter_segments(
    ends: Tensor, sums: Tensor, A: Tensor, keep: Tensor | None, first: Tensor, size: int, reverse: bool
) -> Tensor:
    """What enters every segment of `size` positions, (B, segments, D, N)"""
    (rows, segments, D, N), starts, kept = ends.shape, torch.empty_like(ends), sums
    if keep is not None:  # 0 where a segment forgets what came before it
        kept = F.pad(keep, (0, segments * size - keep.shape[1]), value=1.0)
        kept = kept.unflatten(1, (segments, size)).amin(2)
    launch(scan_segments, triton.cdiv(D * N, 1024), rows)(
        ends, sums, A, kept, first, starts, segments, D, N,
        BLOCK=1024, FORGETS=keep is not None, REVERSE=reverse,
    )  # fmt: skip
    return starts


def shared_orders(bc: Tensor) -> Tensor:
    """B next to C, (B, T, 2 N), as lanes read them: (B, T, 4, 2, 16) in float32"""
    rows, T, both = bc.shape
    out = torch.empty(rows, T, 4, 2, STATES, device=bc.device)
    launch(order_shared, triton.cdiv(rows * T, 32))(bc, out, rows * T, bc.stride(1), both // 2, ROWS=32)
    return out


def constants(u: Tensor, raw: Tensor, A: Tensor, keep: Tensor | None, gate: Gate | None) -> dict[str, Any]:
    """What kernels of these tensors are compiled for"""
    return {
        "D": u.shape[2], "N": A.shape[1], "raw_row": raw.stride(1),
        "z_row": 0 if gate is None else gate.z.stride(1), "SPAN": SPAN, "V": 32 * WARPS,
        "WHOLE": u.shape[1] % SPAN == 0, "FORGETS": keep is not None, "GATED": gate is not None,
        "FAST": not triton.knobs.runtime.interpret, "num_warps": WARPS,
    }  # fmt: skip


def launch_scan(
    u: Tensor, raw: Tensor, A: Tensor, bc: Tensor, keep: Tensor | None, h: Tensor, gate: Gate | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """y or out (B, T, D), the last h (B, D, N) and the states kept for the gradient (B, spans, D, 16)

    A (D, N) and h are whole and in float32, bc is B and C in `shared_orders`; u, raw and z may be columns of
    wider rows.
    """
    (rows, T, D), spans = u.shape, triton.cdiv(u.shape[1], SPAN)
    segments, size = cut_segments(rows, D, spans)
    y, states = torch.empty(u.shape, dtype=u.dtype, device=u.device), A.new_empty(rows, spans, D, STATES)
    ends, sums = A.new_empty(rows, segments, *A.shape), A.new_empty(rows, segments, D)
    z, skip = gate or (u, A)
    given = u, raw, z, A, bc, bc[..., 1, :], skip, A if keep is None else keep
    fixed = constants(u, raw, A, keep, gate) | {"u_row": u.stride(1), "maxnreg": REGISTERS}
    grid, starts = (triton.cdiv(D, 8 * WARPS), segments, rows), h
    if segments > 1:
        launch(scan_forward, *grid)(*given, h, states, y, ends, sums, T, spans, size, **fixed, OUTPUTS=False)
        starts = enter_segments(ends, sums, A, keep, h, size * SPAN, reverse=False)
    launch(scan_forward, *grid)(*given, starts, states, y, ends, sums, T, spans, size, **fixed, OUTPUTS=True)
    return y, ends[:, -1], states


def launch_slopes(
    dout: Tensor, dlast: Tensor, u: Tensor, raw: Tensor, A: Tensor, bc: Tensor, keep: Tensor | None,
    states: Tensor, gate: Gate | None = None, dz: Tensor | None = None,
) -> Slopes:  # fmt: skip
    """All gradients of `launch_scan`; that of z is written to dz."""
    (rows, T, D), spans, programs = u.shape, states.shape[1], triton.cdiv(u.shape[2], 8 * WARPS)
    segments, size = cut_segments(rows, D, spans)
    fixed, (z, skip), C = constants(u, raw, A, keep, gate), gate or (u, A), bc[..., 1, :]
    kept, slopes = A if keep is None else keep, dlast
    if segments > 1:
        ends, totals = A.new_empty(rows, segments, *A.shape), A.new_empty(rows, segments, D)
        launch(scan_slopes, programs, segments, rows)(
            dout, raw, z, A, C, kept, ends, totals, T, spans, size, **fixed
        )
        slopes = enter_segments(ends, totals, A, keep, dlast, size * SPAN, reverse=True)
    du, draw = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (u, raw))
    dA, dh = (A.new_empty(rows, segments, *A.shape) for _ in range(2))
    parts, sums = A.new_empty(rows, segments, 2, D), A.new_empty(rows, T, programs, 2 * STATES)
    dz = du if dz is None else dz
    launch(scan_backward, programs, segments, rows)(
        dout, u, raw, z, A, bc, C, skip, kept, states, slopes, du, draw, dz, dA, parts, dh, sums, T, spans,
        size, **fixed, u_row=u.stride(1), dz_row=dz.stride(1), maxnreg=REGISTERS,
    )  # fmt: skip
    dbc = sums.sum(2).unflatten(2, (2, STATES))[..., : A.shape[1]].flatten(2)
    return Slopes(du, draw, dA.sum((0, 1)), dbc, dh[:, 0], parts.sum((0, 1)))


def launch_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, T, D), the last h (B, D, N) and the states kept for the gradient; N is at most 16"""
    bc = shared_orders(torch.cat((B, C), -1))
    y, last, states = launch_scan(
        u.contiguous(), delta.contiguous(), A.float().contiguous(), bc, keep, h.float().contiguous()
    )
    return y, last.contiguous(), states


def launch_backward(
    dy: Tensor, dlast: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None,
    states: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of u, Δ, A, B, C and h"""
    bc = shared_orders(torch.cat((B, C), -1))
    A, dlast = A.float().contiguous(), dlast.float().contiguous()
    u, delta, dy = u.contiguous(), delta.contiguous(), dy.contiguous()
    slopes = launch_slopes(dy, dlast, u, delta, A, bc, keep, states)
    dB, dC = (half.contiguous() for half in slopes.bc.chunk(2, -1))
    return slopes.u, slopes.raw, slopes.A, dB, dC, slopes.h.contiguous()
