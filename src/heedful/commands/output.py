"""How commands write their results: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

PIPED = 160  # columns where there is no terminal
GAP = 3  # spaces between columns of a table


def console() -> Console:
    """stdout. In a pipe nothing is cut at a terminal's width."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED)


def table(*columns: str, right: Container[str] = (), whole: Container[str] = ()) -> Table:
    """A table without boxes: a heading, a rule, rows. Nothing is cut, and `whole` columns are not broken."""
    from rich.table import Table
    from rich.text import Text

    out = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        out.add_column(
            Text(column),
            justify="right" if column in right else "left",
            no_wrap=column in right or column in whole,
            overflow="fold",
        )
    return out


def print_listing(
    out: Console,
    rows: Sequence[Mapping[str, str]],
    *,
    optional: Sequence[str],
    folded: Mapping[str, int],
    right: Container[str] = (),
) -> None:
    """Print rows as a table in which no cell is cut, however narrow the terminal is.

    Columns in `folded` are broken into lines of at least so many characters. Where the others do not fit
    beside each other, those in `optional` are left out, the first ones first.
    """
    from rich.cells import cell_len
    from rich.text import Text

    names = list(rows[0]) if rows else []
    longest = {n: max(cell_len(n), *(cell_len(row[n]) for row in rows)) for n in names}
    least = {n: min(longest[n], folded.get(n, longest[n])) for n in names}
    needed = lambda: sum(least[n] + GAP for n in names) - GAP
    for name in optional:
        if needed() > out.width:
            names.remove(name)
    out.width = max(out.width, needed())  # then the terminal breaks the lines
    drawn = table(*names, right=right, whole=set(names) - set(folded))
    for row in rows:
        drawn.add_row(*(Text(row[n]) for n in names))
    out.print(drawn)


def as_json(value: dict[str, Any]) -> None:
    """One object, with the schema it follows."""
    print(json.dumps({"schema": "heed/1"} | value, ensure_ascii=False))


def short(number: float, unit: str = "") -> str:
    """124439808 → "124 M"; 0 → "0"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G" if unit else "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:,.0f}{' ' + unit if unit else ''}"
