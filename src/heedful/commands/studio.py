"""`heed studio`: the page over every number of a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def studio(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]…", help="Folders, .gguf files, word vectors, names."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
    folder: Annotated[Path, typer.Option("--models", help="Where further models lie.")] = Path("models"),
    runs: Annotated[Path, typer.Option("--runs", help="Where training runs lie.")] = Path("runs"),
) -> None:
    """Look inside: tokens, attention, arithmetic, prediction, layers, states, training, on one page.

    It listens on this machine alone and asks nothing of the network. Ctrl-C ends it.

    Examples:

      heed studio

      heed studio ./my-model runs/gpt/checkpoints/step-001000 --port 8080

      heed studio vectors.vec --no-browser
    """
    from heedful.studio.serve import serve
    from heedful.weights.hub import resolve

    for name in models or ():
        resolve(name)  # a name that leads nowhere is said before anything starts

    def ready(url: str) -> None:
        print(url, flush=True)
        print("Ctrl-C ends it.", file=sys.stderr)
        if not no_browser:
            import webbrowser

            webbrowser.open(url)

    serve(models or (), port=port, models=folder, runs=runs, ready=ready)
