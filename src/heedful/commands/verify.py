"""`heed verify`: a row of the ledger, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.output import Json, as_json, console, table
from heedful.errors import InputError, NotFound


def verify(
    row: Annotated[
        str | None, typer.Argument(help="A row's name, as --list and docs/results.md have it.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Every row, and whether it can be run again.")] = False,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit 1 too if the new figure is below this.")
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of results.")] = Path("results"),
    json: Json = False,
) -> None:
    """Run a row of the ledger again and compare: exit 0 if the figure is the same, 1 if not.

    The row says how far off a figure may be. Data is looked for in the folder that HEED_DATA names; if it or
    a GPU is missing, exit 3.

    Examples:

      heed verify --list

      HEED_DATA=./data heed verify stsb

      heed verify sst2-bow --fail-under 80 --json
    """
    if not results.is_dir():
        raise NotFound(
            f"no folder {results}/ here", hint="go to a checkout of heedful, or name one with --results"
        )
    if show:
        return _list(results, json)
    if row is None:
        raise InputError("which row? heed verify ROW", hint="heed verify --list has them all")
    from heedful.runs.verify import verify as again

    found = again(results, row)
    reached = fail_under is None or found.now >= fail_under
    if json:
        as_json(
            {
                "row": found.row, "claim": found.claim, "stored": found.stored, "now": found.now,
                "difference": found.now - found.stored, "tolerance": found.tolerance,
                "fail_under": fail_under, "same": found.same, "ok": found.same and reached,
                "seconds": round(found.seconds, 1),
            }
        )  # fmt: skip
    else:
        print(found.claim)
        print(f"stored {found.stored:g}   now {found.now:g}   may differ by {found.tolerance:g}")
        print("the same" if found.same else f"differs by {found.now - found.stored:+g}")
        if not reached:
            print(f"below {fail_under:g}, which --fail-under asks for")
    if not (found.same and reached):
        raise typer.Exit(1)


def _list(results: Path, json: bool) -> None:
    from heedful.runs.ledger import named, shown

    rows = named(results)
    if json:
        return as_json(
            {
                "rows": [
                    {"row": name, "claim": r["claim"], "figure": r["figure"], "again": bool(r.get("check"))}
                    for name, r in rows.items()
                ]
            }
        )
    from rich.text import Text

    out = table("row", "again", "claim", "figure", whole=("row",))
    for name, r in rows.items():
        figure = shown(r["figure"])
        out.add_row(
            Text(name), "✓" if r.get("check") else "–", Text(r["claim"]),
            Text(figure if len(figure) <= 40 else figure[:39] + "…"),
        )  # fmt: skip
    console().print(out)
    return None
