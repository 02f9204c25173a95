"""Linear attention, with and without decays, in chunks; `nn.state_space.scan.linear_scan` is the definition.

Inside a chunk the cost is quadratic, from chunk to chunk one state is carried: matrix products throughout, on
which a GPU is fast and which a compiler joins with what stands around them. Only what is nearer than a piece
is written out pair by pair, by an operator (on a GPU the kernels of `kernels/gpu/state_space/decayed.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.nn.state_space.scan import runs_on_gpu, to_float32, uncast

CHUNKS = 128  # chunks whose states are found by one product
ALIGN = 8  # what the sizes of products on a GPU should be multiples of


def fast_linear(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, fresh: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """`linear_scan` in chunks: quadratic inside a chunk, S from chunk to chunk, matrix products throughout

    (Hua et al. 2022 §3.2; with decays Yang et al. 2024 §4; with one for a whole head, log a (B, H, T, 1), Dao
    and Gu 2024 §6.) Let ℓ_t be the sum of log a from the start of a chunk of c positions up to t.

        1. Cut q, k (B, H, T, K) and v (B, H, T, K′) into n chunks, (B, H, n, c, ·).
        2. Inside each:   y_t  = Σ_{s≤t} (Σ_k q_tk k_sk exp(ℓ_tk − ℓ_sk)) v_s        `_inside_chunks`
        3. What it adds:  E    = Σ_s (k_s ⊙ exp(ℓ_c − ℓ_s)) v_sᵀ                     (B, H, n, K, K′)
        4. From chunk to chunk:  S′ = diag(exp(ℓ_c)) S + E                           `between_chunks`
        5. What came before:     y_t += (q_t ⊙ exp(ℓ_t))ᵀ S                          (B, H, n, c, K′)

    Heads that share queries and keys also share their products. With one decay for a head it is multiplied
    with what the heads do not share: v in step 3, y in step 5.
    """
    T, K, V = q.shape[2], q.shape[3], v.shape[3]
    if q.is_cuda and (K % ALIGN or V % ALIGN):
        q, k = (F.pad(x, (0, -K % ALIGN)) for x in (q, k))
        v, S = F.pad(v, (0, -V % ALIGN)), F.pad(S, (0, -V % ALIGN, 0, -K % ALIGN))
        log_a = log_a if log_a is None or log_a.shape[3] == 1 else F.pad(log_a, (0, -K % ALIGN))
    size, small = chunk_size(T, log_a is not None and log_a.shape[3] > 1, q.is_cuda)
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
    if gpu:
        small, most = 16, 128
    else:
        small, most = 8, 64 if not decays else 32 if length > 32 else 8
    size = small
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
    fill = lambda x: F.pad(x, (0, 0, 0, -T % size)) if T % size else x
    cut = lambda x: fill(x).unflatten(2, (-1, size))  # (B, H, n, c, ·)
    q, k, v = cut(q), cut(k), cut(v)
    log = None if log_a is None else cut(log_a).cumsum(3)
    document = None if fresh is None else cut(fresh[:, None, :, None].int())[..., 0].cumsum(3)  # (B, 1, n, c)
    y = _inside_chunks(q, k, v, log, document, small)
    end, late = None, None  # late: what y is multiplied by, (B, H, n, c, 1)
    if log is not None:
        end = log[:, :, :, -1]  # (B, H, n, K)
        since, until = log.exp(), (end[..., None, :] - log).exp()
        if log.shape[-1] > 1:
            q, k = q * since, k * until
        else:  # one number for a head, which is multiplied with what the heads do not share
            late, v = since, v * until
    if document is not None:
        begun = (document == 0)[..., None]
        late = begun if late is None else late * begun
        v = v * (document == document[..., -1:])[..., None]
    resets = None if document is None else document[..., -1] > 0  # (B, 1, n)
    heads, groups = v.shape[1], k.shape[1]
    ends = to_float32(_split_group(k.mT @ _join_group(v, groups), heads))
    states, last = between_chunks(end, resets, ends, S)
    before = to_float32(_split_group(q @ _join_group(states.to(q.dtype), groups), heads))
    y = y + (before if late is None else late * before)
    return y.flatten(2, 3)[:, :, :T], last


def _join_group(x: Tensor, groups: int) -> Tensor:
    """Put the heads that share a key side by side: (B, H, n, c, V) → (B, G, n, c, H / G · V)"""
    return x.unflatten(1, (groups, -1)).movedim(2, 4).flatten(4)


def _split_group(x: Tensor, heads: int) -> Tensor:
    """Undo it: (B, G, n, c, H / G · V) → (B, H, n, c, V)"""
    return x.unflatten(4, (heads // x.shape[1], -1)).movedim(4, 2).flatten(1, 2)


def _inside_chunks(
    q: Tensor, k: Tensor, v: Tensor, log: Tensor | None, document: Tensor | None, small: int
) -> Tensor:
    """Σ_{s≤t} of one chunk, (B, H, n, c, K′).

    Without decays by one pattern, and with one decay for a whole head by its product with that of the decays.
    With one per channel, exp(log_t − log_s) is a factor of t times one of s, neither above 1, at any position
    between the two. So each piece of `small` positions reads the earlier ones by way of its border, and
    itself pair by pair   (Yang et al. 2024 §4.3).
    """
    size, by_head = q.shape[3], log is not None and log.shape[-1] == 1
    if log is not None and not by_head and size == small:
        return to_float32(_decayed_pattern(q, k, log, document) @ v)
    place = torch.arange(size, device=q.device)
    if log is None or by_head:
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
    scores = scores.repeat_interleave(v.shape[1] // q.shape[1], 1)
    if log is not None and by_head:
        return to_float32(scores * (log - log.mT).masked_fill(~keep, -torch.inf).exp() @ v)
    y = to_float32(scores.masked_fill(~keep, 0.0) @ v)
    if log is None:
        return y
    q, k, v, log = (x.unflatten(3, (-1, small)) for x in (q, k, v, log))
    new = None if document is None else document.unflatten(3, (-1, small))
    return y + to_float32(_decayed_pattern(q, k, log, new) @ v).flatten(3, 4)


def _decayed_pattern(q: Tensor, k: Tensor, log: Tensor, document: Tensor | None) -> Tensor:
    """Σ_k q_tk k_sk exp(log_tk − log_sk) for s ≤ t of one document, (…, c, c), every exponent by itself."""
    lead = q.shape[:-2]
    scores = decayed_scores(q.flatten(0, -3), k.flatten(0, -3), log.flatten(0, -3)).unflatten(0, lead)
    if document is None:
        return scores
    return scores.masked_fill(document[..., :, None] != document[..., None, :], 0.0)


@torch.library.custom_op("heedful::decayed_scores", mutates_args=())
def decayed_scores(q: Tensor, k: Tensor, log: Tensor) -> Tensor:
    """P_ts = Σ_k q_tk k_sk exp(log_tk − log_sk) for s ≤ t, else 0, (M, c, c) from (M, c, K)

    The terms are made again for the gradient: dq_t = Σ_s dP_ts k_s e_ts,  dk_s = Σ_t dP_ts q_t e_ts,
    dlog = q dq − k dk.
    """
    if runs_on_gpu(q):
        from heedful.kernels.gpu.state_space.decayed import launch_scores

        return launch_scores(q, k, log)
    return (q[:, :, None] * (_decays(log) * k[:, None])).sum(-1)


def _decays(log: Tensor) -> Tensor:
    """exp(log_t − log_s), 0 for s > t: (M, c, c, K)"""
    later = torch.ones(log.shape[1], log.shape[1], dtype=torch.bool, device=log.device).triu(1)
    return (log[:, :, None] - log[:, None]).masked_fill(later[..., None], -torch.inf).exp()


@decayed_scores.register_fake
def _(q: Tensor, k: Tensor, log: Tensor) -> Tensor:
    return q.new_empty(len(q), q.shape[1], q.shape[1])


@torch.library.custom_op("heedful::decayed_scores_back", mutates_args=())
def decayed_scores_backward(dP: Tensor, q: Tensor, k: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """dq and dk"""
    if runs_on_gpu(q):
        from heedful.kernels.gpu.state_space.decayed import launch_scores_backward

        return launch_scores_backward(dP, q, k, log)
    weights = dP[..., None] * _decays(log)
    return (weights * k[:, None]).sum(2), (weights * q[:, :, None]).sum(1)


@decayed_scores_backward.register_fake
def _(dP: Tensor, q: Tensor, k: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, log = ctx.saved_tensors
    dq, dk = decayed_scores_backward(dP, q, k, log)
    return dq, dk, q * dq - k * dk


decayed_scores.register_autograd(_backward, setup_context=_save)


def between_chunks(
    log: Tensor | None, resets: Tensor | None, ends: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """S_0 = S,  S_{i+1} = exp(log_i) S_i + end_i, without S_i where chunk i resets: all S_i, and the last one

    As one product, S_i = Σ_{j≤i} W_ij x_j of x = (S, end_0, end_1, …) and W_ij = exp(Σ_{j≤r<i} log_r), and so
    for few chunks at a time; in float32, since here sums grow long. (B, H, n, K, K′) and (B, H, K, K′)
    """
    n = ends.shape[2]
    with uncast(S):
        x = torch.cat((to_float32(S)[:, :, None], ends[:, :, :-1]), 2)
        keep = torch.ones(n, n, dtype=torch.bool, device=S.device).tril()
        if resets is not None:
            count = F.pad(resets[..., :-1].int().cumsum(2), (1, 0))  # (B, 1, n)
            keep = keep & (count[..., :, None] == count[..., None, :])
        if log is not None:
            total = F.pad(log[:, :, :-1].cumsum(2), (0, 0, 1, 0)).mT  # (B, H, K, n)
            hidden = ~keep if resets is None else ~keep[:, :, None]
            weights = (total[..., :, None] - total[..., None, :]).masked_fill(hidden, -torch.inf).exp()
            states = torch.einsum("bhkij,bhjkv->bhikv", weights, x)
        elif resets is not None:
            states = torch.einsum("bij,bhjkv->bhikv", keep[:, 0].to(x.dtype), x)
        else:
            states = x.cumsum(2)
        last = states[:, :, -1]
        if log is not None:
            last = last * log[:, :, -1, :, None].exp()
        if resets is not None:
            last = last.masked_fill(resets[..., -1:, None], 0.0)
        return states, last + ends[:, :, -1]
