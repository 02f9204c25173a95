"""softmax(q kᵀ · scale + bias, masked) v   (Vaswani et al. 2017, eq. 1)

A call may bend its scores (`softcap`) and give every row a sink besides its keys (`sinks`): then no fused
kernel is asked.

Several backends behind one signature. `reference` is the definition: it shows its scores and pattern. The
others are fast and show nothing, so `attend` takes the reference for the layers somebody watches, and only
for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.nn.context import Context, Mask


@dataclass(frozen=True)
class Call:
    """One call of attention: q (B, H, T, K), k (B, G, S, K), v (B, G, S, K'); G divides H."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_pos: Tensor
    k_pos: Tensor
    mask: Mask
    bias: Tensor | None
    scale: float
    dropout: float
    softcap: float | None = None  # c: a score s becomes c tanh(s / c)   (Gemma Team 2024, arXiv 2408.00118)
    sinks: Tensor | None = None  # (H,): a score in every row's softmax that no key has   (OpenAI 2025)

    @property
    def is_plain(self) -> bool:
        """True if it is softmax(q kᵀ · scale + bias) v and nothing else, which fused kernels compute."""
        return self.softcap is None and self.sinks is None

    @property
    def is_unmasked(self) -> bool:
        """True if every query may look at every key: no rule, or a single newest query under causality."""
        return self.mask.is_causal_only and (
            not self.mask.causal or (self.q.shape[2] == 1 and self.q_pos.shape[0] == 1)
        )

    def keep(self) -> Tensor | None:
        """The mask as a matrix, or None if it hides nothing."""
        return None if self.is_unmasked else self.mask.dense(self.q_pos, self.k_pos)


Backend = Callable[[Call, Context], Tensor]


def reference(call: Call, ctx: Context) -> Tensor:
    """The definition. A row whose keys are all masked has no pattern: its weights and its output are zero."""
    repeat = call.q.shape[1] // call.k.shape[1]
    k, v = (t.repeat_interleave(repeat, 1) if repeat > 1 else t for t in (call.k, call.v))  # (B, H, S, K)
    scores = bend_scores(torch.einsum("bhtk,bhsk->bhts", call.q, k) * call.scale, call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    scores = ctx.see("scores", scores, keys=-1)
    pattern = masked_softmax(scores, call.keep(), call.sinks).to(v.dtype)  # a bias may be wider than v
    pattern = ctx.see("pattern", pattern, keys=-1)
    return ctx.see("heads", F.dropout(pattern, call.dropout) @ v)


def bend_scores(scores: Tensor, softcap: float | None) -> Tensor:
    """c tanh(s / c), which keeps scores within ±c; without a cap the scores themselves"""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def masked_softmax(scores: Tensor, keep: Tensor | None, sinks: Tensor | None = None) -> Tensor:
    """softmax over the keys that are kept, in float32 or better; zero, not NaN, for a row that keeps none.

    With sinks b (H,) the weights of a row are e^s_j / (e^b + Σ e^s_j): what the sink takes is left out.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if sinks is not None:
        visible = wide if keep is None else wide.masked_fill(~keep, -math.inf)
        sink = sinks.to(wide.dtype)[:, None, None].expand(*wide.shape[:-1], 1)
        return torch.cat((visible, sink), -1).softmax(-1)[..., :-1].to(scores.dtype)
    if keep is None:
        return wide.softmax(-1).to(scores.dtype)
    pattern = wide.masked_fill(~keep, -math.inf).softmax(-1)
    return pattern.masked_fill(~keep.any(-1, keepdim=True), 0.0).to(scores.dtype)


def sdpa(call: Call, ctx: Context) -> Tensor:
    """torch's fused kernels. A plain causal mask stays a flag, so that the flash kernel is used."""
    triangle = (
        call.mask.causal
        and call.mask.is_causal_only
        and call.q.shape[2] == call.k.shape[2]  # at the same positions, so causality is a plain triangle
        and call.bias is None
        and not call.is_unmasked
    )
    keep = None if triangle else call.keep()
    grouped = call.q.shape[1] != call.k.shape[1]
    mask, silent = keep, None
    if keep is not None:
        # A fused kernel may answer NaN for a row that keeps nothing: it looks everywhere, then is zeroed.
        silent = ~keep.any(-1, keepdim=True)
        mask = keep | silent
    if call.bias is not None:
        bias = call.bias.to(call.q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    k, v = call.k, call.v
    if grouped and call.q.is_cuda and (mask is not None or call.q.dtype == torch.float32):
        # There no fused kernel shares keys among heads: the plain one would hold all scores.
        repeat, grouped = call.q.shape[1] // call.k.shape[1], False
        k, v = (t.repeat_interleave(repeat, 1) for t in (call.k, call.v))
    out = F.scaled_dot_product_attention(
        call.q, k, v, mask, call.dropout, is_causal=triangle, scale=call.scale, enable_gqa=grouped
    )
    if silent is not None:
        out = out.masked_fill(silent, 0.0)
    return ctx.see("heads", out)


def blocked(call: Call, ctx: Context, block: int = 256) -> Tensor:
    """Key block by key block with a running maximum m and sum z, so that no T × S matrix is ever held:

    m' = max(m, max s),  z' = z e^(m−m') + Σ e^(s−m'),  o' = o e^(m−m') + e^(s−m') v;  at the end o / z
    (Milakov and Gimelshein 2018; Dao et al. 2022, alg. 1, its outer loop.)
    """
    repeat, wide = call.q.shape[1] // call.k.shape[1], torch.promote_types(call.q.dtype, torch.float32)
    q = call.q.to(wide) * call.scale
    m = q.new_full((*q.shape[:3], 1), -math.inf)
    z, out = torch.zeros_like(m), q.new_zeros(*q.shape[:3], call.v.shape[-1])
    if call.sinks is not None:  # seen before the first key, without a value
        m, z = call.sinks.to(wide)[:, None, None].expand_as(m), torch.ones_like(m)
    for start in range(0, call.k.shape[2], block):
        span = slice(start, start + block)
        k, v = (t[:, :, span].to(wide).repeat_interleave(repeat, 1) for t in (call.k, call.v))
        s = bend_scores(q @ k.transpose(-1, -2), call.softcap)  # (B, H, T, block)
        if call.bias is not None:
            s = s + call.bias[..., span]
        if not call.is_unmasked:
            s = s.masked_fill(~call.mask.columns(span).dense(call.q_pos, call.k_pos[:, span]), -math.inf)
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        base = top.masked_fill(top == -math.inf, 0.0)  # nothing kept so far: any finite base gives zeros
        p, shrink = (s - base).exp(), (m - base).exp()
        z, out, m = z * shrink + p.sum(-1, keepdim=True), out * shrink + p @ v, top
    return ctx.see("heads", (out / z.masked_fill(z == 0, 1.0)).to(call.v.dtype))


# Scores of one call above which `auto` goes over them block by block, where no fused kernel can.
MAX_HELD_SCORES = 2**24
BACKENDS: dict[str, Backend] = {"reference": reference, "sdpa": sdpa, "blocked": blocked}


def attend(call: Call, ctx: Context) -> Tensor:
    """One call by the backend the context names; `auto` is sdpa, or the reference if a layer is watched.

    A call that is not plain is computed by the reference, or block by block if its scores are many.
    """
    watched = ctx.watches("scores", "pattern")
    name = ctx.backend
    if name == "auto":
        many = call.q.shape[:3].numel() * call.k.shape[2] > MAX_HELD_SCORES and call.dropout == 0
        name = "reference" if watched else "sdpa" if call.is_plain else "blocked" if many else "reference"
    if name not in BACKENDS:
        raise InputError("is unknown", argument="backend", value=name, allowed=["auto", *BACKENDS])
    if watched and name != "reference":
        raise InputError("shows no pattern", argument="backend", value=name, allowed=["auto", "reference"])
    reason = ""
    if name == "blocked" and call.dropout > 0:
        reason = "it never holds the pattern that dropout would thin out"
    if name == "sdpa" and not call.is_plain:
        reason = "it knows neither capped scores nor sinks"
    if reason:
        raise InputError(f"`backend={name!r}` cannot take this call: {reason}", hint="use `backend='auto'`")
    return BACKENDS[name](call, ctx)
