"""Panels: what most figures are made of. One description, from which SVG, PNG, CSV and the page follow.

    matrix(title, values)          a heat map (rows × columns)
    lines(title, values, names)    one line per row of values, over x
    bars(title, values, names)     a bar for each name
    table(title, cells, …)         numbers or texts as they are

A figure of panels is `Figure(kind, title, about, {"panels": […]}, note)`, however its kind is called:
no other code has to know how to draw it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.canvas import (
    ACCENT,
    BAR,
    DASHES,
    FAINT,
    FLOOR,
    INK,
    OKABE_ITO,
    SOFT,
    Box,
    Cells,
    Drawing,
    Point,
    Shape,
    Stroke,
    TextLabel,
    color_rows,
    greatest,
)  # fmt: skip
from heedful.classroom.figures.token_labels import brief, short, visible_text, width
from heedful.core.errors import InputError

Panel = dict[str, Any]  # web/src/figures/types.ts has the same fields
Axes = tuple[str, str]  # what rows and columns are


def matrix(
    title: str, values: Any, rows: Sequence[Any] | None = None, columns: Sequence[Any] | None = None, *,
    axes: Axes = ("", ""), note: str = "",
) -> Panel:  # fmt: skip
    """A heat map of values (R, C); rows and columns are numbered where they have no names."""
    return panel("heat", title, values, rows, columns, axes, note)


def lines(
    title: str, values: Any, names: Sequence[Any], x: Sequence[Any] | None = None, *, axes: Axes = ("", ""),
    note: str = "",
) -> Panel:  # fmt: skip
    """One line per row of values (R, C), over the numbers x; `axes` are the titles of y and x."""
    return panel("lines", title, values, names, x, axes, note)


def bars(
    title: str, values: Any, names: Sequence[Any], *, axes: Axes = ("", "value"), note: str = ""
) -> Panel:
    """A bar for each value (R,) with its name; `axes` say what the names and the values are."""
    return panel("bars", title, np.asarray(values, dtype=np.float64)[:, None], names, axes[1:], axes, note)


def table(
    title: str, cells: Sequence[Sequence[float | str]], rows: Sequence[Any], columns: Sequence[Any], *,
    axes: Axes = ("", ""), note: str = "",
) -> Panel:  # fmt: skip
    """Numbers or texts under the names of their columns."""
    return panel("table", title, [list(row) for row in cells], rows, columns, axes, note)


def panel(
    drawing: str, title: str, values: Any, rows: Sequence[Any] | None, columns: Sequence[Any] | None,
    axes: Axes, note: str,
) -> Panel:  # fmt: skip
    """A panel of one of the four drawings, its names checked against the shape of its values."""
    if isinstance(values, torch.Tensor):
        values = values.detach().float().cpu().numpy()
    if drawing != "table":  # whose cells may be texts
        values = np.ascontiguousarray(values)
    shape = (len(values), len(values[0]) if len(values) else 0)
    names = [
        list(range(n)) if given is None else list(given)
        for n, given in zip(shape, (rows, columns), strict=True)
    ]
    if (len(names[0]), len(names[1])) != shape:
        raise InputError(
            f"{title}: {len(names[0])} rows and {len(names[1])} columns have names, the values are {shape}"
        )
    signed = isinstance(values, np.ndarray) and bool((values < 0).any())
    return {
        "title": title, "note": note, "as": drawing, "rows": [str(r) for r in names[0]],
        "columns": [str(c) for c in names[1]], "rowTitle": axes[0], "columnTitle": axes[1], "values": values,
        "signed": signed,
    }  # fmt: skip


def draw_panel(panel: Panel) -> Drawing:
    """Draw one panel without its title."""
    rows, columns, values = panel["rows"], panel["columns"], panel["values"]
    match panel["as"]:
        case "lines":
            x = [float(c) for c in columns]
            curves = [(name, x, values[i]) for i, name in enumerate(rows)]
            return line_chart(curves, panel["columnTitle"], panel["rowTitle"])
        case "bars":
            heights = [float(row[0]) for row in values]
            return bar_chart(rows, heights, [brief(v) for v in heights], note=panel["columnTitle"])
        case "table":
            write = lambda cell: cell if isinstance(cell, str) else brief(float(cell))
            cells = [[name, *map(write, row)] for name, row in zip(rows, values, strict=True)]
            return text_table([panel["rowTitle"], *columns], cells)
    axes = f"{panel['rowTitle']} ↓   {panel['columnTitle']} →"
    return heat_map(values, rows, columns, signed=panel["signed"], axes=axes, compact=True)


def draw_panels(data: Mapping[str, Any]) -> Drawing:
    """Draw panels below each other, each under its title."""
    shapes: list[Shape] = []
    right = down = 0.0
    for one in data["panels"]:
        drawn, across, high = draw_panel(one)
        shapes.append(TextLabel(12, down + 8, one["title"], 12.5, bold=True))
        shapes += [move_down(shape, down + 22) for shape in drawn]
        right, down = max(right, across), down + high + 34
    return shapes, right, down


def panel_rows(data: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the numbers of all panels as rows of a table; the first names its columns."""
    yield ["panel", "row", "column", "value"]
    for one in data["panels"]:
        for t, row in enumerate(one["rows"]):
            for s, column in enumerate(one["columns"]):
                yield [one["title"], row, column, one["values"][t][s]]


# The drawings that figures are made of: heat maps, lines, bars, tables and points, each as shapes.


SIN = math.sqrt(0.5)


def draw_title(title: str, drawing: Drawing) -> Drawing:
    """Return a drawing on a page, under its title if it has one."""
    shapes, right, bottom = drawing
    lines = wrap_text(title, max(right, 420.0) - 24, 14) if title else []
    head = [TextLabel(12, 18 + 19 * i, line, 14, bold=True) for i, line in enumerate(lines)]
    down = 19.0 * len(lines) + 14
    return [*head, *(move_down(shape, down) for shape in shapes)], max(right, 420.0), bottom + down


def move_down(shape: Shape, distance: float) -> Shape:
    """Return the same shape further down."""
    if isinstance(shape, Stroke):
        return replace(shape, points=[(x, y + distance) for x, y in shape.points])
    return replace(shape, y=shape.y + distance)


def wrap_text(text: str, max_width: float, size: float) -> list[str]:
    """Return the words of a text in lines no wider than `max_width`."""
    lines = [""]
    for word in visible_text(text).split(" "):
        if lines[-1] and width(f"{lines[-1]} {word}", size) > max_width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:6]


def longest(names: Sequence[str]) -> float:
    """Return how wide the widest of some names is, in pixels."""
    return max((width(short(n)) for n in names), default=0.0)


def heat_map(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, signed: bool, scale: str = "linear",
    palette: str = "blue", axes: str = "", compact: bool = False, masked: np.ndarray | None = None,
) -> Drawing:  # fmt: skip
    """Draw a heat map with its labels and its legend; cells that are NaN, or `masked`, are hatched."""
    T, S = values.shape
    wide = min(longest(columns), 100.0)
    left = min(max(longest(rows) + 18, 40), 130)
    cell = min(max(640 / S, 1.2), 22.0 if compact else 44.0)
    tall = min(max(360 / T, 2.0), 18.0) if compact else cell
    turned = wide > cell - 6
    top = (wide * SIN + 14 if turned else 20.0) + 16
    limit = greatest(values)
    ramp, paint = "signed" if signed else palette, color_rows(values, limit, scale=scale, signed=signed)
    shapes: list[Shape] = [
        Cells(left, top, S * cell, T * tall, paint, ramp),
        Box(left, top, S * cell, T * tall, stroke=FAINT),
        TextLabel(12, 8, axes, 11, colour=SOFT),
    ]
    shapes += hatching(np.isnan(values) | (False if masked is None else masked), left, top, cell, tall)
    every = max(1, math.ceil(13 / tall))
    shapes += [
        TextLabel(left - 6, top + (t + 0.5) * tall, short(rows[t]), anchor="end") for t in range(0, T, every)
    ]
    every = max(1, math.ceil((13 if turned else 10) / cell))
    for s in range(0, S, every):
        x, name = left + (s + 0.5) * cell, short(columns[s])
        slanted = TextLabel(x, top - 7, name, angle=-45)
        shapes.append(slanted if turned else TextLabel(x, top - 10, name, anchor="middle"))
    if cell >= 29 and tall >= 18:
        for (t, s), v in np.ndenumerate(values):
            x, y = left + (s + 0.5) * cell, top + (t + 0.5) * tall
            if v != 0 and not math.isnan(v):  # .41, −.2, 0
                number = "0" if abs(v) < 0.005 else f"{v:.2f}".replace("0.", ".", 1).replace("-", "−")
                shapes.append(TextLabel(x, y, number, 11, "middle", f"on {ramp} {paint[t, s]}"))
    bottom = top + T * tall + 16
    shapes += legend(left, bottom, limit, signed, scale, palette)
    right = max(left + S * cell + (wide * SIN if turned else 0.0), left + 240) + 16
    return shapes, right, bottom + 40


def hatching(masked: np.ndarray, left: float, top: float, cell: float, tall: float) -> list[Shape]:
    """Draw one slanted line through each run of hidden cells on an anti-diagonal t + s = k."""
    (T, S), out = masked.shape, list[Shape]()
    for k in range(T + S - 1):
        t = np.arange(max(0, k - S + 1), min(T, k + 1))
        hidden = t[masked[t, k - t]]
        for run in np.split(hidden, np.flatnonzero(np.diff(hidden) > 1) + 1) if len(hidden) else ():
            t0, t1 = int(run[0]), int(run[-1])
            ends = [
                (left + (k - t1) * cell, top + (t1 + 1) * tall),
                (left + (k - t0 + 1) * cell, top + t0 * tall),
            ]
            out.append(Stroke(ends, FAINT, min(1.0, min(cell, tall) / 8)))
    return out


def legend(x: float, y: float, limit: float, signed: bool, scale: str, palette: str) -> list[Shape]:
    """Draw what a colour means, in numbers."""
    back = {"linear": lambda s: s, "sqrt": lambda s: s * s, "log": lambda s: FLOOR ** (1 - s)}[scale]
    shares = np.linspace(-1, 1, 64) if signed else np.linspace(0, 1, 64)
    bar = np.linspace(0, 255, 64).round().astype(np.uint8)[None]
    ramp = "signed" if signed else palette
    shapes: list[Shape] = [Cells(x, y, 220, 12, bar, ramp), Box(x, y, 220, 12, stroke=SOFT)]
    for at in (0.0, 0.25, 0.5, 0.75, 1.0):
        share = shares[0] + at * (shares[-1] - shares[0])
        whole = share or (scale == "log" and not signed)
        value = math.copysign(back(abs(share)), share) * limit if whole else 0.0
        shapes.append(TextLabel(x + at * 220, y + 22, brief(value), 11, "middle"))
    return shapes


def bar_chart(
    names: Sequence[str], values: Sequence[float], captions: Sequence[str], *, note: str = "",
    marks: Sequence[float] | None = None, highlighted_row: int | None = None,
) -> Drawing:  # fmt: skip
    """Draw a bar for each name, to the left of a zero line if it is below, and its caption to the right.

    A mark is a line across the bar's row; a missing value (NaN) has no bar.
    """
    left = min(max(longest(names) + 30, 70), 150)
    finite = [v for v in (*values, *(marks or ())) if not math.isnan(v)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    unit = 330 / ((max(high, 0.0) - min(low, 0.0)) or 1.0)
    zero = left - min(low, 0.0) * unit
    shapes: list[Shape] = [TextLabel(left, 8, note, 11, colour=SOFT)] if note else []
    top = 22.0 if note else 6.0
    for r, (name, value) in enumerate(zip(names, values, strict=True)):
        y, picked = top + 22 * r, r == highlighted_row
        label = f"▸ {short(name)}" if picked else short(name)
        shapes.append(TextLabel(left - 8, y + 8, label, 12, "end", ACCENT if picked else INK, bold=picked))
        if not math.isnan(value):
            long = max(abs(value) * unit, 0.5)
            shapes.append(Box(zero - long * (value < 0), y, long, 16, fill=BAR if value else FAINT))
        if marks is not None:
            at = zero + marks[r] * unit
            shapes.append(Stroke([(at, y - 1), (at, y + 17)], ACCENT, 1.5))
        end = max(0.0, value, marks[r] if marks is not None else value)  # 0 where the value is missing
        shapes.append(TextLabel(zero + end * unit + 8, y + 8, captions[r], 11))
    bottom = top + 22 * len(names)
    shapes += [Stroke([(zero, top - 3), (zero, bottom - 3)], SOFT)] if low < 0 else []
    return shapes, left + 500, bottom + 10


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Drawing:
    """Draw rows of texts under the names of their columns; the first column names the row."""
    cells = [[short(cell, 24) for cell in row] for row in (head, *rows)]
    wide = [max(width(row[c]) for row in cells) + 22 for c in range(len(head))]
    left = np.cumsum([12, *wide])
    shapes: list[Shape] = [
        TextLabel(float(left[c]), 10 + 20.0 * r, cell, 12, colour=INK if r else SOFT, bold=r > 0 and c == 0)
        for r, row in enumerate(cells)
        for c, cell in enumerate(row)
    ]
    rule = Stroke([(12, 20), (float(left[-1]), 20)], FAINT)
    return [rule, *shapes], float(left[-1]) + 12, 10 + 20.0 * len(cells) + 8


def point_map(points: np.ndarray, names: Sequence[str], axes: Sequence[str]) -> Drawing:
    """Draw points (N, 2) and as many of their names as find room next to them."""
    w, h = 720.0, 520.0
    low, high = points.min(0), points.max(0)
    # One unit is as long across as up, so that distances in the picture are those of the two axes.
    unit = min((w - 120) / ((high[0] - low[0]) or 1), (h - 60) / ((high[1] - low[1]) or 1))
    h = min(max((high[1] - low[1]) * unit + 60, 240.0), h)
    middle = (low + high) / 2
    place = [(w / 2 + (x - middle[0]) * unit, h / 2 - (y - middle[1]) * unit) for x, y in points]
    shapes: list[Shape] = [Point(x, y, 2.8, BAR, 0.85) for x, y in place]
    taken: list[tuple[float, float, float]] = []
    for (x, y), name in zip(place, names, strict=True):
        long = width(short(name), 11) + 4
        free = lambda a, b, long=long: (
            not any(abs(b - y) < 12 and a < x + w and x < a + long for x, y, w in taken)
        )
        places = ((x + 6, y), (x - long - 3, y), (x - long / 2, y - 11), (x - long / 2, y + 12))
        spot = next((p for p in places if free(*p)), None)
        if spot is not None:
            taken.append((*spot, long))
            shapes.append(TextLabel(*spot, short(name), 11))
    shapes.append(TextLabel(w / 2, h + 10, f"{axes[0]} →", 11, "middle", SOFT))
    shapes.append(TextLabel(12, h / 2, f"{axes[1]} →", 11, "middle", SOFT, -90))
    return shapes, w + 40, h + 26


def ticks(low: float, high: float, count: int = 5, minimum: float = 0.0) -> list[float]:
    """Return round numbers between two, at least `minimum` apart."""
    raw = max(minimum, (high - low) / count) or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m for m in (1, 2, 5, 10) if m * power >= raw - 1e-12 * power) * power
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def line_chart(
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], x_title: str, y_title: str
) -> Drawing:
    """Draw lines over x, told apart by colour and dash; `curves` are names with their x and y.

    A value that is not finite leaves a gap.
    """
    across, up, per = 560.0, 280.0, 4  # names in a row of the legend
    top = 14.0 + 18 * math.ceil(len(curves) / per)
    xs = np.concatenate([np.asarray(x, float) for _, x, _ in curves])
    ys = np.concatenate([np.asarray(y, float) for _, _, y in curves])
    xs, ys = (xs[np.isfinite(ys)], ys[np.isfinite(ys)]) if np.isfinite(ys).any() else (xs, np.zeros(1))
    (x0, x1), (y0, y1) = (xs.min(), xs.max()), (ys.min(), ys.max())
    whole = float(bool((xs == np.round(xs)).all()))  # no half steps
    pad = (y1 - y0) * 0.05 or abs(y1) * 0.05 or 0.5
    y0, y1 = y0 - pad, y1 + pad
    at = lambda x, y: (70 + (x - x0) / ((x1 - x0) or 1) * across, top + (y1 - y) / (y1 - y0) * up)
    shapes: list[Shape] = []
    for v in ticks(y0, y1):
        line = [at(x0, v), (70 + across, at(x0, v)[1])]
        shapes += [Stroke(line, FAINT), TextLabel(64, line[0][1], brief(v), 11, "end", SOFT)]
    shapes += [
        TextLabel(at(v, y0)[0], top + up + 12, brief(v), 11, "middle", SOFT) for v in ticks(x0, x1, 6, whole)
    ]
    shapes += [TextLabel(70 + across / 2, top + up + 30, x_title, 11.5, "middle")]
    shapes += [TextLabel(14, top + up / 2, y_title, 11.5, "middle", angle=-90)]
    for k, (name, x, y) in enumerate(curves):
        # a ninth line has the first one's colour, and so another dash
        hue, dash = OKABE_ITO[k % 8], DASHES[(k + k // 8) % 8]
        lx, ly = 70 + (k % per) * across / per, 8 + 18 * (k // per)
        example = Stroke([(lx, ly), (lx + 24, ly)], hue, 2, dash)
        shapes += [example, TextLabel(lx + 30, ly, short(name, 18), 11.5)]
        pairs = zip(map(float, x), map(float, y), strict=True)
        for finite, group in itertools.groupby(pairs, key=lambda pair: math.isfinite(pair[1])):
            points = [at(*pair) for pair in group] if finite else []
            if points:
                shapes.append(Stroke(points if len(points) > 1 else points * 2, hue, 1.8, dash))
            shapes += [Point(a, b, 2.6, hue) for a, b in points] if len(x) <= 24 else []
    return shapes, 70 + across + 24, top + up + 44
