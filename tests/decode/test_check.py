"""heedful.check: the same text in every mode, for every generator; and it notices when it is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import heedful
from heedful.decode.stepper import EagerStepper
from tests.decode.toy import speller
from tests.properties.tiny import ENCODERS, GENERATORS, SEQ2SEQS, by_kinds, tiny
from tests.test_real_weights import smollm


# In bfloat16 and float16 properties/test_matrix.py checks every family.
@pytest.mark.parametrize("family", by_kinds(GENERATORS))
def test_alone_batched_cached_and_uncached_are_the_same(family: str) -> None:
    report = heedful.check(tiny(family), tokens=10)
    assert report.ok, str(report)
    modes = {c.mode for c in report.comparisons}
    further = set() if family in SEQ2SEQS else {"chunks"}
    assert modes == {"uncached", "batch, left", "batch, right"} | further


def test_texts_are_the_prompts_of_a_model_with_a_tokenizer() -> None:
    assert heedful.check(speller(), tokens=6, texts=["a", "bcd"]).ok


def test_a_stepper_that_writes_something_else_is_found() -> None:
    class Wrong(EagerStepper):
        def step(self, tokens: Tensor, watch: object = None) -> Tensor:
            return super().step(tokens).flip(-1)

    model = tiny("gpt2")
    assert heedful.check(model, fast=EagerStepper(model)).ok
    report = heedful.check(model, fast=Wrong(model))
    assert not report.ok
    assert [c.mode for c in report.comparisons if not c.same] == ["compiled"]
    assert "NOT ok" in str(report)


def test_in_bfloat16_the_agreement_is_stated_and_nine_tokens_in_ten_must_be_the_same() -> None:
    report = heedful.check(tiny("gpt2").to(torch.bfloat16), tokens=6)
    assert report.dtype == "bfloat16"
    assert report.ok == all(c.agreement >= 0.9 for c in report.comparisons)
    assert "of the tokens agree" in str(report)


def test_in_bfloat16_a_choice_between_logits_that_rounding_cannot_tell_apart_is_no_difference() -> None:
    """Between 2.9 and 2.92 there is nothing in 16 bits, and a product of more rows is rounded once more."""
    model = heedful.quantize(tiny("ministral").to(torch.bfloat16), "int4")
    report = heedful.check(model, tokens=6)
    assert [c.agreement for c in report.comparisons] == [1.0] * 4, str(report)


def test_in_bfloat16_a_stepper_that_writes_something_else_is_found_and_the_report_says_what_is_asked() -> (
    None
):
    class Wrong(EagerStepper):
        def step(self, tokens: Tensor, watch: object = None) -> Tensor:
            return super().step(tokens).roll(1, -1)

    model = tiny("ministral").to(torch.bfloat16)
    report = heedful.check(model, tokens=6, fast=Wrong(model))
    assert [c.mode for c in report.comparisons if c.agreement < 0.9] == ["compiled"]
    assert str(report).endswith("NOT ok: nine tokens in ten must agree")


@pytest.mark.parametrize("family", ENCODERS[:2])
def test_the_vectors_of_an_encoder_are_compared_alone_and_in_a_batch(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family)
    report = heedful.check(model)
    assert report.ok, str(report)
    assert ({c.mode for c in report.comparisons}, report.tokens) == ({"batch, left", "batch, right"}, 0)
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda tokens, valid=None: encode(tokens))  # padding is read as text
    assert not heedful.check(model).ok


@pytest.mark.slow
def test_a_published_checkpoint_writes_the_same_in_every_mode() -> None:
    report = heedful.check(smollm())
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_a_quantised_model_is_checked_as_such_whatever_its_first_tensor_is(family: str, kind: str) -> None:
    model = heedful.quantize(tiny(family), kind)
    report = heedful.check(model, tokens=6, fast=heedful.fast(model))
    assert report.dtype == kind
    assert report.ok, str(report)
