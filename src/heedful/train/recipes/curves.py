"""Curves of training runs, drawn with dots in a terminal; `heedful.view.training` makes a figure of them."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from heedful.train.recipes.folder import read_metrics

Curve = list[tuple[float, float]]  # (step, value)
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column
COLOURS = ("36", "33", "35", "32", "34", "31")


def read_curves(runs: Sequence[Path], metric: str) -> dict[str, Curve]:
    """Return every curve of a metric: "train" and "eval" of a run, with its name if there are several."""
    found: dict[str, Curve] = {}
    for run in runs:
        lines = read_metrics(run)
        for side in ("train", "eval"):
            key = f"{side}/{metric}"
            points = [(x["train/global_step"], x[key]) for x in lines if key in x and math.isfinite(x[key])]
            if points:
                found[f"{run.name} {side}" if len(runs) > 1 else side] = points
    return found


def draw_curves(
    curves: Mapping[str, Curve],
    title: str,
    width: int | None = None,
    height: int = 16,
    colour: bool | None = None,
) -> str:
    """Return the curves as text, in which every character is two by four dots."""
    width = width or min(shutil.get_terminal_size().columns, 100)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ if colour is None else colour
    points = [p for curve in curves.values() for p in curve]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    columns = width - 10
    cells = [[0] * columns for _ in range(height)]
    owner = [[-1] * columns for _ in range(height)]
    for k, curve in enumerate(curves.values()):
        for x, y in interpolate(curve, left, right, columns * 2):
            down = round((high - y) / ((high - low) or 1) * (height * 4 - 1))
            cells[down // 4][x // 2] |= DOTS[down % 4][x % 2]
            owner[down // 4][x // 2] = k
    paint = lambda text, k: f"\033[{COLOURS[k % len(COLOURS)]}m{text}\033[0m" if colour and k >= 0 else text
    lines = [f"{title}   " + "   ".join(paint(f"⠶ {name}", k) for k, name in enumerate(curves))]
    for r in range(height):
        label = f"{high - (high - low) * r / (height - 1):9.4g}" if r % 5 == 0 or r == height - 1 else " " * 9
        lines.append(
            f"{label} "
            + "".join(paint(chr(0x2800 + c), o) for c, o in zip(cells[r], owner[r], strict=True)).rstrip()
        )
    lines.append(" " * 10 + f"{left:<{max(1, columns // 2)}g}{right:>{columns - max(1, columns // 2)}g}")
    return "\n".join(lines)


def interpolate(curve: Curve, left: float, right: float, columns: int) -> list[tuple[int, float]]:
    """Return a value for every column between a curve's first and last point, by linear interpolation."""
    place = lambda x: (x - left) / ((right - left) or 1) * (columns - 1)
    out: list[tuple[int, float]] = []
    for (x0, y0), (x1, y1) in zip(curve, curve[1:] or curve, strict=False):
        a, b = place(x0), place(x1)
        for column in range(round(a), round(b) + 1):
            part = (column - a) / (b - a) if b > a else 0.0
            out.append((column, y0 + (y1 - y0) * min(max(part, 0.0), 1.0)))
    return out
