"""The page of arithmetic: typeset formulas, numbers that unfold, a layer for a block, gradients."""

from __future__ import annotations

import pytest

from tests.classroom.browser.conftest import Visitor

TEXT = "the cat sat"


def test_a_head_begins_at_x_and_its_formulas_are_typeset(visitor: Visitor) -> None:
    page = visitor.go(f"/steps?m=decoder&x={TEXT}&topic=attention&all=1")
    assert page.locator("main math").count() > 15
    labels = page.locator(".fig-label").all_inner_texts()
    assert {"W_Q", "W_K", "W_V"} <= set(labels)
    assert any(label.startswith("q of ") for label in labels)
    height = page.locator(".fig-lines math mfrac").first.evaluate("e => e.getBoundingClientRect().height")
    assert height > 20, "numerator above denominator"
    assert not visitor.faults


def test_numbers_are_no_wall(visitor: Visitor) -> None:
    page = visitor.go(f"/steps?m=decoder&x={TEXT}&topic=attention&all=1")
    assert page.locator(".fig-operands:visible").count() == 0
    line = page.locator("summary", has_text="output of").first
    line.click()
    assert page.locator(".fig-operands:visible").count() == 1
    for number in page.locator(".fig-result .fig-number").all()[:40]:
        shown, whole = number.inner_text().replace("−", "-"), number.get_attribute("title")
        digits = shown.lstrip("-0.").partition("e")[0].replace(".", "")
        assert len(digits) <= 4 or float(shown) == float(whole)
        assert float(shown) == pytest.approx(float(whole), rel=5.1e-4, abs=1e-12)
    page.get_by_label("all numbers").check()
    assert page.locator(".fig-operands:visible").count() > 10


def test_a_whole_block_has_a_choice_of_layer(visitor: Visitor) -> None:
    page = visitor.go(f"/steps?m=large&x={TEXT}&topic=block")
    choice = page.get_by_label("Layer", exact=True)
    assert choice.locator("option").count() == 12
    assert "blocks.0, pre-norm" in visitor.text()
    choice.select_option("blocks.7")
    visitor.settled()
    assert "blocks.7, pre-norm" in visitor.text()
    assert visitor.query()["l"] == "7"


def test_an_encoder_decoder_has_blocks_of_both_sides(visitor: Visitor) -> None:
    page = visitor.go(f"/steps?m=encoder-decoder&x={TEXT}&topic=block")
    options = page.get_by_label("Layer", exact=True).locator("option").all_inner_texts()
    assert {name.partition(".")[0] for name in options} == {"encoder", "decoder"}
    for name in (options[0], options[-1]):
        page.get_by_label("Layer", exact=True).select_option(name)
        visitor.settled()
        assert f"{name}, " in visitor.text()
    assert not visitor.faults


@pytest.mark.parametrize(
    "query", ["ex=lstm-gradient", "ex=attention-gradient", f"x={TEXT}&topic=attention-gradient",
              f"x={TEXT}&topic=cross-entropy-gradient"],
)  # fmt: skip
def test_gradients_are_on_the_page_with_their_difference_from_autograd(visitor: Visitor, query: str) -> None:
    page = visitor.go(f"/steps?m=decoder&{query}&all=1")
    assert "from the gradients of autograd" in page.locator("[data-checked=true]").inner_text()
    assert not visitor.faults


def test_units_are_said(visitor: Visitor) -> None:
    page = visitor.go("/steps?m=decoder&ex=cross-entropy-gradient&all=1")
    assert {"nats", "bits"} <= {text.strip() for text in page.locator(".fig-unit").all_inner_texts()}
    assert "1 nat = 1.443 bits" in visitor.text()


def test_the_page_fits_a_phone(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    for query in ("ex=two-heads", "ex=lstm-gradient", f"x={TEXT}&topic=attention"):
        page = visitor.go(f"/steps?m=decoder&{query}&all=1")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
