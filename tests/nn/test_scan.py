"""The recurrence of state spaces under autocast: what decays over many steps stays in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.nn.scan import selective
from heedful.nn.selective import fast_selective


def coefficients() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    u, delta = torch.randn(2, 40, 3), torch.rand(2, 40, 3)
    A, B, C = -torch.rand(3, 4), torch.randn(2, 40, 4), torch.randn(2, 40, 4)
    return tuple(t.requires_grad_() for t in (u, delta, A, B, C))


@pytest.mark.parametrize("backward_too", [False, True])
@pytest.mark.parametrize("form", [selective, fast_selective])
def test_autocast_changes_neither_the_states_nor_their_gradients(form: object, backward_too: bool) -> None:
    assert callable(form)
    found = []
    for lower in (False, True):
        given = coefficients()
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            y, last = form(*given, None, torch.zeros(2, 3, 4))
            total = (y * y).sum() + last.sum()
            if backward_too:
                total.backward()
        if not backward_too:
            total.backward()
        found.append([y, last, *(t.grad for t in given)])
    for plain, lowered in zip(*found, strict=True):
        assert lowered.dtype == torch.float32
        assert torch.equal(plain, lowered)
