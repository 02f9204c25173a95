"""What one does on the pages: move, choose, switch off, write, save, link."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.decode.sampling import draw, generator, uniforms, warp
from heedful.decode.settings import GenerationSettings
from tests.classroom.browser.conftest import Visitor

TEXT = "the cat sat on"


def test_shortcuts_move_through_layers_and_heads_and_the_address_follows(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}")
    page.locator("main").focus()
    layer, head = int(visitor.query()["l"]), int(visitor.query()["h"])  # the page opens on a clear head
    for key, layers, heads in [("]", 1, 0), (".", 0, 1), ("[", -1, 0), (",", 0, -1)]:
        page.keyboard.press(key)
        layer, head = (layer + layers) % 2, (head + heads) % 2
        assert (visitor.query()["l"], visitor.query()["h"]) == (str(layer), str(head))
    page.keyboard.press("g")
    assert visitor.query()["view"] == "grid"
    visitor.settled()
    page.go_back()
    assert visitor.query().get("view") != "grid"
    assert not visitor.faults


def test_arrows_walk_the_matrix_and_a_live_region_says_where_one_is(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}")
    grid = page.locator("[role=grid], [role=application]").first
    grid.focus()
    for key in ["ArrowDown", "ArrowDown", "ArrowRight"]:
        page.keyboard.press(key)
    said = page.locator(".fig [role=status], .fig [aria-live]").all_inner_texts()
    assert any("row" in text and "rank" in text for text in said), said
    page.keyboard.press("Enter")
    assert "q" in visitor.query()
    page.keyboard.press("Escape")
    assert "q" not in visitor.query()
    assert not visitor.faults


@pytest.mark.slow  # a time, which a slow machine may miss
def test_the_page_needs_little_time_of_its_own(visitor: Visitor) -> None:
    """128 tokens through 12 × 12 heads: a second for the first picture, 50 ms for another head.

    Counted in time of the page's thread, which other work on the machine does not change.
    """
    page = visitor.go("/attention?m=large&x=the cat")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    before = spent()
    page.locator("[data-input]").fill(" ".join(["the cat sat on"] * 32))
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("main[aria-busy=true]")
    visitor.settled()
    assert spent() - before < 1
    page.locator("main").focus()
    times = []
    for _ in range(3):
        before = spent()
        page.keyboard.press(".")
        visitor.settled()
        times.append(spent() - before)
    assert min(times) < 0.05


def test_a_link_shows_the_same_state_again(visitor: Visitor) -> None:
    address = f"/attention?h=1&hide=first&l=1&m=decoder&q=2&scale=log&view=matrix&x={TEXT}"
    page = visitor.go(address)
    assert page.get_by_label("Layer", exact=True).input_value() == "1"
    assert page.get_by_label("Head", exact=True).input_value() == "1"
    assert page.get_by_label("Scale").input_value() == "log"
    assert page.get_by_label("Hide the first token").is_checked()
    assert "renormalised" in page.locator(".fig-title").first.inner_text()


def test_a_head_switched_off_changes_the_prediction_and_can_be_switched_on_again(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}")
    head = visitor.query()
    page.click("[data-switch]")
    visitor.settled()
    assert visitor.query()["off"] == f"blocks.{head['l']}.attn:{head['h']}"
    assert page.locator("[data-modified]").count() == 1
    assert "KL" in visitor.text()
    page.get_by_role("button", name="Reset").click()
    visitor.settled()
    assert page.locator("[data-modified]").count() == 0
    assert not visitor.faults


def test_a_head_that_is_off_may_say_its_mean(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}&off=blocks.0.attn:0")
    kl = lambda: page.locator("text=/KL .* nats/").first.inner_text()
    seen = [kl()]
    for choice in ("mean", "ref"):
        page.get_by_label("In its place").select_option(choice)
        visitor.settled()
        seen.append(kl())
    assert len(set(seen)) == 3
    assert visitor.query()["abl"] == "mean"
    assert visitor.query()["ref"]
    page.get_by_role("button", name="Reset").click()
    visitor.settled()
    assert "abl" not in visitor.query()
    assert not visitor.faults


def test_a_token_put_in_the_place_of_another_is_what_the_model_reads(visitor: Visitor) -> None:
    page = visitor.go("/attention?m=decoder&x=the cat sat")
    page.get_by_label("Token", exact=True).select_option("1")
    page.get_by_label("by", exact=True).fill("Ġdog")
    page.get_by_role("button", name="Replace").click()
    visitor.settled()
    assert "1 ·dog" in page.get_by_label("Token", exact=True).inner_text()
    assert "KL" in visitor.text()
    assert page.locator("[data-modified]").count() == 1
    page.get_by_role("button", name="Reset").click()
    visitor.settled()
    assert "1 ·cat" in page.get_by_label("Token", exact=True).inner_text()
    assert not visitor.faults


def test_words_are_drawn_in_place_of_pieces(visitor: Visitor) -> None:
    page = visitor.go("/attention?m=encoder&x=the catalogues sat")
    before = page.get_by_role("grid").first.get_attribute("aria-rowcount")
    page.get_by_label("Words, not tokens").check()
    assert visitor.query()["words"] == "1"
    assert "by words" in page.locator(".fig-title").first.inner_text()
    after = page.get_by_role("grid").first.get_attribute("aria-rowcount")
    assert int(after) < int(before)
    page.get_by_label("Words, not tokens").uncheck()
    assert page.get_by_role("grid").first.get_attribute("aria-rowcount") == before
    assert not visitor.faults


def test_one_text_of_a_pair_on_the_other_is_a_part_of_the_matrix(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.go("/attention?m=encoder&x=the cat sat&y=on the mat")

    def weights() -> list[list[str]]:
        visitor.settled()
        with page.expect_download() as waiting:
            page.locator(".fig-exports").first.get_by_role("button", name="Save as CSV").click()
        waiting.value.save_as(tmp_path / "x.csv")
        return list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text(encoding="utf-8"))))

    whole = weights()
    second = whole[0].index("on", 1) - 1  # the first word of the second text
    page.get_by_label("Texts").select_option("ab")
    assert visitor.query()["ab"] == "ab"
    part = weights()
    assert part == [[row[0], *row[1 + second :]] for row in whole[: 1 + second]]
    assert "A → B" in page.locator(".fig-title").first.inner_text()
    assert not visitor.faults


def test_generated_tokens_can_be_stepped_through(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}&gen=3")
    slider = page.get_by_label("Written token")
    assert int(slider.get_attribute("max")) - int(slider.get_attribute("min")) == 2
    page.get_by_role("button", name="Next").click()
    assert visitor.query()["q"] == str(int(slider.get_attribute("min")) + 1)


def test_all_three_attentions_of_an_encoder_and_decoder_are_there(visitor: Visitor) -> None:
    page = visitor.go(f"/attention?m=encoder-decoder&x={TEXT}")
    groups = page.get_by_role("group", name="Attention").get_by_role("button")
    assert groups.count() == 3
    for i in range(3):
        groups.nth(i).click()
        visitor.settled()
        assert page.locator(".fig canvas").count() >= 1
    assert not visitor.faults


@pytest.mark.parametrize("view", ["grid", "matrix", "lines", "text"])
def test_each_view_of_attention_draws(visitor: Visitor, view: str) -> None:
    page = visitor.go(f"/attention?m=encoder&view={view}")
    assert page.locator(".fig canvas, .fig-tokens").count() >= 1
    assert not visitor.faults


def chosen_by_python(models: Path, text: str, rules: dict[str, Any], seed: int) -> int:
    """The token heedful draws after a text."""
    model = heedful.load(models / "decoder")
    assert model.tokenizer is not None
    with torch.no_grad():
        logits = model(torch.tensor([model.tokenizer.encode(text)]))[:, -1].float()
    settings = GenerationSettings(**rules)
    if settings.greedy:
        return int(logits.argmax())
    return int(draw(warp(settings, logits), uniforms([generator(seed)], 1)[:, 0]))


RULES: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 1.0}, ""),
    ({"temperature": 0.7}, "T=0.7"),
    ({"temperature": 0.0}, "T=0"),
    ({"temperature": 1.5, "top_k": 7}, "T=1.5&topk=7"),
    ({"temperature": 0.9, "top_p": 0.6}, "T=0.9&topp=0.6"),
    ({"temperature": 1.2, "top_k": 40, "top_p": 0.8, "min_p": 0.3}, "T=1.2&topk=40&topp=0.8&minp=0.3"),
]


def test_the_page_draws_the_token_python_draws(visitor: Visitor, models: Path) -> None:
    for seed, (rules, query) in enumerate(RULES):
        page = visitor.go(f"/predict?m=decoder&x={TEXT}&seed={seed}&{query}")
        shown = page.locator("[data-page-token]")
        expected = str(chosen_by_python(models, TEXT, rules, seed))
        assert shown.get_attribute("data-page-token") == expected, (rules, seed)
        assert shown.get_attribute("data-python-token") == expected, (rules, seed)
    assert not visitor.faults


def test_moving_a_slider_draws_anew_at_once(visitor: Visitor, models: Path) -> None:
    page = visitor.go(f"/predict?m=decoder&x={TEXT}&seed=5")
    page.get_by_label("temperature").fill("1.6")
    page.get_by_label("top-k").fill("12")
    visitor.settled()
    expected = chosen_by_python(models, TEXT, {"temperature": 1.6, "top_k": 12}, 5)
    assert page.locator("[data-page-token]").get_attribute("data-page-token") == str(expected)
    assert visitor.query()["T"] == "1.6"
    assert visitor.query()["topk"] == "12"
    assert page.locator("text=page and Python agree").count() == 1


def test_the_arithmetic_is_stepped_through_and_checked(visitor: Visitor) -> None:
    page = visitor.go(f"/steps?m=decoder&x={TEXT}&topic=attention")
    assert page.locator("[data-checked=true]").count() == 1
    page.locator("[data-next]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert visitor.query()["step"] == "2"
    page.keyboard.press("ArrowLeft")
    assert visitor.query()["step"] == "1"
    visitor.go("/steps?m=vectors&ex=cat-sat&all=1")
    assert "0.2233" in visitor.text()  # the weight of the exercise that the notes get wrong
    assert not visitor.faults


def test_merges_are_replayed_one_by_one(visitor: Visitor) -> None:
    page = visitor.go("/tokens?m=decoder&x=the cat&w=1&step=0")
    before = page.locator(".panel").nth(2).locator(".chip").count()
    page.get_by_role("button", name="Next").click()
    assert page.locator(".panel").nth(2).locator(".chip").count() == before - 1
    assert "join" in visitor.text()


def test_what_is_written_appears_and_is_linked(visitor: Visitor) -> None:
    page = visitor.go(f"/play?m=decoder&x={TEXT}&max=5")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("text=tokens in")
    written = page.inner_text("[data-answer]")
    page.reload()  # the address says that it was run
    page.wait_for_selector("text=tokens in")
    assert page.inner_text("[data-answer]") == written
    assert not visitor.faults


def test_a_search_with_beams_is_made_once_and_shows_its_tree(visitor: Visitor) -> None:
    asked: list[str] = []
    visitor.page.on("request", lambda r: asked.append(r.url.split("/")[-1]) if r.method == "POST" else None)
    page = visitor.go("/play?m=encoder-decoder&x=the cat sat&beams=3&max=5&go=1")
    page.wait_for_selector(".fig-tree canvas")
    answer = page.inner_text("[data-answer]").strip()
    texts = page.locator(".fig-tree tbody tr button").all_inner_texts()
    assert asked == ["beams"]
    assert len(texts) == 3
    assert texts[0].strip() == answer
    page.locator(".fig-tree [role=application]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "step 2, rank" in page.inner_text(".fig-tree [role=status]")
    page.get_by_role("button", name="View as table").click()
    assert "pruned" in page.inner_text(".fig-tree table >> nth=0")
    assert not visitor.faults


def test_each_mask_has_a_table_of_its_own(visitor: Visitor) -> None:
    page = visitor.go("/play?m=encoder&x=the [MASK] sat on the [MASK]&go=1")
    page.wait_for_selector("text=Mask 2 of 2")
    assert page.locator("table[data-answer]").count() == 2
    assert "token_str" not in visitor.text()
    assert not visitor.faults


def test_words_have_neighbours_and_analogies(visitor: Visitor) -> None:
    page = visitor.go("/space?m=vectors&w=king")
    assert page.locator("[data-near] tr").count() == 12
    visitor.go("/space?m=vectors&tab=analogy")
    assert page.locator("[data-near]").count() == 2
    assert not visitor.faults


@pytest.mark.slow
def test_a_map_may_be_made_by_tsne(visitor: Visitor) -> None:
    pytest.importorskip("sklearn")
    page = visitor.go("/space?m=vectors&count=50")
    page.get_by_label("Map by").select_option("tsne")
    page.wait_for_selector("text=says little")
    visitor.settled()
    assert visitor.query()["map"] == "tsne"
    assert "t-SNE" in page.locator(".fig-title").first.inner_text()
    assert page.locator("[role=alert]").count() == 0
    assert "says little" in visitor.text()
    assert not visitor.faults


def test_a_run_that_is_being_written_is_drawn(visitor: Visitor) -> None:
    page = visitor.go("/train?m=vectors&run=first")
    page.wait_for_selector(".fig canvas")
    assert "loss" in visitor.text()
    assert not visitor.faults


def test_the_slider_of_checkpoints_takes_every_page_to_that_moment(visitor: Visitor) -> None:
    page = visitor.go("/train?run=first")
    page.get_by_role("slider", name="step").fill("2")
    visitor.settled()
    assert visitor.query()["m"] == "first@30"
    page = visitor.go(f"/predict?m=first@10&x={TEXT}")
    slider = page.get_by_role("slider", name="Checkpoint", exact=True)
    chances = [page.locator(".fig-bar-number").first.inner_text()]
    for expected in ("first@20", "first@30"):
        slider.focus()
        page.keyboard.press("ArrowRight")
        visitor.settled()
        assert visitor.query()["m"] == expected
        assert slider.get_attribute("aria-valuetext") == expected
        assert page.locator("#model").input_value() == expected
        chances.append(page.locator(".fig-bar-number").first.inner_text())
    assert len(set(chances)) == 3  # each moment has numbers of its own
    page.get_by_role("link", name="Attention").first.click()
    visitor.settled()
    assert visitor.query()["m"] == "first@30"
    slider.focus()
    page.keyboard.press("ArrowLeft")
    visitor.settled()
    assert visitor.query()["m"] == "first@20"
    assert page.inner_text("h1") == "Attention"
    assert not visitor.faults


def test_two_models_stand_side_by_side(visitor: Visitor) -> None:
    page = visitor.go("/compare?m=rnn&a=encoder-decoder&b=rnn&x=the cat sat")
    assert page.locator("text=A: encoder-decoder").count() >= 1
    assert page.locator("text=B: rnn").count() >= 1
    assert page.locator(".fig canvas").count() >= 2  # both alignments
    page.get_by_role("button", name="Gradient", exact=True).click()
    visitor.settled()
    assert page.locator(".fig canvas").count() == 1  # how far back a gradient reaches
    assert not visitor.faults


def test_two_models_are_measured_side_by_side(visitor: Visitor) -> None:
    page = visitor.go("/compare?m=decoder&a=decoder&b=large&win=16")
    assert page.locator("h2", has_text="Loss by position in the context").count() == 1
    assert "windows of 16" in visitor.text()
    page.get_by_role("button", name="Speed", exact=True).click()
    page.get_by_role("button", name="Measure now").click()
    page.wait_for_selector("text=Writing: one token at a time")
    visitor.settled()
    assert page.locator("h2", has_text="Reading: one pass").count() == 1
    page.get_by_role("button", name="View as table").last.click()
    assert page.locator(".fig-table").last.locator("tbody tr").count() >= 2
    assert not visitor.faults


def test_a_figure_is_saved_in_every_format_and_the_html_lives_without_a_network(
    visitor: Visitor, browser: Any, tmp_path: Path
) -> None:
    page = visitor.go(f"/attention?m=decoder&x={TEXT}")
    saved = {}
    for kind in ["PNG", "SVG", "CSV", "HTML"]:
        with page.expect_download() as waiting:
            page.locator(".fig-exports").first.get_by_role("button", name=f"Save as {kind}").click()
        saved[kind] = tmp_path / f"figure.{kind.lower()}"
        waiting.value.save_as(saved[kind])
    assert saved["PNG"].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in saved["SVG"].read_text(encoding="utf-8")
    rows = list(csv.reader(io.StringIO(saved["CSV"].read_text(encoding="utf-8"))))
    assert all(abs(sum(map(float, row[1:])) - 1) < 1e-4 for row in rows[1:])
    context = browser.new_context(offline=True)
    alone = context.new_page()
    left: list[str] = []
    alone.on(
        "request", lambda r: left.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None
    )
    alone.goto(saved["HTML"].as_uri())
    alone.wait_for_selector("canvas", timeout=60_000)
    assert not left
    context.close()


def test_the_python_of_a_figure_can_be_copied(visitor: Visitor) -> None:
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.go(f"/layers?m=decoder&x={TEXT}")
    page.get_by_role("button", name="Copy Python").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(t => t.includes('heedful'))")
    compile(page.evaluate("navigator.clipboard.readText()"), "copied", "exec")
