"""Panels: what most figures are made of. One description, from which SVG, PNG, CSV and the page follow.

    matrix(title, values)          a heat map (rows × columns)
    lines(title, values, names)    a line for each row of values, over x
    bars(title, values, names)     a bar for each name
    table(title, cells, …)         numbers or texts as they are

A figure of panels is `Figure(kind, title, about, {"panels": […]}, note, python)`, however its kind is called:
nothing else has to be told how to draw it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.canvas import Shape, TextLabel
from heedful.classroom.figures.charts import Drawing, bar_chart, heat_map, line_chart, move_shape, text_table
from heedful.classroom.figures.token_labels import brief
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
    """A line for each row of values (R, C), over the numbers x; `axes` are the titles of y and x."""
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
    values = values if isinstance(values, list) else np.ascontiguousarray(values)
    shape = (len(values), len(values[0]) if len(values) else 0)
    names = [
        list(range(n)) if given is None else list(given)
        for n, given in zip(shape, (rows, columns), strict=True)
    ]
    if (len(names[0]), len(names[1])) != shape:
        raise InputError(
            f"{title}: {len(names[0])} rows and {len(names[1])} columns are named, and the values are {shape}"
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
            said = lambda cell: cell if isinstance(cell, str) else brief(float(cell))
            cells = [[name, *map(said, row)] for name, row in zip(rows, values, strict=True)]
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
        shapes += [move_shape(shape, 0, down + 22) for shape in drawn]
        right, down = max(right, across), down + high + 34
    return shapes, right, down


def panel_rows(data: Mapping[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    """Return the numbers of all panels as rows of a table, and the names of its columns."""
    rows = (
        [one["title"], row, column, one["values"][t][s]]
        for one in data["panels"]
        for t, row in enumerate(one["rows"])
        for s, column in enumerate(one["columns"])
    )
    return ["panel", "row", "column", "value"], rows
