"""Linear attention: parallel, block by block, and step by step it is the same map."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.nn.context import Watch
from heedful.nn.state_space import chunked
from heedful.nn.state_space.chunked import fast_linear
from heedful.nn.state_space.linear_attention import (
    taylor_features,
)
from heedful.nn.state_space.scan import linear_pattern, linear_scan
from tests.counting import operations
from tests.nn.state_space.state_parts import context, make

LENGTH = 70
DECAYS = [4, 1, 0]  # of a head with four channels: its own for each, one for all, none


def inputs(length: int = LENGTH) -> list[Tensor]:
    """q, k, v, log a, fresh, S"""
    wide = {"dtype": torch.float64}
    q, k, v = (torch.randn(2, 3, length, n, **wide) for n in (4, 4, 6))
    log_a = -5 * torch.rand(2, 3, length, 4, **wide)
    return [q, k, v, log_a, torch.rand(2, length) < 0.1, torch.randn(2, 3, 4, 6, **wide)]


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("forgets", [True, False])
def test_blocks_equal_the_loop_and_the_quadratic_form(decays: int, forgets: bool) -> None:
    q, k, v, log, new, S = inputs()
    log_a, fresh = log[..., :decays] if decays else None, new if forgets else None
    one, other = linear_scan(q, k, v, log_a, fresh, S), fast_linear(q, k, v, log_a, fresh, S)
    assert all((a - b).abs().max() <= 1e-10 for a, b in zip(one, other, strict=True))
    alone = linear_scan(q, k, v, log_a, fresh, torch.zeros_like(S))[0]
    assert (linear_pattern(q, k, log_a, fresh) @ v - alone).abs().max() <= 1e-10


@pytest.mark.parametrize("decays", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_keys_equal_heads_that_have_the_same(groups: int, decays: int) -> None:
    q, k, v, log, fresh, S = (torch.cat((x, x), 1) if x.dim() == 4 else x for x in inputs(150))
    q, k, log_a = q[:, :groups], k[:, :groups], log[..., :1] if decays else None
    whole = [x.repeat_interleave(6 // groups, 1) for x in (q, k)]
    wanted = linear_scan(*whole, v, log_a, fresh, S)
    for form in (linear_scan, fast_linear):
        got = form(q, k, v, log_a, fresh, S)
        assert all((a - b).abs().max() <= 1e-10 for a, b in zip(got, wanted, strict=True))


def test_blocks_have_the_gradient_of_the_loop() -> None:
    grads = []
    for form in (linear_scan, fast_linear):
        torch.manual_seed(0)
        given = inputs()
        leaves = [x.requires_grad_() for x in given if x.is_floating_point()]
        y, S = form(*given)
        (y.square().sum() + S.sin().sum()).backward()
        grads.append([x.grad for x in leaves])
    assert all((a - b).abs().max() <= 1e-9 for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("length", [1, 8, 33, 150])
@pytest.mark.parametrize("sizes", ["cpu", "gpu", "many parts"])
def test_chunks_of_any_size_equal_the_loop_with_their_gradients(
    sizes: str, length: int, decays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a state, over documents, at lengths that no chunk divides; as on a GPU, and in several parts."""
    own = chunked.chunk_size
    if sizes == "gpu":
        monkeypatch.setattr(chunked, "chunk_size", lambda length, decays, _: own(length, decays, True))
    if sizes == "many parts":
        monkeypatch.setattr(chunked, "CHUNKS", 2)
    found = []
    for form in (linear_scan, fast_linear):
        torch.manual_seed(0)
        q, k, v, log, fresh, S = inputs(length)
        log_a = log[..., :decays]
        leaves = [x.requires_grad_() for x in (q, k, v, S, *([log_a] if decays else []))]
        y, last = form(q, k, v, log_a if decays else None, fresh, S)
        (y.square().sum() + last.sin().sum()).backward()
        found.append([y, last, *(x.grad for x in leaves)])
    for slow, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decays", DECAYS)
def test_autocast_multiplies_in_bfloat16_and_stays_near_the_loop(decays: int) -> None:
    found = []
    for form, narrow in ((linear_scan, False), (fast_linear, True)):
        torch.manual_seed(0)
        q, k, v, log, fresh, S = inputs(150)
        given = (q, k, v, S, *([0.02 * log[..., :decays]] if decays else []))
        leaves = [x.float().requires_grad_() for x in given]
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            y, last = form(*leaves[:3], leaves[4] if decays else None, fresh, leaves[3])
        assert y.dtype == last.dtype == torch.float32
        (y.square().sum() + last.sin().sum()).backward()
        found.append([y, last, *(x.grad for x in leaves)])
    for slow, fast in zip(*found, strict=True):
        assert fast is not None
        assert (fast - slow).norm() <= 0.03 * slow.norm()


def test_a_strong_decay_neither_overflows_nor_gives_nan_nor_spoils_the_gradient() -> None:
    q, k, v, log_a, _, S = (x.float() for x in inputs())
    leaves = [x.requires_grad_() for x in (q, k, v)]
    log_a = (log_a * 1000).requires_grad_()
    y, last = fast_linear(*leaves, log_a, None, S)
    (y.sum() + last.sum()).backward()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(x.grad).all() for x in (*leaves, log_a))


@pytest.mark.parametrize("decays", DECAYS)
def test_blocks_train_in_far_fewer_operations_than_the_loop(decays: int) -> None:
    q, k, v = (torch.randn(1, 4, 512, n) for n in (32, 32, 64))
    log_a, S = -0.1 * torch.rand(1, 4, 512, 8 * decays), torch.zeros(1, 4, 32, 64)
    log_a = None if decays == 0 else log_a if decays == 4 else log_a[..., :1]

    def train(form: Callable[..., tuple[Tensor, ...]]) -> None:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        form(*leaves, log_a, None, S)[0].sum().backward()

    assert operations(lambda: train(fast_linear)) * 5 < operations(lambda: train(linear_scan))


def test_taylor_features_are_the_second_order_series_of_the_exponential() -> None:
    q, k = torch.randn(5, 4), torch.randn(5, 4)
    s = (q * k).sum(-1) / 2
    assert torch.allclose((taylor_features(q) * taylor_features(k)).sum(-1), 1 + s + s**2 / 2, atol=1e-5)


@torch.no_grad()
def test_linear_attention_is_its_formula_written_out() -> None:
    part, x, watch = make("linear"), torch.randn(1, 6, 16), Watch("*")
    part(x, context(6, watch=watch, path="attn"))
    q, k, v = (watch[f"attn.{n}"][0, 1] for n in "qkv")
    for t in range(6):
        weights = torch.stack([(F.elu(q[t]) + 1) @ (F.elu(k[s]) + 1) for s in range(t + 1)])
        assert torch.allclose(watch["attn.pattern"][0, 1, t, : t + 1], weights / weights.sum(), atol=1e-6)
        assert torch.allclose(watch["attn.heads"][0, 1, t], weights @ v[: t + 1] / weights.sum(), atol=1e-5)
