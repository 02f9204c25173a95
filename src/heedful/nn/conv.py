"""A causal convolution over the last few positions, each channel by itself, as one operator.

It is one kernel each way on a GPU (`kernels/gpu_conv.py`), where the compiler's own form reads weights and
neighbours anew for every number. `ShortConv` takes it for whole texts in training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.nn.scan import runs_on_gpu, to_float32


@torch.library.custom_op("heedful::causal_conv", mutates_args=())
def causal_conv(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """y_t = b + Σ_{j<W} w_j x_{t−W+1+j}, zeros before the text: x and y (B, T, D), w (D, W), b (D)"""
    if runs_on_gpu(x):
        from heedful.kernels.gpu_conv import launch_conv

        return launch_conv(x, w, b)
    taps = F.pad(to_float32(x), (0, 0, w.shape[1] - 1, 0)).unfold(1, w.shape[1], 1)  # (B, T, D, W)
    y = (taps * to_float32(w)).sum(-1)
    return (y if b is None else y + b).to(x.dtype)


@causal_conv.register_fake
def _(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("heedful::causal_conv_back", mutates_args=())
def causal_conv_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, w and b; those of w and b in float32 at least."""
    if runs_on_gpu(x):
        from heedful.kernels.gpu_conv import launch_conv_backward

        return launch_conv_backward(dy, x, w)
    W, up = w.shape[1], to_float32(dy)
    taps = F.pad(to_float32(x), (0, 0, W - 1, 0)).unfold(1, W, 1)
    ahead = F.pad(up, (0, 0, 0, W - 1)).unfold(1, W, 1)  # dy_t … dy_{t+W−1}
    dx = (ahead * to_float32(w).flip(1)).sum(-1).to(x.dtype)
    return dx, (taps * up[..., None]).sum((0, 1)), up.sum((0, 1))


@causal_conv_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sums = w.dtype if w.dtype.itemsize > 4 else torch.float32
    return x.new_empty(x.shape), w.new_empty(w.shape, dtype=sums), w.new_empty(len(w), dtype=sums)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, w, b = inputs
    ctx.save_for_backward(x, w)
    ctx.bias_type = None if b is None else b.dtype


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    x, w = ctx.saved_tensors
    dx, dw, db = causal_conv_backward(dy, x, w)
    return dx, dw.to(w.dtype), None if ctx.bias_type is None else db.to(ctx.bias_type)


causal_conv.register_autograd(_backward, setup_context=_save)
