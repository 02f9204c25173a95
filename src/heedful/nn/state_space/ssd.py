"""State space duality (Dao and Gu 2024, arXiv 2405.21060): a state space that is linear attention as well.

With one decay for a whole head the selective recurrence is S_t = a_t S_{t−1} + k_t v_tᵀ with queries C, keys
B and values Δ u: a loop (`scan.linear_scan`) defines it, and chunks of it are matrix products
(`chunked.fast_linear`). The pattern is (B, H, T, T), signed, and pattern @ v = heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_divides
from heedful.nn.attention.multi_head import head_size, split_heads
from heedful.nn.context import Context, PartState
from heedful.nn.norm import GroupRMSNorm, RMSNorm, show_norm
from heedful.nn.state import StatefulPart, recall, remember
from heedful.nn.state_space.chunked import fast_linear
from heedful.nn.state_space.scan import linear_pattern, linear_scan, shown_scan, to_float32
from heedful.nn.state_space.ssm import (
    ShortConv,
    draw_step_bias,
    joint_products,
    show_pattern,
    shows_pattern,
    with_skip,
)


class Mamba2(StatefulPart):
    """u, B, C = silu(conv(value x, B x, C x)),  Δ = softplus(delta x + b)
    h_t = exp(Δ_t A) h_{t−1} + Δ_t u_t B_tᵀ,  y_t = h_t C_t + D u_t,  out(norm(y ⊙ silu(gate x)))

    (Dao and Gu 2024 §5 and §7.1.) A < 0, Δ and D are one number for a head; groups of heads share B and C. Δ
    lies within `limits`, and is 0 where a token is padding, so that h stays as it is. The norm goes over all
    channels, or over each of `norm_groups` parts of them by itself.
    """

    pattern_kind = "effective"
    pattern_leaves_out = "the skip D, the convolution before it, the gate and the norm after it"

    def __init__(
        self,
        dim: int,
        hidden: int,
        heads: int,
        state: int,
        *,
        groups: int = 1,
        norm_groups: int = 1,
        width: int = 4,
        bias: bool = False,
        conv_bias: bool = True,
        eps: float = 1e-5,
        step: tuple[float, float] = (0.001, 0.1),
        limits: tuple[float, float | None] = (0.0, None),
    ) -> None:
        super().__init__()
        check_divides("groups", groups, "heads", heads)
        self.heads, self.groups, self.head_dim, self.state = heads, groups, head_size(hidden, heads), state
        self.first_step, self.limits = step, limits
        self.gate = nn.Linear(dim, hidden, bias=bias)
        self.value = nn.Linear(dim, hidden, bias=bias)
        self.B = nn.Linear(dim, groups * state, bias=bias)
        self.C = nn.Linear(dim, groups * state, bias=bias)
        self.delta = nn.Linear(dim, heads, bias=bias)
        self.step_bias = nn.Parameter(torch.empty(heads))
        self.conv = ShortConv(hidden + 2 * groups * state, width, bias=conv_bias)
        self.A_log = nn.Parameter(torch.empty(heads))  # log(−A)
        self.D = nn.Parameter(torch.empty(heads))
        self.norm = RMSNorm(hidden, eps) if norm_groups == 1 else GroupRMSNorm(norm_groups, hidden, eps)
        self.out = nn.Linear(hidden, dim, bias=bias)

    def initialise(self) -> None:
        """A uniform in −16 … −1, D = 1, Δ log-uniform between two steps   (Dao and Gu 2024, their code)"""
        self.conv.initialise()
        self.A_log.copy_(torch.empty_like(self.A_log, dtype=torch.float32).uniform_(1.0, 16.0).log())
        nn.init.ones_(self.D)
        draw_step_bias(self.step_bias, self.first_step)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        with_pattern = shows_pattern(ctx, state)
        gate, read, delta = joint_products(x, self.gate, (self.value, self.B, self.C), self.delta)
        mixed = self.conv.with_silu(read, ctx, state)
        delta = F.softplus(to_float32(delta) + to_float32(self.step_bias)).clamp(*self.limits)
        if ctx.valid_new is not None:
            mixed, delta = (t.masked_fill(~ctx.valid_new[..., None], 0.0) for t in (mixed, delta))
        u, B, C = (to_float32(t) for t in self._split(mixed))
        delta, B, C = ctx.see("delta", delta), ctx.see("B", B), ctx.see("C", C)
        v = ctx.see("v", split_heads(u, self.heads))  # (B, H, T, P)
        q, k = (split_heads(t, self.groups) for t in (C, B))  # (B, G, T, N)
        step = delta.transpose(1, 2)[..., None]  # (B, H, T, 1)
        log_a = -torch.exp(to_float32(self.A_log))[:, None, None] * step
        heads = self._states(q, k, step * v, log_a, ctx, state)
        if with_pattern:
            q, k = (t.repeat_interleave(self.heads // self.groups, 1) for t in (q, k))
            heads = show_pattern(ctx, heads, v, linear_pattern(q, step * k, log_a, ctx.fresh))
        y = with_skip(ctx, heads, self.D, v)
        gated = (y * F.silu(to_float32(ctx.see("gate", gate)))).to(x.dtype)
        return self.out(ctx.see("hidden", show_norm(self.norm, gated, ctx.at("norm"))))

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u, B and C, which stand side by side."""
        size = self.groups * self.state
        u, B, C = rows.split((self.heads * self.head_dim, size, size), -1)
        return u, B, C

    def _states(
        self, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, ctx: Context, state: PartState | None
    ) -> Tensor:
        """y (B, H, T, P) without the skip; the state keeps the last h, (B, H·P, N) as `Mamba` has it"""
        previous = recall(state, "h")
        if previous is None:
            S = v.new_zeros(len(v), self.heads, self.state, self.head_dim)
        else:
            S = previous.unflatten(1, (self.heads, -1)).mT
        if ctx.watches("h"):
            y, S = self._shown_states(q, k, v, log_a, ctx, S)
        else:
            form = linear_scan if ctx.backend == "reference" or q.shape[2] == 1 else fast_linear
            y, S = form(q, k, v, log_a, ctx.fresh, S)
        remember(state, h=S.mT.flatten(1, 2))
        return y

    def _shown_states(
        self, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, ctx: Context, S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same with every h made, shown as (B, T, H, P·N) and perhaps replaced"""
        q, k = (t.repeat_interleave(self.heads // self.groups, 1) for t in (q, k))
        a = log_a.exp()
        if ctx.fresh is not None:
            a = a.masked_fill(ctx.fresh[:, None, :, None], 0.0)
        b = v[..., :, None] * k[..., None, :]  # (B, H, T, P, N)

        def see(states: Tensor) -> Tensor:
            seen = ctx.see("h", states.transpose(0, 1).flatten(3), positions=-3)
            return seen.unflatten(3, (-1, self.state)).transpose(0, 1)

        first = (2, 0, 1, 3, 4)
        states = shown_scan(a[..., None].permute(first), b.permute(first), S.mT, see)  # (T, B, H, P, N)
        return torch.einsum("tbhpn,bhtn->bhtp", states, q), states[-1].mT
