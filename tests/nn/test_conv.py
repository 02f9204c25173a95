"""The causal convolution as one operator is the short convolution by its taps, with its gradients."""

from __future__ import annotations

import pytest
import torch

from heedful.nn.context import Context, Mask
from heedful.nn.conv import causal_conv
from heedful.nn.ssm import ShortConv


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_one_operator_gives_what_the_taps_give(length: int, biased: bool) -> None:
    conv = ShortConv(6, 4, bias=biased)
    conv.initialise()
    x = torch.randn(2, length, 6, requires_grad=True)
    positions = torch.arange(length)[None]
    by_taps = conv(x, Context(positions, positions, Mask()))
    learnt = [x, *conv.parameters()]
    expected = torch.autograd.grad(by_taps.square().sum(), learnt)
    y = causal_conv(x, conv.weight[:, 0], conv.bias)
    found = torch.autograd.grad(y.square().sum(), learnt)
    torch.testing.assert_close(y, by_taps)
    for wanted, value in zip(expected, found, strict=True):
        torch.testing.assert_close(value, wanted)


def test_sums_are_made_in_float32_and_gradients_have_the_type_of_their_tensor() -> None:
    x = torch.randn(1, 50, 3).bfloat16().requires_grad_()
    w, b = torch.randn(3, 4).bfloat16().requires_grad_(), torch.zeros(3).requires_grad_()
    y = causal_conv(x, w, b)
    y.float().sum().backward()
    assert y.dtype == x.grad.dtype == w.grad.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert b.grad is not None
    assert torch.equal(b.grad, torch.full((3,), 50.0))
