"""From token ids to vectors."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.context import Context
from heedful.nn.norm import show_norm
from heedful.nn.position import Learned, Sinusoidal


class Embedding(nn.Module):
    """x_t = drop(project(norm(scale · token[w_t] + position(t) + type[s_t])))

    (Devlin et al. 2019 §3; a scale of √D: Vaswani et al. 2017 §3.4.) Every term but the token's is optional.
    `widen` is a matrix that makes token vectors as wide as the positions added to them (Zhang et al. 2022),
    `project` one that makes the whole sum as wide as the layers (Lan et al. 2020).
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        position: Learned | Sinusoidal | None = None,
        types: int = 0,
        norm: nn.Module | None = None,
        widen: nn.Module | None = None,
        project: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.position = position
        self.types = nn.Embedding(types, dim) if types else None  # `type` is a method of nn.Module
        self.widen, self.norm, self.project = widen, norm, project
        self.scale, self.dropout = scale, dropout

    @property
    def table(self) -> nn.Parameter:
        """The token vectors, (V, D), which a tied head multiplies with."""
        return cast(nn.Parameter, self.token.weight)

    @property
    def vocab(self) -> int:
        """The number of tokens in the vocabulary."""
        return self.token.num_embeddings

    @property
    def context(self) -> int | None:
        """The longest sequence the positions reach; None if there is no such limit."""
        return None if self.position is None else self.position.context

    def blank(self, batch: int, length: int) -> Tensor:
        """An input without a meaning: `batch` rows of `length` tokens."""
        return torch.zeros(batch, length, dtype=torch.long, device=self.table.device)

    def vectors(self, tokens: Tensor) -> Tensor:
        """The vectors of what is read, (B, T, D), before anything is added: rows of the table."""
        found: Tensor = self.token(tokens)
        return found if self.widen is None else self.widen(found)

    def forward(self, tokens: Tensor, ctx: Context, types: Tensor | None = None) -> Tensor:
        x = ctx.see("token", self.vectors(tokens)) * self.scale  # (B, T, D)
        if self.position is not None:
            x = x + ctx.see("position", self.position(ctx.q_pos).to(x.dtype))
        if self.types is not None:
            x = x + ctx.see("types", self.types(torch.zeros_like(tokens) if types is None else types))
        if self.norm is not None:
            x = show_norm(self.norm, x, ctx.at("norm"))
        if self.project is not None:
            x = self.project(x)
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):  # the residual stream too is narrow
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return ctx.see("output", F.dropout(x, self.dropout, self.training))
