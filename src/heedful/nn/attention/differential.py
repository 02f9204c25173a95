"""Attention whose heads subtract a second pattern from the first (Ye et al. 2024, arXiv 2410.05258)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heedful.core.checks import check_divides
from heedful.nn.attention.attend import Call, attend, masked_softmax
from heedful.nn.attention.multi_head import head_size, join_heads, split_heads
from heedful.nn.context import Context, Part, PartState
from heedful.nn.position import Rotary
from heedful.nn.state import KV


class DifferentialAttention(Part):
    """o((1 − λ₀) norm((A₁ − λ A₂) v)),  A_i = softmax(q_i k_iᵀ / √K),  λ = e^(a₁·b₁) − e^(a₂·b₂) + λ₀

    (Ye et al. 2024, eq. 1–3.) `heads` counts the softmaxes: head h of the first half and head h of the second
    make one pattern, which reads both of their values, (B, H/2, S, 2K). λ₀ = 0.8 − 0.6 e^(−0.3 layer).
    While nobody watches, the two softmaxes are computed by the fast backends and their outputs subtracted.
    """

    pattern_kind = "effective"  # a difference may be negative
    pattern_leaves_out = "the norm after it"

    def __init__(
        self, dim: int, heads: int, kv_heads: int | None = None, head_dim: int | None = None, *,
        layer: int, rotary: Rotary, bias: bool = False, eps: float = 1e-5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.kv_heads, self.rotary = heads, kv_heads or heads, rotary
        check_divides("two halves", 2, "kv_heads", self.kv_heads)
        check_divides("kv_heads", self.kv_heads, "heads", heads)
        self.size = head_dim or head_size(dim, heads)
        self.q = nn.Linear(dim, heads * self.size, bias=bias)
        self.k, self.v = (nn.Linear(dim, self.kv_heads * self.size, bias=bias) for _ in range(2))
        self.o = nn.Linear(heads * self.size, dim, bias=bias)
        self.head_norm = nn.RMSNorm(2 * self.size, eps, elementwise_affine=False)
        self.a1, self.b1, self.a2, self.b2 = (nn.Parameter(torch.zeros(self.size)) for _ in range(4))
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)  # λ₀

    def initialise(self) -> None:
        for vector in (self.a1, self.b1, self.a2, self.b2):
            nn.init.normal_(vector, std=0.1)

    def new_state(self, batch: int, length: int) -> KV:
        return KV(length)

    def mixing_flops(self, length: int) -> int:
        return 6 * length * self.heads * self.size  # values are twice as wide as queries

    def state_numbers(self, length: int) -> dict[str, int]:
        return {"token": 2 * self.kv_heads * self.size}

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        q = self.rotary(split_heads(self.q(x), self.heads), ctx.q_pos, ctx)  # (B, H, T, K)
        k = self.rotary(split_heads(self.k(x), self.kv_heads), ctx.q_pos, ctx)  # (B, G, T, K)
        v = split_heads(self.v(x), self.kv_heads)
        if isinstance(state, KV):
            k, v = state.append(k, v, ctx.past)
        v = torch.cat(v.chunk(2, 1), -1)  # (B, G/2, S, 2K)
        q, k, v = ctx.see("q", q), ctx.see("k", k, keys=-2), ctx.see("v", v, keys=-2)
        scale = self.size**-0.5
        weight = torch.exp(self.a1 @ self.b1) - torch.exp(self.a2 @ self.b2) + self.start
        if ctx.watches("scores", "pattern", "heads"):
            repeat = self.heads // self.kv_heads
            k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
            scores = ctx.see("scores", q @ k.mT * scale, keys=-1)
            first, second = masked_softmax(scores, ctx.mask.dense(ctx.q_pos, ctx.k_pos)).chunk(2, 1)
            pattern = ctx.see("pattern", (first - weight * second).to(v.dtype), keys=-1)
            heads = ctx.see("heads", pattern @ v)
        else:
            call = Call(q, k, v.repeat(1, 2, 1, 1), ctx.q_pos, ctx.k_pos, ctx.mask, None, scale, 0.0)
            first, second = attend(call, ctx).chunk(2, 1)
            heads = first - weight * second
        normed = join_heads(self.head_norm(heads)) * (1 - self.start)
        return self.o(ctx.see("hidden", normed))
