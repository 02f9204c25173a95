"""Multi-head attention (Vaswani et al. 2017 §3.2): over oneself, and over an encoder's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.checks import check_divides
from heedful.nn.attention.attend import Call, attend
from heedful.nn.attention.blocks import attend_window
from heedful.nn.context import Context, Mask, Part, PartState
from heedful.nn.norm import norm_size, show_norm
from heedful.nn.position import Rotary
from heedful.nn.state import KV, FixedState, SlidingKV


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·K) → (B, H, T, K)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) → (B, T, H·K)"""
    return x.transpose(1, 2).flatten(2)


def normed_heads(x: Tensor, heads: int, norm: nn.Module | None, ctx: Context) -> Tensor:
    """(B, T, H·K) → (B, H, T, K), normalised in runs as long as the norm: a head each, or all of them."""
    if norm is None:
        return split_heads(x, heads)
    runs = heads if x.shape[-1] == heads * norm_size(norm) else 1
    normed = show_norm(norm, split_heads(x, runs), ctx)  # (B, H or 1, T, ·)
    return normed if runs == heads else split_heads(join_heads(normed), heads)


def head_size(dim: int, heads: int) -> int:
    """dim / heads, or an error that names the head counts that would do."""
    return check_divides("heads", heads, "dim", dim)


def select_bias(bias: Tensor, pos: Tensor, ctx: Context) -> Tensor:
    """The columns of a bias (·, H, T, text) that belong to the keys at `pos` (B or 1, S)."""
    at = pos
    if ctx.mask.valid is not None:  # the token at a position is the first that has so many up to it
        at = torch.searchsorted(ctx.mask.valid.long().cumsum(1), pos.expand(len(ctx.mask.valid), -1) + 1)
    rows = max(len(bias), len(at))
    index = at[:, None, None].expand(rows, *bias.shape[1:3], -1)
    return bias.expand(rows, -1, -1, -1).gather(-1, index.clamp(max=bias.shape[-1] - 1))


class Attention(Part):
    """o(concat_h softmax(q_h k_hᵀ / √K) v_h)   (Vaswani et al. 2017, eq. 1 and §3.2.2)

    With kv_heads < heads, groups of query heads share a key and a value head (Ainslie et al. 2023; one:
    Shazeer 2019). `window` lets a query see only that many positions, its own included (Child et al. 2019).

    `bias` is of q, k and v, and of o too unless `out_bias` says otherwise. `q_norm` and `k_norm` normalise
    queries and keys before they are turned (Henry et al. 2020): each head alone if the norm is as long as a
    head, or all heads as one vector. `clip` keeps every entry of q, k and v within ±clip, and `softcap` every
    score (see Call).
    """

    pattern_kind = "softmax"

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
        rotary: Rotary | None = None,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        window: int | None = None,
        scale: float | None = None,
        clip: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        check_divides("kv_heads", self.kv_heads, "heads", heads)
        self.head_dim = head_dim or head_size(dim, heads)
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.window, self.clip, self.softcap, self.dropout = window, clip, softcap, dropout
        self.q = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.k = nn.Linear(dim, self.kv_heads * self.head_dim, bias=bias)
        self.v = nn.Linear(dim, self.kv_heads * self.head_dim, bias=bias)
        self.o = nn.Linear(heads * self.head_dim, dim, bias=bias if out_bias is None else out_bias)
        self.rotary, self.q_norm, self.k_norm = rotary, q_norm, k_norm

    def new_state(self, batch: int, length: int) -> KV | SlidingKV:
        return KV(length) if self.window is None else SlidingKV(self.window, length)

    def mixing_flops(self, length: int) -> int:
        return 4 * min(length, self.window or length) * self.heads * self.head_dim

    def state_numbers(self, length: int) -> dict[str, int]:
        state, size = self.new_state(1, length), 2 * self.kv_heads * self.head_dim
        if isinstance(state, SlidingKV) and length > state.slots:
            return {"fixed": state.slots * size}
        return {"token": size}

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every position, the heads of each side by side."""
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        q, k, v = self.project(x)
        if self.clip is not None:
            q, k, v = (t.clamp(-self.clip, self.clip) for t in (q, k, v))
        q = normed_heads(q, self.heads, self.q_norm, ctx.at("q_norm"))  # (B, H, T, K)
        k = normed_heads(k, self.kv_heads, self.k_norm, ctx.at("k_norm"))  # (B, G, T, K)
        v = split_heads(v, self.kv_heads)
        if self.rotary is not None:
            q, k = ctx.see("q_unrotated", q), ctx.see("k_unrotated", k)
            q, k = self.rotary(q, ctx.q_pos, ctx), self.rotary(k, ctx.q_pos, ctx)
        k, v, ctx = self.remember(k, v, ctx, state)  # (B, G, S, K)
        q, k, v = ctx.see("q", q), ctx.see("k", k, keys=-2), ctx.see("v", v, keys=-2)
        dropout = self.dropout * self.training
        call = Call(q, k, v, ctx.q_pos, ctx.k_pos, ctx.mask, ctx.bias, self.scale, dropout, self.softcap)
        return self.output(join_heads(self.attend(call, ctx)), x, ctx)

    def remember(
        self, k: Tensor, v: Tensor, ctx: Context, state: PartState | None
    ) -> tuple[Tensor, Tensor, Context]:
        """Return the keys and values of all tokens so far, and the context of what may look at them.

        With a window's state, keys stand in the order of its slots, and S counts those that are kept.
        """
        if isinstance(state, KV):
            k, v = state.append(k, v, ctx.past)
        elif isinstance(state, SlidingKV):
            k, v, k_pos, valid = state.append(k, v, ctx)
            bias = None if ctx.bias is None else select_bias(ctx.bias, k_pos, ctx)
            ctx = replace(ctx, k_pos=k_pos, mask=replace(ctx.mask, valid=valid), bias=bias, in_order=False)
        if self.window is not None:
            ctx = replace(ctx, mask=replace(ctx.mask, window=self.window))
        return k, v, ctx

    def attend(self, call: Call, ctx: Context) -> Tensor:
        """Return what the heads read, (B, H, T, K). On a CPU a window is computed block by block."""
        return attend(call, ctx) if self.window is None or call.q.is_cuda else attend_window(call, ctx)

    def output(self, heads: Tensor, x: Tensor, ctx: Context) -> Tensor:
        """Return o of what the heads read, which stands side by side, (B, T, H·K)."""
        return self.o(heads)


class GatedAttention(Attention):
    """o(σ(gate x) ⊙ concat_h p_h v_h)   (Qiu et al. 2025, arXiv 2505.06708)"""

    pattern_leaves_out = "the gate after it"

    def __init__(self, dim: int, heads: int, *args: Any, bias: bool = False, **more: Any) -> None:
        super().__init__(dim, heads, *args, bias=bias, **more)
        self.gate = nn.Linear(dim, heads * self.head_dim, bias=bias)

    def output(self, heads: Tensor, x: Tensor, ctx: Context) -> Tensor:
        gate = ctx.see("gate", self.gate(x))
        return super().output(ctx.see("hidden", heads * gate.sigmoid()), x, ctx)


class SinkAttention(Attention):
    """o(concat_h p_h v_h),  p_ij = e^s_ij / (e^b_h + Σ_j e^s_ij)   (OpenAI 2025, arXiv 2508.10925 §2.1)

    A learned score b of each head joins those of the keys and has no value, so that a head can look
    at nothing (Miller 2023; Xiao et al. 2024): rows of the pattern sum to less than 1.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sinks = nn.Parameter(torch.zeros(self.heads))

    def attend(self, call: Call, ctx: Context) -> Tensor:
        return super().attend(replace(call, sinks=self.sinks), ctx)


class BiasedAttention(Attention):
    """Attention to whose scores this layer's own bias of distances is added   (Chung et al. 2023)"""

    def __init__(self, *args: Any, position_bias: nn.Module, **more: Any) -> None:
        super().__init__(*args, **more)
        self.position_bias = position_bias

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        bias = ctx.see("bias", self.position_bias(ctx), keys=-1)
        return super().forward(x, replace(ctx, bias=bias), state)


class CrossAttention(Part):
    """The same equation with keys and values from the encoder's memory (Vaswani et al. 2017 §3.2.3).

    They do not change while decoding, so the state keeps their projections. A memory is as wide as x unless
    `memory_dim` says otherwise.
    """

    pattern_kind = "softmax"

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        *,
        bias: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        memory_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim or head_size(dim, heads)
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout = dropout
        self.q = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.k = nn.Linear(memory_dim or dim, heads * self.head_dim, bias=bias)
        self.v = nn.Linear(memory_dim or dim, heads * self.head_dim, bias=bias)
        self.o = nn.Linear(heads * self.head_dim, dim, bias=bias)

    def new_state(self, batch: int, length: int) -> FixedState:
        return FixedState()

    def mixing_flops(self, length: int) -> int:
        return 4 * length * self.heads * self.head_dim

    def state_numbers(self, length: int) -> dict[str, int]:
        return {"source": 2 * self.heads * self.head_dim}

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        q = ctx.see("q", split_heads(self.q(x), self.heads))  # (B, H, T, K)
        if isinstance(state, FixedState) and state.get("k") is not None:
            k, v = state["k"], state["v"]  # (B, H, S', K)
        else:
            assert ctx.memory is not None, "cross-attention needs a memory: call the model with a source"
            k, v = (split_heads(project(ctx.memory), self.heads) for project in (self.k, self.v))
            if isinstance(state, FixedState):
                state.update(k=k, v=v)
        k, v = ctx.see("k", k, keys=-2), ctx.see("v", v, keys=-2)
        mask = ctx.memory_mask or Mask()
        k_pos = ctx.q_pos[:1, :1].expand(1, k.shape[2])  # a memory's mask does not ask for positions
        call = Call(q, k, v, ctx.q_pos, k_pos, mask, None, self.scale, self.dropout * self.training)
        return self.o(join_heads(attend(call, ctx)))
