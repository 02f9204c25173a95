"""Linear attention, with and without decays, in chunks; `nn.state_space.scan.linear_scan` is the definition.

Inside a chunk the cost is quadratic, from chunk to chunk one state is carried: matrix products throughout, on
which a GPU is fast and which a compiler joins with what stands around them. Only what is nearer than a piece
is written out pair by pair, by an operator (on a GPU the kernels of `kernels/gpu/decayed.py`).
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
    ends = k.mT @ _join_group(v, groups)
    if late is not None and document is None and fits_chunk_kernels(q, v):
        assert end is not None
        first = _join_group(to_float32(S)[:, :, None], groups)[:, :, 0].contiguous()
        states, last = carry_heads(end[..., 0].transpose(1, 2).contiguous(), ends.contiguous(), first)
        last = _split_group(last[:, :, None], heads)[:, :, 0]
    else:
        states, last = between_chunks(end, resets, to_float32(_split_group(ends, heads)), S)
        states = _join_group(states.to(q.dtype), groups)
    before = to_float32(_split_group(q @ states, heads))
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
    With one for each channel exp(log_t − log_s) is a factor of t times one of s, neither above
    1, at any position between the two: so each piece of `small` positions reads what stands before the piece
    by way of its border, and itself pair by pair   (Yang et al. 2024 §4.3).
    """
    size, by_head = q.shape[3], log is not None and log.shape[-1] == 1
    if log is not None and not by_head and size == small:
        return to_float32(_decayed_pattern(q, k, log, document) @ v)
    if by_head and document is None and fits_chunk_kernels(q, v):
        assert log is not None
        dtype = torch.get_autocast_dtype(q.device.type)
        natural = lambda x: x.permute(0, 2, 3, 1, 4).flatten(1, 2).contiguous()  # (B, T, H, ·)
        made = chunk_heads(*(natural(x.to(dtype)) for x in (q, k, v)), natural(log)[..., 0], size)
        return to_float32(made).unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4)
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


def fits_chunk_kernels(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels for chunks of heads with one decay each take these (B, H, n, c, ·)."""
    narrow = torch.is_autocast_enabled(q.device.type)
    sizes = (q.shape[3] // 2, q.shape[4], v.shape[4])  # a product of tiles sums at least 16, half a chunk
    return runs_on_gpu(q) and narrow and all(n in (16, 32, 64, 128) for n in sizes)


@torch.library.custom_op("heedful::chunk_heads", mutates_args=())
def chunk_heads(q: Tensor, k: Tensor, v: Tensor, log: Tensor, size: int) -> Tensor:
    """y_t = Σ_s q_t·k_s exp(log_t − log_s) v_s over the s ≤ t of a chunk, (B, T, H, V), on a GPU

    q and k are (B, T, G, K), and log (B, T, H) adds up inside each chunk of `size` positions.
    """
    from heedful.kernels.gpu.decayed import launch_chunks

    return launch_chunks(q, k, v, log, size)


@chunk_heads.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, log: Tensor, size: int) -> Tensor:
    return v.new_empty(v.shape)


@torch.library.custom_op("heedful::chunk_heads_back", mutates_args=())
def chunk_heads_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, log: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and dlog, all but dv as partial sums"""
    from heedful.kernels.gpu.decayed import launch_chunks_backward

    return launch_chunks_backward(dy, q, k, v, log, size)


@chunk_heads_backward.register_fake
def _(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, log: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from heedful.kernels.gpu.decayed import chunk_sizes

    parts = chunk_sizes(q, v, size)[0][1] // q.shape[2]
    dq, dk = (q.new_empty(*q.shape[:3], n * parts, q.shape[3], dtype=torch.float32) for n in (2, 1))
    return dq, dk, v.new_empty(v.shape), log.new_empty(*log.shape[:2], 3, log.shape[2])


@torch.library.custom_op("heedful::carry_heads", mutates_args=())
def carry_heads(log: Tensor, ends: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """`between_chunks` on a GPU, with one decay for a head, log (B, n, H); a group's heads lie together"""
    from heedful.kernels.gpu.decayed import launch_carry

    return launch_carry(log, ends, first)


@carry_heads.register_fake
def _(log: Tensor, ends: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    return ends.new_empty(ends.shape), first.new_empty(first.shape)


@torch.library.custom_op("heedful::carry_heads_back", mutates_args=())
def carry_heads_backward(
    dstates: Tensor, dlast: Tensor, log: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of log, as partial sums, of ends and of the first"""
    from heedful.kernels.gpu.decayed import launch_carry_backward

    return launch_carry_backward(dstates, dlast, log, states)


@carry_heads_backward.register_fake
def _(dstates: Tensor, dlast: Tensor, log: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    groups, K = states.shape[1], states.shape[3]
    dlog = log.new_empty(len(log), groups, log.shape[1], K, log.shape[2] // groups)
    return dlog, states.new_empty(states.shape), dlast.new_empty(dlast.shape)


def _carry_backward(ctx: Any, dstates: Tensor, dlast: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dlog, dends, dfirst = carry_heads_backward(dstates.contiguous(), dlast.contiguous(), *ctx.saved_tensors)
    return dlog.sum(3).transpose(1, 2).flatten(2), dends, dfirst


carry_heads.register_autograd(
    _carry_backward,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output[0]),
)


def _save_chunks(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.size = inputs[4]


def _chunks_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv, dlog = chunk_heads_backward(dy.contiguous(), *ctx.saved_tensors, ctx.size)
    return dq.sum(3).to(dv.dtype), dk.sum(3).to(dv.dtype), dv, dlog.sum(2), None


chunk_heads.register_autograd(_chunks_backward, setup_context=_save_chunks)


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
        from heedful.kernels.gpu.decayed import launch_scores

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
        from heedful.kernels.gpu.decayed import launch_scores_backward

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
