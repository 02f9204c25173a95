"""PaLM has no published weights: its counts against the paper's, its equations against a naive loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import heedful
from heedful.models.base import LM

DIM, HEADS, SIZE = 24, 3, 6  # of the model, heads, and a head: their product is not DIM


@pytest.fixture
def model() -> LM:
    made = heedful.build(
        "palm", vocab=40, dim=DIM, layers=2, heads=HEADS, head_dim=SIZE, hidden=20, context=32, seed=0
    ).eval()
    assert isinstance(made, LM)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def norm(x: Tensor, gain: Tensor) -> Tensor:
    """A vector less its mean, over its deviation; a gain and no shift."""
    return gain * (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-6)


def turn(x: Tensor, position: int) -> Tensor:
    """Rotary: the pair (i, i + half) turned by position · 10000^(−2i/size)."""
    half, out = SIZE // 2, x.clone()
    for i in range(half):
        angle = position * 10000 ** (-2 * i / SIZE)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def naive(model: LM, tokens: Tensor) -> Tensor:
    """Section 2 of the paper, one token, head and key at a time, for one sequence."""
    weight = dict(model.named_parameters())
    x = [weight["embed.token.weight"][t] for t in tokens]
    for layer in range(2):
        w = dict(model.blocks[layer].named_parameters())
        y = [norm(v, w["norm.weight"]) for v in x]
        keys = [turn(w["attn.k.weight"] @ v, t) for t, v in enumerate(y)]
        values = [w["attn.v.weight"] @ v for v in y]
        for t, v in enumerate(y):
            heads = []
            for h in range(HEADS):
                q = turn((w["attn.q.weight"] @ v)[h * SIZE : (h + 1) * SIZE], t)
                share = torch.stack([q @ keys[s] / math.sqrt(SIZE) for s in range(t + 1)]).softmax(0)
                heads.append(sum((share[s] * values[s] for s in range(t + 1)), torch.zeros(SIZE)))
            gate = w["ffn.gate.weight"] @ v
            swish = gate * torch.sigmoid(gate)
            ffn = w["ffn.down.weight"] @ (swish * (w["ffn.up.weight"] @ v))
            x[t] = x[t] + w["attn.o.weight"] @ torch.cat(heads) + ffn
    table = weight["embed.token.weight"]
    return torch.stack([table @ norm(v, weight["blocks.norm.weight"]) / math.sqrt(DIM) for v in x])


@torch.no_grad()
def test_logits_equal_a_naive_loop_over_the_paper_s_equations(model: LM) -> None:
    tokens = torch.randint(40, (1, 7))
    assert (model(tokens)[0] - naive(model, tokens[0])).abs().max() <= 1e-4


def test_there_is_one_key_head_and_no_bias(model: LM) -> None:
    assert model.blocks[0].get_submodule("attn.k").weight.shape == (SIZE, DIM)
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]


@pytest.mark.parametrize(
    ("name", "count", "billions"),
    [
        ("palm-8b", 8_632_012_800, 8.63),
        ("palm-62b", 62_495_662_080, 62.50),
        ("palm-540b", 540_356_474_880, 540.35),
    ],
)
def test_counts_are_those_of_the_paper_s_table_1(name: str, count: int, billions: float) -> None:
    model = heedful.build(name, device="meta")
    got = sum(p.numel() for p in model.parameters())
    assert got == count
    assert abs(got / 1e9 - billions) <= 0.01
