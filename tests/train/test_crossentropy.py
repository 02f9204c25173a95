"""The cross-entropy that never holds all logits equals the one that does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data import IGNORE, Batch
from heedful.train import crossentropy
from heedful.train.crossentropy import _ChunkedCrossEntropy, cross_entropy_reference, linear_cross_entropy
from heedful.train.objectives import next_token
from tests.properties.tiny import ids, tiny

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is Triton's and needs a GPU")


def case(
    bias: bool, device: str = "cpu", dtype: torch.dtype = torch.float32, N: int = 50, V: int = 77
) -> list[Tensor]:
    torch.manual_seed(0)
    x, w, b = torch.randn(N, 16), torch.randn(V, 16) / 4, torch.randn(V) if bias else None
    labels = torch.randint(0, V, (N,))
    labels[::7] = IGNORE
    made = [t if t is None else t.to(device, dtype).requires_grad_() for t in (x, w, b)]
    return [*made, labels.to(device)]  # type: ignore[list-item]


def close(fast: Tensor, slow: Tensor, leaves: list[Tensor], rtol: float = 1e-4, atol: float = 1e-4) -> None:
    torch.testing.assert_close(fast, slow.to(fast.dtype), rtol=rtol, atol=atol)
    kept = [t for t in leaves if t is not None]
    ours, theirs = torch.autograd.grad(3 * fast, kept), torch.autograd.grad(3 * slow, kept)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [8, 50, 64])
def test_chunks_equal_the_definition(bias: bool, smoothing: float, rows: int) -> None:
    x, w, b, labels = case(bias)
    fast = _ChunkedCrossEntropy.apply(x, w, b, labels, smoothing, rows)
    close(fast, cross_entropy_reference(x, w, b, labels, smoothing), [x, w, b])


def test_a_long_input_is_taken_in_chunks_and_a_short_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b, labels = case(True)
    taken = []
    monkeypatch.setattr(crossentropy, "_chunk", lambda *a: taken.append(len(a[0])) or _chunk(*a))
    close(linear_cross_entropy(x, w, b, labels, rows=16), cross_entropy_reference(x, w, b, labels), [x, w, b])
    assert taken == [16, 16, 16, 2]
    taken.clear()
    close(linear_cross_entropy(x, w, b, labels), cross_entropy_reference(x, w, b, labels), [x, w, b])
    assert taken == []


_chunk = crossentropy._chunk


def test_a_fixed_output_matrix_gets_no_gradient() -> None:
    x, w, b, labels = case(True)
    loss = linear_cross_entropy(x, w.detach(), b, labels, rows=16)
    gx, gb = torch.autograd.grad(loss, [x, b])
    wanted = torch.autograd.grad(cross_entropy_reference(x, w.detach(), b, labels), [x, b])
    torch.testing.assert_close((gx, gb), wanted, rtol=1e-4, atol=1e-4)


def test_labels_that_are_all_ignored_cost_nothing() -> None:
    x, w, b, labels = case(True)
    loss = linear_cross_entropy(x, w, b, torch.full_like(labels, IGNORE), rows=16)
    assert loss == 0
    assert all(g.abs().max() == 0 for g in torch.autograd.grad(loss, [x, w, b]))


def test_float64_keeps_its_digits() -> None:
    x, w, b, labels = (t.double() if t.is_floating_point() else t for t in case(True))
    logits = torch.nn.functional.linear(x, w, b).log_softmax(-1)
    wanted = -logits[labels != IGNORE, labels[labels != IGNORE]].sum()
    torch.testing.assert_close(linear_cross_entropy(x, w, b, labels, rows=16), wanted, rtol=1e-12, atol=0)


def test_bfloat16_products_stay_near() -> None:
    x, w, b, labels = case(True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(x, w, b, labels, rows=16)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cross_entropy_reference(x, w, b, labels), rtol=1e-2, atol=0.5)


@GPU
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_kernel_equals_the_definition(bias: bool, smoothing: float) -> None:
    x, w, b, labels = case(bias, "cuda", N=300, V=5003)
    fast = linear_cross_entropy(x, w, b, labels, smoothing, rows=128)
    close(fast, cross_entropy_reference(x, w, b, labels, smoothing), [x, w, b], rtol=1e-3, atol=1e-2)


@GPU
@pytest.mark.parametrize("bias", [True, False])
def test_float8_stays_near_the_definition(bias: bool) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(512, 64, device="cuda"), torch.randn(5003, 64, device="cuda") / 4
    b = torch.randn(5003, device="cuda") if bias else None
    labels = torch.randint(0, 5003, (512,), device="cuda")
    labels[::7] = IGNORE
    leaves = [t.requires_grad_() for t in (x, w, b) if t is not None]
    fast = linear_cross_entropy(x.to(torch.bfloat16), w, b, labels, rows=128, float8=True)
    slow = cross_entropy_reference(x, w, b, labels)
    torch.testing.assert_close(fast, slow, rtol=1e-2, atol=0)
    for got, wanted in zip(torch.autograd.grad(fast, leaves), torch.autograd.grad(slow, leaves), strict=True):
        assert float((got - wanted).norm() / wanted.norm()) < 0.12


@pytest.mark.parametrize("ignored", [1, 7], ids=["most", "few"])
def test_the_loss_of_capped_logits_is_that_of_what_the_model_says(ignored: int) -> None:
    model = tiny("gemma2")
    tokens = ids(model, 2, 9)
    labels = torch.where(torch.arange(8) < ignored, IGNORE, tokens[:, 1:])
    loss = next_token(model, Batch(tokens[:, :-1], labels))["next_token"].total
    logits = model(tokens[:, :-1])
    assert logits.abs().max() <= model.config.logit_softcap  # type: ignore[attr-defined]
    wanted = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
