"""First weights, before training."""

from __future__ import annotations

import torch
from torch import nn

from heedful.nn.context import Part


@torch.no_grad()
def initialise(model: nn.Module, std: float = 0.02) -> None:
    """N(0, std²) for matrices and tables, 0 for biases, 1 for norms (Radford et al. 2019 §2.3); then parts that start
    otherwise set themselves."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Part):
            module.initialise()
