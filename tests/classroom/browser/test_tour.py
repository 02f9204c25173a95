"""The tour: one picture from a sentence down to one multiplication and back, by keys, by touch, by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.classroom.browser.conftest import PATIENCE, Visitor
from tests.classroom.browser.test_pages import themes

ATTENTION = ["sentence", "tokens", "vectors", "qkv", "multiplication", "scores", "softmax", "sum", "heads",
             "mlp", "layers", "prediction"]  # fmt: skip
STEPS = {
    "encoder-decoder": [*ATTENTION[:3], "memory", "written", *ATTENTION[3:]],
    "encoder": ATTENTION,
    "decoder": ATTENTION,
    "lstm": [*ATTENTION[:3], "state", "gates", "cellProduct", "output", "layers", "prediction"],
}

# What the eye sees: letters that are too small, outside of the picture, or on top of other letters.
FAULTS = """() => {
  const seen = [...document.querySelectorAll(".actor.is-text[data-seen=true]")];
  const texts = seen.filter((e) => e.textContent.trim());
  const room = document.querySelector(".tour-stage").getBoundingClientRect();
  const ink = (e) => {
    const range = document.createRange();
    range.selectNodeContents(e);
    return range.getBoundingClientRect();
  };
  const boxes = texts.map((e) => [e.textContent, ink(e)]);
  const within = (a, b, from, to, slack) => a[from] < b[to] - slack && b[from] < a[to] - slack;
  const touch = (a, b) => within(a, b, "left", "right", 1) && within(a, b, "top", "bottom", 4);
  const joined = boxes.flatMap(([a, one], i) =>
    boxes.slice(i + 1).filter(([, two]) => touch(one, two)).map(([b]) => a + " / " + b));
  const out = ([, b]) => b.left < room.left - 1 || b.right > room.right + 1 || b.bottom > room.bottom + 4;
  const small = texts.filter((e) => parseFloat(getComputedStyle(e).fontSize) < 12);
  return [...joined, ...boxes.filter(out).map(([a]) => a), ...small.map((e) => e.textContent)];
}"""


def begin(visitor: Visitor, kind: str) -> Any:
    page = visitor.go(f"/tour?m={kind}")
    page.wait_for_selector(".tour-stage .actor")
    return page


def arrive(page: Any, step: str) -> None:
    page.wait_for_selector(f".tour[data-step={step}]")


@pytest.mark.parametrize("kind", STEPS)
def test_the_arrow_keys_lead_through_the_tour_and_no_label_touches_another(
    visitor: Visitor, kind: str
) -> None:
    page = begin(visitor, kind)
    faults = {}
    for step in STEPS[kind]:
        arrive(page, step)
        if wrong := page.evaluate(FAULTS):
            faults[step] = wrong
        page.keyboard.press("ArrowRight")
    assert faults == {}
    page.keyboard.press("Home")
    arrive(page, "sentence")
    page.keyboard.press("Escape")
    page.wait_for_selector(".picture")
    assert not visitor.faults


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_a_finger_leads_through_the_tour(browser: Any, server: Any, kind: str) -> None:
    context = browser.new_context(
        viewport={"width": 375, "height": 800}, has_touch=True, reduced_motion="reduce"
    )
    visitor = Visitor(context.new_page(), server.url)
    page = begin(visitor, kind)
    client = context.new_cdp_session(page)

    def swipe(start: int, end: int) -> None:
        for kind, points in (
            ("Start", [{"x": start, "y": 400}]),
            ("Move", [{"x": end, "y": 405}]),
            ("End", []),
        ):
            client.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})

    faults = {}
    for step in STEPS[kind]:
        arrive(page, step)
        if wrong := page.evaluate(FAULTS):
            faults[step] = wrong
        swipe(300, 80)
    swipe(80, 300)
    arrive(page, STEPS[kind][-2])
    assert faults == {}
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.locator(".tour").get_by_role("button", name="Next").bounding_box()["y"] < 800
    assert not visitor.faults
    context.close()


@pytest.mark.slow
def test_the_tour_plays_and_stops(visitor: Visitor) -> None:
    page = begin(visitor, "decoder")
    page.get_by_label("Pace").select_option("fast")
    page.locator("main").press(" ")
    arrive(page, "tokens")
    page.keyboard.press(" ")
    page.wait_for_selector(".tour button:has-text('Play')")
    arrive(page, "tokens")


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_every_step_passes_axe_and_its_link_opens_a_page(visitor: Visitor, axe: str, kind: str) -> None:
    page = begin(visitor, kind)
    wrong, links = {}, []
    for step in STEPS[kind]:
        arrive(page, step)
        if found := themes(page, axe, "main"):
            wrong[step] = found
        links += page.locator(".tour-more a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
        page.locator("main").press("ArrowRight")
    assert wrong == {}
    assert len(links) >= len(STEPS[kind]) - 1
    for link in dict.fromkeys(links):
        page = visitor.go(link)
        assert page.locator("[role=alert]").all_inner_texts() == []
    assert not visitor.faults


@pytest.mark.slow
def test_the_tour_takes_ones_own_sentence(visitor: Visitor) -> None:
    page = begin(visitor, "encoder")
    page.get_by_label("Your own sentence").fill("a dog sat")
    page.get_by_role("button", name="Show it").click()
    page.wait_for_selector(".tour-stage:has-text('a dog sat')", timeout=PATIENCE)
    assert visitor.query()["x"] == "a dog sat"


@pytest.mark.slow
def test_the_numbers_of_the_tour_are_those_of_the_arithmetic(visitor: Visitor) -> None:
    page = visitor.go("/tour?s=5&m=masked")
    page.wait_for_selector(".tour[data-step=multiplication]")
    said = page.inner_text(".tour-say p")
    score = said.split("score ")[1].split(" of")[0]
    page.keyboard.press("ArrowRight")
    arrive(page, "scores")
    shown = page.locator(".actor[data-seen=true].is-text").all_inner_texts()
    assert f"{float(score):.2f}" in shown


@pytest.mark.slow
def test_the_weights_of_a_state_space_are_no_shares(visitor: Visitor) -> None:
    """They do not sum to 1, so that a percentage would say something else."""
    page = begin(visitor, "mamba")
    for step in ("tokens", "vectors", "softmax"):
        page.keyboard.press("ArrowRight")
        arrive(page, step)
    text = page.inner_text(".tour-say p")
    assert "largest weight" in text
    assert "%" not in text


@pytest.mark.slow
def test_an_image_is_read_in_patches_and_not_in_tokens(visitor: Visitor) -> None:
    page = begin(visitor, "digits")
    page.keyboard.press("ArrowRight")
    arrive(page, "tokens")
    assert "25 vectors: one for each patch" in page.inner_text(".tour-say p")


@pytest.mark.slow
def test_motion_is_shown_only_to_those_who_want_it(browser: Any, server: Any) -> None:
    durations = {}
    for motion in ("reduce", "no-preference"):
        context = browser.new_context(reduced_motion=motion)
        page = begin(Visitor(context.new_page(), server.url), "decoder")
        durations[motion] = page.locator(".actor").first.evaluate(
            "e => getComputedStyle(e).transitionDuration"
        )
        context.close()
    assert durations["reduce"] == "0s"
    assert "0.7s" in durations["no-preference"]
