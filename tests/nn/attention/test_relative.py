"""Attention by distance equals the four sums of Transformer-XL's equation, segment by segment as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.nn.attention.relative import RelativeAttention
from heedful.nn.context import Context, Mask
from heedful.nn.init import initialise

DIM, HEADS, LENGTH, WINDOW = 12, 3, 11, 5


@pytest.fixture
def part() -> RelativeAttention:
    torch.manual_seed(0)
    made = RelativeAttention(DIM, HEADS, window=WINDOW).double()
    initialise(made, 0.5)
    return made


def context(first: int, last: int) -> Context:
    pos = torch.arange(last)[None]
    return Context(pos[:, first:], pos, Mask(causal=True), past=first)


def written_out(part: RelativeAttention, x: Tensor) -> Tensor:
    """Section 3.3 of the paper, its four terms a to d for one query and one key at a time."""
    size, out = DIM // HEADS, torch.zeros(LENGTH, DIM, dtype=torch.float64)
    for h in range(HEADS):
        cut = slice(h * size, (h + 1) * size)
        W_q, W_k, W_v, W_r = (m.weight[cut] for m in (part.q, part.k, part.v, part.distance))
        u, v = part.content_bias[h], part.distance_bias[h]
        for i in range(LENGTH):
            keys, scores = range(max(0, i - WINDOW + 1), i + 1), []
            for j in keys:
                angle = (i - j) / 10000.0 ** (torch.arange(0, DIM, 2).double() / DIM)
                r = W_r @ torch.cat((angle.sin(), angle.cos()))
                q, k = W_q @ x[i], W_k @ x[j]
                scores.append((q @ k + q @ r + u @ k + v @ r) / size**0.5)
            weights = torch.stack(scores).softmax(0)
            out[i, cut] = sum(w * (W_v @ x[j]) for w, j in zip(weights, keys, strict=True))
    return out @ part.o.weight.T


@torch.no_grad()
def test_a_text_at_once_and_in_segments_equals_the_equation(part: RelativeAttention) -> None:
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    expected = written_out(part, x[0])
    assert (part(x, context(0, LENGTH))[0] - expected).abs().max() < 1e-6
    state = part.new_state(1, LENGTH)
    segments = [part(x[:, a:b], context(a, b), state) for a, b in ((0, 4), (4, 8), (8, LENGTH))]
    assert (torch.cat(segments, 1)[0] - expected).abs().max() < 1e-6
