"""Every kernel of a step computes what its definition in plain torch computes. Without a GPU, Triton's
interpreter can run them:

TRITON_INTERPRET=1 pytest tests/kernels/test_step_kernels.py

It multiplies matrices of bfloat16 as if they were whole numbers and rounds to 8 bits wrongly: those tests
need a GPU.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.decode.engines.step_operators import Definitions, Newest, Norm, Product
from heedful.decode.settings import GenerationSettings
from heedful.nn.quantised import Int4Linear, Int8Linear

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

plain = Definitions()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter computes it wrongly")


def kernels() -> Any:
    from heedful.kernels.gpu.step import Kernels

    return Kernels()


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def near(got: Tensor, want: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    limit = 2e-5 if dtype == torch.float32 else 2e-2
    return bool((got.float() - want.float()).abs().max() <= limit * max(1.0, float(want.abs().max())))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    ("dtype", "columns", "kind"),
    [
        (torch.float32, 40, "layer"),
        (torch.float32, 768, None),
        (torch.float32, 1300, "rms"),
        pytest.param(torch.bfloat16, 768, "rms", marks=needs_gpu),
        pytest.param(torch.bfloat16, 5000, None, marks=needs_gpu),
    ],
)
def test_products_with_what_stands_beside_them(
    dtype: torch.dtype, columns: int, kind: Any, rows: int
) -> None:
    x, bias = draw(rows, columns, dtype=dtype), draw(columns, dtype=dtype)
    norm = None
    if kind is not None and rows == 1:
        norm = Norm(kind, draw(columns, dtype=dtype), bias if kind == "layer" else None, 1e-5)
    matrix = lambda rows: draw(rows, columns, dtype=dtype, scale=columns**-0.5)
    several = [
        Product(matrix(17), None, "silu"),
        Product(matrix(300), draw(300, dtype=dtype)),
        Product(matrix(1)),
        Product(matrix(33), draw(33, dtype=dtype), "tanh"),
    ]
    for count in (1, 2, 3, 4):
        got = kernels().products(x, norm, several[:count], None, dtype)
        want = plain.products(x, norm, several[:count], None, dtype)
        assert all(near(a, b, dtype) for a, b in zip(got, want, strict=True))
    for gated in (None, Product(matrix(65), draw(65, dtype=dtype))):
        one = [Product(matrix(65), draw(65, dtype=dtype), "gelu", gated)]
        rest = draw(rows, 65)
        assert near(
            kernels().products(x, norm, one, rest, torch.float32)[0],
            plain.products(x, norm, one, rest, torch.float32)[0], dtype,
        )  # fmt: skip


@pytest.mark.parametrize("rows", [64, 66, 7])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_gpu)])
def test_a_norm_after_a_product_begins_in_it(dtype: torch.dtype, rows: int) -> None:
    x, residual = draw(1, 40, dtype=dtype), draw(1, rows, dtype=dtype)
    first, second = (Product(draw(*size, dtype=dtype, scale=0.1)) for size in ((rows, 40), (9, rows)))
    norm = Norm("rms", draw(rows, dtype=dtype), None, 1e-5)
    y = plain.products(x, None, [first], residual, dtype)[0]
    want = plain.products(y, norm, [second], None, dtype)[0]
    for by in (kernels(), plain):
        whole, scaled, squares = by.products(x, None, [first], residual, dtype, norm)
        assert near(whole, y, dtype)
        begun = Norm("scaled", squares, None, norm.eps)
        assert near(by.products(scaled, begun, [second], None, dtype)[0], want, dtype)


def rounded(columns: int, rows: int, bits: int, **more: Any) -> Product:
    """A random matrix in whole numbers."""
    layer = nn.Linear(columns, rows, device=DEVICE)
    made = Int8Linear(layer) if bits == 8 else Int4Linear(layer)
    group = made.group if isinstance(made, Int4Linear) else 0
    return Product(made.weight, made.bias, scale=made.scale, group=group, **more)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("bits", "columns"), [(8, 96), (8, 1536), (4, 96), (4, 2112)])
@torch.no_grad()
def test_products_with_whole_numbers(bits: int, columns: int, rows: int) -> None:
    x = draw(rows, columns)
    several = [rounded(columns, n, bits) for n in (7, 40, 1)]
    for got, want in zip(
        kernels().products(x, None, several, None, x.dtype), plain.products(x, None, several, None, x.dtype),
        strict=True,
    ):  # fmt: skip
        assert near(got, want)
    one = [rounded(columns, 33, bits, act="silu", gated=rounded(columns, 33, bits))]
    rest = draw(rows, 33)
    norm = Norm("rms", draw(columns), None, 1e-5) if bits == 8 and rows == 1 else None
    got, want = (by.products(x, norm, one, rest, x.dtype)[0] for by in (kernels(), plain))
    assert near(got, want)


@pytest.mark.parametrize(
    ("slots", "heads", "more"),
    [
        (7, (4, 4), {"turned": 24}),
        (100, (6, 2), {"bias": True, "newest": False}),
        (512, (6, 2), {"bias": True, "turned": 16, "rows": 2}),
        (512, (4, 4), {"newest": False, "rows": 1}),
        (512, (3, 3), {"bias": True, "rows": 1}),
        (200, (8, 2), {"window": 150, "turned": 24}),
        (40, (132, 132), {"turned": 24, "rows": 2}),  # many heads
        (200, (4, 4), {"window": 11, "softcap": 0.7, "sinks": True}),
    ],
)
def test_attention_over_static_keys(slots: int, heads: tuple[int, int], more: dict[str, Any]) -> None:
    (H, G), B, K = heads, more.get("rows", 3), 24
    q, k, v = draw(B, H, 1, K), draw(B, G, slots, K), draw(B, G, slots, K)
    far = 3 * slots if "window" in more else slots - 1
    past = torch.tensor([far, 0, slots // 2], device=DEVICE)[:B]
    bias = draw(B, slots, H, 1).permute(0, 2, 3, 1) if "bias" in more else None
    newest, keep = None, torch.arange(slots, device=DEVICE) % 3 != past[:, None] % 3
    if more.get("newest", True):
        angle = draw(far + 1, more.get("turned", 0) // 2)
        angles = (angle.cos(), angle.sin()) if "turned" in more else None
        newest = Newest(draw(B, G, 1, K), draw(B, G, 1, K), past, angles, more.get("window"))
    options = {
        "newest": newest, "keep": keep if newest is None else None, "bias": bias,
        "softcap": more.get("softcap"), "sinks": draw(H) if "sinks" in more else None,
    }  # fmt: skip
    caches = [(k.clone(), v.clone()) for _ in range(2)]
    by_kernel = kernels()
    got = by_kernel.attend(q, *caches[0], 0.3, **options)
    want = plain.attend(q, *caches[1], 0.3, **options)
    assert near(got, want)
    assert all(near(a, b) for a, b in zip(*caches, strict=True))
    assert near(by_kernel.attend(q, *caches[0], 0.3, **options), want)  # what it counts with is zero again


@needs_gpu
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
def test_attention_over_keys_of_eight_bits(heads: tuple[int, int]) -> None:
    (H, G), B, K, S = heads, 2, 64, 300
    q = draw(B, H, 1, K, dtype=torch.bfloat16)
    caches = [[draw(B, G, S, K).to(torch.float8_e4m3fn) for _ in range(2)]]
    caches.append([t.clone() for t in caches[0]])
    new = [draw(B, G, 1, K, dtype=torch.bfloat16, scale=200.0) for _ in range(2)]
    newest = Newest(new[0], new[1] / 200, torch.tensor([5, 250], device=DEVICE))
    got, want = (
        by.attend(q, *cache, 0.1, newest=newest) for by, cache in zip((kernels(), plain), caches, strict=True)
    )
    assert near(got, want, torch.bfloat16)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(*caches, strict=True))


def same_in_place(name: str, state: Tensor, before: list[Any], after: tuple[Any, ...] = ()) -> None:
    """Whether a kernel gives and leaves behind what its definition does."""
    ours, theirs = state.clone(), state.clone()
    got = getattr(kernels(), name)(*before, ours, *after)
    want = getattr(plain, name)(*before, theirs, *after)
    assert near(got, want)
    assert near(ours, theirs)
    assert not torch.equal(ours, state)


def test_states_are_written_over_as_defined() -> None:
    B, D, N, (H, K, V) = 2, 50, 5, (3, 6, 10)
    for bias in (None, draw(D)):
        same_in_place("conv_silu", draw(B, 3, D), [draw(B, 1, D)], (draw(D, 1, 4), bias))
    rows = [draw(B, 1, D), draw(B, 1, D), draw(B, 1, N), draw(B, 1, N), draw(D, N), draw(D), draw(B, 1, D)]
    same_in_place("selective_step", draw(B, D, N), rows)
    rows = [draw(B, 1, H * K), draw(B, 1, H * K), draw(B, 1, H * V), draw(B, 1, H * K, scale=30.0)]
    same_in_place("gated_linear_step", draw(B, H, K, V), rows, (16.0, 0.4))
    gates, c = draw(B, 4 * D), draw(B, D)
    for a, b in zip(kernels().lstm_cell(gates, c), plain.lstm_cell(gates, c), strict=True):
        assert near(a, b)


def test_norms_of_rows() -> None:
    for norm in (Norm("rms", draw(40), None, 1e-6), Norm("layer", draw(40), draw(40), 1e-5)):
        rows = draw(5, 40)
        assert near(kernels().normalise(rows, norm), plain.normalise(rows, norm))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.0, "top_p": 0.3, "top_k": 40},
        {"temperature": 1.0, "top_p": 0.9, "min_p": 0.2},
    ],
)
def test_tokens_are_chosen_as_defined(rules: dict[str, Any], dtype: torch.dtype) -> None:
    settings, rows, columns = GenerationSettings(**rules), 6, 4
    for size, spread in ((50, 1.0), (20000, 3.0)):
        logits = draw(rows, size, dtype=dtype, scale=spread)
        logits[1] = -7.5  # all alike
        logits[2, : size // 2] = -torch.inf
        logits[3, 3] = 40.0  # no doubt
        uniforms = torch.rand(rows, columns, dtype=torch.float64, device=DEVICE)
        uniforms[4, 0], uniforms[5, 0] = 0.0, 1 - 2**-53
        found = []
        for by in (kernels(), plain):
            written, tokens = (torch.zeros(rows, n, dtype=torch.long, device=DEVICE) for n in (columns, 1))
            cursor = torch.zeros(rows, dtype=torch.long, device=DEVICE)
            for _ in range(columns):
                by.choose(settings, logits, uniforms, written, tokens, cursor)
            assert cursor.tolist() == rows * [columns]
            assert torch.equal(tokens[:, 0], written[:, -1])
            found.append(written)
        assert torch.equal(*found)
