"""The first screen: one sentence on its way through a model, with its numbers, equations and pages."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from heedful.classroom import figures as view
from heedful.classroom.figures.figure import Figure
from tests.classroom.browser.conftest import Visitor
from tests.classroom.browser.test_pages import themes
from tests.properties.tiny import ALL, tiny

BRIEF = "[data-stage=attention] .mp-brief"
KINDS = {
    "encoder": {"attention", "sum", "mlp"}, "decoder": {"attention", "sum", "mlp", "norm"},
    "encoder-decoder": {"memory", "attention"}, "rnn": {"memory", "attention", "recurrence"},
    "mamba": {"attention", "state"},
}  # fmt: skip


def drawn(visitor: Visitor, path: str = "/") -> Any:
    page = visitor.go(path)
    page.wait_for_selector("[data-stage=head]")
    return page


def unfold_all(page: Any) -> None:
    """Unfold the line of quiet stages first, then every stage."""
    for line in page.locator("[data-stage=rest] .mp-title").all():
        line.click()
    for title in page.locator(".mp-stage:not(.mp-is-rest) .mp-title").all():
        title.click()


def unfold(page: Any, kind: str) -> Any:
    stage = page.locator(f"[data-stage={kind}]").first
    stage.locator(".mp-title").click()
    return stage


def test_the_first_screen_is_the_picture_and_its_toggle_asks_nobody(visitor: Visitor) -> None:
    page = drawn(visitor)
    assert page.inner_text(BRIEF).startswith("“it” → “animal”")
    assert page.locator("[data-stage=head] .mp-word").first.inner_text() == "he"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="wide", exact=True).click()
    page.wait_for_function(f"() => document.querySelector('{BRIEF}').textContent.includes('“it” → “street”')")
    assert page.locator("[data-stage=head] .mp-word").first.inner_text() == "it"
    page.get_by_role("button", name="tired", exact=True).click()
    page.wait_for_function(f"() => document.querySelector('{BRIEF}').textContent.includes('“animal”')")
    assert asked == []
    assert not visitor.faults


LABELS = """() => {
  const shown = (e) => e.checkVisibility() && !e.closest(".fig-hidden, math, select, textarea");
  const words = document.createTreeWalker(document.querySelector(".picture"), NodeFilter.SHOW_TEXT);
  const labels = [];
  while (words.nextNode()) {
    const node = words.currentNode;
    if (!node.textContent.trim() || !shown(node.parentElement)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const size = parseFloat(getComputedStyle(node.parentElement).fontSize);
    for (const box of range.getClientRects()) labels.push({ text: node.textContent, box, size, node });
  }
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const above = (a, b) => a.bottom - 4 <= b.top;
  const apart = (a, b) => over(a, b) <= 0.5 || above(a, b) || above(b, a);
  const touched = (a, i) => labels.slice(i + 1).filter((b) => a.node !== b.node && !apart(a.box, b.box));
  const pairs = labels.flatMap((a, i) => touched(a, i).map((b) => `${a.text} | ${b.text}`));
  const beyond = labels.filter(({ box }) => box.right > innerWidth).map((l) => l.text);
  const small = labels.filter((l) => l.size < 12).map((l) => l.text);
  return { pairs, beyond, small, count: labels.length };
}"""
PLACES = """() => {
  const bottom = (selector) => document.querySelector(selector).getBoundingClientRect().bottom;
  return [bottom("[data-stage=head] ul"), bottom("main .button.primary")];
}"""


def test_the_first_look_has_the_prediction_and_the_tour(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 1280, "height": 800})
    page = drawn(visitor)
    assert max(page.evaluate(PLACES)) <= 800
    sentence = page.locator(".mp-sentence")
    assert sentence.locator("small").inner_text() == "Choose a word, and see what changes"
    words = sentence.locator("p").inner_text().split()
    assert " ".join(words) == "The animal didn't cross the street because it was too tired wide ."
    assert sentence.locator("p").bounding_box()["height"] < 40  # one line
    folded = page.locator("[data-stage=rest] .mp-title")
    assert folded.inner_text().startswith("Add and norm, MLP, Add and norm")
    assert page.locator("[data-stage=mlp]").count() == 0


@pytest.mark.parametrize("width", [1280, 1024, 820, 390])
@pytest.mark.parametrize("kind", ["masked", *KINDS])
def test_no_label_touches_another(visitor: Visitor, kind: str, width: int) -> None:
    visitor.page.set_viewport_size({"width": width, "height": 800})
    labels = drawn(visitor, f"/?m={kind}").evaluate(LABELS)
    assert labels["count"] > 20
    assert (labels["pairs"], labels["beyond"], labels["small"]) == ([], [], [])  # “streetbecause”


def test_a_stage_unfolds_to_its_equation_and_leads_to_its_page(visitor: Visitor) -> None:
    page = drawn(visitor)
    stage = unfold(page, "attention")
    assert stage.locator("math").count() >= 2
    assert "“it” → “animal”" in stage.locator(".mp-numbers").inner_text()
    link = stage.locator(".mp-link")
    query = dict(parse_qsl(urlsplit(link.get_attribute("href")).query))
    assert query == {
        "m": "masked", "g": "blocks.attn", "l": "3", "h": "1", "q": "10",
        "x": "The animal didn't cross the street because it was too tired.",
    }  # fmt: skip
    link.click()
    visitor.settled()
    assert page.inner_text("h1") == "Attention"
    chosen = page.locator("main select").evaluate_all("all => all.map((s) => s.value)")
    assert {"3", "1"} <= set(chosen)
    assert visitor.query() | query == visitor.query()


def test_the_link_follows_the_row_and_the_text_that_are_shown(visitor: Visitor) -> None:
    page = drawn(visitor)
    page.get_by_role("button", name="wide", exact=True).click()
    page.get_by_role("radio", name="street").first.click()
    stage = unfold(page, "sum")
    query = dict(parse_qsl(urlsplit(stage.locator(".mp-link").get_attribute("href")).query))
    assert (query["q"], query["topic"], query["h"]) == ("8", "attention", "1")
    assert query["x"].endswith("too wide.")


def test_the_address_keeps_the_text_and_the_row(visitor: Visitor) -> None:
    page = drawn(visitor)
    page.get_by_role("button", name="wide", exact=True).click()
    page.get_by_role("radio", name="street").first.click()
    assert page.inner_text(BRIEF).startswith("“street” →")
    said = page.inner_text(BRIEF)
    page.reload()
    page.wait_for_selector("[data-stage=head]")
    assert page.inner_text(BRIEF) == said
    page.get_by_role("button", name="Self-attention, head 1: the head after").click()
    page.wait_for_selector(".fig-title:has-text('head 2, the row of “street”')")
    page.locator("#model").select_option(
        "prose"
    )  # what belongs to the picture of one model is not taken to another
    page.wait_for_selector(".fig-title:has-text('in prose')")
    assert not visitor.faults


def test_the_html_of_the_page_is_the_file_that_python_saves(visitor: Visitor, tmp_path: Path) -> None:
    page = drawn(visitor)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as HTML").click()
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "heedful-figure" in text


def test_keys_move_the_row_and_unfold(visitor: Visitor) -> None:
    page = drawn(visitor)
    page.locator("[role=radio][aria-checked=true]").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "because"
    assert page.inner_text(BRIEF).startswith("“because”")
    page.locator("[data-stage=rest] .mp-title").focus()
    page.keyboard.press("Enter")
    page.locator("[data-stage=mlp] .mp-title").focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-stage=mlp] math").count() == 1
    assert page.locator("[data-stage=mlp] .mp-title").get_attribute("aria-expanded") == "true"


def test_pointing_at_a_part_shows_its_numbers(visitor: Visitor) -> None:
    page = drawn(visitor)
    page.locator(".mp-key", has_text="animal").first.hover()
    said = page.inner_text(".mp-tip")
    assert said.startswith("“it” → “animal”: score ")
    assert "with “wide”" in said
    page.locator("[data-stage=embedding] .mp-patch").first.hover()
    assert "384 numbers, length" in page.inner_text(".mp-tip")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_its_picture(visitor: Visitor, axe: str, kind: str) -> None:
    page = drawn(visitor, f"/?m={kind}")
    unfold_all(page)
    told = set(page.locator("[data-stage]").evaluate_all("all => all.map((s) => s.dataset.stage)"))
    assert told >= KINDS[kind] | {"tokens", "embedding", "head"}
    formulas = page.locator(".mp-equations .fig-formula")
    assert formulas.count() == page.locator(".mp-equations math").count() > 0
    assert themes(page, axe, "main") == []
    assert not visitor.faults


@pytest.mark.parametrize(
    "kind", [k if k == "encoder-decoder" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_the_page_of_every_stage_opens_as_the_stage_says(visitor: Visitor, kind: str) -> None:
    page = drawn(visitor, f"/?m={kind}")
    unfold_all(page)
    links = page.locator(".mp-link").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    assert len(links) == page.locator(".mp-stage:not(.mp-is-rest) .mp-title").count()
    wrong = {}
    for link in dict.fromkeys(links):
        page = visitor.go(link)
        alerts = page.locator("[role=alert]").all_inner_texts()
        if (
            alerts
            or visitor.faults
            or page.inner_text("h1") == "No such page"
            or visitor.query()["m"] != kind
        ):
            wrong[link] = [*alerts, *visitor.faults]
    assert wrong == {}


def test_another_layer_and_another_head_are_a_click_away(visitor: Visitor) -> None:
    page = drawn(visitor)
    page.get_by_role("button", name="Self-attention, head 1: the head after").click()
    page.wait_for_selector(".fig-title:has-text('layer 3, head 2')")
    assert visitor.query()["h"] == "2"
    page.get_by_role("button", name="Unfold Layer 5").click()
    page.wait_for_selector(".fig-title:has-text('layer 5')")
    page.goto(visitor.url)
    page.wait_for_selector(".fig-title:has-text('layer 3, head 1')")


def test_ones_own_sentence_is_read_by_the_model_that_is_chosen(visitor: Visitor) -> None:
    page = drawn(visitor, "/?m=prose")
    page.get_by_label("Your own sentence").fill("Once upon a time there was")
    page.get_by_role("button", name="Show it").click()
    page.wait_for_selector("[data-stage=tokens]:has-text('upon')")
    assert visitor.query()["x"] == "Once upon a time there was"
    assert "next word after “was”" in page.inner_text("[data-stage=head]")


def test_a_telephone_shows_all_of_it(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = drawn(visitor)
    unfold_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".mp-key", has_text="animal").first.is_visible()
    assert page.evaluate(THICKEST) == ["it", "animal"]  # arcs stay arcs


THICKEST = """() => {
  const arcs = [...document.querySelectorAll(".mp-arcs path")];
  const width = (arc) => parseFloat(arc.style.strokeWidth);
  const arc = arcs.reduce((a, b) => (width(b) > width(a) ? b : a));
  const at = (length) => DOMPoint.fromPoint(arc.getPointAtLength(length)).matrixTransform(arc.getScreenCTM());
  const nearest = (selector, { y }) => [...document.querySelectorAll(selector)].find((e) => {
    const box = e.getBoundingClientRect();
    return box.top <= y && y <= box.bottom;
  }).textContent;
  return [nearest(".mp-query", at(0)), nearest(".mp-key .mp-token", at(arc.getTotalLength()))];
}"""


def test_nothing_moves_for_those_who_want_no_motion(visitor: Visitor) -> None:
    page = drawn(visitor)  # the visitor asks for reduced motion
    found = page.locator(".mp-arcs path").first.evaluate("path => getComputedStyle(path).transitionDuration")
    assert found == "0s"


def test_a_saved_picture_opens_from_disk_and_asks_nobody(browser: Any, tmp_path: Path) -> None:
    model, ids = tiny("gpt2"), [5, 9, 2, 7, 11]
    path = view.model(model, ids, comparison=[*ids[:-1], 3]).save(tmp_path / "model.html")
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("[data-stage=head]")
    before = page.inner_text(BRIEF)
    page.get_by_role("button", name="second").click()
    page.wait_for_function(f"() => document.querySelector('{BRIEF}').textContent !== {before!r}")
    page.locator("[data-stage=attention] .mp-title").click()
    assert page.locator("math").count() >= 2
    assert page.locator(".mp-link").count() == 0  # there is no studio to lead to
    assert asked == [path.as_uri()]
    page.close()


def test_the_equations_of_every_family_are_typeset(browser: Any, tmp_path: Path) -> None:
    lines: set[str] = set()
    for family in ALL:
        for stage in view.model(tiny(family), [5, 9, 2]).data["pictures"][0]["stages"]:
            lines |= {*stage["equations"], *(line for part in stage["parts"] for line in part["equations"])}
    figure = view.model(tiny("gpt2"), [5, 9, 2])
    data = copy.deepcopy(dict(figure.data))
    data["pictures"][0]["stages"][-1]["equations"] = sorted(lines)
    path = Figure("model", "All", {}, data).save(tmp_path / "all.html")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.locator("[data-stage=head] .mp-title").click()
    plain = page.locator("[data-stage=head] .mp-equations .fig-formula:not(:has(math))").all_inner_texts()
    assert page.locator("[data-stage=head] math").count() == len(lines) > 40
    assert plain == []
    page.close()
