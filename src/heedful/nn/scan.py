"""h_t = a_t h_{t−1} + b_t, the recurrence of state spaces and linear attention: as a loop and in fast forms.

The loops are the definitions. `selective` is the state space whose a and b depend on the input; `linear` is
the one whose h is a matrix, so that blocks of it are matrix products. Decays stay logarithms until the
difference of two is taken, which is never positive: nothing overflows. Sums are in float32 at least.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 16  # positions that the fast forms read at a time
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, Tensor]


def to_float32(x: Tensor) -> Tensor:
    """x in float32, or as it is if that is wider: a product of many decays underflows in less."""
    return x.float() if x.dtype.itemsize < 4 else x


def uncast(x: Tensor) -> torch.autocast:
    """A context in which products stay in the precision of their factors, whatever autocast says outside."""
    return torch.autocast(x.device.type, enabled=False)


def gather_valid(x: Tensor, valid: Tensor) -> Tensor:
    """(B, T, …) with the valid positions of each row first, in their order."""
    return gather(x, (~valid).int().argsort(dim=1, stable=True))


def scatter_valid(x: Tensor, valid: Tensor) -> Tensor:
    """Undo `front` at the valid positions; the others repeat a neighbour."""
    return gather(x, (valid.int().cumsum(1) - 1).clamp(min=0))


def gather(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, t]] for every row b, (B, T, …)"""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def last_positions(row: Tensor, valid: Tensor | None, size: int) -> Tensor:
    """The last `size` positions of a row that holds `size` old ones, then new ones with the valid first."""
    if valid is None:
        return row[:, row.shape[1] - size :]
    return gather(row, valid.sum(1, keepdim=True) + torch.arange(size, device=row.device))


def scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """h_t = a_t h_{t−1} + b_t along the first dimension, all (T, …): the definition."""
    out = []
    for a_t, b_t in zip(a.unbind(0), b.unbind(0)):
        h = torch.addcmul(b_t, a_t, h)
        out.append(h)
    return torch.stack(out)


def doubling_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """The same in log₂ T passes, since (a, b)∘(a′, b′) = (a a′, a′ b + b′) is associative   (Blelloch 1990)

    More work than the loop, but few and large steps: for accelerators, and for compilers.
    """
    b = torch.cat((torch.addcmul(b[:1], a[:1], h[None]), b[1:]))
    k = 1
    while k < len(a):
        b = torch.cat((b[:k], torch.addcmul(b[k:], a[k:], b[:-k])))
        a = torch.cat((a[:k], a[k:] * a[:-k]))
        k *= 2
    return b


def fast_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Whichever of the two is faster where the tensors are."""
    loop = a.device.type == "cpu" and not torch.compiler.is_compiling()
    return scan(a, b, h) if loop else doubling_scan(a, b, h)


def shown_scan(a: Tensor, b: Tensor, h: Tensor, see: Callable[[Tensor], Tensor]) -> Tensor:
    """`fast_scan` whose states, (T, …), somebody sees and may replace: each follows from those before it.

    A change d_t of h_t goes on as b_{t+1} + a_{t+1} d_t. That changes later states, which are seen again,
    until the changes are those that were already carried on. Each pass settles one more position at least.
    """
    states = fast_scan(a, b, h)
    carried = torch.zeros_like(states)
    for _ in range(len(a) + 1):  # a change that draws random numbers never settles
        seen = see(states)
        change = seen - states
        if torch.equal(change, carried):
            break
        carried = change
        before = torch.cat((torch.zeros_like(change[:1]), change[:-1]))
        states = fast_scan(a, torch.addcmul(b.to(a.dtype), a, before), h)
    return seen


def scan_into(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """`fast_scan` without a gradient of its own, so that it may write over b."""
    if a.device.type != "cpu":
        return doubling_scan(a, b, h)
    for a_t, b_t in zip(a.unbind(0), b.unbind(0)):
        h = b_t.addcmul_(a_t, h)
    return b


def selective(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Δ_t A) h_{t−1} + Δ_t u_t B_t,  y_t = h_t C_t   (Gu and Dao 2023, alg. 2): the definition

    u and Δ are (B, T, D), A is (D, N), B and C are (B, T, N), h is (B, D, N). Where keep (B, T) is 0 the past
    is forgotten first. Where Δ is 0 nothing happens. Gives y (B, T, D) and the last h.
    """
    out = []
    for t in range(u.shape[1]):
        a = torch.exp(delta[:, t, :, None] * A)  # (B, D, N)
        if keep is not None:
            a = a * keep[:, t, None, None]
        h = a * h + (delta[:, t] * u[:, t])[..., None] * B[:, t, None]
        out.append((h * C[:, t, None]).sum(-1))
    return torch.stack(out, 1), h


def fast_selective(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """`selective`, block by block: h is never held for more than a block, and made again for the gradient."""
    with uncast(u):
        if torch.compiler.is_compiling():  # which derives the gradient by itself
            states = selective_states(u, delta, A, B, keep, h)
            return _read_block(states, C), states[:, -1]
        major = [x.transpose(0, 1) for x in (u, delta, B, C)]
        held = None if keep is None else keep.transpose(0, 1)
        y, last = Selective.apply(major[0], major[1], A, major[2], major[3], held, h)
        return y.transpose(0, 1), last


class Selective(torch.autograd.Function):
    """`selective` with time first, and its gradient.

    With G_t = ∂/∂h_t = dy_t C_t + a_{t+1} G_{t+1}, the same recurrence read backwards:
    ∂a_t = G_t h_{t−1},  ∂b_t = G_t,  ∂C_t = Σ_d dy_t h_t.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, keep: Tensor | None, h: Tensor
    ) -> tuple[Tensor, Tensor]:
        starts, out = [], []
        for s in _blocks(len(u)):
            a, b = _coefficients(u[s], delta[s], A, B[s], None if keep is None else keep[s])
            starts.append(h.clone())
            states = scan_into(a, b, h)  # (c, B, D, N)
            h = states[-1]
            out.append(_read_block(states, C[s]))
        ctx.save_for_backward(u, delta, A, B, C, *([] if keep is None else [keep]), *starts)
        ctx.forgets = keep is not None
        return torch.cat(out), h.clone()  # not a view of the block, which would keep it alive

    @staticmethod
    def backward(ctx: Any, dy: Tensor, carry: Tensor) -> Gradients:
        with uncast(dy):
            return Selective.gradients(ctx, dy, carry)

    @staticmethod
    def gradients(ctx: Any, dy: Tensor, carry: Tensor) -> Gradients:
        """What `backward` gives, in the precision of what `forward` was given."""
        u, delta, A, B, C, *rest = ctx.saved_tensors
        keep, starts = (rest[0], rest[1:]) if ctx.forgets else (None, rest)
        grads: list[tuple[Tensor, ...]] = []
        dA = torch.zeros_like(A)
        for s, start in zip(reversed(_blocks(len(u))), reversed(starts)):
            a, b = _coefficients(u[s], delta[s], A, B[s], None if keep is None else keep[s])
            states = scan_into(a, b, start)
            # Backwards, position t is decayed by a_{t+1}; the last one's decay is already in `carry`.
            decay = torch.cat((a[1:], torch.ones_like(a[:1]))).flip(0)
            G = scan_into(decay, (dy[s][..., None] * C[s][:, :, None]).flip(0), carry).flip(0)
            carry = G[0] * a[0]
            dlog = G * torch.cat((start[None], states[:-1])) * a
            dA += (dlog * delta[s][..., None]).sum((0, 1))
            inner = (G @ B[s][..., None])[..., 0]  # (c, B, D), the gradient of Δ u
            grads.append((
                inner * delta[s],
                inner * u[s] + (dlog * A).sum(-1),
                ((delta[s] * u[s])[..., None, :] @ G)[..., 0, :],
                (dy[s][..., None, :] @ states)[..., 0, :],
            ))  # fmt: skip
        du, ddelta, dB, dC = (torch.cat(parts) for parts in zip(*reversed(grads)))
        return du, ddelta, dA, dB, dC, None, carry


def _blocks(length: int) -> list[slice]:
    return [slice(i, min(i + BLOCK, length)) for i in range(0, length, BLOCK)]


def _coefficients(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    a = torch.exp(delta[..., None] * A)
    if keep is not None:
        a = a * keep[..., None, None]
    return a, (delta * u)[..., None] * B[:, :, None]


def _read_block(states: Tensor, C: Tensor) -> Tensor:
    return (states @ C[..., None])[..., 0]


def selective_states(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, keep: Tensor | None, h: Tensor,
    see: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Every h_t of `selective`, (B, T, D, N): for those who look, and through `see` replace them."""
    major = [x.transpose(0, 1) for x in (u, delta, B)]
    a, b = _coefficients(major[0], major[1], A, major[2], None if keep is None else keep.transpose(0, 1))
    if see is None:
        return fast_scan(a, b, h).transpose(0, 1)
    return shown_scan(a, b, h, lambda states: see(states.transpose(0, 1)).transpose(0, 1)).transpose(0, 1)


def same_document(fresh: Tensor | None, length: int, device: torch.device) -> Tensor:
    """(B or 1, T, T): s ≤ t, and no document starts after s up to t."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None]
    if fresh is None:
        return causal
    document = fresh.int().cumsum(1)
    return causal & (document[:, :, None] == document[:, None])


def selective_pattern(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, fresh: Tensor | None) -> Tensor:
    """P_dts = Σ_n C_tn exp(A_dn Σ_{s<r≤t} Δ_rd) B_sn Δ_sd, so that y = P u: quadratic (B, D, T, T)"""
    keep = same_document(fresh, delta.shape[1], delta.device)[:, None]
    total = delta.cumsum(1).transpose(1, 2)  # (B, D, T)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~keep, 0.0)
    out = torch.zeros_like(between)
    for n in range(A.shape[1]):
        out = out + torch.exp(between * A[:, n, None, None]) * (C[:, :, None, n] * B[:, None, :, n])[:, None]
    return (out * delta.transpose(1, 2)[:, :, None]).masked_fill(~keep, 0.0)


def linear_scan(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, fresh: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = diag(a_t) S_{t−1} + k_t v_tᵀ,  y_t = S_tᵀ q_t: the definition

    (Katharopoulos et al. 2020, eq. 18–20; the decays a: Yang et al. 2024, eq. 3.) q, k and log a are
    (B, H, T, K), v is (B, H, T, K′), S is (B, H, K, K′). Where fresh (B, T) the past is forgotten first.
    Gives y (B, H, T, K′) and the last S.
    """
    out = []
    for t in range(q.shape[2]):
        if log_a is not None:
            S = log_a[:, :, t, :, None].exp() * S
        if fresh is not None:
            S = S.masked_fill(fresh[:, t, None, None, None], 0.0)
        S = S + k[:, :, t, :, None] * v[:, :, t, None]
        out.append((q[:, :, t, :, None] * S).sum(-2))
    return torch.stack(out, 2), S


def fast_linear(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, fresh: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """`linear` in blocks: quadratic inside a block, S from block to block, matrix products throughout

    (Hua et al. 2022 §3.2; with decays Yang et al. 2024 §4.1.)
    """
    T = q.shape[2]
    size = min(T, BLOCK // 2 if log_a is not None else 4 * BLOCK)  # pairs of decays are many
    n = -(-T // size)
    given = (q, k, v) if log_a is None else (q, k, v, log_a)
    q, k, v, *decay = (_cut(x, n, size) for x in given)  # (B·n, H, c, ·)
    new = None if fresh is None else F.pad(fresh, (0, n * size - T)).unflatten(1, (n, size)).flatten(0, 1)
    y = linear_pattern(q, k, decay[0] if decay else None, new) @ v
    last = q.new_ones(len(q), 1, 1, 1)  # what is left of S after the block
    if decay:
        log = decay[0].cumsum(2)
        q, k, last = q * log.exp(), k * (log[:, :, -1:] - log).exp(), log[:, :, -1, :, None].exp()
    if new is not None:
        document = new.int().cumsum(1)
        q = q * (document == 0)[:, None, :, None]
        k = k * (document == document[:, -1:])[:, None, :, None]
        last = last * (document[:, -1] == 0)[:, None, None, None]
    by_block = lambda x: x.unflatten(0, (-1, n)).transpose(0, 1)  # (n, B, …)
    states = scan(by_block(last), by_block(k.transpose(-1, -2) @ v), S)
    starts = torch.cat((S[None], states[:-1])).transpose(0, 1).flatten(0, 1)  # (B·n, H, K, K′)
    y = (y + q @ starts).unflatten(0, (-1, n)).transpose(1, 2).flatten(2, 3)  # (B, H, n·c, K′)
    return y[:, :, :T], states[-1]


def _cut(x: Tensor, n: int, size: int) -> Tensor:
    """(B, H, T, ·) → (B·n, H, size, ·), with zeros at the end"""
    padded = F.pad(x, (0, 0, 0, n * size - x.shape[2]))
    return padded.unflatten(2, (n, size)).transpose(1, 2).flatten(0, 1)


def linear_pattern(q: Tensor, k: Tensor, log_a: Tensor | None, fresh: Tensor | None) -> Tensor:
    """P_ts = Σ_k q_tk k_sk Π_{s<r≤t} a_rk for s ≤ t, so that y = P v: the quadratic form, (B, H, T, T)"""
    keep = same_document(fresh, q.shape[2], q.device)[:, None]
    if log_a is None:
        return (q @ k.transpose(-1, -2)).masked_fill(~keep, 0.0)
    log, rows = log_a.cumsum(2), []
    for start in range(0, q.shape[2], BLOCK):  # a few queries at a time: the pairs are many
        s = slice(start, start + BLOCK)
        between = (log[:, :, s, None] - log[:, :, None]).masked_fill(~keep[:, :, s, :, None], -torch.inf)
        decayed = between.exp() * k[:, :, None]  # (B, H, c, S, K)
        rows.append((decayed @ q[:, :, s, :, None])[..., 0])
    return torch.cat(rows, 2)
