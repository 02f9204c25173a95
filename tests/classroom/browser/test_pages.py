"""Each page on each kind of model: it renders and fits, keys work, nothing leaves or fails, axe agrees."""

from __future__ import annotations

from typing import Any

import pytest

from heedful.classroom.studio.studio_app import PAGES
from tests.classroom.browser.conftest import SCREEN, Visitor

KINDS = ["encoder", "decoder", "encoder-decoder", "rnn", "vectors"]
TITLES = {
    "": "One sentence on its way through a model", "tour": "Tour", "glossary": "Glossary", "play": "Play",
    "tokens": "Tokens", "attention": "Attention", "steps": "Arithmetic", "predict": "Prediction",
    "layers": "Layers", "states": "States", "positions": "Positions", "space": "Embeddings",
    "figures": "Figures", "train": "Training", "compare": "Compare", "reports": "Reports",
    "exercises": "Exercises",
}  # fmt: skip
assert {f"/{name}" for name in TITLES} == set(PAGES), "every page of the studio is opened here"
SAME = ("", "tour", "glossary", "exercises", "train", "compare", "reports")  # pages that show every model
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def broken(page: Any, part: str, rules: dict[str, Any]) -> list[str]:
    """What axe finds there, one line each."""
    run = "([part, rules]) => axe.run(part, {resultTypes: ['violations'], ...rules})"
    found = page.evaluate(run, [part, rules])
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found["violations"]]


def themes(page: Any, axe: str, part: str) -> list[str]:
    """Every rule in both themes."""
    page.evaluate(axe)
    rules = {"runOnly": {"type": "tag", "values": TAGS}}
    light = broken(page, part, rules)
    page.click("[data-theme-toggle]")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    dark = broken(page, part, rules)
    page.click("[data-theme-toggle]")
    return [f"light {x}" for x in light] + [f"dark {x}" for x in dark]


def keys(page: Any) -> list[str]:
    """? opens the help and Escape closes it; / leads to the input where there is one."""
    said = []
    page.locator("main").press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.locator("main").focus()
    page.keyboard.press("/")
    if page.locator("[data-input]").count() and not page.evaluate(
        "document.activeElement.matches('[data-input]')"
    ):
        said.append("/ does not lead to the input")
    return said


def too_wide(page: Any) -> int:
    """The pixels by which a page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize(
    "kind",
    [k if k == "encoder-decoder" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def test_each_page_shows_this_kind_of_model_without_a_fault(visitor: Visitor, axe: str, kind: str) -> None:
    wrong: dict[str, list[str]] = {}
    for name, title in TITLES.items():
        page = visitor.go(f"/{name}?m={kind}")
        found = [*visitor.faults, *keys(page)]
        if kind == "decoder":  # what is the same for every model is looked at once
            found += themes(page, axe, "html")
        elif name not in SAME:
            found += themes(page, axe, "main")
        visitor.faults.clear()
        if page.inner_text("h1") != title:
            found.append(f"the title is {page.inner_text('h1')!r}")
        if len(visitor.text()) < 60:
            found.append("the page is empty")
        if page.locator("[role=alert]").count():
            found.append(f"it says: {page.inner_text('[role=alert]')}")
        widths = {1280: too_wide(page)}
        page.set_viewport_size({"width": 400, "height": 800})  # a telephone
        widths[400] = too_wide(visitor.settled())
        page.set_viewport_size(SCREEN)
        found += [f"it is {wide} pixels too wide at {at}" for at, wide in widths.items() if wide > 0]
        if found:
            wrong[name or "home"] = found
    assert not wrong


STATES = [
    "attention?m=decoder&off=blocks.0.attn:0&abl=mean&ref=a dog", "attention?m=encoder&view=lines",
    "attention?m=encoder&view=text",
    "attention?m=decoder&view=grid&fx=1", "play?m=tagger&x=the cat&go=1", "space?m=vectors&tab=analogy",
    "steps?m=rnn&all=1", "predict?m=tagger", "layers?m=tagger", "tour?m=encoder&s=5", "tour?m=decoder&s=9",
    "play?m=encoder-decoder&x=the cat&beams=2&max=4&go=1",
    "attention?m=encoder&x=the cat&y=a dog&ab=ba&words=1",
]  # fmt: skip


@pytest.mark.slow
def test_what_appears_after_an_action_passes_axe_too(visitor: Visitor, axe: str) -> None:
    wrong = {}
    for path in STATES:
        page = visitor.go(f"/{path}")
        found = [*visitor.faults, *themes(page, axe, "main")]
        visitor.faults.clear()
        if found:
            wrong[path] = found
    assert not wrong


def test_panels_come_from_what_a_model_can_do(visitor: Visitor) -> None:
    page = visitor.go("/?m=vectors")
    pages = page.locator("nav a").all_inner_texts()
    assert "Embeddings" in pages
    assert not {"Attention", "Layers", "States", "Prediction"} & set(pages)
    page = visitor.go("/attention?m=vectors")  # the address of a page it has not is answered in words
    assert "has no attention" in visitor.text()
    page = visitor.go("/?m=decoder")
    assert {"Attention", "Prediction"} <= set(page.locator("nav a").all_inner_texts())


def test_an_address_that_leads_nowhere_says_so(visitor: Visitor) -> None:
    visitor.allowed = (404,)
    page = visitor.go("/attention?m=no-such-model")
    assert "no-such-model" in page.inner_text("[role=alert]")
    visitor.go("/no-such-page?m=decoder")
    assert page.inner_text("h1") == "No such page"
    assert not visitor.faults


OPENS = {
    "attention?m=masked": "[data-open=head]", "layers?m=masked": "h2:has-text('at [MASK]')",
    "space?m=masked": "[data-groups]", "play?m=masked": "[data-part=answer]",
    "states?m=prose-lstm": ".fig-title:has-text('Mean of each gate')",
    "exercises?sort=numbers": "[data-questions] li", "positions?m=masked": ".fig-title:has-text('Table')",
    "predict?m=masked": ".chip[aria-pressed=true]:has-text('[MASK]')", "reports": ".fig",
    "predict?m=masked&T=1": ".fig-title:has-text('From logits to the masked word')",
    "predict?m=prose": ".fig-title:has-text('From logits to the next token')",
    "predict?m=sentiment": ".lede:has-text('nothing is sampled')",
    "play?m=sentiment": "[data-measured]:has-text('SST-2 dev, accuracy: 0.8865')",
    "exercises": "button:has-text('Begin with all 15')",
    "steps?m=masked": ".chip[aria-pressed=true]:has-text('sat')",
}  # fmt: skip


@pytest.mark.slow
def test_pages_open_on_something_worth_seeing(visitor: Visitor) -> None:
    absent = []
    for path, selector in OPENS.items():
        page = visitor.go(f"/{path}")
        if "data-open" in selector:
            shown = (visitor.query()["l"], visitor.query()["h"]) != ("0", "0")
        else:
            shown = page.locator(selector).count() > 0
        absent += [] if shown else [path]
    assert absent == []
    assert not visitor.faults
