"""Products in float8 equal their definition: both factors rounded, then multiplied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.kernels.float8 import FORWARD, Float8Linear, reference, rounded, swap_in
from tests.train import toys


def multiplies() -> bool:
    """Whether this machine and this torch multiply float8 at all."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, one = torch.ones(16, 16, device=device).to(FORWARD), torch.ones((), device=device)
    try:
        torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=True)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def test_rounding_uses_the_whole_range() -> None:
    x = torch.randn(64, 64) * 1e-3
    small, back = rounded(x, FORWARD)
    assert float(small.float().abs().max()) == torch.finfo(FORWARD).max
    torch.testing.assert_close(small.float() * back, x, rtol=2**-3, atol=1e-5)


def test_the_definition_stays_near_the_exact_product() -> None:
    x, w = torch.randn(32, 64), torch.randn(48, 64)
    exact = x @ w.t()
    assert float((reference(x, w) - exact).norm() / exact.norm()) < 0.05


@pytest.mark.skipif(not multiplies(), reason="torch multiplies no float8 on this machine")
def test_the_layer_equals_its_definition() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    layer = nn.Linear(64, 48, device=device, dtype=dtype)
    x = torch.randn(32, 64, device=device, dtype=dtype)
    wanted = reference(x, layer.weight) + layer.bias
    exact = layer(x)
    exact.float().pow(2).sum().backward()
    slope = layer.weight.grad
    assert slope is not None
    layer.zero_grad()
    layer.__class__ = Float8Linear
    got = layer(x)
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
    got.float().pow(2).sum().backward()
    assert layer.weight.grad is not None
    assert float((layer.weight.grad - slope).norm() / slope.norm()) < 0.15


def test_only_layers_of_blocks_with_fitting_sizes_are_swapped() -> None:
    model = toys.tiny("gpt2")
    assert swap_in(model) == sum(isinstance(m, Float8Linear) for m in model.modules())
    assert not isinstance(model.head.out, Float8Linear)
    assert isinstance(model.blocks[0].get_submodule("attn.q"), Float8Linear)
