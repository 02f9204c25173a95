"""Attention whose cost grows with the length, not with its square: a matrix of fixed size remembers the past.

The effective attention `pattern` is (B, H, T, T) and pattern @ v = heads, before any norm, gate or output
matrix. A memory of fixed size holds no past positions, so that a pass that goes on from one has no pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.attention.multi_head import head_size, join_heads, split_heads
from heedful.nn.context import Context, PartState
from heedful.nn.norm import LayerNorm, RMSNorm, show_norm
from heedful.nn.position import Rotary
from heedful.nn.state import StatefulPart, recall, remember
from heedful.nn.state_space.chunked import fast_linear
from heedful.nn.state_space.scan import linear_pattern, linear_scan, to_float32
from heedful.nn.state_space.ssm import ShortConv, joint_products, show_pattern, shows_pattern

Features = Callable[[Tensor], Tensor]


def elu_features(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, which is positive   (Katharopoulos et al. 2020, eq. 7)"""
    return F.elu(x) + 1


def taylor_features(x: Tensor) -> Tensor:
    """φ(x) = [1, x/K^¼, x⊗x/√(2K)], so that φ(q)·φ(k) = 1 + s + s²/2, s = q·k/√K   (Arora et al. 2024 §4.1)

    The Taylor series of exp(s) up to the second order: softmax attention without its higher terms.
    """
    K = x.shape[-1]
    square = (x[..., :, None] * x[..., None, :]).flatten(-2) / (2 * K) ** 0.5
    return torch.cat((torch.ones_like(x[..., :1]), x / K**0.25, square), -1)


def run_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, ctx: Context, state: PartState | None
) -> Tensor:
    """y (B, H, T, K′) of the recurrence S_t = diag(a_t) S_{t−1} + k_t v_tᵀ, whose last S the state keeps."""
    previous = recall(state, "S")
    S = q.new_zeros(len(q), q.shape[1], q.shape[3], v.shape[3]) if previous is None else previous
    form = linear_scan if ctx.backend == "reference" or q.shape[2] == 1 else fast_linear
    y, S = form(q, k, v, log_a, ctx.fresh, S)
    remember(state, S=S)
    return y


def gated_heads(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, norm: nn.Module, gate: Tensor, ctx: Context,
    state: PartState | None,
) -> Tensor:  # fmt: skip
    """norm(y) ⊙ silu(gate) of the recurrence's y, the heads side by side, (B, T, H·K′)"""
    if ctx.valid_new is not None:
        k, log_a = (t.masked_fill(~ctx.valid_new[:, None, :, None], 0.0) for t in (k, log_a))
    with_pattern = shows_pattern(ctx, state)
    heads = run_recurrence(q, k, v, log_a, ctx, state)
    if with_pattern:
        heads = show_pattern(ctx, heads, v, linear_pattern(q, k, log_a, ctx.fresh))
    heads = show_norm(norm, ctx.see("heads", heads).to(gate.dtype), ctx.at("norm"))
    return ctx.see("hidden", join_heads(heads) * F.silu(ctx.see("gate", gate)))


class LinearAttention(StatefulPart):
    """y_t = Σ_{s≤t} φ(q_t)·φ(k_s) v_s / Σ_{s≤t} φ(q_t)·φ(k_s)   (Katharopoulos et al. 2020, eq. 4, 9–12)

    The state S = Σ φ(k_s) [v_s, 1]ᵀ carries numerator and denominator. `key_dim` is the size of a query head
    before φ. The pattern is the normalised weights: not negative, and rows sum to 1.
    """

    pattern_kind = "softmax"

    def __init__(
        self, dim: int, heads: int, key_dim: int | None = None, *, features: Features, bias: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.features = heads, features
        size = head_size(dim, heads)
        self.q = nn.Linear(dim, heads * (key_dim or size), bias=bias)
        self.k = nn.Linear(dim, heads * (key_dim or size), bias=bias)
        self.v = nn.Linear(dim, dim, bias=bias)
        self.o = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        rows = joint_products(x, self.q, self.k, self.v)
        q, k, v = (to_float32(split_heads(row, self.heads)) for row in rows)  # (B, H, T, K)
        q, k, v = ctx.see("q", q), ctx.see("k", k), ctx.see("v", v)
        q, k = self.features(q), self.features(k)
        if ctx.valid_new is not None:
            k = k.masked_fill(~ctx.valid_new[:, None, :, None], 0.0)
        with_pattern = shows_pattern(ctx, state)
        both = run_recurrence(q, k, torch.cat((v, torch.ones_like(v[..., :1])), -1), None, ctx, state)
        total = both[..., -1:].clamp(min=1e-6)  # a row that sees nothing is 0, not NaN
        heads = both[..., :-1] / total
        if with_pattern:
            heads = show_pattern(ctx, heads, v, linear_pattern(q, k, None, ctx.fresh) / total)
        return self.o(join_heads(ctx.see("heads", heads)).to(x.dtype))


class GatedLinearAttention(StatefulPart):
    """S_t = diag(α_t) S_{t−1} + k_t v_tᵀ,  y_t = S_tᵀ q_t / √K,  out = o(norm(y) ⊙ silu(gate x))

    α = σ(decay(low x))^(1/τ), τ = 16   (Yang et al. 2024, eq. 3 and §4.4). Every key channel forgets at its
    own pace, chosen by the token; the norm is taken head by head. The pattern is signed.
    """

    pattern_kind = "effective"
    pattern_leaves_out = "the norm and the gate after it"

    def __init__(
        self, dim: int, heads: int, key_dim: int, *, rank: int = 16, tau: float = 16.0, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.heads, self.tau, self.scale = heads, tau, key_dim**-0.5
        self.q = nn.Linear(dim, heads * key_dim, bias=False)
        self.k = nn.Linear(dim, heads * key_dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.low = nn.Linear(dim, rank, bias=False)
        self.decay = nn.Linear(rank, heads * key_dim)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = RMSNorm(head_size(dim, heads), eps)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        *made, low, gate = joint_products(x, self.q, self.k, self.v, self.low, self.gate)
        q, k, v = (to_float32(split_heads(y, self.heads)) for y in made)  # (B, H, T, K)
        q, k, v = ctx.see("q", q) * self.scale, ctx.see("k", k), ctx.see("v", v)
        log_a = F.logsigmoid(to_float32(split_heads(self.decay(low), self.heads))) / self.tau
        log_a = ctx.see("log_decay", log_a)
        return self.o(gated_heads(q, k, v, log_a, self.norm, gate, ctx, state))


class Retention(StatefulPart):
    """S_t = γ S_{t−1} + k_t v_tᵀ,  y_t = S_tᵀ q_t / √K,  out = o(norm(y) ⊙ silu(gate x))

    γ_h = 1 − 2^(−5−h) is fixed per head, and rotary positions turn queries and keys (Sun et al. 2023,
    eq. 5–8). The same y comes from one product with a pattern, (q kᵀ ⊙ D) v, D_ts = γ^(t−s); from the
    recurrence; and from chunks of the one with steps of the other between them. The norm is taken head by
    head and has no weights.
    """

    pattern_kind = "effective"
    pattern_leaves_out = "the norm and the gate after it"

    def __init__(self, dim: int, heads: int, value_dim: int, rotary: Rotary, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.heads, self.rotary, self.scale = heads, rotary, head_size(dim, heads) ** -0.5
        self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v, self.gate = nn.Linear(dim, value_dim, bias=False), nn.Linear(dim, value_dim, bias=False)
        self.norm = LayerNorm(head_size(value_dim, heads), eps, weight=False)
        self.o = nn.Linear(value_dim, dim, bias=False)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        *made, gate = joint_products(x, self.q, self.k, self.v, self.gate)
        q, k, v = (to_float32(split_heads(y, self.heads)) for y in made)  # (B, H, T, K)
        q, k = self.rotary(q, ctx.q_pos, ctx), self.rotary(k, ctx.q_pos, ctx) * self.scale
        q, k, v = ctx.see("q", q), ctx.see("k", k), ctx.see("v", v)
        log_a = torch.log1p(-torch.exp2(-5 - torch.arange(self.heads, device=x.device, dtype=q.dtype)))
        log_a = log_a[:, None, None].expand(len(x), -1, x.shape[1], 1)
        return self.o(gated_heads(q, k, v, log_a, self.norm, gate, ctx, state))


class GatedConv(StatefulPart):
    """out(silu(conv(value x)) ⊙ gate x), conv over the last few tokens   (BaseConv: Arora et al. 2024 §5)"""

    def __init__(self, dim: int, hidden: int, width: int = 3) -> None:
        super().__init__()
        self.value = nn.Linear(dim, hidden)
        self.gate = nn.Linear(dim, hidden)
        self.conv = ShortConv(hidden, width, bias=False)
        self.out = nn.Linear(hidden, dim)

    def initialise(self) -> None:
        self.conv.initialise()

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        value = ctx.see("value", self.value(x))
        mixed = F.silu(ctx.see("conv", self.conv(value, ctx, state)))
        hidden = ctx.see("hidden", mixed * ctx.see("gate", self.gate(x)))
        return self.out(hidden)
