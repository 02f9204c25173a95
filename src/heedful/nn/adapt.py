"""Parts swapped in from outside. No other part knows them.

A part that reads a matrix itself asks `type(layer) is nn.Linear` first, or takes what `.weight` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Stack
from heedful.nn.context import Context, PartState


class LoRA(nn.Linear):
    """y = W x + b + α/r · B A x, W and b fixed, A (r, in) and B (out, r) trained   (Hu et al. 2022 eq. 3)

    B starts at 0, so that an adapted model begins as the one it adapts. Calling the layer costs the two small
    products; reading `weight`, as fused kernels do, gives W + α/r · B A.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.rank, self.alpha = rank, alpha
        # Under their old names, so that tables of names and optimisers still find them.
        self._parameters["weight"], self._parameters["bias"] = base._parameters["weight"], base.bias
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.normal_(self.down, std=base.in_features**-0.5)

    @property
    def base(self) -> nn.Parameter:
        """W, without what was learned on top."""
        weight = self._parameters["weight"]
        assert weight is not None
        return weight

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """W + α/r · B A"""
        return self.base + (self.up @ self.down) * (self.alpha / self.rank)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x, self.down), self.up)
        return F.linear(x, self.base, self.bias) + low * (self.alpha / self.rank)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain layer with the same output."""
        plain = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.weight.detach())
        if self.bias is not None:
            plain.bias = self.bias
        return plain

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha}"


class KeptHeads(Attention):
    """Attention with some of its heads taken out: o's other columns, and what made them, are gone.

    A bias that all layers share is read for the heads that are left.
    """

    kept: tuple[int, ...]

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if ctx.bias is not None and ctx.bias.shape[1] > 1:
            ctx = replace(ctx, bias=ctx.bias[:, list(self.kept)])
        return super().forward(x, ctx, state)


def swap(model: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> list[str]:
    """Put change(name, module) in the place of each module where it is not None; the names of those."""
    names = {id(module): name for name, module in model.named_modules()}
    made: dict[int, nn.Module | None] = {}
    for parent in list(model.modules()):
        for child_name, module in list(parent._modules.items()):
            if module is None:
                continue
            if id(module) not in made:
                made[id(module)] = change(names[id(module)], module)
            if (new := made[id(module)]) is not None:
                parent._modules[child_name] = new
    return [names[i] for i, new in made.items() if new is not None]


def adapted_modules(model: nn.Module) -> Iterator[tuple[str, LoRA]]:
    """The adapted layers and their names."""
    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, LoRA))


class _Recomputing(nn.Module):
    """A part that keeps only its input and computes the rest again going back   (Chen et al. 2016)"""

    once: Callable[..., Tensor]

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if state is not None or not torch.is_grad_enabled():  # what remembers must not be run twice
            return self.once(x, ctx, state)
        # The second time must find what the first one found, and not what that one left for others.
        run = lambda x: self.once(x, replace(ctx, memo=dict(ctx.memo)))
        return checkpoint(run, x, use_reentrant=False)


def recompute(model: nn.Module) -> int:
    """Make every layer of every stack recompute what it needs going back, in place; how many there are.

    Names, weights and results stay the same: activations take one layer's memory, and a third more time.
    """
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    layers = {id(stack[i]): stack[i] for stack in stacks for i in range(len(stack))}
    for layer in layers.values():
        if not isinstance(layer, _Recomputing):
            kind = type(layer)
            layer.__class__ = type(kind.__name__, (_Recomputing, kind), {"once": kind.forward})
    return len(layers)
