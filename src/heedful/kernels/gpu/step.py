"""The operators of one step of decoding as Triton kernels; `decode/engines/step_operators.py` defines each.

    products, normalise    products.py
    attend                 attend.py
    choose                 choose.py

Here are those of layers that remember a state, which is written over in place:

    lstm_cell          what an LSTM does with its gates
    conv_silu          a convolution over the last few tokens
    selective_step     Mamba's state space with its skip and gate
    gated_linear_step  gated linear attention

Small kernels in a row are a matter of how many there are: each starts in one to two microseconds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from heedful.kernels.gpu import attend as gpu_attend
from heedful.kernels.gpu.choose import choose
from heedful.kernels.gpu.products import normalise, overlap, products, wait_for_input


@triton.jit
def lstm_kernel(gates, c, h_new, c_new, size, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    row, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < size
    wait_for_input(OVERLAP)
    line = gates + row * 4 * size + k
    i = tl.sigmoid(tl.load(line, mask=inside, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(line + size, mask=inside, other=0.0).to(tl.float32))
    g = 2.0 * tl.sigmoid(2.0 * tl.load(line + 2 * size, mask=inside, other=0.0).to(tl.float32)) - 1.0
    o = tl.sigmoid(tl.load(line + 3 * size, mask=inside, other=0.0).to(tl.float32))
    value = f * tl.load(c + row * size + k, mask=inside, other=0.0).to(tl.float32) + i * g
    tl.store(c_new + row * size + k, value.to(c_new.dtype.element_ty), mask=inside)
    value = o * (2.0 * tl.sigmoid(2.0 * value) - 1.0)
    tl.store(h_new + row * size + k, value.to(h_new.dtype.element_ty), mask=inside)


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c after one token; c is read where it stands."""
    h_new, c_new = torch.empty_like(c), torch.empty_like(c)
    size = c.shape[1]
    lstm_kernel[(len(c), -(-size // 128))](
        gates.contiguous(), c.contiguous(), h_new, c_new, size, BLOCK=128, num_warps=1, **overlap(c.device)
    )
    return h_new, c_new


@triton.jit
def conv_silu_kernel(  # type: ignore[no-untyped-def]
    x, window, weight, bias, y, size,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < size
    held = window + row * (WIDTH - 1) * size + d
    wait_for_input(OVERLAP)
    newest = tl.load(x + row * size + d, mask=inside, other=0.0)
    value = newest.to(tl.float32) * tl.load(weight + d * WIDTH + WIDTH - 1, mask=inside, other=0.0).to(
        tl.float32
    )
    if BIAS:
        value += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    for j in tl.static_range(WIDTH - 1):
        tap = tl.load(held + j * size, mask=inside, other=0.0)
        value += tap.to(tl.float32) * tl.load(weight + d * WIDTH + j, mask=inside, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(held + (j - 1) * size, tap, mask=inside)
    tl.store(held + (WIDTH - 2) * size, newest.to(window.dtype.element_ty), mask=inside)
    tl.store(y + row * size + d, (value * tl.sigmoid(value)).to(y.dtype.element_ty), mask=inside)


def conv_silu(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    size, y = x.shape[2], torch.empty_like(x, memory_format=torch.contiguous_format)
    conv_silu_kernel[(len(x), -(-size // 128))](
        x.contiguous(), window, weight, y if bias is None else bias, y, size, WIDTH=weight.shape[2],
        BIAS=bias is not None, BLOCK=128, num_warps=1, **overlap(x.device),
    )  # fmt: skip
    return y


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def selective_kernel(  # type: ignore[no-untyped-def]
    u, delta, b, c, a_log, skip, gate, h, y, size, states,
    STATES: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, n = d < size, tl.arange(0, STATES)
    mask = inside[:, None] & (n < states)[None, :]
    wait_for_input(OVERLAP)
    x = tl.load(u + row * size + d, mask=inside, other=0.0).to(tl.float32)
    step = softplus(tl.load(delta + row * size + d, mask=inside, other=0.0).to(tl.float32))
    at = d[:, None] * states + n[None, :]
    decay = tl.exp(-step[:, None] * tl.exp(tl.load(a_log + at, mask=mask, other=0.0).to(tl.float32)))
    into = tl.load(b + row * states + n, mask=n < states, other=0.0).to(tl.float32)
    outof = tl.load(c + row * states + n, mask=n < states, other=0.0).to(tl.float32)
    held = h + row * size * states + at
    state = decay * tl.load(held, mask=mask, other=0.0) + (step * x)[:, None] * into[None, :]
    tl.store(held, state, mask=mask)
    value = tl.sum(tl.where(mask, state * outof[None, :], 0.0), 1)
    value += tl.load(skip + d, mask=inside, other=0.0).to(tl.float32) * x
    g = tl.load(gate + row * size + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * size + d, (value * g * tl.sigmoid(g)).to(y.dtype.element_ty), mask=inside)


def selective_step(
    u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A_log: Tensor, D: Tensor, gate: Tensor, h: Tensor
) -> Tensor:
    (size, states), y = A_log.shape, torch.empty_like(u, memory_format=torch.contiguous_format)
    selective_kernel[(len(u), -(-size // 32))](
        u.contiguous(), dt.contiguous(), B.contiguous(), C.contiguous(), A_log, D, gate.contiguous(), h, y,
        size, states, STATES=triton.next_power_of_2(states), BLOCK=32, num_warps=2, **overlap(u.device),
    )  # fmt: skip
    return y


@triton.jit
def gated_linear_kernel(  # type: ignore[no-untyped-def]
    q, k, v, decay, S, y, tau, scale,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, KEYS), tl.arange(0, VALUES)
    here = i < KEY
    mask = here[:, None] & (j < VALUE)[None, :]
    wait_for_input(OVERLAP)
    query = tl.load(q + row * KEY + i, mask=here, other=0.0).to(tl.float32) * scale
    key = tl.load(k + row * KEY + i, mask=here, other=0.0).to(tl.float32)
    value = tl.load(v + row * VALUE + j, mask=j < VALUE, other=0.0).to(tl.float32)
    a = tl.exp(-softplus(-tl.load(decay + row * KEY + i, mask=here, other=0.0).to(tl.float32)) / tau)
    held = S + row * KEY * VALUE + i[:, None] * VALUE + j[None, :]
    state = a[:, None] * tl.load(held, mask=mask, other=0.0) + key[:, None] * value[None, :]
    tl.store(held, state, mask=mask)
    out = tl.sum(tl.where(mask, query[:, None] * state, 0.0), 0)
    tl.store(y + row * VALUE + j, out.to(y.dtype.element_ty), mask=j < VALUE)


def gated_linear_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, S: Tensor, tau: float, scale: float
) -> Tensor:
    B, H, K, V = S.shape
    y = torch.empty(B, H, 1, V, dtype=v.dtype, device=v.device)
    gated_linear_kernel[(B * H,)](
        q.contiguous(), k.contiguous(), v.contiguous(), decay.contiguous(), S, y, tau, scale,
        KEY=K, VALUE=V, KEYS=triton.next_power_of_2(K), VALUES=triton.next_power_of_2(V), num_warps=4,
        **overlap(v.device),
    )  # fmt: skip
    return y


class Kernels:
    """The kernels, for one recording: what they count with belongs to it alone."""

    products = staticmethod(products)
    normalise = staticmethod(normalise)
    lstm_cell = staticmethod(lstm_cell)
    conv_silu = staticmethod(conv_silu)
    selective_step = staticmethod(selective_step)
    gated_linear_step = staticmethod(gated_linear_step)
    choose = staticmethod(choose)

    def __init__(self) -> None:
        self.counters: Tensor | None = None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, **more: Any) -> Tensor:
        heads = len(q) * keys.shape[1]
        if self.counters is None or len(self.counters) < heads:
            self.counters = torch.zeros(heads, dtype=torch.int32, device=q.device)
        return gpu_attend.attend(q, keys, values, scale, self.counters, **more)
