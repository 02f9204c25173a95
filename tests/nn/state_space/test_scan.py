"""The recurrence of state spaces under autocast: what decays over many steps stays in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.nn.state_space.scan import selective
from heedful.nn.state_space.selective import fast_selective, selective_scan


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1, 16, 50])
def test_the_operator_is_the_definition_at_any_length_from_a_state_over_documents(
    length: int, dtype: torch.dtype
) -> None:
    """What it reads may be bfloat16, and y is then; what it remembers is float32."""
    found = []
    for form in (selective, fast_selective):
        torch.manual_seed(0)
        keep, u = (torch.rand(2, length) > 0.2).float(), torch.randn(2, length, 3).to(dtype)
        delta, A = torch.rand(2, length, 3), -torch.rand(3, 4)
        leaves = [t.requires_grad_() for t in (u, delta, A, *torch.randn(2, 2, length, 4).unbind())]
        h = torch.randn(2, 3, 4, requires_grad=True)
        y, last = form(*leaves, keep, h)
        (y.float().square().sum() + last.sin().sum()).backward()
        found.append([y, last, *(t.grad for t in (*leaves, h))])
    assert found[1][0].dtype == dtype
    assert found[1][1].dtype == torch.float32
    for slow, fast in zip(*found, strict=True):
        assert fast is not None
        assert (fast.float() - slow.float()).norm() <= (
            1e-5 if dtype == torch.float32 else 1e-2
        ) * slow.norm()


def test_the_operator_says_its_shapes_without_computing() -> None:
    given = [t.detach().requires_grad_() for t in coefficients()]
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(selective_scan, (*given, None, torch.zeros(2, 3, 4)), test_utils=checks)
