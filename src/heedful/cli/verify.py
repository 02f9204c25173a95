"""`heed verify`: measure a published result again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.output import Json, as_json, console, make_table
from heedful.core.errors import InputError, NotFound
from heedful.core.progress import show_progress


def verify_command(
    row: Annotated[
        str | None, typer.Argument(help="The name of a result, as in --list and docs/results.md.")
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the results, and whether each can be run again.")
    ] = False,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit with 1 also if the new figure is below this.")
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of results.")] = Path("results"),
    json: Json = False,
) -> None:
    """Measure a result again: exit with 0 if the figure is the same within its tolerance, else with 1.

    Data is read from the folder in HEED_DATA; if it or a GPU is missing, exit with 3.

    Examples:

      heed verify --list

      HEED_DATA=./data heed verify stsb

      heed verify sst2-bow --fail-under 80 --json
    """
    if not results.is_dir():
        raise NotFound(
            f"no folder {results}/ here", hint="go to a checkout of heedful, or name one with --results"
        )
    if list_all:
        return _print_results(results, json)
    if row is None:
        raise InputError("no result was named", hint="heed verify --list names them all")
    from heedful.classroom.experiments.verify import verify_row

    with show_progress(f"measuring {row}"):
        found = verify_row(results, row)
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


def _print_results(results: Path, json: bool) -> None:
    from heedful.classroom.experiments.ledger import format_figure, rows_by_name

    rows = rows_by_name(results)
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

    out = make_table("row", "again", "claim", "figure", unbroken=("row",))
    for name, r in rows.items():
        figure = format_figure(r["figure"])
        out.add_row(
            Text(name), "✓" if r.get("check") else "–", Text(r["claim"]),
            Text(figure if len(figure) <= 40 else figure[:39] + "…"),
        )  # fmt: skip
    console().print(out)
    return None
