"""Beam search drawn as a tree: steps across, what each step weighed down, best first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.view.canvas import ACCENT, INK, SOFT, Box, Shape, Stroke, TextLabel
from heedful.view.token_labels import brief, short, width

ROW = 34.0


def shapes(data: Mapping[str, Any]) -> tuple[list[Shape], float, float]:
    """Names with their scores, joined to what they continue.

    The best text is bold; what leads to a text that was found is plain; the rest is grey and dashed.
    """
    listed = data["branches"]
    column = max(max((width(short(b["name"])) for b in listed), default=0.0) + 34, 86.0)
    rows = rows_of(listed)
    place = [(16 + (b["step"] - 1) * column, 34 + ROW * row) for b, row in zip(listed, rows, strict=True)]
    out: list[Shape] = []
    for at, b in enumerate(listed):
        (x, y), ink = place[at], ACCENT if b["best"] else INK if b["lives"] else SOFT
        if b["parent"] >= 0:
            px, py = place[b["parent"]]
            start = px + 1.1 * width(short(listed[b["parent"]]["name"])) + 5  # the best is bold, and wider
            bold, dash = (2.2, ()) if b["best"] else (1.2, ()) if b["lives"] else (0.9, (3, 3))
            out.append(Stroke(bent(start, py, x - 5, y), ink, bold, dash, 1.0 if b["lives"] else 0.6))
        score = b["score"] if b["final"] is None else b["final"]
        said = brief(score) if b["final"] is None else f"= {brief(score)}"
        if b["fate"] == "finished":
            wide = max(width(short(b["name"])), width(said, 10)) + 10
            out.append(Box(x - 5, y - 9, wide, 30, stroke=ink))
        out.append(TextLabel(x, y, short(b["name"]), 12, colour=ink, bold=b["best"]))
        out.append(TextLabel(x, y + 13, said, 10, colour=ink))
    steps = max((b["step"] for b in listed), default=1)
    out += [TextLabel(16 + t * column, 10, f"step {t + 1}", 10.5, colour=SOFT) for t in range(steps)]
    return out, 16 + steps * column, 34 + ROW * (max(rows, default=0) + 1)


def rows_of(nodes: list[dict[str, Any]]) -> list[int]:
    """The row of each branch: its rank, the groups of a search below each other."""
    most = 1 + max((b["rank"] for b in nodes), default=0)
    return [b["group"] * most + b["rank"] for b in nodes]


def bent(x: float, y: float, to_x: float, to_y: float) -> list[tuple[float, float]]:
    """A line that leaves and arrives level: a cubic curve in twelve pieces."""
    if y == to_y:
        return [(x, y), (to_x, to_y)]
    share = [k / 12 for k in range(13)]
    return [(x + (to_x - x) * s, y + (to_y - y) * (3 * s * s - 2 * s**3)) for s in share]
