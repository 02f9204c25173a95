"""Every backend equals the reference, over everything a call may ask for."""

from __future__ import annotations

import itertools

import pytest
import torch

from heedful.core.errors import InputError
from heedful.nn.attention.attend import BACKENDS, Call, attend, blocked, reference
from heedful.nn.context import Context, Mask

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}
GRID = list(
    itertools.product(
        [False, True],
        [None, 3],
        [None, "left", "right", "all"],
        [False, True],
        [4, 2, 1],
        [(6, 6), (1, 6), (3, 6)],
    )
)


def call(causal, window, padding, biased, kv_heads, sizes, dtype=torch.float32) -> Call:
    T, S = sizes
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64).to(dtype)
    valid = None
    if padding is not None:
        valid = torch.ones(2, S, dtype=torch.bool)
        valid[0] = {"left": torch.arange(S) >= 2, "right": torch.arange(S) < S - 2, "all": torch.zeros(S)}[
            padding
        ].bool()
    k_pos = torch.arange(S)[None] if valid is None else (valid.long().cumsum(1) - 1).clamp(min=0)
    return Call(
        make(2, 4, T, 8), make(2, kv_heads, S, 8), make(2, kv_heads, S, 5), k_pos[:, S - T :], k_pos,
        Mask(causal, window, valid), make(1, 4, T, S) if biased else None, 0.3, 0.0,
    )  # fmt: skip


def context(c: Call, backend: str = "auto") -> Context:
    return Context(c.q_pos, c.k_pos, c.mask, backend=backend)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
def test_every_backend_equals_the_reference(backend: str, dtype: torch.dtype) -> None:
    grid = GRID if dtype == torch.float32 and backend == "sdpa" else GRID[::7]
    for row in grid:
        c = call(*row, dtype=dtype)
        got = BACKENDS[backend](c, context(c))
        exact = reference(
            Call(*(t.double() for t in (c.q, c.k, c.v)), c.q_pos, c.k_pos, c.mask,
                 None if c.bias is None else c.bias.double(), c.scale, 0.0), context(c),
        )  # fmt: skip
        assert (got.double() - exact).abs().max() <= TOLERANCE[dtype], row


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_whose_keys_are_all_masked_gives_zeros(backend: str) -> None:
    c = call(True, None, "all", False, 2, (6, 6))
    out = BACKENDS[backend](c, context(c))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_gradients_are_finite_where_every_key_is_masked(backend: str) -> None:
    c = call(True, None, "all", False, 2, (6, 6))
    for t in (c.q, c.k, c.v):
        t.requires_grad_()
    BACKENDS[backend](c, context(c)).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (c.q, c.k, c.v))


@pytest.mark.parametrize("backend", ["sdpa", "blocked"])
def test_gradients_equal_those_of_the_reference(backend: str) -> None:
    c = call(True, 3, "left", True, 2, (6, 6), dtype=torch.float64)
    grads = []
    for run in (reference, BACKENDS[backend]):
        leaves = [t.clone().requires_grad_() for t in (c.q, c.k, c.v)]
        run(
            Call(*leaves, c.q_pos, c.k_pos, c.mask, c.bias, c.scale, 0.0), context(c)
        ).square().sum().backward()
        grads.append([t.grad for t in leaves])
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_order_of_key_value_pairs_does_not_matter(backend: str) -> None:
    c = call(False, None, "left", True, 2, (3, 6))
    order = torch.randperm(6)
    k, v, k_pos, bias = c.k[:, :, order], c.v[:, :, order], c.k_pos[:, order], c.bias[..., order]
    mixed = Call(c.q, k, v, c.q_pos, k_pos, Mask(valid=c.mask.valid[:, order]), bias, c.scale, 0.0)
    run = BACKENDS[backend]
    assert (run(c, context(c)) - run(mixed, context(mixed))).abs().max() <= 1e-6


def test_blocks_of_keys_join_without_a_seam() -> None:
    c = call(True, 3, "left", True, 2, (6, 6))
    whole = blocked(c, context(c))
    for block in (1, 2, 4):
        assert (blocked(c, context(c), block) - whole).abs().max() <= 1e-6


def test_an_unknown_backend_is_an_error_that_lists_the_known() -> None:
    c = call(False, None, None, False, 4, (6, 6))
    with pytest.raises(InputError, match="reference, sdpa, blocked"):
        attend(c, context(c, "fast"))


def test_a_backend_that_cannot_take_a_call_says_why() -> None:
    c = call(False, None, None, False, 4, (6, 6))
    dropping = Call(c.q, c.k, c.v, c.q_pos, c.k_pos, c.mask, None, c.scale, 0.1)
    with pytest.raises(InputError, match="dropout"):
        attend(dropping, context(c, "blocked"))


def test_a_plain_causal_mask_never_becomes_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a matrix was built")

    monkeypatch.setattr(Mask, "dense", refuse)
    c = call(True, None, None, False, 2, (6, 6))
    attend(c, context(c))
    newest = call(True, None, None, False, 2, (1, 6))
    attend(newest, context(newest))
