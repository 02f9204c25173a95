"""The server on a socket. A first signal lets what runs come to its end; a second one does not."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from heedful.serve.guard import Guard
from heedful.serve.http_connection import http_config
from heedful.serve.openai_server import Server

# The engine gives up the interpreter's lock in every operation of torch; the event loop, which then writes
# dozens of events, would keep it for Python's 5 ms each time.
SWITCH_SECONDS = 0.0002


class Draining(uvicorn.Server):
    """A server that, told to end, goes on listening until its engine is idle, and says that it ends."""

    def __init__(self, config: uvicorn.Config, server: Server, patience: float) -> None:
        super().__init__(config)
        self.shared, self.patience = server, patience
        self.since: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Refuse new requests and finish those begun; called a second time, end at once."""
        if self.since is None:
            self.since = time.monotonic()
            self.shared.engine.draining = True
        else:
            self.patience = 0.0

    async def on_tick(self, counter: int) -> bool:
        if self.since is not None:
            late = time.monotonic() - self.since >= self.patience
            if late:
                self.shared.engine.abandon()
            self.should_exit = late or self.shared.engine.is_idle
        return await super().on_tick(counter)


def run_until_signal(
    app: Guard, server: Server, sock: socket.socket, *, patience: float = 30.0,
    on_ready: Callable[[Draining], None] = lambda running: None,
) -> None:  # fmt: skip
    """Serve until a signal, or until `stop` of what `on_ready` is given."""
    running = Draining(http_config(app, shutdown_seconds=3), server, patience)
    on_ready(running)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        running.run(sockets=[sock])
    finally:
        sys.setswitchinterval(before)
        server.engine.close()
        sock.close()
