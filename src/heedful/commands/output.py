"""How commands write their results: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

PIPED = 160  # columns where there is no terminal


def console() -> Console:
    """stdout. In a pipe nothing is cut at a terminal's width."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without boxes: a heading, a rule, rows."""
    from rich.table import Table
    from rich.text import Text

    out = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        out.add_column(Text(column), justify="right" if column in right else "left", no_wrap=column in right)
    return out


def as_json(value: dict[str, Any]) -> None:
    """One object, with the schema it follows."""
    print(json.dumps({"schema": "heed/1"} | value, ensure_ascii=False))


def short(number: float, unit: str = "") -> str:
    """124439808 → "124 M"; 0 → "0"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G" if unit else "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:,.0f}{' ' + unit if unit else ''}"
