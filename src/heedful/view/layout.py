"""From a figure's numbers to shapes: the layout of every kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heedful.view import color_scale
from heedful.view.canvas import (
    ACCENT,
    BAR,
    FAINT,
    INK,
    SOFT,
    Box,
    Cells,
    Point,
    Scene,
    Shape,
    Stroke,
    TextLabel,
)
from heedful.view.table import pick_heads
from heedful.view.token_labels import brief, percent, short, visible_text, width

Data = Mapping[str, Any]
Coordinates = tuple[float, float]
SIN = math.sqrt(0.5)


def scene(title: str, figures: tuple[list[Shape], float, float]) -> Scene:
    """The drawing of a figure: its shapes, how wide and how high they are, under its title."""
    shapes, right, bottom = figures
    lines = wrap_text(title, max(right, 420.0) - 24, 14)
    head = [TextLabel(12, 18 + 19 * i, line, 14, bold=True) for i, line in enumerate(lines)]
    down = 19.0 * len(lines) + 14
    return Scene(max(right, 420.0), bottom + down, (*head, *(translate(s, 0, down) for s in shapes)))


def translate(shape: Shape, right: float, dy: float) -> Shape:
    """The same shape elsewhere."""
    from dataclasses import replace

    if isinstance(shape, Stroke):
        return replace(shape, points=[(x + right, y + dy) for x, y in shape.points])
    return replace(shape, x=shape.x + right, y=shape.y + dy)


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
    return max((width(short(n)) for n in names), default=0.0)


def matrix(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, signed: bool, scale: str = "linear",
    palette: str = "blue", axes: str = "", compact: bool = False, masked: np.ndarray | None = None,
) -> tuple[list[Shape], float, float]:  # fmt: skip
    """A heat map with its labels and its legend. What a mask hides, where `masked` is true, is hatched."""
    T, S = values.shape
    wide = min(longest(columns), 100.0)
    left = min(max(longest(rows) + 18, 40), 130)
    cell = min(max(640 / S, 1.2), 22.0 if compact else 44.0)
    tall = min(max(360 / T, 2.0), 18.0) if compact else cell
    turned = wide > cell - 6
    top = (wide * SIN + 14 if turned else 20.0) + 16
    limit = color_scale.greatest(values)
    ramp, paint = "signed" if signed else palette, color_scale.rows(values, limit, scale=scale, signed=signed)
    shapes: list[Shape] = [
        Cells(left, top, S * cell, T * tall, paint, ramp),
        Box(left, top, S * cell, T * tall, stroke=FAINT),
        TextLabel(12, 8, axes, 11, colour=SOFT),
    ]
    if masked is not None:
        shapes += hatch_cell(masked, left, top, cell)
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
        shapes += numbers(values, Cells(left, top, cell, tall, paint, ramp))
    bottom = top + T * tall + 16
    shapes += legend(left, bottom, limit, signed, scale, palette)
    right = max(left + S * cell + (wide * SIN if turned else 0.0), left + 240) + 16
    return shapes, right, bottom + 40


def hatch_cell(masked: np.ndarray, left: float, top: float, cell: float) -> list[Shape]:
    """One slanted line through each run of hidden cells on an anti-diagonal t + s = k."""
    (T, S), out = masked.shape, list[Shape]()
    for k in range(T + S - 1):
        t = np.arange(max(0, k - S + 1), min(T, k + 1))
        for t0, t1 in runs(t[masked[t, k - t]]):
            ends = [
                (left + (k - t1) * cell, top + (t1 + 1) * cell),
                (left + (k - t0 + 1) * cell, top + t0 * cell),
            ]
            out.append(Stroke(ends, FAINT, min(1.0, cell / 8)))
    return out


def runs(rising: np.ndarray) -> list[tuple[int, int]]:
    """The first and last of each stretch of rising whole numbers without a gap."""
    parts = np.split(rising, np.flatnonzero(np.diff(rising) > 1) + 1) if len(rising) else []
    return [(int(part[0]), int(part[-1])) for part in parts]


def numbers(values: np.ndarray, one: Cells) -> list[Shape]:
    """The weights in their cells, black or white as reads better; `one` is the first cell, colours of all."""
    said = lambda v: "0" if abs(v) < 0.005 else f"{v:.2f}".replace("0.", ".", 1).replace("-", "−")
    return [
        TextLabel(one.x + (s + 0.5) * one.w, one.y + (t + 0.5) * one.h, said(v), 11, "middle", on(one, t, s))
        for (t, s), v in np.ndenumerate(values)
        if v != 0
    ]


def on(cells: Cells, row: int, column: int) -> str:
    """The ink for a letter on a cell."""
    return f"on {cells.ramp} {cells.rows[row, column]}"


def legend(x: float, y: float, limit: float, signed: bool, scale: str, palette: str) -> list[Shape]:
    """What a colour means, in numbers."""
    back = {"linear": lambda s: s, "sqrt": lambda s: s * s, "log": lambda s: color_scale.FLOOR ** (1 - s)}[
        scale
    ]
    shares = np.linspace(-1, 1, 64) if signed else np.linspace(0, 1, 64)
    bar = np.linspace(0, 255, 64).round().astype(np.uint8)[None]
    ramp = "signed" if signed else palette
    shapes: list[Shape] = [Cells(x, y, 220, 12, bar, ramp), Box(x, y, 220, 12, stroke=SOFT)]
    for at in (0.0, 0.25, 0.5, 0.75, 1.0):
        share = shares[0] + at * (shares[-1] - shares[0])
        value = (
            math.copysign(back(abs(share)), share) * limit
            if share or (scale == "log" and not signed)
            else 0.0
        )
        shapes.append(TextLabel(x + at * 220, y + 22, brief(value), 11, "middle"))
    return shapes


def attention(data: Data) -> tuple[list[Shape], float, float]:
    found, pattern = pick_heads(data), data["patterns"][data["pattern"]]
    return matrix(
        found.values, found.queries, found.keys, signed=pattern["kind"] == "effective", scale=data["scale"],
        palette=data["palette"],
        axes="word written ↓   source →" if pattern["written"] else "query ↓   key →",
        masked=found.masked,
    )  # fmt: skip


def pool_cells(values: np.ndarray, size: int) -> np.ndarray:
    """A matrix made smaller: each cell the entry of greatest size it stands for."""
    for axis in (0, 1):
        if values.shape[axis] > size:
            parts = np.array_split(values, size, axis)
            top = lambda p: np.take_along_axis(p, np.abs(p).argmax(axis, keepdims=True), axis)  # noqa: B023
            values = np.concatenate([top(p) for p in parts], axis)
    return values


def heads(data: Data) -> tuple[list[Shape], float, float]:
    shapes: list[Shape] = []
    size, gap, top = 58.0, 6.0, 22.0
    left = min(max(longest([p["name"] for p in data["patterns"]]) + 22, 60), 150)
    most = max(len(p["values"]) for p in data["patterns"])
    shapes += [
        TextLabel(left + h * (size + gap) + size / 2, 10, str(h), 11, "middle", SOFT) for h in range(most)
    ]
    for row, pattern in enumerate(data["patterns"]):
        y = top + row * (size + gap)
        shapes.append(TextLabel(left - 8, y + size / 2, short(pattern["name"], 20), 11, "end", SOFT))
        for h, head in enumerate(pattern["values"]):
            small, signed = pool_cells(head, 24), pattern["kind"] == "effective"
            paint = color_scale.rows(small, color_scale.greatest(small), scale=data["scale"], signed=signed)
            ramp = "signed" if signed else data["palette"]
            x = left + h * (size + gap)
            shapes += [Cells(x, y, size, size, paint, ramp), Box(x, y, size, size, stroke=FAINT)]
    return shapes, left + most * (size + gap) + 12, top + len(data["patterns"]) * (size + gap) + 8


def panels(data: Data) -> tuple[list[Shape], float, float]:
    shapes: list[Shape] = []
    right = down = 0.0
    for panel in data["panels"]:
        shapes.append(TextLabel(12, down + 8, panel["title"], 12.5, bold=True))
        axes = f"{panel['rowTitle']} ↓   {panel['columnTitle']} →"
        if panel["as"] == "lines":
            at = [float(c) for c in panel["columns"]]
            found = [(n, at, panel["values"][i]) for i, n in enumerate(panel["rows"])]
            made = curves(found, panel["columnTitle"], panel["rowTitle"])
        else:
            rows, columns = panel["rows"], panel["columns"]
            made = matrix(panel["values"], rows, columns, signed=panel["signed"], axes=axes, compact=True)
        shapes += [translate(s, 0, down + 22) for s in made[0]]
        right, down = max(right, made[1]), down + made[2] + 34
    return shapes, right, down


def steps(data: Data) -> tuple[list[Shape], float, float]:
    """Its text, in lines of one hundred letters."""
    out: list[str] = []
    for line in data["text"]:
        line = line.rstrip() and visible_text("\u00a0" + line)[1:]
        start = len(line) - len(line.lstrip())
        while len(line) > 110:
            at = line.rfind(" ", start + 1, 110)
            at = at if at > start else 110
            out.append(line[:at])
            line = " " * (start + 4) + line[at:].lstrip()
        out.append(line)
    shapes = [TextLabel(12, 8 + 17 * i, line, 11.5, font="mono") for i, line in enumerate(out)]
    return list(shapes), 12 + 7.1 * max(map(len, out)) + 16, 17.0 * len(out) + 12


def next_token(data: Data) -> tuple[list[Shape], float, float]:
    names = [data["names"][i] for i in data["shown"]]
    final, before = data["chain"]["final"], data["chain"]["p"]
    left = min(max(longest(names) + 30, 70), 150)
    top = max(float(final.max()), float(before.max())) or 1.0
    shapes: list[Shape] = [
        TextLabel(left, 8, "bar: probability it is drawn with; line: at temperature 1", 11, colour=SOFT)
    ]
    for r, (i, name) in enumerate(zip(data["shown"], names, strict=True)):
        y = 22.0 + 22 * r
        drawn = i == data["drawn"]
        label = f"▸ {short(name)}" if drawn else short(name)
        shapes.append(TextLabel(left - 8, y + 8, label, 12, "end", ACCENT if drawn else INK, bold=drawn))
        shapes.append(
            Box(left, y, max(float(final[r]) / top * 330, 0.5), 16, fill=BAR if final[r] else FAINT)
        )
        mark = left + float(before[r]) / top * 330
        shapes.append(Stroke([(mark, y - 1), (mark, y + 17)], ACCENT, 1.5))
        end = left + max(float(final[r]), float(before[r])) / top * 330
        said = f"{percent(float(final[r]))}   (logit {brief(float(data['logits'][i]))})"
        shapes.append(TextLabel(end + 8, y + 8, said, 11))
    return shapes, left + 500, 22.0 + 22 * len(names) + 10


def is_crowded(x: float, y: float, long: float, boxes: Sequence[tuple[float, float, float]]) -> bool:
    """Whether a name would stand on another."""
    return any(abs(y - b) < 12 and x < a + c and a < x + long for a, b, c in boxes)


def embeddings(data: Data) -> tuple[list[Shape], float, float]:
    points, w, h = data["points"].astype(float), 720.0, 520.0
    low, high = points.min(0), points.max(0)
    # One unit is as long across as up, so that distances in the picture are those of the two axes.
    unit = min((w - 120) / ((high[0] - low[0]) or 1), (h - 60) / ((high[1] - low[1]) or 1))
    h = min(max((high[1] - low[1]) * unit + 60, 240.0), h)
    middle = (low + high) / 2
    center: Coordinates = (w / 2 - middle[0] * unit, h / 2 + middle[1] * unit)
    place: list[Coordinates] = [(center[0] + x * unit, center[1] - y * unit) for x, y in points]
    shapes: list[Shape] = [Point(x, y, 2.8, BAR, 0.85) for x, y in place]
    taken: list[tuple[float, float, float]] = []
    for (x, y), name in zip(place, data["names"], strict=True):
        long = width(short(name), 11) + 4
        places = ((x + 6, y), (x - long - 3, y), (x - long / 2, y - 11), (x - long / 2, y + 12))
        spot = next((p for p in places if not is_crowded(*p, long, taken)), None)
        if spot is not None:
            taken.append((*spot, long))
            shapes.append(TextLabel(*spot, short(name), 11))
    across, up = data["axes"]
    shapes += [
        TextLabel(w / 2, h + 10, f"{across} →", 11, "middle", SOFT),
        TextLabel(12, h / 2, f"{up} →", 11, "middle", SOFT, -90),
    ]
    return shapes, w + 40, h + 26


def ticks(low: float, high: float, count: int = 5, minimum: float = 0.0) -> list[float]:
    """Round numbers between two, so far apart at least."""
    raw = max(minimum, (high - low) / count) or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m for m in (1, 2, 5, 10) if m * power >= raw - 1e-12 * power) * power
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def curves(
    curves_found: Sequence[tuple[str, Sequence[float], Sequence[float]]], x_title: str, y_title: str
) -> tuple[list[Shape], float, float]:
    """Lines over x, told apart by colour and dash."""
    across, up = 560.0, 280.0
    per = 4
    top = 14.0 + 18 * math.ceil(len(curves_found) / per)
    xs = np.concatenate([np.asarray(x, float) for _, x, _ in curves_found])
    ys = np.concatenate([np.asarray(y, float) for _, _, y in curves_found])
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
    for k, (name, x, y) in enumerate(curves_found):
        hue, dash = color_scale.OKABE_ITO[k % 8], color_scale.DASHES[k % 8]
        lx, ly = 70 + (k % per) * across / per, 8 + 18 * (k // per)
        shapes += [
            Stroke([(lx, ly), (lx + 24, ly)], hue, 2, dash),
            TextLabel(lx + 30, ly, short(name, 18), 11.5),
        ]
        points = [at(float(a), float(b)) for a, b in zip(x, y, strict=True)]
        shapes.append(Stroke(points if len(points) > 1 else points * 2, hue, 1.8, dash))
        shapes += [Point(a, b, 2.6, hue) for a, b in points] if len(points) <= 24 else []
    return shapes, 70 + across + 24, top + up + 44


def training(data: Data) -> tuple[list[Shape], float, float]:
    return curves([(c["name"], c["x"], c["y"]) for c in data["curves"]], "step", data["metric"])
