"""A drawing as a list of shapes, and two ways to write it: SVG by hand, PNG and PDF through matplotlib."""

from __future__ import annotations

import base64
import functools
import itertools
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from heedful.classroom.figures.token_labels import CONTROL
from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.core.files import open_atomically
from heedful.core.lazy import import_optional

# Colours everybody can tell apart: one hue from the background on for weights, two for signed numbers.


CIVIDIS = (
    "#fee838", "#e1cc55", "#c3b369", "#a59c74", "#8a8779", "#707173", "#575d6d", "#3b496c", "#123570",
    "#00224e",
)  # fmt: skip
# Each starts at its theme's background; "signed" has it in the middle (light: PuOr).
LIGHT = {
    "blue": ("#ffffff", "#dce9f7", "#a6c8e8", "#5b99d1", "#2463a8", "#08306b"),
    "cividis": CIVIDIS,
    "signed": ("#542788", "#998ec3", "#d8daeb", "#ffffff", "#fee0b6", "#f1a340", "#b35806"),
}
DARK = {
    "blue": ("#14171c", "#17324f", "#22608f", "#4b97cc", "#a8d3f0", "#fdf7dc"),
    "cividis": CIVIDIS[::-1],
    "signed": ("#9ad4f5", "#56b4e9", "#23506b", "#14171c", "#6b4c0a", "#e69f00", "#ffcf66"),
}
PALETTES = ("blue", "cividis")
# Okabe and Ito's eight, the yellow darker so that it can be seen on white; dashes tell them apart as well.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A900", "#777777")
DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3), (12, 4), (4, 2, 1, 2), (1, 2), (10, 2, 2, 2))
SCALES = ("linear", "sqrt", "log")
FLOOR = 1e-4  # the smallest share of the limit that a logarithmic scale still shows


@functools.cache
def color_table(stops: tuple[str, ...]) -> np.ndarray:
    """256 colours (256, 3) between stops that stand at equal distances."""
    colours = np.array([list(bytes.fromhex(stop[1:])) for stop in stops], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(at, np.arange(len(stops)), colours[:, c]) for c in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def level(values: np.ndarray, limit: float, scale: str) -> np.ndarray:
    """Where sizes stand between 0 and their limit: v, √v, or log v from FLOOR on."""
    share = np.clip(np.abs(values) / (limit or 1.0), 0.0, 1.0)
    if scale == "sqrt":
        return np.sqrt(share)
    if scale == "log":
        return 1 - np.log10(np.maximum(share, FLOOR)) / np.log10(FLOOR)
    return share


def color_rows(
    values: np.ndarray, limit: float, *, scale: str = "linear", signed: bool = False
) -> np.ndarray:
    """The row of each value in a table of 256 colours: 0 is a ramp's background, 128 that of "signed"."""
    values = np.nan_to_num(values)
    size = level(values, limit, scale)
    if signed:
        return np.rint(127.5 + np.sign(values) * size * 127.5).astype(np.uint8)
    return np.rint(size * 255).astype(np.uint8)


def ink(colour: np.ndarray) -> str:
    """Black or white: the one that reads better on a colour (WCAG's relative luminance)."""
    share = colour / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return "#000000" if linear @ (0.2126, 0.7152, 0.0722) > 0.179 else "#ffffff"


def greatest(values: np.ndarray) -> float:
    """The greatest size: the top of a colour scale; NaN has none."""
    return float(np.nan_to_num(np.abs(values)).max(initial=0.0)) or 1.0


INK, SOFT, FAINT, ACCENT, BAR = "ink", "soft", "faint", "accent", "bar"  # what a theme has a colour for
FONTS = {"sans": "system-ui, -apple-system, 'Segoe UI', sans-serif", "mono": "ui-monospace, Menlo, monospace"}


@dataclass(frozen=True)
class Theme:
    """What colours are called, and what they are; `ramps` have one colour per row of a table of 256."""

    background: str
    names: Mapping[str, str]
    ramps: Mapping[str, tuple[str, ...]]

    def colour(self, name: str) -> str:
        """A colour by its name; "on blue 200" is black or white, as reads better on that row of a ramp."""
        if name.startswith("on "):
            _, ramp, row = name.split()
            return ink(self.table(ramp)[int(row)])
        return self.names.get(name, name)

    def table(self, ramp: str) -> np.ndarray:
        return color_table(self.ramps[ramp])


THEMES = {
    "light": Theme(
        "#ffffff",
        {INK: "#1a1d21", SOFT: "#565d66", FAINT: "#d5d9de", ACCENT: "#b3470b", BAR: "#2463a8"},
        LIGHT,
    ),
    "dark": Theme(
        "#14171c",
        {INK: "#e8eaed", SOFT: "#a3abb5", FAINT: "#3a4048", ACCENT: "#ffb454", BAR: "#4b97cc"},
        DARK,
    ),
}


def theme_of(name: str) -> Theme:
    """A theme by its name."""
    return THEMES[check_choice("theme", name, THEMES, ConfigError)]


@dataclass(frozen=True)
class Cells:
    """A grid of coloured rectangles: the rows (R, C) of a ramp's table."""

    x: float
    y: float
    w: float
    h: float
    rows: np.ndarray
    ramp: str


@dataclass(frozen=True)
class TextLabel:
    """A text whose middle stands at y; `anchor` is start, middle or end."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: str = "start"
    colour: str = INK
    angle: float = 0.0
    bold: bool = False
    font: str = "sans"


@dataclass(frozen=True)
class Stroke:
    """A line through points."""

    points: Sequence[tuple[float, float]]
    colour: str = INK
    width: float = 1.0
    dash: Sequence[float] = ()
    alpha: float = 1.0


@dataclass(frozen=True)
class Box:
    """A rectangle, filled or outlined."""

    x: float
    y: float
    w: float
    h: float
    fill: str = "none"
    stroke: str = "none"


@dataclass(frozen=True)
class Point:
    """A disc."""

    x: float
    y: float
    r: float
    colour: str = BAR
    alpha: float = 1.0


@dataclass(frozen=True)
class Picture:
    """Pixels (H, W, 3) of bytes, stretched to a rectangle; they look the same in every theme."""

    x: float
    y: float
    w: float
    h: float
    pixels: np.ndarray


Shape = Cells | TextLabel | Stroke | Box | Point | Picture


Drawing = tuple[list[Shape], float, float]  # shapes in the order they are painted, how wide and how high


def escape_text(text: str) -> str:
    """Text that XML can hold."""
    return escape(CONTROL.sub(" ", text), {'"': "&quot;"})


def svg(
    drawing: Drawing, title: str, description: str, theme: str = "light", *, width: float | None = None,
    font: str | None = None,
) -> str:  # fmt: skip
    """The drawing as an SVG file with a title and a description, `width` inches wide."""
    shapes, across, high = drawing
    size = f'width="{_n(across)}" height="{_n(high)}"'
    if width is not None:
        size = f'width="{_n(width)}in" height="{_n(width * high / across)}in"'
    view = f'viewBox="0 0 {_n(across)} {_n(high)}"'
    family = FONTS["sans"] if font is None else f"{escape_text(font)}, {FONTS['sans']}"
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img" font-family="{family}">'
    head = f"<title>{escape_text(title)}</title><desc>{escape_text(description)}</desc>"
    look = theme_of(theme)
    page = f'<rect width="100%" height="100%" fill="{look.background}"/>'
    body = "\n".join(_svg(shape, look) for shape in shapes)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{start}\n{head}\n{page}\n{body}\n</svg>\n'


def encode_png(pixels: np.ndarray) -> bytes:
    """Pixels (H, W, 3) of bytes as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels, dtype=np.uint8))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # eight bits, three colours
    file = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        file += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return file


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(shape: Shape, theme: Theme) -> str:
    hue = theme.colour
    match shape:
        case Cells():
            return _svg_cells(shape, theme)
        case TextLabel(x, y, text, size, anchor, colour, angle, bold, font):
            turn = f' transform="rotate({_n(angle)} {_n(x)} {_n(y)})"' if angle else ""
            weight = ' font-weight="600"' if bold else ""
            family = f' font-family="{FONTS["mono"]}" xml:space="preserve"' if font == "mono" else ""
            place = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}"'
            place += f' fill="{hue(colour)}"'
            place += ' dominant-baseline="central"'
            return f"<text {place}{weight}{family}{turn}>{escape_text(text)}</text>"
        case Stroke(points, colour, width, dash, alpha):
            d = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
            dashes = f' stroke-dasharray="{" ".join(map(str, dash))}"' if dash else ""
            faint = f' opacity="{_n(alpha)}"' if alpha < 1 else ""
            line = f'stroke="{hue(colour)}" stroke-width="{_n(width)}"'
            return f'<path d="{d}" fill="none" {line}{dashes}{faint}/>'
        case Box(x, y, w, h, fill, stroke):
            place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}"'
            return f'<rect {place} fill="{hue(fill)}" stroke="{hue(stroke)}"/>'
        case Picture(x, y, w, h, pixels):
            place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}" preserveAspectRatio="none"'
            data = base64.b64encode(encode_png(pixels)).decode()
            return f'<image {place} image-rendering="pixelated" href="data:image/png;base64,{data}"/>'
        case Point(x, y, r, colour, alpha):
            place = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}"'
            return f'<circle {place} fill="{hue(colour)}" opacity="{_n(alpha)}"/>'


def _svg_cells(cells: Cells, theme: Theme) -> str:
    """One rectangle for each run of equal colour in a row; what is as the background is left out."""
    R, C = cells.rows.shape
    w, h = cells.w / C, cells.h / R
    out = ['<g shape-rendering="crispEdges">']
    colours = theme.table(cells.ramp)[cells.rows]
    codes = colours.astype(np.uint32) @ np.array([65536, 256, 1], dtype=np.uint32)
    background = int(theme.background[1:], 16)
    for r, row in enumerate(codes):
        edges = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), C]
        for start, end in itertools.pairwise(edges):
            if row[start] != background:
                place = f'x="{_n(cells.x + start * w)}" y="{_n(cells.y + r * h)}"'
                size = f'width="{_n((end - start) * w)}" height="{_n(h)}"'
                out.append(f'<rect {place} {size} fill="#{row[start]:06x}"/>')
    return "".join(out) + "</g>"


def save_picture(
    drawing: Drawing, path: Path, theme: str = "light", *, width: float | None = None, dpi: float = 144.0,
    font: str | None = None,
) -> None:  # fmt: skip
    """Write the drawing as a .png or a .pdf, `width` inches wide; by default a unit is a 72nd of an inch."""
    import_optional(
        "matplotlib.backends.backend_agg", f"a {path.suffix[1:].upper()}", "write a .svg or .html file"
    )
    import warnings

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    look, (shapes, across, high) = theme_of(theme), drawing
    # Of texts and lines, whose size is in points.
    scale = 1.0 if width is None else width * 72 / across
    size = (scale * across / 72, scale * high / 72)
    figure = Figure(figsize=size, dpi=dpi, facecolor=look.background)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, across)
    axes.set_ylim(high, 0)
    axes.axis("off")
    for shape in shapes:
        _paint(axes, shape, look, scale, font or "sans-serif")
    FigureCanvasAgg(figure)
    with warnings.catch_warnings(), open_atomically(path) as file:
        warnings.simplefilter("ignore", UserWarning)  # a letter that no font here has is drawn as a box
        figure.savefig(file, format=path.suffix[1:].lower())


def _paint(axes: Any, shape: Shape, theme: Theme, scale: float, sans: str) -> None:
    from matplotlib.patches import Rectangle

    hue = theme.colour
    match shape:
        case Cells(x, y, w, h, rows, ramp):
            colours = theme.table(ramp)[rows]
            axes.imshow(
                colours, extent=(x, x + w, y + h, y), interpolation="nearest", aspect="auto", zorder=1
            )
        case Picture(x, y, w, h, pixels):
            axes.imshow(pixels, extent=(x, x + w, y + h, y), interpolation="nearest", aspect="auto", zorder=1)
        case TextLabel(x, y, text, size, anchor, colour, angle, bold, font):
            across = {"start": "left", "middle": "center", "end": "right"}[anchor]
            family = "monospace" if font == "mono" else sans
            weight = "bold" if bold else "normal"
            # A dollar sign would open a formula.
            axes.text(
                x, y, CONTROL.sub(" ", text), fontsize=scale * size * 0.94, ha=across, va="center_baseline",
                color=hue(colour), rotation=-angle, rotation_mode="anchor", weight=weight, family=family,
                parse_math=False, zorder=4,
            )  # fmt: skip
        case Stroke(points, colour, width, dash, alpha):
            style: Any = (0, tuple(d / max(width, 1.0) for d in dash)) if dash else "-"
            xs, ys = zip(*points, strict=True)
            axes.plot(
                xs, ys, color=hue(colour), linewidth=scale * width, linestyle=style, alpha=alpha, zorder=2
            )
        case Box(x, y, w, h, fill, stroke):
            line = 0.0 if stroke == "none" else scale
            axes.add_patch(
                Rectangle((x, y), w, h, facecolor=hue(fill), edgecolor=hue(stroke), linewidth=line, zorder=2)
            )
        case Point(x, y, r, colour, alpha):
            axes.scatter(
                [x], [y], s=(2 * r * scale) ** 2, color=hue(colour), alpha=alpha, linewidths=0, zorder=3
            )
    axes.set_aspect("auto")
