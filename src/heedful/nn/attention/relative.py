"""Attention that knows how far away a key is, and not where it stands (Dai et al. 2019, arXiv 1901.02860)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.attention.attend import Call, attend
from heedful.nn.attention.multi_head import Attention, join_heads, split_heads
from heedful.nn.context import Context, PartState
from heedful.nn.position import Sinusoidal


class RelativeAttention(Attention):
    """s_ij = ((q_i + a)·k_j + (q_i + b)·(W_R r_{i−j})) / √K,  r the sines of a distance   (eq. in §3.3)

    The first term asks for content and the second for a distance. a and b are learned vectors of each head:
    how much it likes a content, or a distance, for any query.
    """

    def __init__(
        self, dim: int, heads: int, head_dim: int | None = None, *, window: int | None = None,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(dim, heads, head_dim=head_dim, window=window, dropout=dropout)
        self.distance = nn.Linear(dim, heads * self.head_dim, bias=False)  # W_R
        self.content_bias = nn.Parameter(torch.zeros(heads, self.head_dim))  # a
        self.distance_bias = nn.Parameter(torch.zeros(heads, self.head_dim))  # b
        self.sines = Sinusoidal(dim, layout="halves")

    def initialise(self) -> None:
        nn.init.normal_(self.content_bias, std=0.02)
        nn.init.normal_(self.distance_bias, std=0.02)

    def mixing_flops(self, length: int) -> int:
        return 3 * super().mixing_flops(length) // 2  # a further product with every distance

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        q, k, v = (split_heads(y, self.heads) for y in self.project(x))  # (B, H, T, K)
        k, v, ctx = self.remember(k, v, ctx, state)
        q, k, v = ctx.see("q", q), ctx.see("k", k, keys=-2), ctx.see("v", v, keys=-2)
        # A mask hides what is further than the keys are many and, if it is causal, what comes later.
        later = 0 if ctx.mask.causal else k.shape[2] - 1
        far = torch.arange(-later, k.shape[2], device=x.device)
        r = split_heads(self.distance(self.sines(far).to(x.dtype))[None], self.heads)  # (1, H, distances, K)
        away = ctx.q_pos[:, :, None] - ctx.k_pos[:, None] + later
        away = away.clamp(0, len(far) - 1)[:, None]  # (B or 1, 1, T, S)
        scores = (q + self.distance_bias[:, None]) @ r.mT * self.scale
        scores = scores.gather(-1, away.expand(*scores.shape[:3], -1))
        bias = ctx.see("position_scores", scores, keys=-1)
        bias = bias + self.sentence_scores(q, k, ctx)
        q = q + self.content_bias[:, None]
        dropout = self.dropout * self.training
        call = Call(q, k, v, ctx.q_pos, ctx.k_pos, ctx.mask, bias, self.scale, dropout)
        return self.o(join_heads(attend(call, ctx)))

    def sentence_scores(self, q: Tensor, k: Tensor, ctx: Context) -> Tensor | float:
        """What is added to the scores (B, H, T, S) besides content and distance: nothing."""
        return 0.0


class SentenceRelativeAttention(RelativeAttention):
    """s_ij gets (q_i + c)·e / √K more, e one of two learned vectors of a head: same sentence, another

    (Yang et al. 2019, arXiv 1906.08237 §2.5.) Without sentences there is no such term. What is remembered
    belongs to the first sentence.
    """

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, dropout=dropout)
        self.sentence_bias = nn.Parameter(torch.zeros(heads, self.head_dim))  # c
        self.sentences = nn.Parameter(torch.zeros(2, heads, self.head_dim))

    def initialise(self) -> None:
        super().initialise()
        nn.init.normal_(self.sentence_bias, std=0.02)
        nn.init.normal_(self.sentences, std=0.02)

    def sentence_scores(self, q: Tensor, k: Tensor, ctx: Context) -> Tensor | float:
        if ctx.types is None:
            return 0.0
        of_keys = F.pad(ctx.types, (k.shape[2] - q.shape[2], 0))
        both = torch.einsum("bhtk,ehk->bhte", q + self.sentence_bias[:, None], self.sentences) * self.scale
        other = (ctx.types[:, :, None] != of_keys[:, None])[:, None]  # (B, 1, T, S)
        return ctx.see("sentence_scores", torch.where(other, both[..., 1:], both[..., :1]), keys=-1)
