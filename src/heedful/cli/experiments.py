"""`heed race`, `scale` and `verify`: comparisons, scaling laws, and published results measured again."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.commands import command_words
from heedful.cli.models import Device
from heedful.cli.output import Json, Quiet, as_json, print_table
from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError, NotFound
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    import torch

    from heedful.classroom.experiments.system_race import Race
    from heedful.classroom.experiments.translation_race import TranslationRace


# Options of `heed race` and `heed scale`.
TextFiles = Annotated[
    list[str] | None, Argument("Texts to train on; by default a bundled one.", metavar="FILE")
]
Quick = Annotated[bool, Option("Train small models on little text. This takes minutes on two cores.")]


def race_command(
    context: typer.Context,
    files: TextFiles = None,
    translation: Annotated[bool, Option("Compare translators instead, on a file of sentence pairs.")] = False,
    quick: Quick = False,
    systems: Annotated[str | None, Option("Compare only these systems, as rnn,lstm,gpt2.")] = None,
    parts: Annotated[
        str | None, Option("Measure only these: layers,generation,loss,positions,gradients,tasks.")
    ] = None,
    steps: Annotated[int | None, Option("Train each system for N steps.", minimum=1)] = None,
    jobs: Annotated[int, Option("Measure N systems at once, each in its own process.", minimum=1)] = 1,
    device: Device = "auto",
    folder: Annotated[
        Path | None, Option("Write everything to this folder. [default: runs/race]", ("--folder", "-o"))
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train systems of one size on one text and compare them. The last line printed is the report's path.

    The systems are RNN, LSTM, GRU, Transformers with GPT-2's and LLaMA's blocks, linear attention, GLA,
    Based, S4 and Mamba. The report shows the loss over tokens and over seconds, the time of a layer by length
    and width, and the time and memory of one more token. It also shows the loss by position, how far
    gradients reach back, and the accuracy by distance on four tasks: copy, recall, induction and needle.
    Ctrl-C keeps what was measured, and the same command continues. Without --quick the models are larger and
    need a GPU.

    Examples:
      heed race --quick
      heed race --quick --systems rnn,lstm,gpt2 novel.txt -o runs/novel-race
      heed race --translation pairs.tsv --device cuda
    """
    from heedful.classroom.experiments.measurement_store import finish_experiment

    where = folder or Path("runs") / ("translation-race" if translation else "race")
    names = {"systems": systems, "parts": parts}
    changes: dict[str, Any] = {n: tuple(v.split(",")) for n, v in names.items() if v is not None}
    changes |= {"steps": steps} if steps is not None else {}
    race = open_race(where, files or [], changes, translation, quick, *start_report(device, quick, quiet))
    words = command_words(context, leave_out=("folder", "systems", "jobs", "json"))
    named = race.settings.systems if jobs > 1 else ()
    beside = {name: ["race", "-o", str(where), "--systems", name, *words] for name in named}
    page = finish_experiment(race, where, shown_command(context), beside, jobs)
    if json:
        return as_json({"report": str(page), "folder": str(where)})
    print(page)


def open_race(
    folder: Path, files: list[str], changes: dict[str, Any], translation: bool, quick: bool,
    device: torch.device, report: Callable[[str], None],
) -> Race | TranslationRace:  # fmt: skip
    """Return the race of language models or of translators, with `changes` of its usual settings."""
    if translation:
        from heedful.classroom.experiments.translation_race import (
            FULL_TRANSLATION,
            QUICK_TRANSLATION,
            TranslationRace,
        )

        if "parts" in changes:
            raise InputError("--parts is for a race of language models", hint="leave it or --translation out")
        settings = replace(QUICK_TRANSLATION if quick else FULL_TRANSLATION, **changes)
        return TranslationRace(folder, files, settings, device, report)
    from heedful.classroom.experiments.system_race import FULL, QUICK, Race

    return Race(folder, files, replace(QUICK if quick else FULL, **changes), device, report)


def start_report(device: str, quick: bool, quiet: bool) -> tuple[torch.device, Callable[[str], None]]:
    """Return the device of a comparison and what shows a line of progress on stderr, or nothing if quiet."""
    from heedful.core.devices import resolve_device

    resolved = resolve_device(device)
    report = (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))
    if not quick and resolved.type == "cpu":
        report("note: without --quick this takes hours on a CPU; Ctrl-C keeps what was measured")
    return resolved, report


def shown_command(context: typer.Context) -> str:
    """Return the command line that was typed, for a report."""
    words = [word for word in command_words(context, leave_out=("folder", "quiet", "json")) if word != "--"]
    words = [f"{float(word):g}" if re.fullmatch(r"\d+\.0", word) else word for word in words]  # 1e+12
    return " ".join(["heed", context.info_name or "", *words])


# `heed scale`: the loss by size, data and compute is fitted, and predicted for a larger model.


def scale_command(
    context: typer.Context,
    files: TextFiles = None,
    quick: Quick = False,
    budget: Annotated[
        float | None, Option("Also find the best size for this many FLOPs, such as 1e15.", minimum=1.0)
    ] = None,
    device: Device = "auto",
    folder: Annotated[
        Path, Option("Write everything to this folder, with one run folder per point.", ("--folder", "-o"))
    ] = Path("runs/scale"),
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train models of several sizes on several amounts of text, fit the loss and predict larger models.

    The predictions are written down before the larger models are trained. The last line printed is the path
    of the report. Ctrl-C keeps every finished run, and the same command continues.

    Examples:
      heed scale --quick
      heed scale --quick novel.txt --budget 1e12 -o runs/novel-scale
      heed scale corpus.txt --device cuda
    """
    from heedful.classroom.experiments.measurement_store import finish_experiment
    from heedful.classroom.experiments.scale_sweep import FULL_SCALE, QUICK_SCALE, ScaleSweep

    settings = QUICK_SCALE if quick else FULL_SCALE
    sweep = ScaleSweep(folder, files or [], settings, *start_report(device, quick, quiet), budget)
    page = finish_experiment(sweep, folder, shown_command(context))
    if json:
        return as_json({"report": str(page), "folder": str(folder), "predictions": sweep.predictions})
    print(page)


# `heed verify`: measure a published result again.


def verify_command(
    row: Annotated[str | None, Argument("The name of a result, as in --list and docs/results.md.")] = None,
    list_all: Annotated[
        bool, Option("List the results, and whether each can be run again.", ("--list",))
    ] = False,
    fail_under: Annotated[float | None, Option("Exit with 1 also if the new figure is below this.")] = None,
    results: Annotated[Path, Option("Read the results from this folder.")] = Path("results"),
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
        raise InputError("name a result", hint="heed verify --list names them all")
    from heedful.classroom.experiments.verify import verify_row

    with show_progress(f"measuring {row}"):
        result = verify_row(results, row)
    reached = fail_under is None or result.now >= fail_under
    if json:
        as_json(
            {
                "row": result.row, "claim": result.claim, "stored": result.stored, "now": result.now,
                "difference": result.now - result.stored, "tolerance": result.tolerance,
                "fail_under": fail_under, "same": result.same, "ok": result.same and reached,
                "seconds": round(result.seconds, 1),
            }
        )  # fmt: skip
    else:
        print(result.claim)
        print(f"stored {result.stored:g}   now {result.now:g}   may differ by {result.tolerance:g}")
        print("the same" if result.same else f"differs by {result.now - result.stored:+g}")
        if not reached:
            print(f"below {fail_under:g}, which --fail-under asks for")
    if not (result.same and reached):
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
    cut = lambda text: text if len(text) <= 40 else text[:39] + "…"
    cells = [
        (name, "✓" if r.get("check") else "–", r["claim"], cut(format_figure(r["figure"])))
        for name, r in rows.items()
    ]
    print_table(("row", "again", "claim", "figure"), cells, unbroken=("row",))
    return None
