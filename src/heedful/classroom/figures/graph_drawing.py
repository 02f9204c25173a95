"""A graph whose nodes stand in layers, drawn from the bottom up: lines as strong as their values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.classroom.figures.canvas import ACCENT, BAR, INK, SOFT, Box, Shape, Stroke, TextLabel
from heedful.classroom.figures.charts import Drawing
from heedful.classroom.figures.token_labels import brief, short, width

ROW, GAP, HIGH = 54.0, 26.0, 22.0
LAYER = re.compile(r"^\w+\.(\d+)")


def draw_graph(data: Mapping[str, Any]) -> Drawing:
    """Draw nodes from the embedding at the bottom to the logits on top; edges that take away are dashed."""
    rows = layer_rows(data["nodes"])
    wide = lambda name: width(short(name, 24)) + 14
    across = max(sum(map(wide, row)) + GAP * (len(row) - 1) for row in rows)
    place: dict[str, tuple[float, float]] = {}
    shapes: list[Shape] = []
    for depth, row in enumerate(rows):
        x = 24 + (across - sum(map(wide, row)) - GAP * (len(row) - 1)) / 2
        y = 16 + ROW * (len(rows) - 1 - depth)
        for name in row:
            place[name] = (x + wide(name) / 2, y)
            shapes.append(Box(x, y, wide(name), HIGH, stroke=SOFT))
            shapes.append(TextLabel(x + wide(name) / 2, y + HIGH / 2, short(name, 24), 12, "middle"))
            x += wide(name) + GAP
    largest = max((abs(value) for _, _, value in data["edges"]), default=1.0) or 1.0
    for sender, receiver, value in data["edges"]:
        shapes += _edge(place[sender], place[_place_of(receiver, place)], value, abs(value) / largest)
    return shapes, across + 300, 16 + ROW * len(rows)


def _edge(start: tuple[float, float], end: tuple[float, float], value: float, share: float) -> list[Shape]:
    """A curve between two boxes that bows where it passes others, with its value beside it."""
    (x0, y0), (x1, y1) = (start[0], start[1]), (end[0], end[1] + HIGH)
    levels = (start[1] - end[1]) / ROW
    bow = 0.0 if levels < 1.5 else 50.0 + 22.0 * levels
    points = [
        (x0 + (x1 - x0) * s + bow * math.sin(math.pi * s), y0 + (y1 - y0) * s)
        for s in (k / 12 for k in range(13))
    ]
    ink, dash = (BAR, ()) if value > 0 else (ACCENT, (4, 3))
    x, y = points[6 if levels < 1.5 else 4 + int(levels) % 5]
    label = TextLabel(x + 3, y, brief(value), 10, colour=INK if share > 0.25 else SOFT)
    return [Stroke(points, ink, 0.8 + 4 * share, dash, 0.35 + 0.6 * share), label]


def layer_rows(nodes: Sequence[str]) -> list[list[str]]:
    """Return the nodes in rows: a row for the attention and one for the feed-forward part of a layer."""
    rows: dict[str, list[str]] = {}
    for name in nodes:
        rows.setdefault(name.partition(" ")[0] if LAYER.match(name) else name, []).append(name)
    return list(rows.values())


def _place_of(receiver: str, positions: Mapping[str, tuple[float, float]]) -> str:
    """The node that a part reads as: itself, or, where its heads are nodes, the first of them."""
    if receiver in positions:
        return receiver
    return next(name for name in positions if name.startswith(receiver))
