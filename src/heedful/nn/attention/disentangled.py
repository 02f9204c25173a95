"""Disentangled attention (He et al. 2021, arXiv 2006.03654): a token's content and its place are two vectors.

`Distances` holds the vectors of relative positions that all layers share, `DisentangledAttention` scores with
them, `Neighbours` and `ConvBlock` are the convolution next to the first layer of the second version.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.errors import ConfigError
from heedful.nn.attention.attend import Call, attend
from heedful.nn.attention.multi_head import head_size, join_heads, split_heads
from heedful.nn.block import Block, MakeNorm
from heedful.nn.context import Context, Part, PartState
from heedful.nn.ffn import Activation
from heedful.nn.norm import show_norm

TERMS = ("c2p", "p2c")


def log_bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Distances up to buckets/2 are themselves; those beyond share growing ones up to `far`   (as in T5)"""
    near = buckets // 2
    size = distance.abs().clamp(min=near)
    # In float32 with the same logarithm on both sides: a bucket's edge must not depend on the rounding.
    edge = torch.full((), (max_distance - 1) / near, device=distance.device).log()
    grown = near + ((size / near).log() / edge * (near - 1)).ceil().long()
    return torch.where(distance.abs() <= near, distance, grown * distance.sign())


class Distances(nn.Module):
    """δ(i, j) = clamp(bucket(i − j) + span, 0, 2·span − 1), a row of one table of 2·span vectors   (eq. 3)

    One table for all layers. Without `buckets` every distance below `far` has a separate row.
    """

    def __init__(self, dim: int, max_distance: int, buckets: int = 0, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.far, self.buckets, self.span = max_distance, buckets, buckets or max_distance
        self.table = nn.Embedding(2 * self.span, dim)
        self.norm = norm

    def forward(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """The vectors (1, 2·span, D) and δ (B or 1, 1, T, S), made once per pass."""
        return ctx.once(self, ctx.q_pos, lambda: self._make(ctx.q_pos, ctx.k_pos))

    def _make(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        table = self.table.weight if self.norm is None else self.norm(self.table.weight)
        distance = q_pos[:, None, :, None] - k_pos[:, None, None, :]
        if self.buckets:
            distance = log_bucket(distance, self.buckets, self.far)
        return table[None], (distance + self.span).clamp(0, 2 * self.span - 1)


class DisentangledAttention(Part):
    """scores(i, j) = (q_i·k_j + q_i·R_δ(i,j) + k_j·L_δ(i,j)) / √(3K), R = pos_k P, L = pos_q P   (eq. 4)

    P are the shared vectors of distances. The second term is content to position (c2p), the third position to
    content (p2c); the 3 counts the terms there are. The paper has δ(j, i) in the third, its released weights
    δ(i, j). With `shared` the projections of the content serve the positions too.
    """

    pattern_kind = "softmax"

    def __init__(
        self,
        dim: int,
        heads: int,
        distances: Distances | None,
        terms: Collection[str] = TERMS,
        *,
        shared: bool = False,
        key_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        unknown = sorted(set(terms) - set(TERMS))
        if unknown:
            raise ConfigError(
                f"terms has {unknown[0]!r:.80}, which is unknown", hint=f"choose among {', '.join(TERMS)}"
            )
        self.heads, self.dropout = heads, dropout
        self.scale = 1 / math.sqrt(head_size(dim, heads) * (1 + len(terms)))
        self.q, self.v, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim, bias=key_bias)
        self.distances = distances
        self.terms = frozenset(terms) if distances is not None else frozenset()
        own = frozenset() if shared else self.terms
        self.pos_k = nn.Linear(dim, dim, bias=key_bias) if "c2p" in own else None
        self.pos_q = nn.Linear(dim, dim) if "p2c" in own else None

    def mixing_flops(self, length: int) -> int:
        return (4 + 2 * len(self.terms)) * length * self.q.out_features

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        q, k, v = (split_heads(p(x), self.heads) for p in (self.q, self.k, self.v))  # (B, H, T, K)
        q, k, v = ctx.see("q", q), ctx.see("k", k, keys=-2), ctx.see("v", v, keys=-2)
        bias = ctx.see("position_scores", self._position_scores(q, k, ctx), keys=-1) if self.terms else None
        call = Call(q, k, v, ctx.q_pos, ctx.k_pos, ctx.mask, bias, self.scale, self.dropout * self.training)
        return self.o(join_heads(attend(call, ctx)))

    def _position_scores(self, q: Tensor, k: Tensor, ctx: Context) -> Tensor:
        """The second and third term, (B, H, T, S): each gathers from products with all 2·span vectors."""
        assert self.distances is not None
        vectors, rows = self.distances(ctx)
        vectors = F.dropout(vectors, self.dropout, self.training)
        rows = rows.expand(*q.shape[:3], k.shape[2])
        scores = torch.zeros((), device=q.device, dtype=q.dtype)
        if "c2p" in self.terms:
            keys = split_heads((self.pos_k or self.k)(vectors), self.heads)  # (1, H, 2·span, K)
            scores = scores + (q @ keys.mT).gather(-1, rows)
        if "p2c" in self.terms:
            queries = split_heads((self.pos_q or self.q)(vectors), self.heads)
            scores = scores + (k @ queries.mT).gather(-1, rows.mT).mT
        return scores * self.scale


class Neighbours(Part):
    """act(Σ_o W_o x_{t+o} + b), o = −r … r: a convolution that sees no padding and stays in its document"""

    def __init__(
        self, dim: int, kernel: int, act: Activation, *, groups: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ConfigError(f"`kernel={kernel}` has no middle", hint=f"choose {kernel - 1} or {kernel + 1}")
        self.conv = nn.Conv1d(dim, dim, kernel, groups=groups)
        self.act, self.dropout = act, dropout

    def initialise(self) -> None:
        nn.init.normal_(self.conv.weight, std=0.02)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if ctx.valid_new is not None:
            x = x * ctx.valid_new[..., None]
        reach, T = self.conv.kernel_size[0] // 2, x.shape[1]
        wide = F.pad(x.mT, (reach, reach))  # (B, D, r + T + r)
        documents = ctx.mask.q_documents
        if documents is None:
            mixed = self.conv(wide)
        else:
            mixed = self._within(wide, F.pad(documents, (reach, reach), value=-1), T)
        return self.act(F.dropout(mixed.mT, self.dropout, self.training))

    def _within(self, width: Tensor, documents: Tensor, length: int) -> Tensor:
        """The same sum offset by offset, leaving out neighbours from other documents."""
        reach = self.conv.kernel_size[0] // 2
        own = documents[:, reach : reach + length]
        assert self.conv.bias is not None
        mixed = self.conv.bias[:, None]
        for o in range(self.conv.kernel_size[0]):
            same = documents[:, o : o + length] == own
            seen = width[..., o : o + length] * same[:, None]
            mixed = mixed + F.conv1d(seen, self.conv.weight[..., o : o + 1], groups=self.conv.groups)
        return mixed


class ConvBlock(Block):
    """z = norm(y + conv(x)), y the post-norm block of x: words also meet their neighbours   (DeBERTa v2)"""

    attn_norm: nn.Module
    ffn_norm: nn.Module
    conv_norm: nn.Module

    def __init__(
        self, norm: MakeNorm, dropout: float = 0.0, *, attn: Part, ffn: Part, conv: Neighbours
    ) -> None:
        super().__init__(norm, "post", dropout, attn=attn, ffn=ffn, conv=conv)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        y = show_norm(self.attn_norm, x + self._run("attn", x, ctx, None), ctx.at("attn_norm"))
        y = ctx.see("after_attn", y)
        y = show_norm(self.ffn_norm, y + self._run("ffn", y, ctx, None), ctx.at("ffn_norm"))
        y = ctx.see("after_ffn", y)
        conv = ctx.at("conv").see("output", self.part("conv")(x, ctx.at("conv")))
        return ctx.see("output", show_norm(self.conv_norm, y + conv, ctx.at("conv_norm")))
