"""`heed plot`: drawings of what a model does and how it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.errors import InputError

SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, context_settings=SETTINGS, help="Draw how a model was trained.")
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help=".svg, .png, .pdf or .csv; else the terminal.")
]


@app.callback()
def plot() -> None:
    """Draw how a model was trained."""


@app.command()
def training(
    run: Annotated[list[Path], typer.Argument(help="Run folders, to be drawn together.")],
    output: Output = None,
    metric: Annotated[str, typer.Option(help="loss, learning_rate, grad_norm, perplexity …")] = "loss",
) -> None:
    """The curves of a run: training and validation.

    Examples:

      heed plot training runs/gpt2

      heed plot training runs/a runs/b -o curves.svg
    """
    from heedful.runs.curves import curves, draw, save

    found = curves(run, metric)
    if not found:
        raise InputError(
            f"{', '.join(map(str, run))} logged no {metric!r}", hint="try loss, learning_rate or grad_norm"
        )
    if output is None:
        return print(draw(found, metric))
    save(found, output, metric)
    print(output)
