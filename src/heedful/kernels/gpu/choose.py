"""The next token of each row, chosen in one launch: temperature, top-k, top-p, min-p and the draw (Triton).

All rules cut a row's logits off below some value, and such a value can be found without sorting. A search
over the floats themselves, in the order of their bits, sums up the tokens above a middle and goes on in one
of the parts. Those of bfloat16 are so few that eight rounds suffice, and a row stays in the cache meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # of such a number as a float32
BLOCK = 8192  # logits at a time


@triton.jit
def order_key(z, UNUSED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whole numbers in the order of the floats"""
    bits = z.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> UNUSED


@triton.jit
def key_float(key, UNUSED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The float of such a number"""
    bits = key.to(tl.int32) << UNUSED
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_logits(logits, i, size):  # type: ignore[no-untyped-def]
    return tl.load(logits + i, mask=i < size, other=float("-inf")).to(tl.float32)


@triton.jit
def find_cut(  # type: ignore[no-untyped-def]
    logits, size, low, high, peak, rate, target, COUNTS: tl.constexpr, UNUSED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest key such that the tokens from it on are `target` many or, unless COUNTS, weigh that much

    Three middles are tried at a time: a weight costs as much as comparing it with three.
    """
    low, high = low.to(tl.int64), high.to(tl.int64)  # their difference may need 33 bits
    while high - low > 1:
        span = high - low
        first, second, third = low + tl.maximum(span // 4, 1), low + span // 2, low + 3 * span // 4
        cut1, cut2, cut3 = key_float(first, UNUSED), key_float(second, UNUSED), key_float(third, UNUSED)
        above1 = tl.zeros((BLOCK,), tl.float32)
        above2 = tl.zeros((BLOCK,), tl.float32)
        above3 = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, size, BLOCK):
            z = load_logits(logits, start + tl.arange(0, BLOCK), size)
            weight = 1.0 if COUNTS else tl.exp2(z * rate - peak * rate)
            above1 += tl.where(z >= cut1, weight, 0.0)
            above2 += tl.where(z >= cut2, weight, 0.0)
            above3 += tl.where(z >= cut3, weight, 0.0)
        if tl.sum(above2, 0) >= target:
            enough = tl.sum(above3, 0) >= target
            low, high = tl.where(enough, third, second), tl.where(enough, high, third)
        else:
            enough = tl.sum(above1, 0) >= target
            low, high = tl.where(enough, first, low), tl.where(enough, second, first)
    return low.to(tl.int32)


@triton.jit
def kept_weights(logits, i, size, cut, peak, rate, min_p, MIN_P: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights of the tokens that all rules leave, else 0, in float64: sums over a vocabulary are long"""
    z = load_logits(logits, i, size)
    weight = tl.where(z >= cut, tl.exp2(z * rate - peak * rate), 0.0)
    if MIN_P:
        weight = tl.where(weight >= min_p, weight, 0.0)
    return weight.to(tl.float64)


@triton.jit
def choose_kernel(  # type: ignore[no-untyped-def]
    logits, uniforms, generated, tokens, cursor, row_stride, size, columns, temperature, top_k, top_p, min_p,
    GREEDY: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr,
    UNUSED: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.load(cursor + row)
    logits += row * row_stride
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = load_logits(logits, i, size)
        place = tl.where(z > best, i, place)
        best = tl.maximum(best, z)
    peak = tl.max(best, 0)
    token = tl.min(tl.where(best == peak, place, size - 1), 0)  # the first of the most likely
    if not GREEDY:
        rate = LOG2E / temperature
        lowest = tl.full((), -3.4028234663852886e38, tl.float32)  # below it is −∞, which no rule leaves
        low, high = order_key(lowest, UNUSED), order_key(peak, UNUSED) + 1
        if TOP_K:
            low = find_cut(logits, size, low, high, peak, rate, top_k, True, UNUSED, BLOCK)
        if TOP_P:
            total = tl.zeros((BLOCK,), tl.float32)
            cut = key_float(low, UNUSED)
            for start in range(0, size, BLOCK):
                z = load_logits(logits, start + tl.arange(0, BLOCK), size)
                total += tl.where(z >= cut, tl.exp2(z * rate - peak * rate), 0.0)
            mass = tl.sum(total, 0)
            # All tokens lighter than this together weigh less than 1 − top_p: the cut lies above.
            light = peak + tl.log2((1.0 - top_p) * mass / size) / rate - 1e-3 * tl.abs(peak) - 1e-3
            low = tl.maximum(low, tl.minimum(order_key(light, UNUSED), high - 1))
            low = find_cut(logits, size, low, high, peak, rate, top_p * mass, False, UNUSED, BLOCK)
        cut, block = key_float(low, UNUSED), tl.arange(0, BLOCKS)
        sums = tl.zeros((BLOCKS,), tl.float64)
        for start in range(0, size, BLOCK):
            i = start + tl.arange(0, BLOCK)
            here = tl.sum(kept_weights(logits, i, size, cut, peak, rate, min_p, MIN_P), 0)
            sums = tl.where(block == start // BLOCK, here, sums)
        aim = tl.load(uniforms + row * columns + column) * tl.sum(sums, 0)
        below = tl.cumsum(sums, 0)
        # The block in which the sum passes the aim, then the token: where rounding hides it, the last one.
        last = tl.max(tl.where(sums > 0, block, 0), 0)
        chosen = tl.minimum(tl.sum((below <= aim).to(tl.int32), 0), last)
        aim -= tl.sum(tl.where(block < chosen, sums, 0.0), 0)
        i = chosen * BLOCK + tl.arange(0, BLOCK)
        weight = kept_weights(logits, i, size, cut, peak, rate, min_p, MIN_P)
        last = tl.max(tl.where(weight > 0, i, 0), 0)
        token = tl.minimum(tl.min(tl.where((weight > 0) & (tl.cumsum(weight, 0) > aim), i, size), 0), last)
    tl.store(generated + row * columns + column, token.to(tl.int64))
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(cursor + row, column + 1)


def choose(
    settings: Any, logits: Tensor, uniforms: Tensor, generated: Tensor, tokens: Tensor, cursor: Tensor
) -> None:
    rows, size = logits.shape
    top_k, top_p, min_p = settings.top_k, settings.top_p, settings.min_p
    choose_kernel[(rows,)](
        logits, uniforms, generated, tokens, cursor, logits.stride(0), size, uniforms.shape[1],
        settings.temperature, float(top_k or 0), top_p or 0.0, min_p or 0.0,
        GREEDY=settings.greedy, TOP_K=top_k is not None and top_k < size,
        TOP_P=top_p is not None and top_p < 1, MIN_P=bool(min_p),
        UNUSED=UNUSED_BITS[logits.dtype], BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(-(-size // BLOCK)),
        num_warps=32,
    )  # fmt: skip
