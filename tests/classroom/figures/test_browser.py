"""The one-file page in a real browser with the network off: it draws, obeys keys and runs no foreign code."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.classroom import figures as view
from tests.classroom.browser.chromium import chromium
from tests.classroom.figures.test_figures import HOSTILE, IDS, figures
from tests.properties.tiny import tiny


class Opened:
    """A page that was opened from disk, and everything it said or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.asked: list[str] = []
        self.said: list[str] = []
        page.on("request", lambda r: self.asked.append(r.url))
        page.on("console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.said.append(str(e)))
        page.on("dialog", lambda d: self.said.append(f"dialog {d.message}"))

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-whole]", timeout=60_000)
        return self.page

    def quiet(self, path: Path) -> bool:
        return set(self.asked) == {path.as_uri()} and not self.said


@pytest.fixture(scope="module")
def browser() -> Any:
    return chromium()


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    context = browser.new_context(
        offline=True, viewport={"width": 1000, "height": 800}, accept_downloads=True
    )
    yield Opened(context.new_page())
    context.close()


def weights(page: Any) -> np.ndarray:
    """The weights that the page itself saves as CSV."""
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    rows = csv.DictReader(io.StringIO(Path(saved.value.path()).read_text(encoding="utf-8")))
    return np.array([float(row["weight"]) for row in rows])


def test_every_kind_draws_itself_and_asks_for_nothing(opened: Opened, tmp_path: Path) -> None:
    for kind, figure in figures(tmp_path).items():
        path = figure.save(tmp_path / f"{kind}.html")
        page = opened.open(path)
        title = page.locator("h2").inner_text()
        assert title.split(":")[0] == figure.title.split(":")[0], kind
        assert page.locator("canvas, table, math").count() >= 1, kind
        assert opened.quiet(path), (kind, opened.asked, opened.said)
        opened.asked.clear()


def test_the_page_has_pythons_numbers_and_switches_heads(opened: Opened, tmp_path: Path) -> None:
    figure = view.attention(tiny("gpt2"), IDS, layer=1, head=1)
    page = opened.open(figure.save(tmp_path / "x.html"))
    values = figure.data["patterns"]
    np.testing.assert_allclose(weights(page), values[1]["values"][1].ravel(), rtol=1e-3, atol=1e-7)
    page.get_by_role("combobox", name="layer", exact=True).select_option("0")
    page.get_by_role("combobox", name="head", exact=True).select_option("0")
    np.testing.assert_allclose(weights(page), values[0]["values"][0].ravel(), rtol=1e-3, atol=1e-7)
    page.get_by_label("hide the first token").check()
    assert "first token hidden, rows renormalised" in page.locator("h2").inner_text()
    assert weights(page).reshape(5, 4)[1:].sum(1) == pytest.approx([1, 1, 1, 1], abs=1e-3)


def test_compressed_and_rounded_patterns_are_read_too(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = torch.randn(2, 3, 80, 80, generator=torch.Generator().manual_seed(0)).softmax(-1)
    names = [str(i) for i in range(80)]
    figure = view.attention(tokens=names, pattern=pattern, layer=1, head=2)
    page = opened.open(figure.save(tmp_path / "x.html"))
    np.testing.assert_allclose(weights(page), pattern[1, 2].numpy().ravel(), rtol=1e-3, atol=1e-7)
    monkeypatch.setattr("heedful.classroom.figures.figure.MANY", 1000)
    page = opened.open(figure.save(tmp_path / "y.html"))
    assert "rounded to 1/255" in page.locator(".fig").inner_text()
    top = float(pattern.max())
    np.testing.assert_allclose(weights(page), pattern[1, 2].numpy().ravel(), atol=top / 200)


def test_the_matrix_is_walked_by_keys_and_read_out(opened: Opened, tmp_path: Path) -> None:
    figure = view.attention(
        tokens=["it", "cat", "sat"], pattern=[[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.125, 0.375]]
    )
    page = opened.open(figure.save(tmp_path / "x.html"))
    grid = page.get_by_role("grid")
    grid.focus()
    said = page.locator(".fig-matrix [role=status]")
    assert said.inner_text() == "row 'it', column 'it', 1, rank 1"
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert said.inner_text() == "row 'cat', column 'cat', 0.75, rank 1"
    page.keyboard.press("Control+End")
    assert said.inner_text() == "row 'sat', column 'sat', 0.375, rank 2"
    page.keyboard.press("Enter")
    assert page.locator(".fig-pin").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".fig-pin").count() == 0
    page.get_by_role("button", name="View as table").click()
    assert page.locator("table td").nth(1 + 3 + 1).inner_text() == "0.75"


def test_the_seed_on_the_page_draws_pythons_token(opened: Opened, tmp_path: Path) -> None:
    model = tiny("gpt2")
    asked = {"temperature": 1.3, "top_k": 30, "top_p": 0.95}
    page = opened.open(view.next_token(model, IDS, **asked).save(tmp_path / "x.html"))
    for seed in (0, 5, 41):
        page.get_by_role("spinbutton", name="seed").fill(str(seed))
        figure = view.next_token(model, IDS, seed=seed, **asked)
        line = page.locator(".fig-prediction [role=status]").inner_text()
        assert line.startswith(
            f"u = {figure.data['u']:.6f} draws {figure.data['names'][figure.data['drawn']]}."
        )


def test_hostile_tokens_are_shown_as_text_and_run_nothing(opened: Opened, tmp_path: Path) -> None:
    figure = view.attention(tokens=HOSTILE, pattern=torch.eye(4))
    path = figure.save(tmp_path / "x.html")
    page = opened.open(path)
    for name in ("text", "lines", "matrix"):
        page.get_by_role("button", name=name, exact=True).click()
    page.get_by_role("button", name="View as table").click()
    assert "</script><script>" in page.locator("table").inner_text()
    assert page.evaluate("window.hacked") is None
    assert opened.quiet(path), opened.said


def test_the_widget_of_a_notebook_draws_in_a_shadow_root(opened: Opened, tmp_path: Path) -> None:
    figure = view.attention(tokens=["a", "b"], pattern=torch.eye(2))
    blank = tmp_path / "blank.html"
    blank.write_text("<!doctype html><title>notebook</title><div id=cell></div>")
    page = opened.page
    page.goto(blank.as_uri())
    code = figure.widget()._esm if isinstance(figure.widget()._esm, str) else str(figure.widget()._esm)
    heading = page.evaluate(
        """async ([code, json]) => {
            const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
            const { default: widget } = await import(url);
            const el = document.getElementById("cell");
            widget.render({ model: { get: () => json, on() {}, off() {} }, el });
            while (!el.shadowRoot?.querySelector("canvas")) await new Promise((r) => setTimeout(r, 20));
            return el.shadowRoot.querySelector("h2").textContent;
        }""",
        [code, figure.widget().figure],
    )
    assert heading.startswith("Attention")
    assert not opened.said


def test_a_saved_alignment_is_read_out_by_the_words_written(opened: Opened, tmp_path: Path) -> None:
    figure = view.attention(tiny("t5"), IDS, [0, 6, 8], layer="decoder.0.cross")
    page = opened.open(figure.save(tmp_path / "x.html"))
    page.get_by_role("grid").focus()
    assert page.locator(".fig-matrix [role=status]").inner_text().startswith("row '6', column '5'")
    page.get_by_label("layer").select_option(label="decoder.0.attn")
    page.get_by_role("button", name="View as table").click()
    assert page.locator(".fig-table tbody th").all_inner_texts() == ["0", "6", "8"]


def test_a_window_hides_keys_on_the_saved_page(opened: Opened, tmp_path: Path) -> None:
    model = tiny("mistral", window=2)
    page = opened.open(view.attention(model, IDS).save(tmp_path / "x.html"))
    page.get_by_role("button", name="View as table").click()
    cells = page.locator(".fig-table tbody td").all_inner_texts()
    hidden = [s > t or t - s >= 2 for t in range(5) for s in range(5)]
    assert [cell == "–" for cell in cells] == hidden
