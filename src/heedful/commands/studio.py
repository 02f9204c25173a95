"""`heed studio`: look inside models in the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def studio_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]…", help="Folders, .gguf files, word vectors or names of models."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open no browser.")
    ] = False,
    folder: Annotated[Path, typer.Option("--models", help="A folder of further models.")] = Path("models"),
    runs: Annotated[Path, typer.Option("--runs", help="The folder of training runs.")] = Path("runs"),
) -> None:
    """Show tokens, attention, arithmetic, predictions, layers, states and training in the browser.

    It can be reached from this machine only and uses no network. Ctrl-C ends it.

    Examples:

      heed studio

      heed studio ./my-model runs/gpt/checkpoints/step-001000 --port 8080

      heed studio vectors.vec --no-browser
    """
    from heedful.studio.running import run_studio
    from heedful.weights.hub import resolve

    for name in models or ():
        resolve(name)  # an unknown name is an error before anything starts

    def announce(url: str) -> None:
        print(url, flush=True)
        print("Ctrl-C ends it.", file=sys.stderr)
        if not no_browser:
            import webbrowser

            webbrowser.open(url)

    run_studio(models or (), port=port, models=folder, runs=runs, on_ready=announce)
