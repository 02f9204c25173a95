"""h_t = a_t h_{t−1} + b_t, the recurrence of state spaces and linear attention: as a loop and in fast forms.

The loops are the definitions. `selective` is the state space whose a and b depend on the input; `linear` is
the one whose h is a matrix, so that blocks of it are matrix products. Decays stay logarithms until the
difference of two is taken, which is never positive: nothing overflows. Sums are in float32 at least.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 16  # positions that the fast forms of state spaces read at a time
CHUNKS = 128  # chunks of linear attention whose states are found by one product
ALIGN = 8  # what the sizes of products on a GPU should be multiples of


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
    """`linear_scan` in chunks: quadratic inside a chunk, S from chunk to chunk, matrix products throughout

    (Hua et al. 2022 §3.2; with decays Yang et al. 2024 §4.)
    """
    T, K, V = q.shape[2], q.shape[3], v.shape[3]
    if q.is_cuda and (K % ALIGN or V % ALIGN):
        q, k = (F.pad(x, (0, -K % ALIGN)) for x in (q, k))
        v, S = F.pad(v, (0, -V % ALIGN)), F.pad(S, (0, -V % ALIGN, 0, -K % ALIGN))
        log_a = None if log_a is None else F.pad(log_a, (0, -K % ALIGN))
    size, small = chunk_size(T, log_a is not None, q.is_cuda)
    out = []
    for i in range(0, T, CHUNKS * size):  # once, unless there are many thousand positions
        part = slice(i, i + CHUNKS * size)
        decay = None if log_a is None else log_a[:, :, part]
        new = None if fresh is None else fresh[:, part]
        y, S = _linear_chunks(q[:, :, part], k[:, :, part], v[:, :, part], decay, new, S, size, small)
        out.append(y)
    y = out[0] if len(out) == 1 else torch.cat(out, 2)
    return y[..., :V], S[..., :K, :V]


def chunk_size(length: int, decays: bool, gpu: bool) -> tuple[int, int]:
    """Positions of a chunk, inside which cost is quadratic, and of a piece, whose pairs are written out.

    A GPU multiplies larger matrices better; decays cost memory for every pair of a piece and a position.
    """
    small = 16 if gpu else 8
    size, most = small, (4 if decays else 8) * small
    while size < min(length, most):
        size *= 2
    return size, small


def _linear_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    fresh: Tensor | None,
    S: Tensor,
    size: int,
    small: int,
) -> tuple[Tensor, Tensor]:
    """At most CHUNKS chunks at once. Only the decay from an earlier to a later position is exponentiated."""
    T = q.shape[2]
    cut = lambda x: F.pad(x, (0, 0, 0, -T % size)).unflatten(2, (-1, size))  # (B, H, n, c, ·)
    q, k, v = cut(q), cut(k), cut(v)
    log = None if log_a is None else cut(log_a).cumsum(3)
    document = None if fresh is None else cut(fresh[:, None, :, None].int())[..., 0].cumsum(3)  # (B, 1, n, c)
    y = _inside_chunks(q, k, v, log, document, small)
    end = None
    if log is not None:
        end = log[:, :, :, -1]  # (B, H, n, K)
        q, k = q * log.exp(), k * (end[..., None, :] - log).exp()
    if document is not None:
        q = q * (document == 0)[..., None]
        k = k * (document == document[..., -1:])[..., None]
    resets = None if document is None else document[..., -1] > 0  # (B, 1, n)
    states = between_chunks(end, resets, to_float32(k.mT @ v), S)  # (B, H, n + 1, K, K′)
    y = y + to_float32(q @ states[:, :, :-1].to(q.dtype))
    return y.flatten(2, 3)[:, :, :T], states[:, :, -1]


def _inside_chunks(
    q: Tensor, k: Tensor, v: Tensor, log: Tensor | None, document: Tensor | None, small: int
) -> Tensor:
    """Σ_{s≤t} of one chunk, (B, H, n, c, K′).

    Without decays by one pattern. With them exp(log_t − log_s) is a factor of t times one of s, neither above
    1, at any position between the two: so each piece of `small` positions reads what stands before the piece
    by way of its border, and itself pair by pair   (Yang et al. 2024 §4.3).
    """
    size = q.shape[3]
    place = torch.arange(size, device=q.device)
    if log is None:
        scores = q @ k.mT
        keep = place[:, None] >= place
    else:
        border = F.pad(log[:, :, :, small - 1 :: small], (0, 0, 1, -1))[..., None, :]  # (B, H, n, m, 1, K)
        before = (place < place[::small, None])[..., None]  # (m, c, 1)
        early = (border - log[:, :, :, None]).masked_fill(~before, -torch.inf).exp() * k[:, :, :, None]
        late = (log.unflatten(3, (-1, small)) - border).exp() * q.unflatten(3, (-1, small))
        scores = (late @ early.mT).flatten(3, 4)
        keep = place[:, None] // small > place // small
    if document is not None:
        keep = keep & (document[..., :, None] == document[..., None, :])
    y = to_float32(scores.masked_fill(~keep, 0.0) @ v)
    if log is None:
        return y
    q, k, v, log = (x.unflatten(3, (-1, small)) for x in (q, k, v, log))
    new = None if document is None else document.unflatten(3, (-1, small))
    return y + to_float32(_decayed_pattern(q, k, log, new) @ v).flatten(3, 4)


def _decayed_pattern(q: Tensor, k: Tensor, log: Tensor, document: Tensor | None) -> Tensor:
    """Σ_k q_tk k_sk exp(log_tk − log_sk) for s ≤ t of one document, (…, c, c), every exponent by itself."""
    size = q.shape[-2]
    keep = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if document is not None:
        keep = keep & (document[..., :, None] == document[..., None, :])
    between = (log[..., :, None, :] - log[..., None, :, :]).masked_fill(~keep[..., None], -torch.inf)
    return (q[..., :, None, :] * (between.exp() * k[..., None, :, :])).sum(-1)


def between_chunks(log: Tensor | None, resets: Tensor | None, ends: Tensor, S: Tensor) -> Tensor:
    """S_0 = S,  S_{i+1} = exp(log_i) S_i + end_i, 0 where chunk i resets: all of them, (B, H, n + 1, K, K′)

    As one product, S_i = Σ_{j≤i} W_ij x_j of x = (S, end_0, end_1, …) and W_ij = exp(Σ_{j≤r<i} log_r), and so
    for few chunks at a time; in float32, since here sums grow long.
    """
    n = ends.shape[2]
    with uncast(S):
        x = torch.cat((to_float32(S)[:, :, None], ends), 2)
        if log is None and resets is None:
            return x.cumsum(2)
        keep = torch.ones(n + 1, n + 1, dtype=torch.bool, device=S.device).tril()
        if resets is not None:
            count = F.pad(resets.int().cumsum(2), (1, 0))  # (B, 1, n + 1)
            keep = keep & (count[..., :, None] == count[..., None, :])
        if log is None:
            return torch.einsum("bij,bhjkv->bhikv", keep[:, 0].to(x.dtype), x)
        total = F.pad(log.cumsum(2), (0, 0, 1, 0)).mT  # (B, H, K, n + 1)
        hidden = ~keep if resets is None else ~keep[:, :, None]
        weights = (total[..., :, None] - total[..., None, :]).masked_fill(hidden, -torch.inf)
        return torch.einsum("bhkij,bhjkv->bhikv", weights.exp(), x)


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
