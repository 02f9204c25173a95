"""softmax(q kᵀ · scale + bias, masked) v   (Vaswani et al. 2017, eq. 1), by several backends behind one signature.

`reference` is the definition: it shows its scores and pattern. The others are fast and show nothing, so `attend`
takes the reference for the layers somebody watches, and only for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import InputError
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

    @property
    def aligned(self) -> bool:
        """True if queries and keys stand at the same positions, so that causality is a plain triangle."""
        return self.q.shape[2] == self.k.shape[2]

    @property
    def unmasked(self) -> bool:
        """True if every query may look at every key: no rule, or a single newest query under causality."""
        return self.mask.plain and (not self.mask.causal or (self.q.shape[2] == 1 and self.q_pos.shape[0] == 1))

    def keep(self) -> Tensor | None:
        """The mask as a matrix, or None if it hides nothing."""
        return None if self.unmasked else self.mask.dense(self.q_pos, self.k_pos)


Backend = Callable[[Call, Context], Tensor]


def reference(call: Call, ctx: Context) -> Tensor:
    """The definition. A row whose keys are all masked has no pattern: its weights and its output are zero."""
    repeat = call.q.shape[1] // call.k.shape[1]
    k, v = (t.repeat_interleave(repeat, 1) if repeat > 1 else t for t in (call.k, call.v))  # (B, H, S, K)
    scores = torch.einsum("bhtk,bhsk->bhts", call.q, k) * call.scale
    if call.bias is not None:
        scores = scores + call.bias
    scores = ctx.see("scores", scores)
    keep = call.keep()
    return ctx.see("heads", F.dropout(ctx.see("pattern", masked_softmax(scores, keep)), call.dropout) @ v)


def masked_softmax(scores: Tensor, keep: Tensor | None) -> Tensor:
    """softmax over the keys that are kept, in float32; zero, not NaN, for a row that keeps none."""
    if keep is None:
        return scores.float().softmax(-1).to(scores.dtype)
    pattern = scores.float().masked_fill(~keep, -math.inf).softmax(-1)
    return pattern.masked_fill(~keep.any(-1, keepdim=True), 0.0).to(scores.dtype)


def sdpa(call: Call, ctx: Context) -> Tensor:
    """torch's fused kernels. A plain causal mask stays a flag, so that the flash kernel is used."""
    triangle = call.mask.causal and call.mask.plain and call.aligned and call.bias is None and not call.unmasked
    keep = None if triangle else call.keep()
    grouped = call.q.shape[1] != call.k.shape[1]
    mask, silent = keep, None
    if keep is not None:
        # A fused kernel may answer NaN for a row that keeps nothing: such a row looks everywhere, then is zeroed.
        silent = ~keep.any(-1, keepdim=True)
        mask = keep | silent
    if call.bias is not None:
        bias = call.bias.to(call.q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    out = F.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, call.dropout, is_causal=triangle, scale=call.scale, enable_gqa=grouped
    )
    if silent is not None:
        out = out.masked_fill(silent, 0.0)
    return ctx.see("heads", out)


def flex(call: Call, ctx: Context) -> Tensor:
    """torch's FlexAttention: mask and bias as a score function; worth it when compiled for a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    keep, bias = call.keep(), call.bias
    B, H, T, S = *call.q.shape[:3], call.k.shape[2]
    keep = None if keep is None else keep.expand(B, 1, T, S)
    bias = None if bias is None else bias.expand(B, H, T, S)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if bias is not None:
            s = s + bias[b, h, i, j]
        return s if keep is None else torch.where(keep[b, 0 * h, i, j], s, -math.inf)

    grouped = call.q.shape[1] != call.k.shape[1]
    out = flex_attention(call.q, call.k, call.v, score_mod=score, scale=call.scale, enable_gqa=grouped)
    assert isinstance(out, Tensor)
    if keep is not None:
        out = out.masked_fill(~keep.any(-1, keepdim=True), 0.0)
    return ctx.see("heads", out)


BACKENDS: dict[str, Backend] = {"reference": reference, "sdpa": sdpa, "flex": flex}


def unsupported(name: str, call: Call) -> str | None:
    """Why backend `name` cannot take this call; None if it can."""
    if name == "flex" and call.dropout > 0:
        return "flex has no dropout"
    if name == "flex" and call.q.requires_grad and call.q.device.type == "cpu":
        return "flex has no gradient on CPU"
    return None


def attend(call: Call, ctx: Context) -> Tensor:
    """One call by the backend the context names; `auto` is sdpa, or the reference for a layer that is watched."""
    watched = ctx.watches("scores", "pattern")
    name = ("reference" if watched else "sdpa") if ctx.backend == "auto" else ctx.backend
    if name not in BACKENDS:
        raise InputError(f"backend={name!r} is unknown; choose auto, {', '.join(BACKENDS)}")
    if watched and name != "reference":
        raise InputError(f"backend={name!r} shows no pattern; watch with backend='auto' or 'reference'")
    reason = unsupported(name, call)
    if reason:
        raise InputError(f"backend={name!r} cannot take this call: {reason}; use backend='auto'")
    return BACKENDS[name](call, ctx)
