"""State spaces: every form of a recurrence is the same map."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from heedful.nn.context import Watch
from heedful.nn.state_space.scan import BLOCK, doubling_scan, scan, selective
from heedful.nn.state_space.selective import fast_selective, selective_pattern, selective_states
from heedful.nn.state_space.ssm import S4, joint_products
from tests.counting import operations
from tests.nn.state_space.state_parts import context, make

LENGTH = 2 * BLOCK + 5


def inputs(length: int = LENGTH, dim: int = 6, state: int = 3, batch: int = 2) -> list[Tensor]:
    """u, Δ, A, B, C, keep, h; a few documents start on the way."""
    wide = {"dtype": torch.float64}
    u, B, C = (torch.randn(batch, length, n, **wide) for n in (dim, state, state))
    delta, A = torch.rand(batch, length, dim, **wide), -4 * torch.rand(dim, state, **wide)
    keep = (torch.rand(batch, length) > 0.1).double()
    return [u, delta, A, B, C, keep, torch.randn(batch, dim, state, **wide)]


def test_a_scan_by_doubling_equals_the_loop() -> None:
    a, b, h = torch.rand(37, 4), torch.randn(37, 4), torch.randn(4)
    assert (scan(a, b, h) - doubling_scan(a, b, h)).abs().max() <= 1e-5


@pytest.mark.parametrize("forgets", [True, False])
def test_blocks_of_a_selective_scan_equal_the_loop_with_their_gradients(forgets: bool) -> None:
    results = []
    for form in (selective, fast_selective):
        torch.manual_seed(0)
        given = [x.requires_grad_(i != 5) for i, x in enumerate(inputs())]
        y, h = form(*given[:5], given[5] if forgets else None, given[6])
        (y.square().sum() + h.sin().sum()).backward()
        results.append([y, h, *(x.grad for i, x in enumerate(given) if i != 5)])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 1e-10


def test_a_selective_scan_equals_its_quadratic_form_and_its_states() -> None:
    u, delta, A, B, C, keep, h = inputs()
    expected = selective(u, delta, A, B, C, keep, torch.zeros_like(h))[0]
    pattern = selective_pattern(delta, A, B, C, keep == 0)
    assert (torch.einsum("bdts,bsd->btd", pattern, u) - expected).abs().max() <= 1e-10
    states = selective_states(u, delta, A, B, keep, torch.zeros_like(h))
    assert (torch.einsum("btdn,btn->btd", states, C) - expected).abs().max() <= 1e-10


def test_a_long_strong_decay_neither_overflows_nor_gives_nan() -> None:
    u, delta, A, B, C, _, h = (x.float() for x in inputs(length=600))
    y, last = fast_selective(u, delta * 100, A * 100, B, C, None, h)
    assert torch.isfinite(y).all()
    assert torch.isfinite(last).all()
    assert torch.isfinite(selective_pattern(delta[:, :64] * 100, A * 100, B[:, :64], C[:, :64], None)).all()


def test_the_fast_scan_trains_in_far_fewer_operations_than_the_loop() -> None:
    given = [x.float() for x in inputs(length=512, dim=64, state=16)]

    def train(form: Callable[..., tuple[Tensor, ...]]) -> None:
        leaves = [x.clone().requires_grad_() for x in given]
        form(*leaves[:5], None, leaves[6])[0].sum().backward()

    assert operations(lambda: train(fast_selective)) * 5 < operations(lambda: train(selective))


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "s4"])
@torch.no_grad()
def test_states_can_be_seen_and_replaced(kind: str) -> None:
    part, x = make(kind), torch.randn(1, 6, 16)
    plain = part(x, context(6))
    for name in ["h"] if kind == "s4" else ["delta", "B", "C", "h"]:
        watch = Watch("*.h", edit={f"ssm.{name}": lambda value: value * 2})
        assert (part(x, context(6, watch=watch, path="ssm")) - plain).abs().max() > 1e-4
    assert watch["ssm.h"].shape[:2] == (1, 6)
    assert watch["ssm.h"].ndim == 4


@torch.no_grad()
def test_the_convolution_by_fft_is_the_kernel_written_out() -> None:
    part, x = make("s4"), torch.randn(1, 9, 16)
    assert isinstance(part, S4)
    log, C = part.discrete()
    kernel = torch.stack([2 * (C * torch.exp(log * n)).sum(1).real for n in range(9)])  # (T, D)
    summed = [sum(kernel[t - s] * x[0, s] for s in range(t + 1)) for t in range(9)]
    watch = Watch("*")
    part(x, context(9, watch=watch, path="ssm"))
    assert (watch["ssm.heads"][0, :, :, 0].t() - torch.stack(summed)).abs().max() <= 1e-5
    assert (watch["ssm.skip"][0, :, :, 0].t() - part.D * x[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "s4"])
@torch.no_grad()
def test_the_pattern_is_that_of_the_state_space_without_its_skip(kind: str) -> None:
    """Ali et al. 2024: C_t Ā … B̄_s, whatever D is; the skip is a value of its own."""
    part, x, seen = make(kind), torch.randn(2, 7, 16), []
    for D in (0.0, 3.0):
        part.D.fill_(D)
        watch = Watch("*")
        part(x, context(7, watch=watch, path="ssm"))
        pattern, v, heads, skip = (watch[f"ssm.{name}"] for name in ("pattern", "v", "heads", "skip"))
        assert (pattern @ v - heads).abs().max() <= 1e-5
        assert (skip - D * v).abs().max() <= 1e-6
        seen.append(pattern)
    assert torch.equal(*seen)


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "s4"])
@torch.no_grad()
def test_heads_and_skip_are_all_that_goes_on(kind: str) -> None:
    part, x = make(kind), torch.randn(1, 5, 16)
    both = Watch(edit={"ssm.heads": lambda y: y * 0, "ssm.skip": lambda y: y * 0})
    quiet = part(x, context(5, watch=both, path="ssm"))
    assert (quiet - part(x * 0 + 7, context(5, watch=both, path="ssm"))).abs().max() <= 1e-6
    one = part(x, context(5, watch=Watch(edit={"ssm.skip": lambda y: y * 0}), path="ssm"))
    assert (one - quiet).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
@torch.no_grad()
def test_half_precision_keeps_its_memory_in_float32(kind: str) -> None:
    """Many small steps are added to h: in bfloat16 it would stand still after a few hundred of them."""
    part, x = make(kind), torch.randn(1, 400, 16)
    part.A_log.fill_(-8.0)  # hardly anything is forgotten
    exact, narrow = part.new_state(1, 0), part.new_state(1, 0)
    part.float()(x.bfloat16().float(), context(400), exact)
    half = part.to(torch.bfloat16)
    half(x[:, :300].bfloat16(), context(300), narrow)
    for t in range(300, 400):
        out = half(x[:, t : t + 1].bfloat16(), context(1), narrow)
    assert out.dtype == torch.bfloat16
    assert narrow["h"].dtype == torch.float32
    assert (narrow["h"] - exact["h"]).norm() <= 0.01 * exact["h"].norm()


@torch.no_grad()
def test_layers_that_share_a_product_under_autocast_still_call_their_hooks() -> None:
    layers, x = [nn.Linear(8, 4) for _ in range(2)], torch.randn(3, 8)
    layers[0].register_forward_hook(lambda module, given, out: out + 1)
    prune.l1_unstructured(layers[1], "weight", amount=0.5)
    layers[1].get_parameter("weight_orig").mul_(2)  # seen by the next call alone, which masks it again
    with torch.autocast("cpu", torch.bfloat16):
        found = joint_products(x, *layers)
        wanted = [layer(x) for layer in layers]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
