"""Every kernel of a step computes what its definition in plain torch computes, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.nn.operators import Definitions, Newest, Norm, Product

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

plain = Definitions()


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def near(got: Tensor, want: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    limit = 2e-5 if dtype == torch.float32 else 2e-2
    return bool((got.float() - want.float()).abs().max() <= limit * max(1.0, float(want.abs().max())))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("dtype", "columns", "kind"),
    [
        (torch.float32, 40, "layer"),
        (torch.float32, 768, None),
        (torch.bfloat16, 768, "rms"),
        (torch.bfloat16, 5000, None),
    ],
)
def test_products_with_what_stands_beside_them(dtype: torch.dtype, columns: int, kind: Any) -> None:
    from heedful.kernels import gpu_step

    x, bias = draw(columns, dtype=dtype), draw(columns, dtype=dtype)
    norm = (
        None
        if kind is None
        else Norm(kind, draw(columns, dtype=dtype), bias if kind == "layer" else None, 1e-5)
    )
    matrix = lambda rows: draw(rows, columns, dtype=dtype, scale=columns**-0.5)
    several = [
        Product(matrix(17), None, "silu"),
        Product(matrix(300), draw(300, dtype=dtype)),
        Product(matrix(1)),
    ]
    for count in (1, 2, 3):
        got = gpu_step.products(x, norm, several[:count], None, dtype)
        want = plain.products(x, norm, several[:count], None, dtype)
        assert all(near(a, b, dtype) for a, b in zip(got, want, strict=True))
    for gated in (None, Product(matrix(65), draw(65, dtype=dtype))):
        one = [Product(matrix(65), draw(65, dtype=dtype), "gelu", gated)]
        rest = draw(65)
        assert near(
            gpu_step.products(x, norm, one, rest, torch.float32)[0],
            plain.products(x, norm, one, rest, torch.float32)[0], dtype,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("length", "heads", "biased", "fresh"),
    [
        (7, (4, 4), False, True),
        (100, (6, 2), True, False),
        (2048, (6, 2), True, True),
        (2048, (4, 4), False, False),
    ],
)
def test_attention_over_static_keys(length: int, heads: tuple[int, int], biased: bool, fresh: bool) -> None:
    from heedful.kernels import gpu_step

    (H, G), B, K = heads, 3, 24
    q, k, v = draw(B, H, 1, K), draw(B, G, length, K), draw(B, G, length, K)
    past = torch.tensor([0, length // 2, length - 1], device="cuda")
    keep = torch.arange(length, device="cuda") <= past[:, None]
    bias = draw(B, length, H, 1).permute(0, 2, 3, 1) if biased else None
    newest = Newest(draw(B, G, 1, K), draw(B, G, 1, K), past) if fresh else None
    caches = [(k.clone(), v.clone()) for _ in range(2)]
    got = gpu_step.attend(q, *caches[0], keep, bias, 0.3, newest)
    want = plain.attend(q, *caches[1], keep, bias, 0.3, newest)
    assert got is not None
    assert want is not None
    assert near(got, want)
    assert all(torch.equal(a, b) for a, b in zip(*caches, strict=True))


def same_in_place(name: str, state: Tensor, before: list[Any], after: tuple[Any, ...] = ()) -> None:
    """Whether a kernel gives and leaves behind what its definition does."""
    from heedful.kernels import gpu_step

    ours, theirs = state.clone(), state.clone()
    got = getattr(gpu_step, name)(*before, ours, *after)
    want = getattr(plain, name)(*before, theirs, *after)
    assert near(got, want)
    assert near(ours, theirs)
    assert not torch.equal(ours, state)


def test_states_are_written_over_as_defined() -> None:
    from heedful.kernels import gpu_step

    B, D, N, (H, K, V) = 2, 50, 5, (3, 6, 10)
    for bias in (None, draw(D)):
        same_in_place("conv_silu", draw(B, 3, D), [draw(B, 1, D)], (draw(D, 1, 4), bias))
    rows = [draw(B, 1, D), draw(B, 1, D), draw(B, 1, N), draw(B, 1, N), draw(D, N), draw(D), draw(B, 1, D)]
    same_in_place("selective_step", draw(B, D, N), rows)
    rows = [draw(B, 1, H * K), draw(B, 1, H * K), draw(B, 1, H * V), draw(B, 1, H * K, scale=30.0)]
    same_in_place("gated_linear_step", draw(B, H, K, V), rows, (16.0, 0.4))
    gates, c = draw(B, 4 * D), draw(B, D)
    for a, b in zip(gpu_step.lstm_cell(gates, c), plain.lstm_cell(gates, c), strict=True):
        assert near(a, b)


@pytest.mark.parametrize("turned", [16, 24])
def test_rotary_positions_and_norms_of_rows(turned: int) -> None:
    from heedful.kernels import gpu_step

    x, angle = draw(2, 3, 1, 24), draw(2, 1, 1, turned // 2)
    got, want = gpu_step.rotate(x, angle.cos(), angle.sin()), plain.rotate(x, angle.cos(), angle.sin())
    assert got is not None
    assert want is not None
    assert near(got, want)
    for norm in (Norm("rms", draw(40), None, 1e-6), Norm("layer", draw(40), draw(40), 1e-5)):
        rows = draw(5, 40)
        assert near(gpu_step.normalise(rows, norm), plain.normalise(rows, norm))
