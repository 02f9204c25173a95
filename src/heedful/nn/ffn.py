"""Position-wise feed-forward networks, and the activations they use."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.nn.context import Context, Part, PartState

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))   (Hendrycks and Gimpel 2016)"""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)²   (So et al. 2021)"""
    return F.relu(x).square()


def quick_gelu(x: Tensor) -> Tensor:
    """x σ(1.702 x), near to GELU   (Hendrycks and Gimpel 2016)"""
    return x * torch.sigmoid(1.702 * x)


def laplace(x: Tensor) -> Tensor:
    """½ (1 + erf((x − μ) / (σ √2))), μ = √½, σ = √(1 / 4π), near to squared ReLU   (Ma et al. 2022)"""
    return 0.5 * (1 + torch.erf((x - 0.5**0.5) / (2 * torch.pi) ** -0.5))


# Keys are the words of published config files; several words mean one function.
ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
    "relu2": squared_relu,
    "quick_gelu": quick_gelu,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
    "laplace": laplace,
}


def activation(name: str) -> Activation:
    """The function a config calls `name`."""
    return ACTIVATIONS[check_choice("activation", name, ACTIVATIONS, ConfigError)]


class MLP(Part):
    """down(act(up x))   (Vaswani et al. 2017, eq. 2 with ReLU)"""

    def __init__(
        self, dim: int, hidden: int, act: Activation, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.act, self.dropout = act, dropout

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        hidden = ctx.see("hidden", self.act(ctx.see("up", self.up(x))))  # (B, T, F)
        return self.down(F.dropout(hidden, self.dropout, self.training))


class GatedMLP(Part):
    """down(act(gate x) ⊙ up x)   (Shazeer 2020; with SiLU: SwiGLU)"""

    def __init__(
        self, dim: int, hidden: int, act: Activation, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=bias)
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.act, self.dropout = act, dropout

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        gate = self.act(ctx.see("gate", self.gate(x)))
        hidden = ctx.see("hidden", gate * ctx.see("up", self.up(x)))  # (B, T, F)
        return self.down(F.dropout(hidden, self.dropout, self.training))
