"""Scores that decay, for the positions of a chunk each against each (Triton); no exponent is ever positive.

Channel by channel, for a few positions (`state_space.chunked.decayed_scores` is the definition):

    P_ts = Σ_k q_tk k_sk e_tsk,   e_tsk = exp(log_tk − log_sk) for s ≤ t, else 0
    dq_t = Σ_s dP_ts k_s e_ts,    dk_s = Σ_t dP_ts q_t e_ts

A program has one block of c positions and reads one position s after the other; e is never written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
CHANNELS = 32  # that a program of the gradient has


@triton.jit
def scores_kernel(q, k, log, out, K, SIZE: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    t, c = tl.arange(0, SIZE), tl.arange(0, BK)
    base = tl.program_id(0).to(tl.int64) * SIZE
    at = (base + t)[:, None] * K + c[None, :]
    inside = (c < K)[None, :]
    x = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
    until = tl.load(log + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
    for s in range(0, SIZE):
        row = (base + s) * K + c
        key = tl.load(k + row, mask=c < K, other=0.0).to(tl.float32)
        since = tl.load(log + row, mask=c < K, other=0.0).to(tl.float32) * LOG2E
        decay = tl.exp2(tl.where((t >= s)[:, None], until - since[None, :], float("-inf")))
        tl.store(out + (base + t) * SIZE + s, tl.sum(x * decay * key[None, :], 1))


@triton.jit
def scores_backward_kernel(  # type: ignore[no-untyped-def]
    dP, q, k, log, dq, dk, K, SIZE: tl.constexpr, BK: tl.constexpr
):
    t, c = tl.arange(0, SIZE), tl.program_id(1) * BK + tl.arange(0, BK)
    base = tl.program_id(0).to(tl.int64) * SIZE
    at = (base + t)[:, None] * K + c[None, :]
    inside = (c < K)[None, :]
    x = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
    until = tl.load(log + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
    total = tl.zeros((SIZE, BK), tl.float32)
    for s in range(0, SIZE):
        row = (base + s) * K + c
        key = tl.load(k + row, mask=c < K, other=0.0).to(tl.float32)
        since = tl.load(log + row, mask=c < K, other=0.0).to(tl.float32) * LOG2E
        decay = tl.exp2(tl.where((t >= s)[:, None], until - since[None, :], float("-inf")))
        weight = tl.load(dP + (base + t) * SIZE + s)[:, None] * decay
        total += weight * key[None, :]
        tl.store(dk + row, tl.sum(weight * x, 0), mask=c < K)
    tl.store(dq + at, total, mask=inside)


def launch_scores(q: Tensor, k: Tensor, log: Tensor) -> Tensor:
    """P (M, c, c) of q, k and log (M, c, K)"""
    q, k, log = q.contiguous(), k.contiguous(), log.contiguous()
    M, size, K = q.shape
    out = torch.empty(M, size, size, device=q.device, dtype=torch.float32)
    block = triton.next_power_of_2(K)
    scores_kernel[(M,)](q, k, log, out, K, SIZE=size, BK=block, num_warps=4 if block > 64 else 2)
    return out


def launch_scores_backward(dP: Tensor, q: Tensor, k: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """dq and dk"""
    dP, q, k, log = (x.contiguous() for x in (dP, q, k, log))
    M, size, K = q.shape
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    grid = (M, triton.cdiv(K, CHANNELS))
    scores_backward_kernel[grid](dP, q, k, log, dq, dk, K, SIZE=size, BK=CHANNELS, num_warps=1)
    return dq, dk
