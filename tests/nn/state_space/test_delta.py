"""The gated delta rule: the loop, chunks and the quadratic form are the same map, and it is the equation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.nn.context import Watch
from heedful.nn.state_space import delta
from heedful.nn.state_space.delta import GatedDeltaNet, delta_pattern, delta_scan, fast_delta
from tests.counting import operations
from tests.nn.state_space.state_parts import context, make


def inputs(length: int, strongest: float = 2.0) -> list[Tensor]:
    """q, k, v, log a, β, fresh, S: keys of length 1, β up to `strongest`"""
    wide = {"dtype": torch.float64}
    q, k, v = (torch.randn(2, 3, length, n, **wide) for n in (4, 4, 6))
    k = k / k.norm(dim=-1, keepdim=True)
    log_a, beta = -0.5 * torch.rand(2, 3, length, 1, **wide), strongest * torch.rand(2, 3, length, 1, **wide)
    return [q, k, v, log_a, beta, torch.rand(2, length) < 0.05, torch.randn(2, 3, 4, 6, **wide)]


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize("length", [1, 8, 33, 150])
def test_chunks_equal_the_loop_with_their_gradients(length: int, forgets: bool) -> None:
    """From a state, over documents, at lengths that no chunk divides."""
    found = []
    for form in (delta_scan, fast_delta):
        torch.manual_seed(0)
        q, k, v, log_a, beta, fresh, S = inputs(length)
        leaves = [x.requires_grad_() for x in (q, k, v, log_a, beta, S)]
        y, last = form(q, k, v, log_a, beta, fresh if forgets else None, S)
        (y.square().sum() + last.sin().sum()).backward()
        found.append([y, last, *(x.grad for x in leaves)])
    for slow, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("forgets", [True, False])
def test_the_quadratic_form_is_the_loop(forgets: bool) -> None:
    q, k, v, log_a, beta, new, S = inputs(40)
    fresh = new if forgets else None
    expected = delta_scan(q, k, v, log_a, beta, fresh, torch.zeros_like(S))[0]
    assert (delta_pattern(q, k, log_a, beta, fresh) @ v - expected).abs().max() <= 1e-10


def test_a_key_that_is_written_twice_has_its_second_value() -> None:
    """What the rule is for: with β = 1 and no decay a value is replaced, where a sum would hold both."""
    k = torch.eye(4)[None, None, [0, 1, 0, 2]]
    v, one = torch.randn(1, 1, 4, 6), torch.ones(1, 1, 4, 1)
    read = torch.eye(4)[None, None, [0, 0, 0, 0]]
    y, S = delta_scan(read, k, v, 0 * one, one, None, torch.zeros(1, 1, 4, 6))
    assert torch.allclose(y[0, 0], v[0, 0, [0, 0, 2, 2]], atol=1e-6)
    assert torch.allclose(S[0, 0, 1], v[0, 0, 1], atol=1e-6)


def test_a_strong_decay_neither_overflows_nor_spoils_the_gradient() -> None:
    q, k, v, log_a, beta, _, S = (x.float() for x in inputs(150))
    leaves = [x.requires_grad_() for x in (q, k, v, beta)]
    log_a = (log_a * 1000).requires_grad_()
    y, last = fast_delta(q, k, v, log_a, beta, None, S)
    (y.sum() + last.sum()).backward()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(x.grad).all() for x in (*leaves, log_a))


def test_autocast_leaves_the_recurrence_in_float32() -> None:
    """Under autocast the products of chunks would be rounded, and a triangular system adds that up."""
    given = [x.float() if x.is_floating_point() else x for x in inputs(150)]
    plain = fast_delta(*given)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = fast_delta(*given)
    assert all(torch.equal(a, b) for a, b in zip(plain, narrow, strict=True))


def test_chunks_train_in_far_fewer_operations_than_the_loop() -> None:
    q, k, v = (torch.randn(1, 4, 512, n) for n in (32, 32, 64))
    k = k / k.norm(dim=-1, keepdim=True)
    log_a, beta, S = -0.1 * torch.rand(1, 4, 512, 1), torch.rand(1, 4, 512, 1), torch.zeros(1, 4, 32, 64)

    def train(form: Callable[..., tuple[Tensor, ...]]) -> None:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        form(*leaves, log_a, beta, None, S)[0].sum().backward()

    assert operations(lambda: train(fast_delta)) * 5 < operations(lambda: train(delta_scan))


@torch.no_grad()
def test_the_part_is_its_formula_written_out() -> None:
    part, x, watch = make("delta"), torch.randn(1, 6, 16), Watch("*")
    assert isinstance(part, GatedDeltaNet)
    out = part(x, context(6, watch=watch, path="attn"))
    rows = torch.cat((part.q(x), part.k(x), part.v(x)), -1)[0]
    taps = part.conv.weight[:, 0]  # (channels, 4): the newest token's weight stands last
    mixed = [sum(taps[:, 3 - j] * rows[t - j] for j in range(min(4, t + 1))) for t in range(6)]
    q, k, v = torch.nn.functional.silu(torch.stack(mixed)).split((6, 6, 20), -1)
    summed = []
    for h in range(4):
        S = torch.zeros(3, 5)
        for t in range(6):
            one = lambda row, h=h, t=t: row[t, 3 * (h // 2) : 3 * (h // 2) + 3]
            query, key = (one(row) / (one(row).square().sum() + 1e-6).sqrt() for row in (q, k))
            step = torch.nn.functional.softplus(part.decay(x)[0, t, h] + part.step_bias[h])
            S = torch.exp(-part.A_log[h].exp() * step) * S
            strength = 2 * torch.sigmoid(part.beta(x)[0, t, h])
            S = S + strength * torch.outer(key, v[t, 5 * h : 5 * h + 5] - S.t() @ key)
            assert torch.allclose(watch["attn.h"][0, t, h], S.flatten(), atol=1e-5)
            y = S.t() @ query / 3**0.5
            y = part.norm.weight * y / (y.square().mean() + 1e-5).sqrt()
            summed.append(y * torch.nn.functional.silu(part.gate(x)[0, t, 5 * h : 5 * h + 5]))
    heads = torch.stack(summed).unflatten(0, (4, 6)).transpose(0, 1).flatten(1)  # (T, H·K′)
    assert torch.allclose(out[0], part.o(heads), atol=1e-5)


@torch.no_grad()
def test_states_can_be_seen_and_replaced() -> None:
    part, x = make("delta"), torch.randn(1, 6, 16)
    plain = part(x, context(6))
    assert (part(x, context(6, watch=Watch("*.h"), path="attn")) - plain).abs().max() <= 1e-5
    for name in ("beta", "log_decay", "h"):
        watch = Watch("*.h", edit={f"attn.{name}": lambda value: value * 0.5})
        assert (part(x, context(6, watch=watch, path="attn")) - plain).abs().max() > 1e-4, name
    assert watch["attn.h"].shape == (1, 6, 4, 15)


def test_many_chunks_carry_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "MAX_CHUNK", 8)
    given = inputs(100)
    for one, other in zip(delta_scan(*given), fast_delta(*given), strict=True):
        assert (one - other).abs().max() <= 1e-9
