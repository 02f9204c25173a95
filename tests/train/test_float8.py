"""Products in float8 equal their definition: both factors rounded, then multiplied."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.kernels.gpu import float8_product as float8
from heedful.kernels.gpu.float8_product import BACKWARD, FORWARD, product_reference, round_float8
from heedful.kernels.gpu.fused_linear import Float8Linear, hidden_layer, linear_group
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.float8 import FusedAttention, FusedMLP, use_float8
from tests.train import toys

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.bfloat16 if CUDA else torch.float32


def near(got: Tensor, wanted: Tensor, within: float) -> bool:
    a, b = got.detach().float(), wanted.detach().float()
    return float((a - b).norm() / b.norm()) < within


def test_rounding_leaves_room_above_the_rows_it_looked_at() -> None:
    x = torch.randn(1024, 64) * 1e-3
    for kind in (FORWARD, BACKWARD):
        small, _ = round_float8(x, kind)
        seen = small[::4].float().abs().max() * float8.HEADROOM[kind]
        torch.testing.assert_close(float(seen), torch.finfo(kind).max, rtol=2**-3, atol=0)
    small, back = round_float8(x, FORWARD)
    torch.testing.assert_close(small.float() * back, x, rtol=2**-4, atol=1e-6)


def test_a_value_beyond_the_room_is_held_at_the_largest_and_a_nan_stays_one() -> None:
    x = torch.ones(1024, 16)
    x[1, 0], x[2, 0] = 1e6, math.nan
    small, _ = round_float8(x, FORWARD)
    assert float(small[1, 0].float()) == torch.finfo(FORWARD).max
    assert torch.isnan(small[2, 0].float())


def test_nothing_but_zeros_stays_zero() -> None:
    small, back = round_float8(torch.zeros(32, 16), BACKWARD)
    assert float((small.float() * back).abs().max()) == 0


def test_the_definition_stays_near_the_exact_product() -> None:
    x, w = torch.randn(32, 64), torch.randn(48, 64)
    assert near(product_reference(x, w), x @ w.t(), 0.05)


def test_the_layer_equals_its_definition() -> None:
    layer = nn.Linear(64, 48, device=DEVICE, dtype=DTYPE)
    x = torch.randn(32, 64, device=DEVICE, dtype=DTYPE)
    wanted = product_reference(x, layer.weight) + layer.bias
    layer.__class__ = Float8Linear
    torch.testing.assert_close(layer(x), wanted, rtol=1e-2, atol=1e-2)


def slopes(layers: list[nn.Linear], y: Tensor, x: Tensor, up: Tensor) -> list[Tensor]:
    leaves = [x, *(layer.weight for layer in layers), *(layer.bias for layer in layers)]
    return list(torch.autograd.grad(y, leaves, up))


def test_layers_that_read_the_same_are_one_product_and_keep_their_gradients_apart() -> None:
    layers = [nn.Linear(64, size, device=DEVICE, dtype=DTYPE) for size in (64, 32, 48)]
    x = torch.randn(4, 16, 64, device=DEVICE, dtype=DTYPE, requires_grad=True)
    up = torch.randn(4, 16, 144, device=DEVICE, dtype=DTYPE) * 1e-4
    exact = torch.cat([layer(x) for layer in layers], -1)
    got = torch.cat(linear_group(x, layers, float8=True), -1)
    assert near(got, exact, 0.06)
    for a, b in zip(slopes(layers, got, x, up), slopes(layers, exact, x, up), strict=True):
        assert near(a, b, 0.12)


def test_a_hidden_layer_keeps_its_gradients_through_the_gelu() -> None:
    up, down = (nn.Linear(*size, device=DEVICE, dtype=DTYPE) for size in ((64, 128), (128, 64)))
    x = torch.randn(64, 64, device=DEVICE, dtype=DTYPE, requires_grad=True)
    g = torch.randn_like(x) * 1e-5
    exact = down(F.gelu(up(x), approximate="tanh"))
    got = hidden_layer(x, up, down, float8=True)
    assert near(got, exact, 0.08)
    for a, b in zip(slopes([up, down], got, x, g), slopes([up, down], exact, x, g), strict=True):
        assert near(a, b, 0.15)


@pytest.mark.skipif(not CUDA or importlib.util.find_spec("triton") is None, reason="the kernel needs a GPU")
@pytest.mark.parametrize("what", [float8.PLAIN, float8.GELU, float8.SLOPE])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_kernel_rounds_as_the_definition(what: int, gradient: bool, dtype: torch.dtype) -> None:
    x, up = (torch.randn(304, 80).to(dtype) for _ in range(2))
    parts = [x, x * 3] if what == float8.PLAIN else [x]
    there = float8.round_operand([p.cuda() for p in parts], up.cuda(), what, gradient)
    flat, turned, back, sums = (t.cpu() for t in there)
    wanted, _, scale, total = float8.round_operand(parts, up, what, gradient)
    assert torch.equal(flat.float().t(), turned.float())
    torch.testing.assert_close(back, scale, rtol=1e-3, atol=0)
    torch.testing.assert_close(flat.float(), wanted.float(), rtol=2**-2 if gradient else 2**-3, atol=0.1)
    torch.testing.assert_close(sums.sum(0), total.sum(0), rtol=1e-2, atol=1e-1)


def test_only_parts_of_blocks_with_fitting_sizes_are_swapped() -> None:
    model = toys.tiny("gpt2")
    assert use_float8(model) == sum(isinstance(m, Float8Linear) for m in model.modules())
    assert not isinstance(model.head.out, Float8Linear)
    block = model.blocks[0]
    assert isinstance(block.get_submodule("attn.o"), Float8Linear)
    assert isinstance(block.get_submodule("attn"), FusedAttention)
    assert isinstance(block.get_submodule("ffn"), FusedMLP)


def test_a_model_in_float8_learns_as_one_in_bfloat16_does(files: dict[str, object]) -> None:
    losses = []
    for float8_too in (False, True):
        model = toys.tiny("gpt2").to(DEVICE)
        batches = toys.batches_of("next_token", files, model=model, batch=8)
        config = TrainConfig(steps=20, lr=3e-3, dtype="bfloat16", float8=float8_too)
        losses.append([step.loss for step in fit(model, "next_token", batches, config)])
    plain, small = losses
    assert small[-1] < small[0] - 0.3
    assert abs(sum(small[-5:]) - sum(plain[-5:])) / 5 < 0.1
