"""How commands write their results: tables and marked texts for people, JSON objects for programs."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from heedful.core.checks import Option

if TYPE_CHECKING:
    from rich.console import Console

Quiet = Annotated[bool, Option("Show no progress.", ("--quiet", "-q"))]
Json = Annotated[bool, Option("Print one JSON object on stdout.")]
Row = dict[str, Any]

PIPED_WIDTH = 160  # columns where there is no terminal
COLUMN_GAP = 3  # spaces between columns of a table


def console() -> Console:
    """Return a console on stdout; in a pipe nothing is cut at a terminal's width."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *,
    right: Container[str] = (), unbroken: Container[str] = (), out: Console | None = None,
) -> None:  # fmt: skip
    """Print a table without boxes, in which no cell is cut and `unbroken` columns are not wrapped."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for column in columns:
        justify: Any = "right" if column in right else "left"
        no_wrap = column in right or column in unbroken
        table.add_column(Text(column), justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as Text: a cell may have brackets, which rich takes for its markup
    (out or console()).print(table)


def print_pairs(first: str, second: str, rows: Mapping[str, str], *, right: bool = False) -> None:
    """Print rows of a name and a value below the names of both columns."""
    print_table((first, second), list(rows.items()), right=(second,) if right else ())


def print_listing(
    out: Console,
    rows: Sequence[Mapping[str, str]],
    *,
    optional: Sequence[str],
    min_widths: Mapping[str, int],
    right: Container[str] = (),
) -> None:
    """Print rows as a table in which no cell is cut, however narrow the terminal is.

    Columns in `min_widths` may be wrapped, down to that many characters. Where the others do not fit next to
    each other, those in `optional` are left out, the first ones first.
    """
    from rich.cells import cell_len

    names = list(rows[0]) if rows else []
    longest = {n: max(cell_len(n), *(cell_len(row[n]) for row in rows)) for n in names}
    least = {n: min(longest[n], min_widths.get(n, longest[n])) for n in names}
    needed = lambda: sum(least[n] + COLUMN_GAP for n in names) - COLUMN_GAP
    for name in optional:
        if needed() > out.width:
            names.remove(name)
    out.width = max(out.width, needed())  # then the terminal breaks the lines
    cells = [[row[n] for n in names] for row in rows]
    print_table(names, cells, right=right, unbroken=set(names) - set(min_widths), out=out)


def as_json(value: dict[str, Any]) -> None:
    """Print one object with the schema that it follows."""
    print(json.dumps({"schema": "heed/1"} | value, ensure_ascii=False))


def format_size(number: float, unit: str = "") -> str:
    """124439808 → "124 M"; 999885952 → "1 B"; 0 → "0"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G" if unit else "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * size:  # what rounds to 1,000 of a unit is 1 of the next
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:,.0f}{' ' + unit if unit else ''}"


def format_metric(value: Any) -> str:
    """Return a score for a table: four digits, thousands with commas, an interval with a dash."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list) and all(isinstance(v, float) for v in value):
        return "–".join(f"{v:.4f}" for v in value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print warnings as one line each on stderr, without their place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)


def print_marked(text: str, style: str = "") -> None:
    """Print a text as it is; on a terminal the spans of `mark_spans` are bold."""
    if not sys.stdout.isatty():
        return print(text)
    from rich.text import Text

    styled = Text(text, style)
    styled.highlight_regex(r"⟦[^⟧]*⟧", "bold green")
    return console().print(styled, soft_wrap=True)


def mark_spans(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """Return the text on one line with its spans in brackets, each followed by its label: ⟦Ada⟧PER wrote."""
    out, at = [], 0
    for start, end, label in sorted(spans):
        if start < at:
            continue
        out += [text[at:start], "⟦", text[start:end], "⟧", label]
        at = end
    return " ".join("".join([*out, text[at:]]).split())


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines in which every column but the last is as wide as its widest cell."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    pad = lambda cell, width: cell + " " * (width - cell_len(cell))
    return "\n".join(
        "  ".join([*(pad(c, w) for c, w in zip(row[:-1], widths, strict=False)), row[-1]]) for row in rows
    )
