"""h_t = a_t h_{t−1} + b_t, the recurrence of state spaces and linear attention: as a loop and in fast forms.

The loops are the definitions. `selective` is the state space whose a and b depend on the input; `linear` is
the one whose h is a matrix, so that blocks of it are matrix products. Decays stay logarithms until the
difference of two is taken, which is never positive: nothing overflows. Sums are in float32 at least.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

BLOCK = 16  # positions that the fast forms of state spaces read at a time
HAS_TRITON = find_spec("triton") is not None  # asked once: a compiler cannot follow the question


def to_float32(x: Tensor) -> Tensor:
    """x in float32, or as it is if that is wider: a product of many decays underflows in less."""
    return x.float() if x.dtype.itemsize < 4 else x


def uncast(x: Tensor) -> torch.autocast:
    """A context in which products stay in the precision of their factors, even under autocast."""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)  # `meta` knows no autocast


def runs_on_gpu(x: Tensor) -> bool:
    """Whether kernels that compute in float32 are taken for x."""
    return x.is_cuda and x.element_size() <= 4 and HAS_TRITON


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
    """The faster of the two on the tensors' device."""
    loop = a.device.type == "cpu" and not torch.compiler.is_compiling()
    return scan(a, b, h) if loop else doubling_scan(a, b, h)


def settle_states(states_with: Callable[[Tensor | None], Tensor], see: Callable[[Tensor], Tensor]) -> Tensor:
    """States (T, …) that somebody sees and may replace, where each follows from those before it.

    `states_with(d)` are the states if d_t is added to the state at t as it goes on. A change at t changes the
    later ones, which are seen again, until the changes are those that were already carried on. Each pass
    settles one more position at least.
    """
    states = states_with(None)
    carried = torch.zeros_like(states)
    for _ in range(len(states) + 1):  # a change that draws random numbers never settles
        seen = see(states)
        change = seen - states
        if change.is_meta or torch.equal(change, carried):
            break
        carried = change
        states = states_with(change)
    return seen


def shown_scan(a: Tensor, b: Tensor, h: Tensor, see: Callable[[Tensor], Tensor]) -> Tensor:
    """`fast_scan` whose states, (T, …), somebody sees and may replace: a change d_t goes on by a_{t+1} d_t"""

    def states_with(change: Tensor | None) -> Tensor:
        if change is None:
            return fast_scan(a, b, h)
        before = torch.cat((torch.zeros_like(change[:1]), change[:-1]))
        return fast_scan(a, torch.addcmul(b.to(a.dtype), a, before), h)

    return settle_states(states_with, see)


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


def same_document(fresh: Tensor | None, length: int, device: torch.device) -> Tensor:
    """(B or 1, T, T): s ≤ t, and no document starts after s up to t."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None]
    if fresh is None:
        return causal
    document = fresh.int().cumsum(1)
    return causal & (document[:, :, None] == document[:, None])


def linear_scan(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, fresh: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = diag(a_t) S_{t−1} + k_t v_tᵀ,  y_t = S_tᵀ q_t: the definition

    (Katharopoulos et al. 2020, eq. 18–20; the decays a: Yang et al. 2024, eq. 3.) q and k are (B, H, T, K), v
    is (B, H, T, K′), S is (B, H, K, K′); log a is as k, or (B, H, T, 1) if a whole head decays alike (Dao and
    Gu 2024, eq. 16). Heads may share queries and keys, of which there are fewer then. Where fresh (B, T) the
    past is forgotten first. Gives y (B, H, T, K′) and the last S.
    """
    out = []
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    for t in range(q.shape[2]):
        if log_a is not None:
            S = log_a[:, :, t, :, None].exp() * S
        if fresh is not None:
            S = S.masked_fill(fresh[:, t, None, None, None], 0.0)
        S = S + k[:, :, t, :, None] * v[:, :, t, None]
        out.append((q[:, :, t, :, None] * S).sum(-2))
    return torch.stack(out, 2), S


def linear_pattern(q: Tensor, k: Tensor, log_a: Tensor | None, fresh: Tensor | None) -> Tensor:
    """P_ts = Σ_k q_tk k_sk Π_{s<r≤t} a_rk for s ≤ t, so that y = P v: the quadratic form, (B, H, T, T)"""
    keep = same_document(fresh, q.shape[2], q.device)[:, None]
    if log_a is None:
        return (q @ k.transpose(-1, -2)).masked_fill(~keep, 0.0)
    log, rows = log_a.cumsum(2), list[Tensor]()
    if log.shape[3] == 1:
        return (q @ k.mT) * (log - log.mT).masked_fill(~keep, -torch.inf).exp()
    for start in range(0, q.shape[2], BLOCK):  # a few queries at a time: the pairs are many
        s = slice(start, start + BLOCK)
        between = (log[:, :, s, None] - log[:, :, None]).masked_fill(~keep[:, :, s, :, None], -torch.inf)
        decayed = between.exp() * k[:, :, None]  # (B, H, c, S, K)
        rows.append((decayed @ q[:, :, s, :, None])[..., 0])
    return torch.cat(rows, 2)
