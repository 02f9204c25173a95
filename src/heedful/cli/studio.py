"""`heed studio`: look inside models in the browser."""

from __future__ import annotations

import secrets
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from heedful.core.errors import MissingPackage


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

    It can be reached from this machine only, by those who know the address that it prints: the address ends
    in a random token. It uses no network. Ctrl-C ends it.

    Examples:

      heed studio

      heed studio ./my-model runs/gpt/checkpoints/step-001000 --port 8080

      heed studio vectors.vec --no-browser
    """
    from heedful.serve.guard import LOOPBACK, bind_socket
    from heedful.weights.hub import resolve

    for name in models or ():
        resolve(name)  # an unknown name is an error before anything starts
    try:
        import uvicorn

        from heedful.classroom.studio.routes.picture import prepare_first_picture
        from heedful.classroom.studio.studio_app import create_studio_app
        from heedful.serve.http_connection import http_config
    except ImportError as error:
        raise MissingPackage(f"the studio needs {error.name}", hint="pip install 'heedful[studio]'") from None
    sock = bind_socket(port)
    token = secrets.token_urlsafe(24)
    app = create_studio_app(models or (), models_folder=folder, runs_folder=runs, token=token)
    server, studio = uvicorn.Server(http_config(app, shutdown_seconds=2)), app.state.studio
    studio.stopping = lambda: server.should_exit
    threading.Thread(target=prepare_first_picture, args=(studio,), daemon=True).start()
    url = f"http://{LOOPBACK}:{sock.getsockname()[1]}/?token={token}"
    print(url, flush=True)
    print("Ctrl-C ends it.", file=sys.stderr)
    if not no_browser:
        webbrowser.open(url)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:  # uvicorn hands Ctrl-C on when it is done
        pass
    finally:
        studio.clients.stop()
        studio.registry.close()
        sock.close()
