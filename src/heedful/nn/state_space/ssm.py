"""State spaces in the place of attention: S4, with a diagonal state matrix, and Mamba, which picks by token.

Every channel is a head of size 1. The effective attention `pattern` is (B, D, T, T), signed, and pattern @ v
= heads: v (B, D, T, 1) is the input of the state space and heads its output (Ali et al. 2024, arXiv
2403.01590). The additional skip D v moves nothing between positions: it is shown as `skip`, and both go on. A
memory of fixed size holds no past positions, so that a pass that goes on from one has no pattern.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.attention.multi_head import join_heads
from heedful.nn.context import Context, PartState
from heedful.nn.norm import RMSNorm
from heedful.nn.state import RecurrentState, StatefulPart, recall, remember
from heedful.nn.state_space.scan import (
    BLOCK,
    fast_scan,
    gather_valid,
    last_positions,
    same_document,
    scan,
    scatter_valid,
    selective,
    shown_scan,
    to_float32,
)
from heedful.nn.state_space.selective import fast_selective, selective_pattern, selective_states


class Widen(nn.Module):
    """x in float32: layers that compute in less then add to a sum that keeps its digits."""

    def forward(self, x: Tensor) -> Tensor:
        return to_float32(x)


class NarrowRMSNorm(RMSNorm):
    """RMSNorm of x in the weights' own precision, for blocks whose sum is kept in a wider one (see Widen)"""

    narrows = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where x is; `meta` knows none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def is_unhooked(layer: nn.Module) -> bool:
    """Whether calling the layer is its `forward` and no more: pruning and readers' hooks act in the call."""
    return not layer._forward_hooks and not layer._forward_pre_hooks


def joint_products(x: Tensor, *layers: nn.Linear | tuple[nn.Linear, ...]) -> tuple[Tensor, ...]:
    """W x + b for every layer, those of a tuple side by side.

    Under autocast, if all are plain and alike, they are one product: x is read once, and nothing is joined.
    """
    groups = [layer if isinstance(layer, tuple) else (layer,) for layer in layers]
    flat = [layer for group in groups for layer in group]
    plain = all(type(m) is nn.Linear and is_unhooked(m) for m in flat)
    alike = plain and len({m.bias is None for m in flat}) == 1
    if not autocasts(x) or not alike:
        return tuple(
            torch.cat([m(x) for m in group], -1) if len(group) > 1 else group[0](x) for group in groups
        )
    bias = None if flat[0].bias is None else torch.cat([layer.bias for layer in flat])
    out = F.linear(x, torch.cat([layer.weight for layer in flat]), bias)
    return out.split([sum(len(layer.weight) for layer in group) for group in groups], -1)


class ShortConv(nn.Module):
    """y_t = b + Σ_{j<W} w_j x_{t−j}, each channel by itself; padding does not count   (Fu et al. 2023)"""

    def __init__(self, channels: int, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(channels, 1, width))  # the newest token's weight stands last
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def initialise(self) -> None:
        """Uniform within ±1/√W, as torch starts a convolution; biases at 0."""
        bound = self.width**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        y = torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)
        for j, tap in enumerate(delayed(x, self.width, ctx, state)):
            y = torch.addcmul(y, tap, self.weight[:, 0, j])
        y = y.to(x.dtype)  # under autocast the weights are wider than x
        return y if ctx.valid_new is None else scatter_valid(y, ctx.valid_new)

    def with_silu(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        """silu(y), in a part that shows what goes into the convolution and what comes out of it"""
        return F.silu(ctx.see("conv", self(ctx.see("value", x), ctx, state)))


def delayed(x: Tensor, width: int, ctx: Context, state: PartState | None) -> list[Tensor]:
    """x_{t−W+1}, …, x_{t−1}, x_t, each (B, T, D): 0 before a document; the valid positions stand first"""
    (B, T, D), W, valid = x.shape, width, ctx.valid_new
    previous = recall(state, "window")
    previous = x.new_zeros(B, W - 1, D) if previous is None else previous
    row = torch.cat((previous, x if valid is None else gather_valid(x, valid)), 1)  # (B, W−1+T, D)
    taps, window = [row[:, j : j + T] for j in range(W)], last_positions(row, valid, W - 1)
    if ctx.fresh is not None:  # which document each token is of; what was held is of the one before
        document = ctx.fresh.int().cumsum(1)
        document = F.pad(document if valid is None else gather_valid(document, valid), (W - 1, 0))
        same = lambda j: document[:, j : j + T] == document[:, W - 1 :]
        taps = [tap * same(j)[..., None] for j, tap in enumerate(taps)]
        near = last_positions(document, valid, W - 1)
        window = window * (near == near[:, -1:])[..., None]
    remember(state, window=window)
    return taps


def shows_pattern(ctx: Context, state: PartState | None) -> bool:
    """Whether a pattern is asked for, and can be given: the state, before it is updated, must be empty."""
    if not isinstance(state, RecurrentState) or not state.tensors:
        return ctx.watches("pattern")
    ctx.withhold("pattern", "the state holds a summary of what came before", "read the whole text at once")
    return False


def show_pattern(ctx: Context, y: Tensor, v: Tensor, pattern: Tensor) -> Tensor:
    """y (B, H, T, K) after its pattern was shown: an edit changes y by what it changes of pattern @ v."""
    edited = ctx.see("pattern", pattern, keys=-1)
    return y if edited is pattern else y + (edited - pattern) @ v


def with_skip(ctx: Context, heads: Tensor, D: Tensor, v: Tensor) -> Tensor:
    """y = heads + D v, both shown: (B, H, T, P) → (B, T, H·P)"""
    heads, skip = ctx.see("heads", heads), ctx.see("skip", to_float32(D)[:, None, None] * v)
    return join_heads(heads + skip)


def draw_step_bias(bias: Tensor, steps: tuple[float, float]) -> None:
    """Draw a bias whose softplus is log-uniform between two steps   (Gu and Dao 2023, their code)"""
    low, high = (math.log(s) for s in steps)
    step = torch.empty_like(bias, dtype=torch.float32).uniform_(low, high).exp()
    bias.copy_(step + torch.log(-torch.expm1(-step)))


class Mamba(StatefulPart):
    """u = silu(conv(value x)),  Δ = softplus(delta(low u)),  B = W_B u,  C = W_C u
    h_t = exp(Δ_t A) h_{t−1} + Δ_t u_t B_t,  y_t = h_t C_t + D u_t,  out(y ⊙ silu(gate x))

    (Gu and Dao 2023, alg. 2.) Δ, B and C are chosen by the token itself; A < 0 is kept as log(−A). Where a
    token is padding Δ is 0, so that h stays as it is.
    """

    pattern_kind = "effective"
    pattern_leaves_out = "the skip D, the convolution before it and the gate"

    def __init__(
        self,
        dim: int,
        hidden: int,
        state: int,
        rank: int,
        *,
        width: int = 4,
        bias: bool = False,
        conv_bias: bool = True,
        step: tuple[float, float] = (0.001, 0.1),
    ) -> None:
        super().__init__()
        self.first_step = step
        self.value = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias)
        self.conv = ShortConv(hidden, width, bias=conv_bias)
        self.low = nn.Linear(hidden, rank, bias=False)
        self.delta = nn.Linear(rank, hidden)
        self.B = nn.Linear(hidden, state, bias=False)
        self.C = nn.Linear(hidden, state, bias=False)
        self.A_log = nn.Parameter(torch.empty(hidden, state))
        self.D = nn.Parameter(torch.empty(hidden))
        self.out = nn.Linear(hidden, dim, bias=bias)

    def initialise(self) -> None:
        """A = −1 … −N in every channel, D = 1, Δ log-uniform between two steps   (Gu and Dao 2023 §3.6)"""
        self.conv.initialise()
        self.A_log.copy_(torch.arange(1, self.A_log.shape[1] + 1).log().expand_as(self.A_log))
        nn.init.ones_(self.D)
        nn.init.uniform_(self.delta.weight, -(self.low.out_features**-0.5), self.low.out_features**-0.5)
        draw_step_bias(self.delta.bias, self.first_step)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        with_pattern = shows_pattern(ctx, state)
        value, gate = joint_products(x, self.value, self.gate)
        u = self.conv.with_silu(value, ctx, state)  # (B, T, F)
        if ctx.valid_new is not None:
            u = u.masked_fill(~ctx.valid_new[..., None], 0.0)
        low, B, C = self.select(u)
        delta = F.softplus(to_float32(self.delta(low)))
        if ctx.valid_new is not None:
            delta = delta.masked_fill(~ctx.valid_new[..., None], 0.0)
        # Under autocast what is read is narrow; what is remembered never is.
        u, delta = (u, delta.to(u.dtype)) if autocasts(u) else (to_float32(u), delta)
        v = None if ctx.watch is None else ctx.see("v", u.transpose(1, 2)[..., None])  # (B, F, T, 1)
        delta, B, C = ctx.see("delta", delta), ctx.see("B", to_float32(B)), ctx.see("C", to_float32(C))
        if v is None:
            y = self._states(u, delta, B, C, ctx, state) + to_float32(self.D) * u
        else:
            heads = self._states(v[..., 0].mT, delta, B, C, ctx, state).mT[..., None]
            if with_pattern:
                heads = show_pattern(ctx, heads, v, selective_pattern(delta, self._A(), B, C, ctx.fresh))
            y = with_skip(ctx, heads, self.D, v)
        return self.out(ctx.see("hidden", y.to(x.dtype) * F.silu(ctx.see("gate", gate))))

    def select(self, u: Tensor) -> tuple[Tensor, ...]:
        """What the token chooses: the few numbers that make Δ, B and C."""
        return joint_products(u, self.low, self.B, self.C)

    def _A(self) -> Tensor:
        return -torch.exp(to_float32(self.A_log))

    def _states(
        self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, ctx: Context, state: PartState | None
    ) -> Tensor:
        A, keep = self._A(), None if ctx.fresh is None else (~ctx.fresh).to(B.dtype)
        previous = recall(state, "h")
        h = A.new_zeros(len(u), *A.shape) if previous is None else previous
        if ctx.watches("h"):
            see = lambda states: ctx.see("h", states, positions=-3)  # (B, T, F, N)
            states = selective_states(u, delta, A, B, keep, h, see)
            y, last = torch.einsum("btfn,btn->btf", states, C), states[:, -1]
        else:
            form = selective if ctx.backend == "reference" or u.shape[1] == 1 else fast_selective
            y, last = form(u, delta, A, B, C, keep, h)
        remember(state, h=last)
        return y


class NormedMamba(Mamba):
    """Mamba whose numbers for Δ, B and C are divided by their root mean square   (Zuo et al. 2024)"""

    def __init__(self, *args: Any, eps: float = 1e-6, **more: Any) -> None:
        super().__init__(*args, **more)
        self.eps = eps

    def select(self, u: Tensor) -> tuple[Tensor, ...]:
        rows = super().select(u)
        return tuple(F.rms_norm(t.float(), t.shape[-1:], eps=self.eps).to(t.dtype) for t in rows)


class S4(StatefulPart):
    """y = K ∗ u + D u,  K_l = 2 Re Σ_n C_n (Ā_n − 1)/A_n Ā_nˡ,  Ā = exp(ΔA);  glu(out gelu(y))

    (Gu et al. 2022, eq. 3–5, with the diagonal A of S4D: Gu, Gupta et al. 2022, eq. 6–9.) The same map as a
    recurrence: h_t = Ā h_{t−1} + u_t,  y_t = 2 Re Σ_n C_n (Ā_n − 1)/A_n h_tn + D u_t. A whole sequence is
    convolved by FFT; steps, and sequences that must forget between documents, take the recurrence. `state`
    real numbers are state/2 complex ones, of which the conjugates are left out.
    """

    pattern_kind = "effective"
    pattern_leaves_out = "the skip D"

    def __init__(
        self, dim: int, state: int, *, step: tuple[float, float] = (0.001, 0.1), dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.first_step, self.dropout = step, dropout
        self.step_log = nn.Parameter(torch.empty(dim))
        self.A_log = nn.Parameter(torch.empty(dim, state // 2))  # log(−Re A)
        self.A_turn = nn.Parameter(torch.empty(dim, state // 2))  # Im A
        self.C = nn.Parameter(torch.empty(dim, state // 2, 2))  # real and imaginary part
        self.D = nn.Parameter(torch.empty(dim))
        self.out = nn.Linear(dim, 2 * dim)

    def initialise(self) -> None:
        """A_n = −½ + iπn (S4D-Lin), C and D normal, Δ log-uniform between two steps."""
        low, high = (math.log(s) for s in self.first_step)
        nn.init.uniform_(self.step_log, low, high)
        nn.init.constant_(self.A_log, math.log(0.5))
        self.A_turn.copy_((math.pi * torch.arange(self.A_turn.shape[1])).expand_as(self.A_turn))
        nn.init.normal_(self.C, std=0.5**0.5)
        nn.init.normal_(self.D)

    def discrete(self) -> tuple[Tensor, Tensor]:
        """ΔA, the logarithm of Ā, and C (Ā − 1)/A, both (D, N) complex."""
        A = torch.complex(-to_float32(self.A_log).exp(), to_float32(self.A_turn))
        log = A * to_float32(self.step_log).exp()[:, None]
        return log, torch.view_as_complex(to_float32(self.C).contiguous()) * torch.expm1(log) / A

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        u = (
            to_float32(x)
            if ctx.valid_new is None
            else to_float32(x).masked_fill(~ctx.valid_new[..., None], 0.0)
        )
        v = ctx.see("v", u.transpose(1, 2)[..., None])  # (B, D, T, 1)
        u, T, with_pattern = v[..., 0], x.shape[1], shows_pattern(ctx, state)
        open_form = ctx.fresh is not None or T == 1 or ctx.watches("h") or ctx.backend == "reference"
        y = self._recurrence(u, ctx, state) if open_form else self._convolution(u, ctx, state)
        heads = (
            y[..., None]
            if not with_pattern
            else show_pattern(ctx, y[..., None], v, self.pattern(ctx, len(x), T))
        )
        y = with_skip(ctx, heads, self.D, v).to(x.dtype)
        hidden = ctx.see("hidden", F.gelu(y))
        return F.glu(self.out(F.dropout(hidden, self.dropout, self.training)), -1)

    def _recurrence(self, u: Tensor, ctx: Context, state: PartState | None) -> Tensor:
        """y (B, D, T) from u (B, D, T) by h_t = Ā h_{t−1} + u_t: the definition"""
        log, C = self.discrete()
        previous = recall(state, "h")
        h = log.new_zeros(len(u), *log.shape) if previous is None else previous  # (B, D, N)
        decay = log.exp().expand(u.shape[2], len(u), *log.shape)
        for flag, value in ((None if ctx.valid_new is None else ~ctx.valid_new, 1.0), (ctx.fresh, 0.0)):
            decay = decay if flag is None else torch.where(flag.t()[..., None, None], value, decay)
        given = u.permute(2, 0, 1)[..., None].expand_as(decay)  # (T, B, D, N)
        if ctx.watches("h"):
            states = shown_scan(decay, given, h, lambda states: self._show(states, ctx)).transpose(0, 1)
        else:
            form = scan if ctx.backend == "reference" else fast_scan
            states = form(decay, given, h).transpose(0, 1)
        remember(state, h=states[:, -1])
        return 2 * torch.einsum("btdn,dn->bdt", states, C).real

    def _show(self, states: Tensor, ctx: Context) -> Tensor:
        """The states (T, B, D, N) as others see them: batch first, real and imaginary parts side by side"""
        pairs = torch.view_as_real(states.transpose(0, 1).resolve_conj())
        seen = ctx.see("h", pairs.flatten(-2), positions=-3)  # (B, T, D, 2N)
        return torch.view_as_complex(seen.unflatten(-1, (-1, 2)).contiguous()).transpose(0, 1)

    def _convolution(self, u: Tensor, ctx: Context, state: PartState | None) -> Tensor:
        """The same by FFT, twice as long as the sequence so that the end does not wrap round to the start"""
        (log, C), T, valid = self.discrete(), u.shape[2], ctx.valid_new
        near, far = powers(log, T)
        tight = u if valid is None else gather_valid(u.mT, valid).mT
        spectrum = torch.fft.rfft(tight, 2 * T) * torch.fft.rfft(ssm_kernel(log, C, T), 2 * T)
        y = torch.fft.irfft(spectrum, 2 * T)[..., :T]
        if isinstance(state, RecurrentState):
            newest_first = u.flip(2) if valid is None else gather_valid(u.mT.flip(1), valid.flip(1)).mT
            blocks = F.pad(newest_first, (0, -T % near.shape[2])).unflatten(2, (-1, near.shape[2]))
            h = torch.einsum("bdij,dnj,dni->bdn", blocks.to(near.dtype), near, far)
            previous = state.get("h")
            if previous is not None:
                left = torch.einsum("bdn,dni,dnj->bdij", previous * C * log.exp(), far, near)
                y = y + 2 * left.real.flatten(2)[..., :T]
                h = h + previous * torch.exp(log * (T if valid is None else valid.sum(1)[:, None, None]))
            state.update(h=h)
        return y if valid is None else scatter_valid(y.mT, valid).mT

    def pattern(self, ctx: Context, batch: int, length: int) -> Tensor:
        """P_ts = K_{t−s} for valid s ≤ t of one document: the quadratic form, (B, D, T, T)"""
        log, C = self.discrete()
        valid = ctx.valid_new
        if valid is None:
            valid = torch.ones(batch, length, dtype=torch.bool, device=log.device)
        place = valid.int().cumsum(1)
        keep = same_document(ctx.fresh, length, log.device) & valid[:, None]  # (B, T, T)
        distance = (place[:, :, None] - place[:, None]).clamp(min=0)
        return ssm_kernel(log, C, length)[:, distance].transpose(0, 1).masked_fill(~keep[:, None], 0.0)


def powers(log: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Ā^j, j < c, and Ā^(c·i), both (D, N, ·): their products are all powers below the length"""
    size = 2 * BLOCK
    near = torch.arange(size, device=log.device)
    far = torch.arange(-(-length // size), device=log.device) * size
    return torch.exp(log[..., None] * near), torch.exp(log[..., None] * far)


def ssm_kernel(log: Tensor, C: Tensor, length: int) -> Tensor:
    """K_l = 2 Re Σ_n C_n Ā_nˡ for l < length, (D, T)"""
    near, far = powers(log, length)
    return 2 * torch.einsum("dni,dnj->dij", far * C[..., None], near).real.flatten(1)[:, :length]
