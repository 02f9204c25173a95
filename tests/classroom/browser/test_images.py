"""A model that reads images in the page: a text that is drawn, one's own handwriting, a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.core.images import draw_text
from tests.classroom.browser.conftest import Visitor

pytest.importorskip("PIL", reason="images need Pillow")


def test_play_reads_a_drawn_text_handwriting_and_a_file(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.go("/play?m=digits")
    read = lambda: (page.click("form button.primary"), visitor.settled(), page.inner_text("[data-answer]"))[2]
    assert read() == "2026"
    assert page.locator("img.fig-drawn").count() == 1
    page.click("text=Write by hand")
    assert page.locator("form button.primary").is_disabled()  # an empty sheet has nothing to read
    box = page.locator("[data-sheet]").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + box["height"] - 12, steps=5)
    page.mouse.up()
    assert read()
    page.click("text=Open a file")
    draw_text("305", 16, 96).save(tmp_path / "number.png")
    page.set_input_files("[data-file]", tmp_path / "number.png")
    page.wait_for_selector("img.opened")
    assert read() == "305"
    page.set_input_files("[data-file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"none"})
    assert "a.png" in page.inner_text("[role=alert]")
    assert not visitor.faults


@pytest.mark.parametrize("path", ["attention", "positions", "figures", "tokens", "states", "layers"])
def test_pages_of_a_model_that_reads_images_show_what_it_has(visitor: Visitor, path: str) -> None:
    page = visitor.go(f"/{path}?m=digits")
    assert not visitor.faults
    assert "Replace a token" not in visitor.text()
    assert "Shuffle" not in visitor.text()
    if path != "positions":
        assert page.locator("textarea").first.input_value() == "2026"


def test_the_first_picture_offers_the_text_that_was_drawn(visitor: Visitor) -> None:
    page = visitor.go("/?m=digits")
    assert page.locator(".ask-picture textarea").input_value() == "2026"
    assert "tasks." not in visitor.text()
    assert not visitor.faults
