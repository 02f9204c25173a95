"""Bars below zero go to the left of a zero line, and a cell without a value never looks like zero."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heedful.classroom.figures import panels
from heedful.classroom.figures.canvas import Box, Stroke, TextLabel
from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import bar_chart, heat_map


def drawn(values: list[float], marks: list[float] | None = None) -> tuple[list[Box], list[Stroke]]:
    """The bars of a chart and its lines."""
    names = [str(i) for i in range(len(values))]
    shapes, *_ = bar_chart(names, values, names, marks=marks)
    return [s for s in shapes if isinstance(s, Box)], [s for s in shapes if isinstance(s, Stroke)]


def test_a_bar_below_zero_ends_where_one_above_zero_begins() -> None:
    (up, down), (zero,) = drawn([1.0, -2.0])
    assert {x for x, _ in zero.points} == {up.x}
    assert down.x + down.w == pytest.approx(up.x)
    assert down.w == pytest.approx(2 * up.w)


def test_bars_of_one_sign_fill_the_room_and_those_above_zero_need_no_line() -> None:
    (first, second), lines = drawn([1.0, 2.0])
    assert (first.x, second.w, lines) == (second.x, 330.0, [])
    (small, great), (zero,) = drawn([-1.0, -2.0])
    assert great.w == 330.0
    assert zero.points[0][0] == pytest.approx(great.x + great.w) == pytest.approx(small.x + small.w)


def test_a_caption_stands_to_the_right_of_zero_and_of_its_bar() -> None:
    shapes, *_ = bar_chart(["a", "b"], [1.0, -2.0], ["one", "two"])
    at = {s.text: s.x for s in shapes if isinstance(s, TextLabel)}
    up, down = (s for s in shapes if isinstance(s, Box))
    assert at["one"] > up.x + up.w
    assert at["two"] > down.x + down.w
    assert at["a"] < down.x


def test_a_mark_below_zero_stands_to_the_left_of_the_line() -> None:
    _, lines = drawn([1.0, 2.0], marks=[-1.0, 2.0])
    below, above, zero = (line.points[0][0] for line in lines)
    assert below < zero < above


def test_a_missing_value_has_no_bar() -> None:
    bars, _ = drawn([1.0, math.nan, -1.0])
    assert len(bars) == 2
    assert all(math.isfinite(bar.x + bar.w) for bar in bars)


def test_a_figure_of_bars_below_zero_is_another_than_that_of_their_sizes() -> None:
    of = lambda values: Figure("bars", "b", {}, {"panels": [panels.bars("b", values, ["a", "b"])]}).to_svg()
    sides = [svg.replace("−2", "2").replace("-2", "2") for svg in (of([1.0, -2.0]), of([1.0, 2.0]))]
    assert sides[0] != sides[1]


def test_a_missing_cell_is_hatched_beside_masked_ones() -> None:
    values, masked = np.array([[math.nan, 1.0, 0.0]]), np.array([[False, False, True]])
    lines = lambda mask: [
        s for s in heat_map(values, ["r"], list("abc"), signed=False, masked=mask)[0] if isinstance(s, Stroke)
    ]
    assert len(lines(None)) == 1
    assert len(lines(masked)) == 2
