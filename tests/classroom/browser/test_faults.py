"""What goes wrong is said on the page; nothing breaks, nothing is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.classroom.browser.conftest import Server, Visitor

HOSTILE = (
    '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\'"`${window.hit=1}{{1+1}} '
    "\u0000\u0007\u001b[31m\u202eabc\u2066 </textarea></script> שלום سلام \U0001f600"
)


@pytest.mark.parametrize("name", ["tokens", "attention", "predict", "steps", "layers", "play", "compare"])
def test_a_hostile_text_is_text(visitor: Visitor, name: str) -> None:
    visitor.allowed = (422,)
    page = visitor.go(f"/{name}?m=decoder&x={quote(HOSTILE)}")
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script").count() == 0
    assert page.inner_text("h1")
    assert not visitor.faults


def test_a_saved_figure_of_a_hostile_text_runs_nothing(
    visitor: Visitor, browser: Any, tmp_path: Path
) -> None:
    page = visitor.go(f"/layers?m=decoder&x={quote(HOSTILE)}")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as HTML").first.click()
    file = tmp_path / "figure.html"
    waiting.value.save_as(file)
    context = browser.new_context(offline=True)
    alone = context.new_page()
    alone.goto(file.as_uri())
    assert alone.evaluate("window.hit") is None
    assert alone.locator("img, script[src]").count() == 0
    context.close()


def test_a_megabyte_of_text_is_cut_and_the_page_says_so(visitor: Visitor) -> None:
    page = visitor.go("/attention?m=decoder")
    page.locator("[data-input]").evaluate(
        "(box, text) => { box.value = text; box.dispatchEvent(new Event('input', {bubbles: true})); }",
        "the cat sat on the mat . " * 40_000,
    )
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".note.warn")
    assert "cut" in page.inner_text(".note.warn")
    visitor.settled()
    assert page.locator(".fig canvas").count() >= 1
    assert len(page.url) < 500
    assert not visitor.faults


def test_an_input_longer_than_the_context_is_said(visitor: Visitor) -> None:
    page = visitor.go("/predict?m=encoder&x=" + quote("the cat sat on the mat . " * 10))
    assert "cut" in page.inner_text(".note.warn")


def test_an_empty_text_breaks_nothing(visitor: Visitor) -> None:
    visitor.allowed = (400, 422)
    for name in ["tokens", "attention", "predict", "play"]:
        page = visitor.go(f"/{name}?m=decoder&x=%20")
        assert page.inner_text("h1")
    assert not visitor.faults


def test_numbers_in_the_address_that_no_model_has_are_kept_in_bounds(visitor: Visitor) -> None:
    visitor.allowed = (400, 422)
    page = visitor.go("/attention?m=decoder&x=the cat&l=99&h=-3&q=1000&view=nonsense&scale=log&off=junk")
    assert page.locator(".fig canvas").count() >= 1
    visitor.go("/predict?m=decoder&x=the cat&pos=77&T=abc&topk=-1&seed=1e99&minp=7")
    visitor.go("/steps?m=decoder&x=the cat&step=500&topic=nothing&q=-4")
    assert page.inner_text("h1") == "Arithmetic"
    assert not [f for f in visitor.faults if "page error" in f]


def test_the_server_may_be_restarted_under_an_open_page(browser: Any, models: Path, runs: Path) -> None:
    server = Server(models, runs).start()
    context = browser.new_context()
    visitor = Visitor(context.new_page(), server.url, allowed=(410, 409))
    page = visitor.go("/attention?m=decoder&x=the cat sat")
    server.stop()
    page.locator("[data-input]").fill("the dog sat")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".banner")
    assert "does not answer" in page.inner_text(".banner")
    server.start()
    page.wait_for_selector(".banner", state="detached")
    visitor.settled()
    page.wait_for_selector(".fig canvas")
    page.get_by_label("Layer", exact=True).select_option("1")
    visitor.settled()
    assert page.locator(".main [role=alert]").count() == 0
    assert not [f for f in visitor.faults if "page error" in f]
    context.close()
    server.stop()


def test_a_trace_that_is_no_longer_held_is_computed_again(visitor: Visitor, server: Server) -> None:
    visitor.allowed = (410,)
    page = visitor.go("/attention?m=decoder&x=the cat sat on the mat")
    traces = server.app.state.studio.traces
    held, traces.limit = traces.limit, 0  # the next trace, of another tab, drives this one out
    body = json.dumps({"model": "decoder", "text": "a dog"}).encode()
    request = Request(f"{server.url}/api/trace", body, {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        assert answer.status == 200
    page.get_by_label("Layer", exact=True).select_option("1")
    visitor.settled()
    assert page.locator(".fig canvas").count() >= 1
    traces.limit = held
    assert page.locator("[role=alert]").count() == 0
    assert not visitor.faults


def test_two_browsers_at_once_each_see_their_own(browser: Any, server: Server) -> None:
    contexts = [browser.new_context() for _ in range(2)]
    visitors = [Visitor(context.new_page(), server.url) for context in contexts]
    texts = ["the cat sat", "a dog and a fox"]
    for visitor, text in zip(visitors, texts, strict=True):
        visitor.page.goto(f"{server.url}/predict?m=decoder&x={text}")
    for visitor, text in zip(visitors, texts, strict=True):
        visitor.settled()
        shown = "".join(visitor.page.locator("ul.chips").first.locator(".chip").all_inner_texts())
        assert shown.replace("·", " ") == text
        assert not visitor.faults
    for context in contexts:
        context.close()


def test_a_model_that_cannot_do_a_task_is_not_offered_it(visitor: Visitor) -> None:
    page = visitor.go("/play?m=tagger&task=translation&go=1&x=the cat")
    assert "Translate" not in visitor.text()
    assert page.get_by_role("button", name="Run").count() == 1
    assert not visitor.faults


ODD = ["-1", "1.5", "1e9", "abc", "NaN"]


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("tokens", "i w step"), ("attention", "l h q gen view scale palette of over"),
        ("steps", "l h q step topic"), ("predict", "pos T topk topp minp seed"), ("layers", "l pos show"),
        ("positions", "length seed h"), ("space", "count axes metric table"),
        ("play", "max T topk topp seed beams task"), ("compare", "l d win"),
    ],
)  # fmt: skip
def test_an_address_with_odd_values_still_shows_its_page(visitor: Visitor, page: str, keys: str) -> None:
    for odd in ODD:
        query = "&".join(f"{key}={odd}" for key in keys.split())
        shown = visitor.go(f"/{page}?m=decoder&x=the cat sat&{query}")
        assert not shown.locator("[role=alert]").count(), shown.inner_text("[role=alert]")
        assert len(visitor.text()) > 60
    assert not visitor.faults


def test_a_page_that_cannot_be_drawn_says_so_and_opens_anew(visitor: Visitor) -> None:
    visitor.page.route(
        "**/api/tokenize", lambda route: route.fulfill(json={"tokenizers": [{}], "warnings": []})
    )
    page = visitor.go("/tokens?m=decoder&x=the cat")
    assert "could not be drawn" in page.inner_text("[role=alert]")
    visitor.page.unroute("**/api/tokenize")
    page.get_by_role("link", name="Attention").click()
    visitor.settled()
    assert page.locator("h1").inner_text() == "Attention"
    assert not page.locator("[role=alert]").count()


def test_an_empty_text_is_not_sent(visitor: Visitor) -> None:
    page = visitor.go("/tokens?m=decoder&x=the cat")
    page.fill("[data-input]", "")
    page.press("[data-input]", "Enter")
    page.get_by_role("button", name="Run").click()
    assert page.evaluate("document.querySelector('[data-input]').validity.valueMissing")
    assert visitor.query()["x"] == "the cat"
    page.fill("[data-input]", "a dog")
    page.press("[data-input]", "Enter")
    visitor.settled()
    assert visitor.query()["x"] == "a dog"
    assert not visitor.faults


def test_a_long_text_outlives_a_reload_and_a_strange_link_says_what_is_missing(visitor: Visitor) -> None:
    page = visitor.go("/tokens?m=decoder")
    page.fill("[data-input]", "the cat sat " * 300)
    page.press("[data-input]", "Enter")
    visitor.settled()
    page.reload()
    visitor.settled()
    assert len(page.input_value("[data-input]")) == 3600
    visitor.go("/tokens?m=decoder&x=~4321-abc")
    assert "4,321 characters" in visitor.text()
    assert not page.input_value("[data-input]").startswith("~")
    assert not visitor.faults
