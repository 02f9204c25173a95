"""The faster way through a hidden layer gives what the plain one gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from heedful.kernels.gelu import gelu_back, mlp, reference
from heedful.train.fused import FusedMLP, fuse
from tests.train import toys

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_hidden_layer_and_its_gradients_equal_the_plain_ones() -> None:
    made = [(5, 7, 16), (32, 16), (32,), (16, 32), (16,)]
    x, w1, b1, w2, b2 = (torch.randn(s, device=DEVICE, dtype=torch.float64, requires_grad=True) for s in made)
    if DEVICE == "cuda":
        x, w1, b1, w2, b2 = (t.detach().float().requires_grad_() for t in (x, w1, b1, w2, b2))
    leaves, near = (x, w1, b1, w2, b2), 1e-3 if DEVICE == "cuda" else 1e-6
    wanted = F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)
    got = mlp(x, w1, b1, w2, b2)
    up = torch.randn_like(wanted)
    torch.testing.assert_close(got, wanted, rtol=near, atol=near)
    found, right = torch.autograd.grad(got, leaves, up), torch.autograd.grad(wanted, leaves, up)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernel is Triton's and needs a GPU")
def test_the_kernel_equals_the_definition() -> None:
    up, u = (torch.randn(300, 80, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    (d, h, sums), (d2, h2, sums2) = gelu_back(up, u), reference(up, u)
    torch.testing.assert_close((d, h), (d2, h2), rtol=2**-6, atol=1e-3)
    torch.testing.assert_close(sums.sum(0), sums2[0], rtol=1e-2, atol=5e-2)


def test_a_fused_model_takes_the_same_step() -> None:
    tokens = torch.randint(0, 100, (2, 16))
    found = []
    for fused in (False, True):
        model = toys.tiny("gpt2", dropout=0.0)
        if fused:
            assert fuse(model) == model.config.layers
            assert isinstance(model.blocks[0].get_submodule("ffn"), FusedMLP)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.encode(tokens).float().square().mean()
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for a, b in zip(*found, strict=True):
        assert float((a - b).norm()) <= 0.02 * float(b.norm()) + 1e-6
