"""From a chunk of logits to its loss and its slope, in one visit to memory (Triton, for GPUs).

    loss_r  = logsumexp(u_r) − (1−ε) u_r[label] − ε mean(u_r)
    slope_r = softmax(u_r) − (1−ε) onehot(label) − ε/V,   0 where the label is ignored

`heedful.train.crossentropy` has the definition and a test that equates them. A row of logits is read twice,
the second time from cache, and its slope is written over it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


@functools.cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def rows(logits, labels, losses, V, stride, smoothing, ignore, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * stride
        label = tl.load(labels + row)
        high = float("-inf")
        total = 0.0
        plain = 0.0
        for start in range(0, V, BLOCK):
            index = start + tl.arange(0, BLOCK)
            u = tl.load(base + index, mask=index < V, other=float("-inf")).to(tl.float32)
            top = tl.maximum(high, tl.max(u, 0))
            total = total * tl.exp(high - top) + tl.sum(tl.exp(u - top), 0)
            if smoothing > 0:
                plain += tl.sum(tl.where(index < V, u, 0.0), 0)
            high = top
        z = tl.log(total) + high
        counts = label != ignore
        hit = tl.load(base + tl.where(counts, label, 0)).to(tl.float32)
        loss = z - (1.0 - smoothing) * hit - smoothing * plain / V
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        for start in range(0, stride, BLOCK):
            index = start + tl.arange(0, BLOCK)
            u = tl.load(base + index, mask=index < V, other=float("-inf")).to(tl.float32)
            slope = tl.exp(u - z) - tl.where(index == label, 1.0 - smoothing, 0.0) - smoothing / V
            slope = tl.where(counts & (index < V), slope, 0.0)
            tl.store(base + index, slope.to(logits.dtype.element_ty), mask=index < stride)

    return rows


def loss_and_slope_(logits: Tensor, labels: Tensor, vocab: int, smoothing: float, ignore: int) -> Tensor:
    """The loss of every row; `logits` (rows, at least V columns) become their own slope."""
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    _kernel()[(len(logits),)](
        logits, labels, losses, vocab, logits.stride(0), smoothing, ignore, BLOCK=2048, num_warps=4
    )
    return losses
