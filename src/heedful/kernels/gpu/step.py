"""The operators of one step of decoding as Triton kernels; `decode/engines/step_operators.py` defines each.

    products, normalise                                         products.py
    attend                                                      attend.py
    lstm_cell, conv_silu, selective_step, gated_linear_step     states.py
    choose                                                      choose.py

Small kernels in a row are a matter of how many there are: each starts in one to two microseconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.kernels.gpu import attend as gpu_attend
from heedful.kernels.gpu import choose as gpu_choose
from heedful.kernels.gpu import products as gpu_products
from heedful.kernels.gpu import states as gpu_states


class Kernels:
    """The kernels, for one recording: what they count with belongs to it alone."""

    products = staticmethod(gpu_products.products)
    normalise = staticmethod(gpu_products.normalise)
    lstm_cell = staticmethod(gpu_states.lstm_cell)
    conv_silu = staticmethod(gpu_states.conv_silu)
    selective_step = staticmethod(gpu_states.selective_step)
    gated_linear_step = staticmethod(gpu_states.gated_linear_step)
    choose = staticmethod(gpu_choose.choose)

    def __init__(self) -> None:
        self.counters: Tensor | None = None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, **more: Any) -> Tensor:
        heads = len(q) * keys.shape[1]
        if self.counters is None or len(self.counters) < heads:
            self.counters = torch.zeros(heads, dtype=torch.int32, device=q.device)
        return gpu_attend.attend(q, keys, values, scale, self.counters, **more)
