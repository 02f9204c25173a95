"""Multi-head latent attention: all heads read their keys and values out of one small vector per position."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from heedful.nn.attention.attend import Call, attend, masked_softmax
from heedful.nn.attention.multi_head import join_heads, split_heads
from heedful.nn.context import Context, Part, PartState
from heedful.nn.norm import RMSNorm, show_norm
from heedful.nn.position import Rotary
from heedful.nn.state import KV

WORDS = ("q", "k", "v", "scores", "pattern", "heads")


class LatentAttention(Part):
    """k_h = [U_h c; r], v_h = V_h c, c = norm(W_c x), r = rope(W_r x);  o(concat_h softmax(q_h k_hᵀ) v_h)

    (DeepSeek-AI 2024, arXiv 2405.04434, eq. 9–19.) Only the latent c (R numbers) and the rotary key r (Kr
    numbers, shared by all heads) are remembered: R + Kr per position instead of H (K + Kr + V). Queries come
    straight from x, or through a second latent if `q_rank` is not 0: K plain entries, then Kr turned.

    Two forms of one equation. *Expanded* makes k_h and v_h and attends as usual. *Absorbed* never makes them:
    q_hᵀ(U_h c) = (U_hᵀ q_h)ᵀ c, and V_h leaves the sum over positions, so the heads attend to the latents
    themselves. A step over a long memory is cheaper absorbed, a prompt or a training pass expanded.
    """

    pattern_kind = "softmax"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int,
        head_dim: int,
        rope_dim: int,
        value_dim: int,
        rotary: Rotary,
        q_rank: int = 0,
        bias: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.heads, self.rank = heads, rank
        self.head_dim, self.rope_dim, self.value_dim = head_dim, rope_dim, value_dim
        self.scale = (head_dim + rope_dim) ** -0.5 if scale is None else scale
        self.dropout, self.rotary = dropout, rotary
        self.q = self.q_down = self.q_norm = self.q_up = None
        wide = heads * (head_dim + rope_dim)
        if q_rank:
            self.q_down = nn.Linear(dim, q_rank, bias=bias)
            self.q_norm = RMSNorm(q_rank, norm_eps)
            self.q_up = nn.Linear(q_rank, wide, bias=False)
        else:
            self.q = nn.Linear(dim, wide, bias=False)
        self.kv_down = nn.Linear(dim, rank + rope_dim, bias=bias)  # W_c and W_r
        self.kv_norm = RMSNorm(rank, norm_eps)
        self.kv_up = nn.Linear(rank, heads * (head_dim + value_dim), bias=False)  # U_h and V_h, head by head
        self.o = nn.Linear(heads * value_dim, dim, bias=bias)

    def new_state(self, batch: int, length: int) -> KV:
        return KV(length)

    def mixing_flops(self, length: int) -> int:
        return 2 * length * self.heads * (self.head_dim + self.rope_dim + self.value_dim)

    def state_numbers(self, length: int) -> dict[str, int]:
        return {"token": self.rank + self.rope_dim}

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if self.q_up is None:
            q = cast(nn.Linear, self.q)(x)
        else:
            latent = show_norm(cast(RMSNorm, self.q_norm), cast(nn.Linear, self.q_down)(x), ctx.at("q_norm"))
            q = self.q_up(ctx.see("q_latent", latent))
        q = ctx.see("q_unrotated", split_heads(q, self.heads))
        q, q_turn = q.split((self.head_dim, self.rope_dim), -1)  # (B, H, T, K), (B, H, T, Kr)
        c, r = self.kv_down(x)[:, None].split((self.rank, self.rope_dim), -1)  # (B, 1, T, R), (B, 1, T, Kr)
        c, r = ctx.see("kv_latent", show_norm(self.kv_norm, c, ctx.at("kv_norm"))), ctx.see("k_unrotated", r)
        q_turn, r = self.rotary(q_turn, ctx.q_pos, ctx), self.rotary(r, ctx.q_pos, ctx)
        if isinstance(state, KV):
            c, r = state.append(c, r, ctx.past)  # (B, 1, S, R), (B, 1, S, Kr)
        pays = state is not None and self._absorbs(x.shape[1], c.shape[2], ctx)
        form = self.attend_absorbed if pays else self.attend_expanded
        return self.o(join_heads(form(q, q_turn, c, r, ctx)))

    def _absorbs(self, T: int, S: int, ctx: Context) -> bool:
        """Whether the absorbed form takes fewer multiplications, and may be used.

        Per head, absorbed: T·R(K+V) + T·S(2R+Kr); expanded: S·R(K+V) + T·S(K+Kr+V). Whoever watches sees keys
        and values, a named backend is obeyed, and a `kv_up` that was adapted has no plain matrix to absorb.
        """
        if self.training or ctx.backend != "auto" or ctx.watches(*WORDS) or type(self.kv_up) is not nn.Linear:
            return False
        R, both = self.rank, self.head_dim + self.value_dim
        return (S - T) * R * both > T * S * (2 * R - both)

    def attend_expanded(self, q: Tensor, q_turn: Tensor, c: Tensor, r: Tensor, ctx: Context) -> Tensor:
        """Every head's keys and values, then plain attention: (B, H, T, V)."""
        up = split_heads(self.kv_up(c[:, 0]), self.heads)  # (B, H, S, K + V)
        k, v = up.split((self.head_dim, self.value_dim), -1)
        q = ctx.see("q", torch.cat((q, q_turn), -1))
        k = ctx.see("k", torch.cat((k, r.expand(-1, self.heads, -1, -1)), -1), keys=-2)
        v = ctx.see("v", v, keys=-2)
        dropout = self.dropout * self.training
        return attend(Call(q, k, v, ctx.q_pos, ctx.k_pos, ctx.mask, ctx.bias, self.scale, dropout), ctx)

    def attend_absorbed(self, q: Tensor, q_turn: Tensor, c: Tensor, r: Tensor, ctx: Context) -> Tensor:
        """The same without a key or value of any head: (B, H, T, V)."""
        up = self.kv_up.weight.unflatten(0, (self.heads, -1))  # (H, K + V, R)
        U, V = up.split((self.head_dim, self.value_dim), 1)
        scores = torch.einsum("bhtk,hkr->bhtr", q, U) @ c.mT + q_turn @ r.mT  # (B, H, T, S)
        scores = scores * self.scale if ctx.bias is None else scores * self.scale + ctx.bias
        pattern = masked_softmax(scores, ctx.mask.dense(ctx.q_pos, ctx.k_pos))
        return torch.einsum("bhtr,hvr->bhtv", pattern @ c, V)
