"""Small parts that carry a state over time, and the context that they read."""

from __future__ import annotations

from dataclasses import replace

import torch

from heedful.nn.context import Context, Mask, Part
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.linear_attention import (
    GatedConv,
    GatedLinearAttention,
    LinearAttention,
    elu_features,
    taylor_features,
)
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba

PARTS = {
    "mamba": lambda: Mamba(16, 32, 4, 2),
    "mamba2": lambda: Mamba2(16, 32, 4, 3, groups=2),
    "s4": lambda: S4(16, 8),
    "linear": lambda: LinearAttention(16, 2, features=elu_features),
    "gla": lambda: GatedLinearAttention(16, 2, 4, rank=3),
    "taylor": lambda: LinearAttention(16, 2, 4, features=taylor_features),
    "conv": lambda: GatedConv(16, 32),
    "delta": lambda: GatedDeltaNet(16, 4, 3, 5, key_heads=2, max_beta=2.0),
}


@torch.no_grad()
def make(kind: str) -> Part:
    part: Part = PARTS[kind]()
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    part.initialise()
    return part.eval()


def context(length: int, past: int = 0, **values: object) -> Context:
    pos = torch.arange(past, past + length)[None]
    return replace(Context(pos, pos, Mask(causal=True)), **values)  # type: ignore[arg-type]
