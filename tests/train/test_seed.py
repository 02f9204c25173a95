"""The seed of a step."""

from __future__ import annotations

import pytest
import torch

from heedful.train.fit import seed


def test_a_seed_on_the_cpu_draws_what_torch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(5)
    # Every other device would be noted for later with a call stack, each step anew.
    monkeypatch.setattr(torch, "manual_seed", lambda value: pytest.fail("all devices were seeded"))
    seed(7, torch.device("cpu"))
    assert torch.equal(torch.rand(5), wanted)
