"""The faster way through a hidden layer gives what the plain one gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.kernels import gelu
from heedful.kernels import linear_group as columns
from heedful.kernels.gelu import gelu_mlp
from heedful.kernels.linear_group import linear_group
from heedful.train.fused import FusedAttention, FusedMLP, fuse
from tests.train import toys

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_hidden_layer_and_its_gradients_equal_the_plain_ones() -> None:
    made = [(5, 7, 16), (32, 16), (32,), (16, 32), (16,)]
    x, w1, b1, w2, b2 = (torch.randn(s, device=DEVICE, dtype=torch.float64, requires_grad=True) for s in made)
    if DEVICE == "cuda":
        x, w1, b1, w2, b2 = (t.detach().float().requires_grad_() for t in (x, w1, b1, w2, b2))
    leaves, near = (x, w1, b1, w2, b2), 1e-3 if DEVICE == "cuda" else 1e-6
    wanted = F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)
    got = gelu_mlp(x, w1, b1, w2, b2)
    up = torch.randn_like(wanted)
    torch.testing.assert_close(got, wanted, rtol=near, atol=near)
    found, right = torch.autograd.grad(got, leaves, up), torch.autograd.grad(wanted, leaves, up)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)


@pytest.mark.parametrize("bias", [True, False])
def test_layers_together_say_what_they_say_alone(bias: bool) -> None:
    dtype, near = (torch.float32, 1e-3) if DEVICE == "cuda" else (torch.float64, 1e-6)
    layers = [nn.Linear(16, size, bias, device=DEVICE, dtype=dtype) for size in (32, 16, 48)]
    x = torch.randn(5, 7, 16, device=DEVICE, dtype=dtype, requires_grad=True)
    leaves = [x, *(p for layer in layers for p in layer.parameters())]
    found: list[list[Tensor]] = []
    ups = [torch.randn(5, 7, layer.out_features, device=DEVICE, dtype=dtype) for layer in layers]
    for outs in ([layer(x) for layer in layers], linear_group(x, layers, dtype)):
        found.append([*outs, *torch.autograd.grad(outs, leaves, ups)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)


def test_what_layers_say_together_lies_in_one_product() -> None:
    layers = [nn.Linear(16, 32, device=DEVICE) for _ in range(3)]
    q, k, v = linear_group(torch.randn(5, 7, 16, device=DEVICE), layers, torch.float32)
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    assert q.stride() == k.stride() == (7 * 96, 96, 1)


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernels are Triton's and need a GPU")
def test_the_kernels_equal_the_definitions() -> None:
    up, u = (torch.randn(300, 80, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    (d, sums), (d2, sums2) = gelu.gelu_backward(up, u), gelu.gelu_backward_reference(up, u)
    torch.testing.assert_close(d, d2, rtol=2**-6, atol=1e-3)
    torch.testing.assert_close(sums.sum(0), sums2[0], rtol=1e-2, atol=5e-2)
    torch.testing.assert_close(gelu.gelu(u), F.gelu(u, approximate="tanh"), rtol=2**-7, atol=1e-5)
    parts = [up, u[:, 16:], up[:, :48]]
    (whole, sums), (whole2, sums2) = columns.concat_with_sums(parts), columns.concat_reference(parts)
    assert torch.equal(whole, whole2)
    torch.testing.assert_close(sums.sum(0), sums2[0], rtol=1e-4, atol=1e-3)


def test_a_fused_model_takes_the_same_step() -> None:
    tokens = torch.randint(0, 100, (2, 16))
    found = []
    for fused in (False, True):
        model = toys.tiny("gpt2", dropout=0.0)
        if fused:
            assert fuse(model) == 2 * model.config.layers
            assert isinstance(model.blocks[0].get_submodule("attn"), FusedAttention)
            assert isinstance(model.blocks[0].get_submodule("ffn"), FusedMLP)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.encode(tokens).float().square().mean()
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for a, b in zip(*found, strict=True):
        assert float((a - b).norm()) <= 0.02 * float(b.norm()) + 1e-6
