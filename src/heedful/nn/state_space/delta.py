"""The gated delta rule (Yang et al. 2025, arXiv 2412.06464): a matrix that corrects what it remembers.

A key's old value is read from the matrix first, and only what the new one differs from it by is written. A
loop (`delta_states`) defines it; in chunks (`fast_delta`) what is written follows from a triangular system.
The pattern is (B, H, T, T), signed, and pattern @ v = heads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_divides
from heedful.nn.attention.multi_head import join_heads, split_heads
from heedful.nn.context import Context, PartState
from heedful.nn.norm import RMSNorm, show_norm
from heedful.nn.state import StatefulPart, recall, remember
from heedful.nn.state_space.chunked import chunk_size
from heedful.nn.state_space.scan import same_document, settle_states, to_float32, uncast
from heedful.nn.state_space.ssm import ShortConv, draw_step_bias, joint_products, show_pattern, shows_pattern

MAX_CHUNK = 64  # positions of a chunk: the system that is solved in it has so many rows


def delta_states(
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    beta: Tensor,
    fresh: Tensor | None,
    S: Tensor,
    change: Tensor | None = None,
) -> Tensor:
    """S_t = a_t S_{t−1} + β_t k_t (v_t − a_t S_{t−1}ᵀ k_t)ᵀ   (Yang et al. 2025, eq. 10): the definition

    k is (B, H, T, K), v is (B, H, T, K′), log a and β are (B, H, T, 1), S is (B, H, K, K′). Where fresh, of
    (B, T), the past is forgotten first. Gives every S, (T, B, H, K, K′); a `change` is added as S goes on.
    """
    out = []
    for t in range(k.shape[2]):
        S = log_a[:, :, t, :, None].exp() * S
        if fresh is not None:
            S = S.masked_fill(fresh[:, t, None, None, None], 0.0)
        recalled = (k[:, :, t, :, None] * S).sum(-2)  # (B, H, K′)
        S = S + k[:, :, t, :, None] * (beta[:, :, t] * (v[:, :, t] - recalled))[..., None, :]
        out.append(S)
        S = S if change is None else S + change[t]
    return torch.stack(out)


def delta_scan(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, beta: Tensor, fresh: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """y_t = S_tᵀ q_t (B, H, T, K′) and the last S: the definition"""
    states = delta_states(k, v, log_a, beta, fresh, S)
    return torch.einsum("bhtk,tbhkv->bhtv", q, states), states[-1]


def delta_systems(q: Tensor, k: Tensor, log: Tensor, beta: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """P_ts = q_t·k_s d_ts and L_ts = β_t k_t·k_s d_ts, d_ts = exp(log_t − log_s) for the s ≤ t that are kept

    What is written, w, solves w_t + Σ_{s<t} L_ts w_s = β_t (v_t − what the matrix held before), and y = P w.
    """
    decay = (log - log.mT).masked_fill(~keep, -torch.inf).exp()
    return (q @ k.mT) * decay, (beta * k) @ k.mT * decay


def fast_delta(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, beta: Tensor, fresh: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """`delta_scan` in chunks (Yang et al. 2025 §3.3): in each w = U − W S, of which U and W need no S

    Let d_t be the product of a from the start of a chunk of c positions up to t, and S what came before it.

        1. Cut q, k (B, H, T, K) and v (B, H, T, K′) into n chunks, (B, H, n, c, ·).
        2. What position t writes is k_t w_tᵀ, and w solves a triangular system (see `delta_systems`):
           (1 + L) w = β v − β d k S,  so  U = (1 + L)⁻¹ β v (c, K′)  and  W = (1 + L)⁻¹ β d k (c, K).
        3. From chunk to chunk S′ = M S + E, with M = d_c − k̂ᵀ W (K, K), E = k̂ᵀ U (K, K′), k̂_s = k_s d_c/d_s.
        4. y = d q S + P w, (B, H, n, c, K′).

    In float32 even under autocast: a triangular system adds up rounding.
    """
    T = q.shape[2]
    size = min(chunk_size(T, False, q.is_cuda)[0], MAX_CHUNK)
    cut = lambda x: F.pad(x, (0, 0, 0, -T % size)).unflatten(2, (-1, size))  # (B, H, n, c, ·)
    with uncast(q):
        q, k, v, beta, log = cut(q), cut(k), cut(v), cut(beta), cut(log_a).cumsum(3)
        keep = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        end, before = log[:, :, :, -1:], log.exp()  # the decays from a position to the end, to the beginning
        after = (end - log).exp()
        whole = end[..., 0, 0].exp()  # (B, H, n)
        if fresh is not None:
            document = cut(fresh[:, None, :, None].int())[..., 0].cumsum(3)  # (B, 1, n, c)
            keep = keep & (document[..., :, None] == document[..., None, :])
            before = before * (document == 0)[..., None]
            after = after * (document == document[..., -1:])[..., None]
            whole = whole * (document[..., -1] == 0)
        P, L = delta_systems(q, k, log, beta, keep)
        right = torch.cat((beta * v, beta * before * k), -1)
        solved = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
        U, W = solved.split((v.shape[-1], k.shape[-1]), -1)
        late = (after * k).mT
        M = torch.diag_embed(whole[..., None].expand(*whole.shape, k.shape[-1])) - late @ W
        states = carry_states(M, late @ U, S)  # (B, H, n + 1, K, K′)
        y = (before * q) @ states[:, :, :-1] + P @ (U - W @ states[:, :, :-1])
        return y.flatten(2, 3)[:, :, :T], states[:, :, -1]


def delta_pattern(q: Tensor, k: Tensor, log_a: Tensor, beta: Tensor, fresh: Tensor | None) -> Tensor:
    """P (1 + L)⁻¹ diag(β), L below its diagonal, so that y = pattern @ v: the quadratic form, (B, H, T, T)"""
    keep = same_document(fresh, q.shape[2], q.device)[:, None]
    P, L = delta_systems(q, k, log_a.cumsum(2), beta, keep)
    return torch.linalg.solve_triangular(L, P, upper=False, unitriangular=True, left=False) * beta.mT


@torch.library.custom_op("heedful::carry_states", mutates_args=())
def carry_states(M: Tensor, E: Tensor, S: Tensor) -> Tensor:
    """S_0 = S,  S_{i+1} = M_i S_i + E_i, all of them: (B, H, n + 1, K, K′); no compiler unrolls it"""
    out = [S.to(E.dtype)]
    for i in range(M.shape[2]):
        out.append(M[:, :, i] @ out[-1] + E[:, :, i])
    return torch.stack(out, 2)


@carry_states.register_fake
def _(M: Tensor, E: Tensor, S: Tensor) -> Tensor:
    return E.new_empty(*E.shape[:2], E.shape[2] + 1, *E.shape[3:])


@torch.library.custom_op("heedful::carry_states_back", mutates_args=())
def carry_states_backward(grad: Tensor, M: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G_n = dS_n,  G_i = dS_i + M_iᵀ G_{i+1};  dM_i = G_{i+1} S_iᵀ,  dE_i = G_{i+1},  dS = G_0"""
    out = [grad[:, :, -1]]
    for i in reversed(range(M.shape[2])):
        out.append(grad[:, :, i] + M[:, :, i].mT @ out[-1])
    first, *later = out[::-1]
    dE = torch.stack(later, 2)
    return dE @ states[:, :, :-1].mT, dE, first.clone()


@carry_states_backward.register_fake
def _(grad: Tensor, M: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    return (
        M.new_empty(M.shape),
        grad[:, :, 1:].new_empty(grad[:, :, 1:].shape),
        grad.new_empty(grad[:, :, 0].shape),
    )


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return carry_states_backward(grad, *ctx.saved_tensors)


carry_states.register_autograd(_backward, setup_context=_save)


class GatedDeltaNet(StatefulPart):
    """q, k, v = silu(conv(q x, k x, v x)), q and k of length 1;  β = max_beta · σ(beta x)
    S_t = a_t S_{t−1} + β_t k_t (v_t − a_t S_{t−1}ᵀ k_t)ᵀ,  y_t = S_tᵀ q_t / √K,  o(norm(y) ⊙ silu(gate x))

    log a = −exp(A_log) softplus(decay x + b)   (Yang et al. 2025, eq. 10 and §3.4). With key_heads < heads,
    groups of heads share queries and keys; β up to 2 lets a memory change its sign (Grazzi et al. 2025). The
    norm is taken head by head.
    """

    pattern_kind = "effective"
    pattern_leaves_out = "the convolution before it, the norm and the gate after it"

    def __init__(
        self, dim: int, heads: int, key_dim: int, value_dim: int, *, key_heads: int | None = None,
        width: int = 4, max_beta: float = 1.0, eps: float = 1e-5, step: tuple[float, float] = (0.001, 0.1),
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.key_heads, self.max_beta, self.first_step = heads, key_heads or heads, max_beta, step
        check_divides("key_heads", self.key_heads, "heads", heads)
        self.scale, keys, values = key_dim**-0.5, self.key_heads * key_dim, heads * value_dim
        self.q = nn.Linear(dim, keys, bias=False)
        self.k = nn.Linear(dim, keys, bias=False)
        self.v = nn.Linear(dim, values, bias=False)
        self.beta = nn.Linear(dim, heads, bias=False)
        self.decay = nn.Linear(dim, heads, bias=False)
        self.gate = nn.Linear(dim, values, bias=False)
        self.conv = ShortConv(2 * keys + values, width, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.step_bias = nn.Parameter(torch.empty(heads))
        self.norm = RMSNorm(value_dim, eps)
        self.o = nn.Linear(values, dim, bias=False)

    def initialise(self) -> None:
        """exp(A_log) uniform up to 16, the softplus log-uniform between two steps, as Mamba-2 begins."""
        self.conv.initialise()
        self.A_log.copy_(torch.empty_like(self.A_log, dtype=torch.float32).uniform_(1e-3, 16.0).log())
        draw_step_bias(self.step_bias, self.first_step)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        with_pattern = shows_pattern(ctx, state)
        layers = self.q, self.k, self.v
        made, beta, decay, gate = joint_products(x, layers, self.beta, self.decay, self.gate)
        mixed = self.mix(made, ctx, state)
        q, k, v = to_float32(mixed).split([layer.out_features for layer in layers], -1)
        q, k = (self._unit_heads(t) for t in (q, k))  # (B, H, T, K)
        q, k, v = ctx.see("q", q) * self.scale, ctx.see("k", k), ctx.see("v", split_heads(v, self.heads))
        beta = self.max_beta * to_float32(beta).sigmoid()
        step = F.softplus(to_float32(decay) + to_float32(self.step_bias))
        log_a = -to_float32(self.A_log).exp() * step
        beta, log_a = (t.transpose(1, 2)[..., None] for t in (beta, log_a))  # (B, H, T, 1)
        beta, log_a = ctx.see("beta", beta), ctx.see("log_decay", log_a)
        if ctx.valid_new is not None:
            beta, log_a = (t.masked_fill(~ctx.valid_new[:, None, :, None], 0.0) for t in (beta, log_a))
        heads = self._remember(q, k, v, log_a, beta, ctx, state)
        if with_pattern:
            heads = show_pattern(ctx, heads, v, delta_pattern(q, k, log_a, beta, ctx.fresh))
        heads = show_norm(self.norm, ctx.see("heads", heads).to(x.dtype), ctx.at("norm"))
        gate = F.silu(ctx.see("gate", gate))
        return self.o(ctx.see("hidden", join_heads(heads) * gate))

    def mix(self, rows: Tensor, ctx: Context, state: PartState | None) -> Tensor:
        """silu(conv(q x, k x, v x)), the three side by side"""
        return self.conv.with_silu(rows, ctx, state)

    def _unit_heads(self, rows: Tensor) -> Tensor:
        """Queries or keys of length 1, those of a group repeated for its heads."""
        split = split_heads(rows, self.key_heads)
        unit = split * (split.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        return unit.repeat_interleave(self.heads // self.key_heads, 1)

    def _remember(
        self, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, beta: Tensor, ctx: Context,
        state: PartState | None,
    ) -> Tensor:  # fmt: skip
        """y (B, H, T, K′); the state keeps the last S. Watched, every S is shown as h, (B, T, H, K·K′)."""
        state_matrix = recall(state, "S")
        S = q.new_zeros(len(q), self.heads, q.shape[3], v.shape[3]) if state_matrix is None else state_matrix
        if ctx.watches("h"):

            def see(states: Tensor) -> Tensor:
                seen = ctx.see("h", states.transpose(0, 1).flatten(3), positions=-3)
                return seen.unflatten(3, S.shape[2:]).transpose(0, 1)

            form = lambda change: delta_states(k, v, log_a, beta, ctx.fresh, S, change)
            states = settle_states(form, see)
            y, last = torch.einsum("bhtk,tbhkv->bhtv", q, states), states[-1]
        else:
            loop = ctx.backend == "reference" or q.shape[2] == 1
            y, last = (delta_scan if loop else fast_delta)(q, k, v, log_a, beta, ctx.fresh, S)
        remember(state, S=last)
        return y
