"""From a chunk of logits to its loss and its slope, in one visit to memory (Triton, for GPUs).

    loss_r  = logsumexp(u_r) − (1−ε) u_r[label] − ε mean(u_r)
    slope_r = softmax(u_r) − (1−ε) onehot(label) − ε/V,   0 where the label is ignored

`heedful.train.crossentropy` has the definition and a test that equates them. The slope is written over the
logits, or next to them in 8 bits. A row of 50,304 numbers in bfloat16 is 100 KB. It is read twice, the second
time from cache if all rows under way fit there: so a row has many warps, and few rows are under way (2 on
each of 132 processors are 26 MB). Numbers are read 16 bytes at a time, which masks allow only where they end
at a multiple of 16. Whole blocks need none, and the last one reads up to the row's end and hides what is
beyond V afterwards.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

SHAPE = {"BLOCK": 8192, "num_warps": 8, "maxnreg": 128}  # how a program works on its row


@triton.jit
def loss_kernel(logits, out, labels, losses, V, stride, smoothing, ignore, gain, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    LOG2E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    goal = out + row * stride
    label = tl.load(labels + row)
    counts = label != ignore
    hit = tl.load(base + tl.where(counts, label, 0)).to(tl.float32)
    whole = V // BLOCK * BLOCK
    index = whole + tl.arange(0, BLOCK)
    last = tl.load(base + index, mask=index < stride, other=0.0).to(tl.float32)
    last = tl.where(index < V, last, float("-inf"))
    high = tl.max(last, 0)
    high = tl.where(high == float("-inf"), hit, high)  # V is a multiple of BLOCK: nothing is left over
    total = tl.sum(tl.exp2((last - high) * LOG2E), 0)
    plain = tl.sum(tl.where(index < V, last, 0.0), 0)
    for start in range(0, whole, BLOCK):
        u = tl.load(base + start + tl.arange(0, BLOCK), eviction_policy="evict_last").to(tl.float32)
        top = tl.maximum(high, tl.max(u, 0))
        total = total * tl.exp2((high - top) * LOG2E) + tl.sum(tl.exp2(u * LOG2E - top * LOG2E), 0)
        if smoothing > 0:
            plain += tl.sum(u, 0)
        high = top
    z = tl.log(total) + high
    loss = z - (1.0 - smoothing) * hit - smoothing * plain / V
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    z = tl.where(counts, z * LOG2E, float("inf"))  # an ignored row: e^−∞ = 0
    even = tl.where(counts, smoothing / V, 0.0)
    for start in range(0, whole, BLOCK):
        here = start + tl.arange(0, BLOCK)
        u = tl.load(base + here, eviction_policy="evict_first").to(tl.float32)
        slope = (tl.exp2(u * LOG2E - z) - even) * gain
        tl.store(goal + here, slope.to(out.dtype.element_ty), eviction_policy="evict_first")
    last = tl.load(base + index, mask=index < stride, other=0.0).to(tl.float32)
    slope = tl.where(index < V, tl.exp2(last * LOG2E - z) - even, 0.0)
    tl.store(goal + index, (slope * gain).to(out.dtype.element_ty), mask=index < stride)
    tl.debug_barrier()  # the label's slope is written last, by whichever thread
    slope = (tl.exp2(hit * LOG2E - z) - even - (1.0 - smoothing)) * gain
    tl.store(goal + tl.where(counts, label, 0), slope.to(out.dtype.element_ty), mask=counts)


def loss_and_slope(
    logits: Tensor, out: Tensor, labels: Tensor, vocab: int, smoothing: float, ignore: int, gain: float = 1.0
) -> Tensor:
    """The loss of every row; `gain` times the slope goes to `out`, which may be the logits themselves.

    `logits` are (rows, at least V columns).
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    loss_kernel[(len(logits),)](
        logits, out, labels, losses, vocab, logits.stride(0), smoothing, ignore, gain, **SHAPE
    )
    return losses
