"""`heed plot training`: training curves in the terminal, or as a picture or table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.core.progress import show_progress

SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, context_settings=SETTINGS, help="Plot training curves.")


@app.callback()
def plot() -> None:
    """Plot training curves."""


@app.command("training")
def plot_training_command(
    run: Annotated[list[Path], typer.Argument(help="Run folders, drawn together.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A .svg, .png, .pdf, .html or .csv file; by default the terminal."
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="loss, learning_rate, grad_norm, perplexity …")] = "loss",
) -> None:
    """Plot the training and validation curves of runs.

    Examples:

      heed plot training runs/gpt2

      heed plot training runs/a runs/b -o curves.svg
    """
    with show_progress("reading the runs"):
        from heedful.classroom import figures as view
        from heedful.train.recipes.folder import draw_curves, read_curves

        figure = view.training(run, metric)
    print(draw_curves(read_curves(run, metric), metric) if output is None else figure.save(output))
