"""`heed scale`: loss by size, data and compute, fitted, and foretold for a larger model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.output import Json, as_json


def scale_command(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]…", help="Texts to train on; by default one that comes along."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small models and few tokens: minutes on two cores.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(min=1.0, help="Also find the best size for so many FLOPs, as 1e15.")
    ] = None,
    device: Annotated[str, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda, cuda:1 …")] = "auto",
    folder: Annotated[
        Path, typer.Option("--folder", "-o", help="Where all goes; one run folder for each point.")
    ] = Path("runs/scale"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Train models of several sizes on several amounts of text, fit the loss, and foretell larger models.

    The predictions are written down before the larger models are trained. The last line printed is the path
    of the report. Ctrl-C keeps every finished run, and the same command continues.

    Examples:

      heed scale --quick

      heed scale --quick novel.txt --budget 1e12 -o runs/novel-scale

      heed scale corpus.txt --device cuda
    """
    from heedful.commands.race import progress_lines, shown_command
    from heedful.devices import resolve_device
    from heedful.experiments.experiment import finish_experiment
    from heedful.experiments.scale_sweep import FULL_SCALE, QUICK_SCALE, ScaleSweep

    report = progress_lines(quiet)
    if not quick and resolve_device(device).type == "cpu":
        report("note: without --quick this takes hours on a CPU; Ctrl-C keeps every finished run")
    settings = QUICK_SCALE if quick else FULL_SCALE
    sweep = ScaleSweep(folder, files or [], settings, resolve_device(device), report, budget)
    page = finish_experiment(sweep, folder, shown_command(context))
    if json:
        return as_json({"report": str(page), "folder": str(folder), "predictions": sweep.predictions})
    print(page)
