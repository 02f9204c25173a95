"""Kernels of training say what their definitions say. Without a GPU, Triton's interpreter can run them:

TRITON_INTERPRET=1 pytest tests/nn/test_gpu_kernels.py
"""

from __future__ import annotations

import os

import pytest
import torch

from heedful.nn.chunked import decayed_scores, decayed_scores_backward
from heedful.nn.selective import block_backward, block_forward

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("rows", "length", "channels", "states"), [(1, 21, 5, 3), (1, 70, 33, 2)])
@pytest.mark.parametrize("forgets", [False, True])
def test_the_selective_scan_in_chunks_is_that_in_blocks(
    rows: int, length: int, channels: int, states: int, forgets: bool
) -> None:
    from heedful.kernels.gpu_selective import launch_backward, launch_forward

    torch.manual_seed(0)
    rand = lambda *size: torch.randn(*size, device=DEVICE)
    u, delta, A = (
        rand(rows, length, channels),
        rand(rows, length, channels).abs(),
        -rand(channels, states).exp(),
    )
    B, C, h, dlast = (rand(rows, n, m) for n, m in [(length, states)] * 2 + [(channels, states)] * 2)
    keep = (rand(rows, length) > -1).float() if forgets else None
    dy = rand(rows, length, channels)
    y, last, starts = block_forward(u, delta, A, B, C, keep, h)
    expected = y, last, *block_backward(dy, dlast, u, delta, A, B, C, keep, starts)
    y, last, kept = launch_forward(u, delta, A, B, C, keep, h)
    found = y, last, *launch_backward(dy, dlast, u, delta, A, B, C, keep, kept)
    for wanted, value in zip(expected, found, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "channels"), [(16, 96), (8, 5)])
def test_decayed_scores_and_their_gradients_are_the_definition(size: int, channels: int) -> None:
    from heedful.kernels.gpu_decayed import launch_scores, launch_scores_backward

    torch.manual_seed(0)
    q, k, log = (torch.randn(2, size, channels) for _ in range(3))
    log, dP = -log.abs().cumsum(1), torch.randn(2, size, size)
    expected = decayed_scores(q, k, log), *decayed_scores_backward(dP, q, k, log)
    dP, q, k, log = (x.to(DEVICE) for x in (dP, q, k, log))
    found = launch_scores(q, k, log), *launch_scores_backward(dP, q, k, log)
    for wanted, value in zip(expected, found, strict=True):
        torch.testing.assert_close(value.cpu(), wanted, rtol=1e-4, atol=1e-4)
