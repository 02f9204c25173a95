"""Figure: a kind, a title, what it is of, and plain numbers; every way to show or save it."""

from __future__ import annotations

import base64
import csv
import functools
import html
import inspect
import io
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from heedful.classroom.figures.canvas import THEMES, Drawing, save_picture, svg, theme_of
from heedful.classroom.figures.kinds import KINDS, PANELS
from heedful.classroom.figures.panels import draw_title
from heedful.core.checks import check_number
from heedful.core.errors import ConfigError, MissingPackage
from heedful.core.files import open_atomically
from heedful.core.lazy import import_optional
from heedful.models.base import Model

FORMATS = (".html", ".svg", ".png", ".pdf", ".csv", ".json")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Figure:
    """What was computed, ready to be drawn. `about` says of what; `data` holds arrays and their labels;
    `python` is the call that makes it.
    """

    kind: str
    title: str
    about: Mapping[str, Any]
    data: Mapping[str, Any] = field(repr=False)
    note: str = ""
    python: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, arrays packed; `heedful.classroom.figures.figure.unpack` gives them back."""
        many = count_weights(self.data) > MANY
        rounded = "Weights in this file are rounded to 1/255 of their square root." if many else ""
        written = {
            "version": 1, "kind": self.kind, "title": self.title, "python": self.python,
            "note": " ".join(filter(None, (self.note, rounded))),
            "about": pack_tree(dict(self.about)),
            "data": pack_tree(dict(self.data), bytes_=many),
        }  # fmt: skip
        if "panels" in self.data and self.kind in KINDS:  # panels hold its numbers, the drawing is another
            untitled = replace(self, title="")  # the title stands above the drawing
            written["drawn"] = {theme: untitled.to_svg(theme) for theme in THEMES}
        return written

    def to_html(self, theme: str | None = None) -> str:
        """One file: the numbers, the code that draws them, and a rule that nothing may be fetched.

        Without a theme it follows the reader's system.
        """
        if theme is not None:
            theme_of(theme)  # an error names the two
        chosen = "" if theme is None else f' data-theme="{theme}"'
        code = (files("heedful.classroom.figures") / "static" / "widget.js").read_text(encoding="utf-8")
        numbers = for_script(self.to_dict())
        code = code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
        return (
            f'<!doctype html>\n<html lang="en"{chosen}><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{html.escape(self.title)}</title></head>\n"
            '<body><main><h1 class="fig-hidden">heedful</h1><div id="heedful-place"></div></main>'
            f"<noscript><p>{html.escape(self.title)}: the numbers are in this file, as JSON; they are drawn "
            "by its script, which this browser does not run.</p></noscript>\n"
            f'<script id="heedful-figure" type="application/json">{numbers}</script>\n'
            f'<script type="module">{code}</script></body></html>\n'
        )

    def to_csv(self) -> str:
        """The numbers that are shown, one row each."""
        rows, out = KINDS.get(self.kind, PANELS)[1](self.data), io.StringIO()
        plain = ([str(v) if isinstance(v, np.generic) else v for v in row] for row in rows)
        csv.writer(out, lineterminator="\n").writerows(plain)
        return out.getvalue()

    def to_svg(self, theme: str = "light", *, width: float | None = None, font: str | None = None) -> str:
        """Vectors and text, `width` inches wide."""
        subject = " · ".join(f"{k}: {v}" for k, v in self.about.items() if v not in (None, ""))
        description = f"{subject}. {self.note}".strip(". ")
        return svg(self._draw(), self.title, description, theme, width=width, font=font)

    def _draw(self) -> Drawing:
        return draw_title(self.title, KINDS.get(self.kind, PANELS)[0](self.data))

    def with_labels(self, title: str | None = None, axes: tuple[str, str] | None = None) -> Figure:
        """The same figure under another title, with other names of its rows and columns."""
        data = dict(self.data)
        if axes is not None:
            if "panels" not in data:
                raise ConfigError(
                    f"`axes=` names the rows and columns of panels, and {self.kind} has no panels"
                )
            names = dict(zip(("rowTitle", "columnTitle"), axes, strict=True))
            data["panels"] = [{**panel, **names} for panel in data["panels"]]
        return replace(self, title=self.title if title is None else title, data=data)

    def save(
        self, path: str | Path, *, theme: str | None = None, title: str | None = None,
        axes: tuple[str, str] | None = None, width: float | None = None, dpi: float = 144.0,
        font: str | None = None,
    ) -> Path:  # fmt: skip
        """Write .html, .svg, .png, .pdf, .csv or .json, as the name ends.

        `theme` is "light" or "dark": without it pictures are light, and a page follows the reader's system.
        `title` and `axes` (rows, columns) replace those of the figure. For a picture, `width` is in inches,
        `dpi` the pixels of a .png for each of them, and `font` the family of its texts.
        """
        for name, value in (("width", width), ("dpi", dpi)):
            if value is not None:
                check_number(name, value, 0.1, error=ConfigError)
        if title is not None or axes is not None:
            return self.with_labels(title, axes).save(path, theme=theme, width=width, dpi=dpi, font=font)
        if not isinstance(path, str | Path):
            raise ConfigError(f"a figure is saved under a name such as 'x.html'; got a {type(path).__name__}")
        path = Path(path)
        kind = path.suffix.lower()
        if kind not in FORMATS:
            raise ConfigError(f"{path}: a figure is written as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
        if path.is_dir():
            raise ConfigError(f"{path} is a folder", hint="name a file")
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: folder not found: {path.parent}", hint="make it first")
        if kind in (".png", ".pdf"):
            save_picture(self._draw(), path, theme or "light", width=width, dpi=dpi, font=font)
            return path
        write = {
            ".html": lambda: self.to_html(theme),
            ".svg": lambda: self.to_svg(theme or "light", width=width, font=font),
            ".csv": self.to_csv, ".json": lambda: json.dumps(self.to_dict(), allow_nan=False),
        }  # fmt: skip
        text = write[kind]()
        with open_atomically(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
        return path

    def _repr_html_(self) -> str:
        """For notebooks: the one file in its own frame, which can reach neither page nor network."""
        inside = html.escape(self.to_html(), quote=True)
        style = "width:100%;height:640px;border:0"
        sandbox = "allow-scripts allow-downloads"
        name = html.escape(self.title, quote=True)
        return f'<iframe title="{name}" sandbox="{sandbox}" style="{style}" srcdoc="{inside}"></iframe>'

    def widget(self) -> Any:
        """A live widget for Jupyter and marimo, through anywidget."""
        import_optional("anywidget", "a live widget", "show the figure as HTML")
        import anywidget
        import traitlets

        class FigureWidget(anywidget.AnyWidget):
            """A figure as JSON, drawn by static/widget.js."""

            _esm = (files("heedful.classroom.figures") / "static" / "widget.js").read_text(encoding="utf-8")
            figure = traitlets.Unicode("").tag(sync=True)

        return FigureWidget(figure=json.dumps(self.to_dict(), allow_nan=False))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """The widget where anywidget is installed; the frame next to it, for where no kernel runs."""
        try:
            bundle = self.widget()._repr_mimebundle_()
        except MissingPackage:
            return {"text/plain": repr(self), "text/html": self._repr_html_()}
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**(data or {}), "text/plain": repr(self), "text/html": self._repr_html_()}


P = ParamSpec("P")


def figure(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function's figure carry the call that makes it: `python`, written from the arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> Figure:
        written = []
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                written.append(f"*{name}")
            elif parameter.kind is parameter.VAR_KEYWORD:
                written += [f"{key}={write_argument(key, inner)}" for key, inner in value.items()]
            else:
                before = "" if parameter.default is parameter.empty else f"{name}="
                written.append(before + write_argument(name, value))
        call = f"heedful.view.{function.__name__}({', '.join(written)})"
        return replace(function(*args, **kwargs), python=call)

    return draw


def write_argument(name: str, value: Any) -> str:
    """Return an argument as Python: short values as they are, others by their name."""
    plain = (str, int, float, bool, type(None))
    if isinstance(value, plain) or (
        isinstance(value, list | tuple) and all(isinstance(v, plain) for v in value)
    ):
        text = repr(value)
        return text if len(text) <= 500 else name
    if isinstance(value, Path):
        return repr(str(value))
    return "model" if isinstance(value, Model) else name


# Arrays inside JSON: base64 of little-endian numbers, compressed where there are many.
#
# f16 holds three digits of a weight, at 2 bytes where JSON takes 22; u8 holds the square root of a weight in
# 255 steps, for patterns that would not fit otherwise.


SMALL = 1 << 15  # bytes that are not worth compressing
QUICK = 1 << 23  # bytes beyond which compressing well takes too long
MANY = 1 << 23  # weights beyond which a file keeps one byte each
DTYPES = {"f16": "<f2", "f32": "<f4", "f64": "<f8", "i32": "<i4", "u8": "u1"}


def pack(array: np.ndarray, halves: bool = False, bytes_: bool = False) -> dict[str, Any]:
    """An array for JSON. `halves` allows float16 where its range is enough, `bytes_` one byte a weight."""
    top = float(np.abs(array).max(initial=0.0))
    if array.dtype.kind in "iub":
        return _packed(array.astype("<i4"), "i32", array.shape)
    if bytes_ and array.min(initial=0.0) >= 0:
        roots = np.rint(np.sqrt(array / (top or 1.0)) * 255).astype(np.uint8)
        return _packed(roots, "u8", array.shape) | {"scale": top or 1.0}
    if halves and (top == 0 or 1e-3 <= top < 6e4):
        return _packed(array.astype("<f2"), "f16", array.shape)
    kind = "f64" if array.dtype == np.float64 else "f32"
    return _packed(array.astype(DTYPES[kind]), kind, array.shape)


def _packed(array: np.ndarray, kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    out: dict[str, Any] = {"dtype": kind, "shape": list(shape)}
    data = array.tobytes()
    if len(data) > SMALL:
        # All low bytes before all high ones: signs and exponents are alike and shrink well side by side.
        planes = np.frombuffer(data, np.uint8).reshape(-1, array.dtype.itemsize).T
        data, out["deflate"] = (
            zlib.compress(np.ascontiguousarray(planes).tobytes(), 6 if len(data) < QUICK else 1),
            True,
        )
    return out | {"data": base64.b64encode(data).decode("ascii")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The array that `pack` was given, to the precision it was kept in."""
    data, dtype = base64.b64decode(packed["data"]), np.dtype(DTYPES[packed["dtype"]])
    if packed.get("deflate"):
        planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(dtype.itemsize, -1)
        data = np.ascontiguousarray(planes.T).tobytes()
    array = np.frombuffer(data, dtype).reshape(packed["shape"])
    if packed["dtype"] == "u8":
        return (array / 255.0) ** 2 * packed["scale"]
    return array


def pack_tree(value: Any, bytes_: bool = False) -> Any:
    """A tree of plain values and arrays, ready for JSON; patterns (three sides) may be kept in float16."""
    if isinstance(value, np.ndarray):
        return pack(value, halves=value.ndim == 3, bytes_=bytes_ and value.ndim == 3)
    if isinstance(value, dict):
        return {str(k): pack_tree(v, bytes_) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [pack_tree(v, bytes_) for v in value]
    if isinstance(value, np.generic):
        return pack_tree(value.item(), bytes_)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def count_weights(value: Any) -> int:
    """How many numbers the patterns of a tree have."""
    if isinstance(value, np.ndarray):
        return int(value.size) if value.ndim == 3 else 0
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(count_weights(v) for v in inner if not isinstance(v, str))


def for_script(value: Any) -> str:
    """JSON that may stand in a <script>: no text in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
