"""−log softmax(x Wᵀ + b)[label], summed, without ever holding all logits.

A vocabulary of 50,000 and 65,536 positions make 13 GB of float32 logits. Here a chunk of positions at a time
is multiplied, its loss and its gradient are taken, and the logits are let go (as in Liger Kernel, Hsu et al.
2024).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from heedful.data.batch import IGNORE
from heedful.kernels.gpu.float8_product import BACKWARD, float8_product, round_matrix, transpose_float8
from heedful.kernels.gpu.float8_product import ROWS as ROWS8
from heedful.models.tensor_parallel import enter, is_shared, leave, local_range

ROWS = 8192  # positions in a chunk: large enough for full speed, small enough to be forgotten


def cross_entropy_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The definition: Σ −log p(label), with the label smoothed to (1−ε) and ε/V (Szegedy et al. 2016)."""
    logits = F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)


class _ChunkedCrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rows: int
    ) -> Tensor:
        total = x.new_zeros((), dtype=torch.float32)
        need_x, need_w, need_b = ctx.needs_input_grad[:3]
        w = weight.to(x.dtype)
        gx = torch.empty_like(x) if need_x else None
        gw = torch.zeros_like(weight, dtype=torch.float32) if need_w else None
        gb = torch.zeros_like(bias, dtype=torch.float32) if need_b and bias is not None else None
        for start in range(0, len(x), rows):
            span = slice(start, start + rows)
            loss, slope = _chunk(x[span], w, bias, labels[span], smoothing)
            total = total + loss
            if gx is not None:
                gx[span] = slope @ w
            if gw is not None:
                gw += slope.t() @ x[span]
            if gb is not None:
                gb += slope.sum(0, dtype=torch.float32)
        ctx.save_for_backward(*(g for g in (gx, gw, gb) if g is not None))
        ctx.have = (gx is not None, gw is not None, gb is not None)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        gx, gw, gb = (saved.pop(0) if have else None for have in ctx.have)
        return (
            None if gx is None else gx * up.to(gx.dtype),
            None if gw is None else (gw * up).to(ctx.dtypes[0]),
            None if gb is None else (gb * up).to(ctx.dtypes[1]),
            None, None, None,
        )  # fmt: skip


def _chunk(
    x: Tensor, w: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """A chunk's summed loss and its slope in the logits: softmax − (1−ε) onehot − ε/V, 0 where ignored."""
    logits = F.linear(x, w, None if bias is None else bias.to(w.dtype)).float()  # (rows, V)
    keep = labels != IGNORE
    index = labels.clamp(min=0)[:, None]
    logz = logits.logsumexp(-1)
    hit = logits.gather(1, index)[:, 0]
    loss = logz - (1 - smoothing) * hit
    if smoothing:
        loss = loss - smoothing * logits.mean(-1)
    slope = (logits - logz[:, None]).exp()
    if smoothing:
        slope = slope - smoothing / logits.shape[1]
    slope = slope.scatter_add(1, index, torch.full_like(index, smoothing - 1, dtype=slope.dtype))
    slope = slope * keep[:, None]
    return (loss * keep).sum(), slope.to(x.dtype)


@torch.library.custom_op("heedful::fused_cross_entropy", mutates_args=())
def _fused(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rows: int, float8: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss and gradients by the GPU kernel, a chunk of rows at a time; opaque to the compiler."""
    V, D = weight.shape
    wide = -(-V // 64) * 64  # rows of logits start at aligned addresses: products are faster and need no copy
    w = x.new_empty(wide, D)
    w[:V], w[V:] = weight, 0
    b = None if bias is None else F.pad(bias.to(x.dtype), (0, wide - V))
    losses, gx, gw = [], torch.empty_like(x), x.new_zeros(wide, D, dtype=torch.float32)
    gb = torch.zeros(wide if bias is not None else 0, device=x.device)
    chunk = _Chunk8(x, w, b, gx, gw) if float8 and x.shape[0] % ROWS8 == 0 else _Chunk16(x, w, b, gx, gw)
    for start in range(0, len(x), rows):
        span = slice(start, start + rows)
        losses.append(chunk(span, labels[span], V, smoothing, gb if bias is not None else None))
    return torch.cat(losses).sum(), gx, gw[:V].to(weight.dtype), gb[: V if bias is not None else 0]


class _Chunk16:
    """A chunk's losses; its gradients are written to gx and added to gw: the products in x's own type."""

    def __init__(self, x: Tensor, w: Tensor, bias: Tensor | None, gx: Tensor, gw: Tensor) -> None:
        self.x, self.w, self.bias, self.gx, self.gw = x, w, bias, gx, gw

    def __call__(self, span: slice, labels: Tensor, V: int, smoothing: float, gb: Tensor | None) -> Tensor:
        from heedful.kernels.gpu.crossentropy import loss_and_slope

        x, slope = self.x[span], F.linear(self.x[span], self.w, self.bias)
        losses = loss_and_slope(slope, slope, labels, V, smoothing, IGNORE)
        torch.mm(slope, self.w, out=self.gx[span])
        if x.dtype == torch.bfloat16:  # a product is added to the float32 sum as it is made
            torch.addmm(self.gw, slope.t(), x, out_dtype=torch.float32, out=self.gw)
        else:
            self.gw += slope.t() @ x
        if gb is not None:
            gb += slope.sum(0, dtype=torch.float32)
        return losses


class _Chunk8:
    """The same with all three products in float8.

    A slope lies between −1 and 1, so its scale is known and it never exists in more than 8 bits; most of it
    is far below 1, which e5m2's range bears down to 2⁻³¹.
    """

    gain = 2.0**15

    def __init__(self, x: Tensor, w: Tensor, bias: Tensor | None, gx: Tensor, gw: Tensor) -> None:
        self.bias, self.gx, self.gw = bias, gx, gw
        self.x, self.xt, self.sx = round_matrix(x)
        self.w, self.wt, self.sw = round_matrix(w)
        self.back = torch.full((), 1 / self.gain, device=x.device)

    def __call__(self, span: slice, labels: Tensor, V: int, smoothing: float, gb: Tensor | None) -> Tensor:
        from heedful.kernels.gpu.crossentropy import loss_and_slope

        logits = float8_product(self.x[span], self.sx, self.w, self.sw, self.gx.dtype, self.bias)
        slope = torch.empty_like(logits, dtype=BACKWARD)
        losses = loss_and_slope(logits, slope, labels, V, smoothing, IGNORE, self.gain)
        del logits
        self.gx[span] = float8_product(slope, self.back, self.wt, self.sw, self.gx.dtype, fast=False)
        turned = transpose_float8(slope)
        self.gw += float8_product(turned, self.back, self.xt[:, span], self.sx, self.gx.dtype, fast=False)
        if gb is not None:
            gb += turned.float().sum(1) / self.gain
        return losses


@_fused.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rows: int, float8: bool
) -> tuple[Tensor, ...]:
    bias_size = 0 if bias is None else len(bias)
    return (
        x.new_empty((), dtype=torch.float32),
        torch.empty_like(x),
        torch.empty_like(weight),
        x.new_empty(bias_size, dtype=torch.float32),
    )


def _fused_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.biased = inputs[2] is not None
    ctx.mark_non_differentiable(*output[1:])


def _fused_backward(ctx: Any, up: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    gx, gw, gb = ctx.saved_tensors
    return gx * up.to(gx.dtype), gw * up, gb * up if ctx.biased else None, *[None] * 4


_fused.register_autograd(_fused_backward, setup_context=_fused_setup)


def split_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The same where each process holds a slice of the vocabulary: log Σ e^u and u[label] are sums over them.

    No process ever holds the logits of all words (Shoeybi et al. 2019 §3).
    """
    mesh = weight.device_mesh  # type: ignore[attr-defined]
    start, end = local_range(len(weight), mesh.size(), mesh.get_local_rank())
    own: Tensor = weight.to_local()  # type: ignore[attr-defined]
    if bias is not None:
        bias = bias.to_local() if is_shared(bias) else bias[start:end]  # type: ignore[attr-defined]
    logits = F.linear(enter(x, mesh), own.to(x.dtype), None if bias is None else bias.to(x.dtype))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # (N, V/n)
    top = logits.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=mesh.get_group())
    here = (labels >= start) & (labels < end)
    hit = logits.gather(1, (labels - start).clamp(0, end - start - 1)[:, None])[:, 0].where(here, 0.0)
    sums = torch.stack(((logits - top[:, None]).exp().sum(-1), hit, logits.sum(-1)))
    z, hit, every = leave(sums, mesh).unbind()
    loss = z.log() + top - (1 - smoothing) * hit - smoothing / len(weight) * every
    return (loss * (labels != IGNORE)).sum()


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0,
    rows: int | None = None, float8: bool = False,
) -> Tensor:  # fmt: skip
    """Σ −log softmax(x Wᵀ + b)[label] over positions with a label; equals `cross_entropy_reference`.

    `float8` rounds what is multiplied, on a GPU and where there are enough positions to gain from it.
    """
    x, labels, rows = x.reshape(-1, x.shape[-1]), labels.reshape(-1), rows or ROWS
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    if is_shared(weight):
        return split_cross_entropy(x, weight, bias, labels, smoothing)
    if x.dtype == torch.float64 or len(x) <= rows // 8:  # small, or meant to be exact: nothing to save
        return cross_entropy_reference(x, weight, bias, labels, smoothing)
    if x.is_cuda:
        total: Tensor = _fused(x, weight, bias, labels, smoothing, rows, float8)[0]
        return total
    chunked: Tensor = _ChunkedCrossEntropy.apply(x, weight, bias, labels, smoothing, rows)
    return chunked
