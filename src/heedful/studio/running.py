"""Run the studio on loopback, on a port that is free, until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.errors import MissingPackage
from heedful.server.sockets import LOOPBACK, bind_socket


def run_studio(
    names: Sequence[str] = (), *, port: int = 0, models: str | Path = "models", runs: str | Path = "runs",
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:  # fmt: skip
    """Serve until Ctrl-C; `ready` is called with the address once the server listens."""
    try:
        import uvicorn

        from heedful.studio.studio_app import create_studio_app
    except ImportError as error:
        raise MissingPackage(f"the studio needs {error.name}", hint="pip install 'heedful[studio]'") from None
    sock = bind_socket(port)
    app = create_studio_app(names, models_folder=models, runs_folder=runs)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)
    studio = app.state.studio
    studio.stopping = lambda: server.should_exit
    url = f"http://{LOOPBACK}:{sock.getsockname()[1]}/"
    on_ready(url)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:  # uvicorn hands Ctrl-C on when it is done
        pass
    finally:
        studio.clients.stop()
        studio.registry.close()
        sock.close()
