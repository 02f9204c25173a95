"""Figures for print: their size in inches, pixels for each, fonts, titles and names of axes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from heedful.classroom.figures import panels
from heedful.classroom.figures.figure import Figure
from heedful.core.errors import ConfigError

pytest.importorskip("matplotlib")


def made() -> Figure:
    heat = panels.matrix("weights", np.eye(3), ["a", "b", "c"], ["x", "y", "z"], axes=("from", "to"))
    return Figure("example", "Attention", {"model": "tiny"}, {"panels": [heat]})


@pytest.mark.parametrize("dpi", [50, 300])
def test_a_png_has_as_many_pixels_as_its_width_and_dpi_say(tmp_path: Path, dpi: int) -> None:
    from PIL import Image

    with Image.open(made().save(tmp_path / "x.png", width=3.5, dpi=dpi)) as picture:
        assert abs(picture.width - 3.5 * dpi) <= 1


def test_a_pdf_is_as_wide_as_asked_for(tmp_path: Path) -> None:
    written = made().save(tmp_path / "x.pdf", width=3.5).read_bytes()
    found = re.search(rb"/MediaBox\s*\[\s*0\s+0\s+([\d.]+)", written)
    assert found is not None
    assert float(found[1]) == pytest.approx(3.5 * 72, abs=0.5)


def test_an_svg_has_its_width_in_inches_and_its_font() -> None:
    plain, printed = made().to_svg(), made().to_svg(width=3.5, font="Times New Roman")
    assert 'width="3.5in"' in printed
    assert "Times New Roman, " in printed
    inside = lambda text: text.partition("<title>")[2]
    assert inside(plain) == inside(printed)  # scaled as a whole


def test_title_and_axes_replace_what_a_figure_says(tmp_path: Path) -> None:
    written = made().save(tmp_path / "x.svg", title="Figure 1", axes=("query", "key")).read_text()
    assert "Figure 1" in written
    assert "query ↓   key →" in written
    assert "Attention" not in written


def test_a_font_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert made().save(tmp_path / "x.png", font="No Such Font").stat().st_size > 0


@pytest.mark.parametrize("wrong", [{"width": 0}, {"dpi": -1}, {"width": "wide"}])
def test_a_size_that_is_none_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        made().save(tmp_path / "x.png", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "x.png").exists()


def test_a_figure_without_panels_has_no_axes_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Figure("beams", "Beams", {}, {}).save(tmp_path / "x.svg", axes=("a", "b"))
