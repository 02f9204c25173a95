"""The faster way through a hidden layer gives what the plain one gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from heedful.kernels.gpu.fused_linear import gelu, hidden_layer, join, join_reference, linear_group
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.state_space.ssm import Mamba
from heedful.train import float8 as parts
from heedful.train.float8 import FusedAttention, FusedMamba, FusedMLP, fused_classes
from tests.train import toys

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_hidden_layer_and_its_gradients_equal_the_plain_ones() -> None:
    dtype, near = (torch.float32, 1e-3) if DEVICE == "cuda" else (torch.float64, 1e-6)
    first, second = (nn.Linear(*size, device=DEVICE, dtype=dtype) for size in ((16, 32), (32, 16)))
    x = torch.randn(5, 7, 16, device=DEVICE, dtype=dtype, requires_grad=True)
    leaves = [x, *first.parameters(), *second.parameters()]
    wanted = second(F.gelu(first(x), approximate="tanh"))
    got = hidden_layer(x, first, second)
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
    for outs in ([layer(x) for layer in layers], linear_group(x, layers)):
        found.append([*outs, *torch.autograd.grad(outs, leaves, ups)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)


def test_what_layers_say_together_lies_in_one_product() -> None:
    layers = [nn.Linear(16, 32, device=DEVICE) for _ in range(3)]
    q, k, v = linear_group(torch.randn(5, 7, 16, device=DEVICE), layers)
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    assert q.stride() == k.stride() == (7 * 96, 96, 1)


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernels are Triton's and need a GPU")
def test_the_kernels_equal_the_definitions() -> None:
    up, u = (torch.randn(300, 80, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    (d, sums), (d2, sums2) = join([u], up), join_reference([u], up)
    torch.testing.assert_close(d, d2, rtol=2**-6, atol=1e-3)
    torch.testing.assert_close(sums.sum(0), sums2[0], rtol=1e-2, atol=5e-2)
    torch.testing.assert_close(gelu(u), F.gelu(u, approximate="tanh"), rtol=2**-7, atol=1e-5)
    parts = [up, u[:, 16:], up[:, :48]]
    (whole, sums), (whole2, sums2) = join(parts), join_reference(parts)
    assert torch.equal(whole, whole2)
    torch.testing.assert_close(sums.sum(0), sums2[0], rtol=1e-4, atol=1e-3)


def fuse(model: nn.Module) -> int:
    """Give all parts that have a faster form its class; return how many there are."""
    faster = fused_classes(model)
    for module, kind in faster:
        module.__class__ = kind
    return len(faster)


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


class DoubledLinear(nn.Linear):
    """A layer of a reader's own"""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def subclass_gate(part: Mamba) -> None:
    part.gate.__class__ = DoubledLinear


OBSTACLES: dict[str, Callable[[Mamba], object]] = {
    "hooked": lambda part: part.value.register_forward_hook(lambda module, given, out: 2 * out),
    "pruned": lambda part: prune.l1_unstructured(part.low, "weight", amount=0.5),
    "subclassed": subclass_gate,
    "convolution hooked": lambda part: part.conv.register_forward_hook(lambda module, given, out: 2 * out),
}


def mamba_part() -> tuple[Mamba, Tensor, Context]:
    torch.manual_seed(0)
    part, positions = Mamba(16, 32, 8, 4), torch.arange(9)[None]
    with torch.no_grad():
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.3)
        part.initialise()
    return part, torch.randn(2, 9, 16), Context(positions, positions, Mask(causal=True))


def never(*given: object) -> Tensor:
    raise AssertionError("the operator was called")


@pytest.mark.parametrize("change", OBSTACLES)
def test_a_changed_mamba_is_computed_part_by_part(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "fits_kernels", lambda *_: True)
    monkeypatch.setattr(parts, "mamba_mix", never)
    part, x, ctx = mamba_part()
    with torch.autocast("cpu", torch.bfloat16):
        before = part(x, ctx)
        OBSTACLES[change](part)
        changed = part(x, ctx)
        part.__class__ = FusedMamba
        found = part(x, ctx)
    assert torch.equal(found, changed)
    assert not torch.equal(found, before)


def test_a_mamba_that_is_watched_padded_packed_or_wide_is_computed_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "fits_kernels", lambda *_: True)
    monkeypatch.setattr(parts, "mamba_mix", never)
    part, x, ctx = mamba_part()
    valid = torch.arange(9)[None] > torch.tensor([[1], [3]])
    fresh = torch.arange(9)[None].expand(2, 9) == 4
    contexts = [replace(ctx, valid_new=valid), replace(ctx, fresh=fresh), replace(ctx, backend="reference")]
    with torch.autocast("cpu", torch.bfloat16):
        for changed in (*contexts, replace(ctx, watch=Watch("ssm.v"), path="ssm")):
            part.__class__ = Mamba
            wanted = part(x, changed)
            part.__class__ = FusedMamba
            assert torch.equal(part(x, changed), wanted)
    assert part(x, ctx).dtype == torch.float32  # without autocast
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(AssertionError, match="the operator was called"),
    ):
        part(x, ctx)


def test_fusing_a_model_replaces_every_mamba_and_changes_nothing_without_a_gpu() -> None:
    model, tokens = toys.tiny("mamba"), torch.randint(0, 100, (2, 16))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model.encode(tokens)
        assert fuse(model) == model.config.layers
        assert torch.equal(model.encode(tokens), wanted)
