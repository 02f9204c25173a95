"""Every question is answered within three clicks from Home: a curated view opens its page, set as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.classroom.studio.curated_views import curated_views
from tests.classroom.browser.conftest import Visitor

VIEWS = {view.id: view for view in curated_views()}


def opened(visitor: Visitor, id: str) -> Any:
    """Home, and one click on a curated view."""
    page = visitor.go("/")
    found = page.locator("main a", has_text=VIEWS[id].title)
    if not found.count():
        pytest.skip(f"one of {', '.join(VIEWS[id].models)} is not here")
    found.first.click()
    page.wait_for_selector("[data-guide][data-there=true]")
    visitor.settled()
    return page


def wait_in_view(page: Any, selector: str) -> None:
    """Wait until the top of an element stands below the card and within the window."""
    script = """selector => {
      const top = document.querySelector(selector).getBoundingClientRect().top;
      const card = document.querySelector('[data-guide]');
      const above = getComputedStyle(card).position === 'sticky' ? card.getBoundingClientRect().bottom : 0;
      return top >= above - 1 && top < innerHeight * 0.9;
    }"""
    page.wait_for_function(script, arg=selector, timeout=20_000)


@pytest.mark.parametrize("id", [view.id for view in curated_views() if view.question])
def test_a_question_opens_its_page_set_and_points_at_the_answer(visitor: Visitor, id: str) -> None:
    page = opened(visitor, id)
    view, query = VIEWS[id], visitor.query()
    assert page.url.startswith(f"{visitor.url}/{view.page}?")
    expected = view.to_dict()["with"]
    assert {key: query.get(key) for key in expected} == expected
    card = page.locator("[data-guide]")
    assert view.caption in card.inner_text()
    assert view.notice in card.inner_text()
    wait_in_view(page, ".pointed")
    card.get_by_role("button", name="Close").click()
    page.wait_for_selector("[data-guide]", state="detached")
    page.wait_for_selector(".pointed", state="detached")
    assert not visitor.faults


def panel(page: Any, title: str) -> str:
    return str(page.locator("section", has=page.get_by_role("heading", name=title)).first.inner_text())


def test_it_attends_to_the_animal_and_then_to_the_street(visitor: Visitor) -> None:
    page = opened(visitor, "tired")
    assert "it → animal" in panel(page, "This pair").replace("\n", " ")
    assert page.locator(".fig", has_text="Layer 3, head 1").count() == 1
    page = opened(visitor, "wide")
    assert "it → street" in panel(page, "This pair").replace("\n", " ")
    assert not visitor.faults


def test_the_division_is_shown_with_and_without(visitor: Visitor) -> None:
    page = opened(visitor, "scale")
    assert page.locator(".fig [role=grid]").count() == 2
    row = page.locator("[data-scaled] tr", has_text="largest weight").locator("td").all_inner_texts()
    assert float(row[0]) < 0.6 < 0.98 < float(row[1])
    assert not visitor.faults


def test_masked_cells_are_hidden(visitor: Visitor) -> None:
    page = opened(visitor, "masking")
    page.get_by_role("button", name="View as table").first.click()
    cells = page.locator(".fig-table").first.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[0] in ("1", "1.000", "1.00")
    assert set(cells[1:]) == {"–"}
    assert not visitor.faults


def test_without_the_head_the_prediction_is_another(visitor: Visitor) -> None:
    page = opened(visitor, "without-head")
    table = page.locator("section", has=page.get_by_role("heading", name="Switch heads off")).locator("table")
    door = table.locator("tr", has_text="door").locator("td").all_inner_texts()
    before, after = (float(text.replace("%", "")) for text in door)
    assert before > 2 * after
    page.get_by_role("button", name="Switch head 0 on").click()
    visitor.settled()
    assert "You have changed this view" in page.locator("[data-guide]").inner_text()
    page.locator("[data-guide]").get_by_role("link", name="Back to it").click()
    visitor.settled()
    assert visitor.query()["off"] == "blocks.4.attn:0"
    assert not visitor.faults


def test_my_own_sentence_is_aligned(visitor: Visitor) -> None:
    page = opened(visitor, "alignment")
    page.locator("[data-input]").fill("A man sees a dog.")
    page.get_by_role("button", name="Run").click()
    visitor.settled()
    page.get_by_role("button", name="View as table").first.click()
    columns = page.locator(".fig-table").first.locator("thead th").all_inner_texts()
    assert any("dog" in name for name in columns)
    assert (
        "“Mann” is written" not in page.locator("[data-guide]").inner_text()
    )  # it spoke of another sentence
    assert not visitor.faults


def test_cross_attention_is_stepped_through_while_translating(visitor: Visitor) -> None:
    page = opened(visitor, "cross-attention")
    assert "Der → The" in panel(page, "This pair").replace("\n", " ")
    page.get_by_role("button", name="Next").first.click()
    page.get_by_role("button", name="Next").first.click()
    visitor.settled()
    assert "Mann → ·man" in panel(page, "This pair").replace("\n", " ")
    assert not visitor.faults


def test_the_positional_encoding_is_drawn_and_order_matters(visitor: Visitor) -> None:
    page = opened(visitor, "positions")
    assert page.locator(".fig", has_text="Table of positions").count() == 1
    assert "words of the target" in visitor.text()
    assert not visitor.faults


def test_the_network_reads_hello_letter_by_letter(visitor: Visitor) -> None:
    page = opened(visitor, "hello")
    assert all(page.locator(f"main :text('“{letter}”')").count() for letter in "hel")
    assert not visitor.faults


def test_the_analogy_is_a_picture_with_arrows(visitor: Visitor, tmp_path: Path) -> None:
    page = opened(visitor, "analogy")
    figure = page.locator(".fig", has_text="man → woman and king → queen")
    with page.expect_download() as waiting:
        figure.get_by_role("button", name="Save as SVG").click()
    waiting.value.save_as(tmp_path / "x.svg")
    picture = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert all(f">{word}<" in picture for word in ("man", "woman", "king", "queen", "king−man+woman"))
    assert "queen" in page.locator("[data-near]").first.locator("th").all_inner_texts()[:3]
    assert not visitor.faults


def test_temperature_and_top_k_leave_five_tokens(visitor: Visitor) -> None:
    page = opened(visitor, "sampling")
    assert "5 of 2,048 tokens" in visitor.text().replace(" ", " ")
    assert page.locator("[data-page-token]").count() == 1
    assert not visitor.faults


def test_beam_search_shows_its_tree(visitor: Visitor) -> None:
    page = opened(visitor, "beams")
    assert "Der alte Mann liest ein Buch." in visitor.text()
    assert page.locator(".fig", has_text="4 beams").count() == 1
    assert not visitor.faults


def test_the_search_finds_the_head_and_opens_it(visitor: Visitor) -> None:
    text = "The animal didn't cross the street because it was too tired"
    page = visitor.go(f"/attention?m=masked&x={text}")
    found = page.locator("[data-find]")
    found.locator("summary").click()
    found.get_by_label("A, the query").fill("it")
    found.get_by_label("B, the key").fill("animal")
    found.get_by_role("button", name="Search all heads").click()
    visitor.settled()
    first = found.locator("tbody tr").first
    assert first.inner_text().startswith("layer 3, head 1")
    first.get_by_role("link").click()
    visitor.settled()
    assert {key: visitor.query()[key] for key in "lhq"} == {"l": "3", "h": "1", "q": "10"}
    assert "it → animal" in panel(page, "This pair").replace("\n", " ")
    assert not visitor.faults


def test_a_word_that_is_not_there_is_named(visitor: Visitor) -> None:
    visitor.allowed = (422,)
    page = visitor.go("/attention?m=decoder&x=the cat sat on&fa=elephant&fb=cat")
    assert "elephant" in page.locator("[data-find] [role=alert]").inner_text()


@pytest.mark.parametrize("id", ["tired", "scale", "beams"])
def test_a_curated_view_is_free_of_faults_that_axe_finds(visitor: Visitor, axe: str, id: str) -> None:
    from tests.classroom.browser.test_pages import themes

    page = opened(visitor, id)
    assert themes(page, axe, "main") == []


def test_a_term_is_explained_a_click_away_and_in_the_glossary(visitor: Visitor) -> None:
    page = visitor.go("/attention?m=decoder&x=the cat sat on")
    page.locator(".lede").get_by_role("button", name="query", exact=True).click()
    shown = page.locator(".definition:popover-open")
    assert "its vector times a matrix" in shown.inner_text()
    assert shown.locator("math").count() == 1
    page.keyboard.press("Escape")
    page.get_by_role("button", name="What is “layer”?").first.click()
    shown = page.locator(".definition:popover-open")
    assert "One block of the stack" in shown.inner_text()
    shown.get_by_role("link", name="Glossary").click()
    visitor.settled()
    assert page.inner_text("h1") == "Glossary"
    assert "One block of the stack" in page.locator("[data-term=layer].pointed").inner_text()
    page.get_by_label("Search the glossary").fill("beam")
    visitor.settled()
    assert page.locator("[data-term]").count() < 5
    assert page.locator("[data-term=beam]").count() == 1
    assert not visitor.faults
