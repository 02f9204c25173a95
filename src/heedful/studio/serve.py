"""Run the studio on loopback, on a port that is free, until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.errors import HeedfulError, MissingPackage

HOST = "127.0.0.1"


class PortTaken(HeedfulError):
    """Somebody else listens there."""


def bound(port: int, host: str = HOST) -> socket.socket:
    """A socket, on loopback unless said otherwise; port 0 is any that is free."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = "is taken" if "in use" in str(error) else f"cannot be used ({error.strerror})"
        raise PortTaken(
            f"port {port} {reason}; choose another with --port, or 0 for any that is free"
        ) from None
    return sock


def serve(
    given: Sequence[str] = (), *, port: int = 0, models: str | Path = "models", runs: str | Path = "runs",
    ready: Callable[[str], None] = lambda url: None,
) -> None:  # fmt: skip
    """Serve until Ctrl-C; `ready` is called with the address once the server listens."""
    try:
        import uvicorn

        from heedful.studio.app import create_app
    except ImportError as error:
        raise MissingPackage(f"the studio needs {error.name}; pip install 'heedful[studio]'") from None
    sock = bound(port)
    app = create_app(given, models_folder=models, runs_folder=runs)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)
    studio = app.state.studio
    studio.stopping = lambda: server.should_exit
    url = f"http://{HOST}:{sock.getsockname()[1]}/"
    ready(url)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:  # uvicorn hands Ctrl-C on when it is done
        pass
    finally:
        studio.clients.stop()
        studio.shelf.close()
        sock.close()
