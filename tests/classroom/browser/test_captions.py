"""What the pages say is true of the model shown: rows, masks, layers, states, order, units; work can stop."""

from __future__ import annotations

import csv
import io
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from heedful.interp.inputs import Input
from tests.classroom.browser.conftest import Server, Visitor

TEXT = "the cat sat on"


def traced(server: Server, model: str, **more: Any) -> dict[str, Any]:
    body = json.dumps({"model": model, "text": TEXT, **more}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/api/trace", body, headers)) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def as_table(page: Any) -> tuple[list[str], list[list[str]]]:
    """The first matrix of a page read as a table: the names of its rows, and its cells."""
    page.get_by_role("button", name="View as table").first.click()
    rows = page.locator(".fig-table").first.locator("tbody tr")
    cells = [rows.nth(i).locator("td").all_inner_texts() for i in range(rows.count())]
    return [rows.nth(i).locator("th").inner_text() for i in range(rows.count())], cells


def saved_csv(page: Any, tmp_path: Path) -> list[list[str]]:
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as CSV").first.click()
    waiting.value.save_as(tmp_path / "x.csv")
    return list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text(encoding="utf-8-sig"))))


@pytest.mark.parametrize(("kind", "group"), [("encoder-decoder", "decoder.cross"), ("rnn", "decoder.look")])
def test_rows_over_a_source_are_the_words_written(
    visitor: Visitor, server: Server, tmp_path: Path, kind: str, group: str
) -> None:
    target = "a dog sat"
    found = traced(server, kind, target=target)
    page = visitor.go(f"/attention?m={kind}&g={group}&x={TEXT}&y={target}")
    written = [t["shown"] for t in found["target"]][1:]
    names, _ = as_table(page)
    assert names[:-1] == written
    assert names[-1] == found["prediction"]["top"][0]["shown"]
    assert [row[0] for row in saved_csv(page, tmp_path)[1:]] == names
    assert not visitor.faults


def test_rows_of_a_decoder_over_itself_are_the_words_read(visitor: Visitor, server: Server) -> None:
    found = traced(server, "encoder-decoder", target="a dog sat")
    page = visitor.go(f"/attention?m=encoder-decoder&g=decoder.attn&x={TEXT}&y=a dog sat")
    assert as_table(page)[0] == [t["shown"] for t in found["target"]]
    assert not visitor.faults


def test_a_masked_cell_has_no_number(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}&of=scores")
    page.locator("[role=grid]").first.focus()
    page.keyboard.press("ArrowRight")  # the first token and the second, which it cannot see
    pair = page.locator("section", has=page.get_by_role("heading", name="This pair"))
    assert "The mask hides this key." in pair.inner_text()
    assert "rank" not in pair.inner_text()
    assert "score" not in pair.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "rank" in pair.inner_text()
    rows = saved_csv(page, tmp_path)[1:]
    assert all((cell == "") == (j > i) for i, row in enumerate(rows) for j, cell in enumerate(row[1:]))
    _, cells = as_table(page)
    assert all((cell == "–") == (j > i) for i, row in enumerate(cells) for j, cell in enumerate(row))
    assert not visitor.faults


def test_a_mask_is_seen_where_the_first_token_is_hidden(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}&hide=first")
    _, cells = as_table(page)
    assert all((cell == "–") == (j + 1 > i) for i, row in enumerate(cells) for j, cell in enumerate(row))
    assert not visitor.faults


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("decoder", ["one step, by attention"]), ("mamba", ["through a state"]),
        ("rnn", ["one step, by alignment", "one step for each token in between"]),
        ("encoder-decoder", ["one step, by cross-attention"]),
    ],
)  # fmt: skip
def test_compare_says_how_tokens_reach_each_other(visitor: Visitor, kind: str, said: list[str]) -> None:
    visitor.go(f"/compare?a={kind}&b=encoder&x={TEXT}")
    panel = visitor.page.locator("section", has=visitor.page.get_by_role("heading", name=f"A: {kind}")).first
    text = panel.inner_text()
    assert all(line in text for line in said), text
    assert ("one step, by attention" in text) == (kind in ("decoder", "encoder-decoder"))
    assert not visitor.faults


def test_what_is_subtracted_is_what_is_shown(visitor: Visitor, server: Server) -> None:
    page = visitor.go(f"/compare?a=large&b=decoder&x={TEXT}")
    titles = lambda: page.locator(".fig h2, .fig h3, .fig-title").all_inner_texts()
    assert "A minus B: layer 11 − layer 1, mean of heads" in titles()
    assert any(t.startswith("A: layer 11") for t in titles())
    page.get_by_label("Layer of A").select_option("3")
    page.get_by_label("Layer of B").select_option("0")
    visitor.settled()
    assert "A minus B: layer 3 − layer 0, mean of heads" in titles()
    assert any(t.startswith("A: layer 3,") for t in titles())
    assert any(t.startswith("B: layer 0,") for t in titles())
    assert not visitor.faults


def test_mamba_has_a_state_and_its_order_comes_from_it(visitor: Visitor) -> None:
    page = visitor.go(f"/states?m=mamba&x={TEXT}")
    assert "no recurrent cell" not in visitor.text()
    assert page.get_by_role("button", name="h · state").count() == 1
    page.get_by_role("button", name="h · state").click()
    visitor.settled()
    assert "norm of h in each channel" in visitor.text()
    visitor.go("/positions?m=mamba")
    assert "Order from a state" in visitor.text()
    visitor.go(f"/attention?m=mamba&x={TEXT}")
    assert "Effective attention" in visitor.text()
    assert not visitor.faults


def test_gradients_are_drawn_relative_to_distance_0(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.go(f"/compare?a=decoder&b=rnn&part=gradient&x={TEXT}")
    assert "relative to distance 0" in visitor.text()
    figure = page.locator(".fig", has_text="Gradient by distance")
    with page.expect_download() as waiting:
        figure.get_by_role("button", name="Save as CSV").click()
    waiting.value.save_as(tmp_path / "x.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text(encoding="utf-8-sig"))))
    assert [row["gradient relative to distance 0"] for row in rows if row["distance"] == "0"] == ["1", "1"]
    assert not visitor.faults


def test_entropies_have_their_unit(visitor: Visitor) -> None:
    page = visitor.go(f"/layers?m=decoder&x={TEXT}&show=entropy")
    assert "in bits" in visitor.text()
    assert "nats" not in visitor.text()
    page = visitor.go(f"/attention?m=decoder&x={TEXT}&view=grid")
    assert "entropy (bits)" in page.locator(".fig-grid [role=status]").inner_text()
    assert not visitor.faults


@pytest.mark.parametrize(
    ("kind", "said"),
    [("decoder", "the last token, which stays"), ("encoder-decoder", "words of the target")],
)
def test_the_shuffle_test_says_what_it_measures(visitor: Visitor, kind: str, said: str) -> None:
    page = visitor.go(f"/positions?m={kind}&x={TEXT}")
    assert said in visitor.text()
    if kind == "decoder":
        chips = page.get_by_label("Shuffled tokens").locator("li").all_inner_texts()
        assert chips[-1].strip("·") == "on"
    assert not visitor.faults


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass takes a fifth of a second: 144 heads take many."""
    run = Input.run
    monkeypatch.setattr(Input, "run", lambda self, *a, **k: time.sleep(0.2) or run(self, *a, **k))


def free_again(server: Server, model: str) -> float:
    """How long a model is still held, in seconds."""
    began, held = time.perf_counter(), server.app.state.studio.registry.get(model)
    while held.worker.waiting and time.perf_counter() < began + 30:
        time.sleep(0.02)
    return time.perf_counter() - began


def test_which_heads_matter_shows_progress_and_can_be_cancelled(
    visitor: Visitor, server: Server, slow: None
) -> None:
    page = visitor.go(f"/attention?m=large&x={TEXT}&view=grid")
    page.get_by_role("button", name="Which heads matter here?").click()
    page.wait_for_function("() => document.querySelector('progress')?.value > 0")
    assert "of 144 heads" in visitor.text()
    page.get_by_role("button", name="Cancel").click()
    assert free_again(server, "large") < 1.5
    assert page.get_by_role("button", name="Which heads matter here?").is_visible()
    page.get_by_role("button", name="Which heads matter here?").click()
    visitor.settled()
    assert page.locator("tbody tr").count() >= 8
    assert not visitor.faults


@pytest.mark.parametrize("leave", ["close", "elsewhere"])
def test_leaving_the_page_lets_go_of_the_model(browser: Any, server: Server, slow: None, leave: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/attention?m=large&x={TEXT} the {leave}&view=grid&fx=1")
    page.wait_for_function("() => document.querySelector('progress')?.value > 0", timeout=60_000)
    if leave == "close":
        page.close()
    else:
        page.get_by_role("link", name="Tokens").first.click()
    assert free_again(server, "large") < 1.5
    context.close()


@pytest.mark.parametrize("measured", ["losses", "speed"])
def test_leaving_the_comparison_gives_up_what_it_measures(
    browser: Any, server: Server, slow: None, measured: str
) -> None:
    context = browser.new_context()
    page = context.new_page()
    asked = "&speed=1" if measured == "speed" else f"&win=8&lx={'the cat sat on the mat . ' * 40}"
    with page.expect_request(lambda request: request.url.endswith(measured), timeout=60_000):
        page.goto(f"{server.url}/compare?a=decoder&b=decoder&x={TEXT}{asked}")
    page.get_by_role("link", name="Tokens").first.click()
    assert free_again(server, "decoder") < 2.0
    context.close()
