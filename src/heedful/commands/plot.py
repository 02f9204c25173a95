"""`heed plot training`: training curves in the terminal, or as a picture or table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.errors import InputError

SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, context_settings=SETTINGS, help="Plot training curves.")
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A .svg, .png, .pdf or .csv file; by default the terminal."),
]


@app.callback()
def plot() -> None:
    """Plot training curves."""


@app.command("training")
def plot_training_command(
    run: Annotated[list[Path], typer.Argument(help="Run folders, drawn together.")],
    output: Output = None,
    metric: Annotated[str, typer.Option(help="loss, learning_rate, grad_norm, perplexity …")] = "loss",
) -> None:
    """Plot the training and validation curves of runs.

    Examples:

      heed plot training runs/gpt2

      heed plot training runs/a runs/b -o curves.svg
    """
    from heedful.runs.curves import draw_curves, read_curves, save_curves

    curves = read_curves(run, metric)
    if not curves:
        raise InputError(
            f"{', '.join(map(str, run))} logged no {metric!r}", hint="try loss, learning_rate or grad_norm"
        )
    if output is None:
        return print(draw_curves(curves, metric))
    save_curves(curves, output, metric)
    print(output)
