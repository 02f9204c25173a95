"""From a chunk of logits to its loss and its slope, in one visit to memory (Triton, for GPUs).

    loss_r  = logsumexp(u_r) − (1−ε) u_r[label] − ε mean(u_r)
    slope_r = softmax(u_r) − (1−ε) onehot(label) − ε/V,   0 where the label is ignored

`heedful.train.crossentropy` has the definition and a test that equates them. The slope is written over the
logits. A row of 50,304 numbers in bfloat16 is 100 KB: either one program holds it in registers (`held`: one
read, one write), or it reads it again (`twice`), from cache if the rows under way fit there together, which
they do when a row has many warps and so few rows are under way (132 processors × 2 rows × 100 KB = 26 MB).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Shape(NamedTuple):
    """How a program works on its row: numbers at a time (0: all of them at once), and warps."""

    block: int
    warps: int


SHAPE = Shape(16384, 32)
SHAPES = (Shape(2048, 4), Shape(4096, 8), Shape(8192, 16), SHAPE, Shape(0, 32))  # to be measured


@functools.cache
def kernels() -> tuple[Any, Any]:
    """The kernels `twice` and `held`."""
    import triton
    import triton.language as tl

    @triton.jit
    def twice(logits, labels, losses, V, stride, smoothing, ignore, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * stride
        label = tl.load(labels + row)
        high = float("-inf")
        total = 0.0
        plain = 0.0
        for start in range(0, V, BLOCK):
            index = start + tl.arange(0, BLOCK)
            u = tl.load(base + index, mask=index < stride, other=0.0, eviction_policy="evict_last")
            u = tl.where(index < V, u.to(tl.float32), float("-inf"))
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
        tl.debug_barrier()  # every thread has read the label's logit before it is written over
        for start in range(0, stride, BLOCK):
            index = start + tl.arange(0, BLOCK)
            u = tl.load(base + index, mask=index < stride, other=0.0, eviction_policy="evict_first")
            slope = tl.exp(u.to(tl.float32) - z) - tl.where(index == label, 1.0 - smoothing, 0.0)
            slope = tl.where(counts & (index < V), slope - smoothing / V, 0.0)
            tl.store(base + index, slope.to(logits.dtype.element_ty), mask=index < stride)

    @triton.jit
    def held(logits, labels, losses, V, stride, smoothing, ignore, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * stride
        label = tl.load(labels + row)
        counts = label != ignore
        hit = tl.load(base + tl.where(counts, label, 0)).to(tl.float32)
        index = tl.arange(0, BLOCK)
        u = tl.load(base + index, mask=index < stride, other=0.0, eviction_policy="evict_first")
        u = tl.where(index < V, u, float("-inf")).to(logits.dtype.element_ty)
        high = tl.max(u, 0).to(tl.float32)
        z = tl.log(tl.sum(tl.exp(u.to(tl.float32) - high), 0)) + high
        plain = 0.0
        if smoothing > 0:
            plain = tl.sum(tl.where(index < V, u.to(tl.float32), 0.0), 0)
        loss = z - (1.0 - smoothing) * hit - smoothing * plain / V
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        slope = tl.exp(u.to(tl.float32) - z) - tl.where(index == label, 1.0 - smoothing, 0.0)
        slope = tl.where(counts & (index < V), slope - smoothing / V, 0.0)
        tl.store(base + index, slope.to(logits.dtype.element_ty), mask=index < stride)

    return twice, held


def loss_and_slope_(
    logits: Tensor, labels: Tensor, vocab: int, smoothing: float, ignore: int, shape: Shape = SHAPE
) -> Tensor:
    """The loss of every row; `logits` (rows, at least V columns) become their own slope."""
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    twice, held = kernels()
    stride = logits.stride(0)
    kernel = twice if shape.block else held
    block = shape.block or 1 << (stride - 1).bit_length()
    kernel[(len(logits),)](
        logits, labels, losses, vocab, stride, smoothing, ignore, BLOCK=block, num_warps=shape.warps
    )
    return losses
