"""`heed scale`: loss by size, data and compute, fitted, and foretold for a larger model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.output import Json, Quiet, as_json
from heedful.cli.race import Device, Quick, TextFiles, shown_command, start_report


def scale_command(
    context: typer.Context,
    files: TextFiles = None,
    quick: Quick = False,
    budget: Annotated[
        float | None, typer.Option(min=1.0, help="Also find the best size for so many FLOPs, as 1e15.")
    ] = None,
    device: Device = "auto",
    folder: Annotated[
        Path, typer.Option("--folder", "-o", help="Where all goes; one run folder for each point.")
    ] = Path("runs/scale"),
    quiet: Quiet = False,
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
    from heedful.classroom.experiments.measurement_store import finish_experiment
    from heedful.classroom.experiments.scale_sweep import FULL_SCALE, QUICK_SCALE, ScaleSweep

    settings = QUICK_SCALE if quick else FULL_SCALE
    sweep = ScaleSweep(folder, files or [], settings, *start_report(device, quick, quiet), budget)
    page = finish_experiment(sweep, folder, shown_command(context))
    if json:
        return as_json({"report": str(page), "folder": str(folder), "predictions": sweep.predictions})
    print(page)
