"""A figure of heedful.view as an answer: the JSON that the page draws, or a file that Python writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from starlette.responses import Response

from heedful.classroom.figures.figure import Figure
from heedful.serve.guard import Json

FigureFormat = Literal["json", "html", "svg", "csv"]
MEDIA_TYPES = {"html": "text/html", "svg": "image/svg+xml", "csv": "text/csv"}


def figure_response(figure: Figure, name: str, format: FigureFormat, python: str) -> Response:
    """Return a figure in a format; its JSON has the lines of Python that save it."""
    if format == "json":
        return Json(figure.to_dict() | {"python": python})
    write: dict[str, Callable[[], str]] = {
        "html": figure.to_html, "svg": figure.to_svg, "csv": figure.to_csv,
    }  # fmt: skip
    headers = {"Content-Disposition": f'attachment; filename="{name}.{format}"'}
    return Response(write[format](), media_type=MEDIA_TYPES[format], headers=headers)
