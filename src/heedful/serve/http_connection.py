"""Connections of both servers: the port, uvicorn's settings, and the time that headers may take."""

from __future__ import annotations

import asyncio
import socket

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.core.errors import HeedfulError

LOOPBACK = "127.0.0.1"
HEADER_TIMEOUT_SECONDS = 10.0
TIMEOUT_ANSWER = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedConnection(H11Protocol):
    """A connection that is closed if the headers of a request are not complete in time.

    uvicorn waits for them without end, so that clients which never finish them could hold every connection
    that the system allows. A body has its own time limit (`guard.read_body`).
    """

    header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.time_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.time_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next request has begun before this answer was sent
            self.time_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.header_timer is not None:
            self.header_timer.cancel()

    def time_headers(self) -> None:
        """Start the timer when a request begins, and stop it when its headers are complete."""
        if self.conn.their_state is not h11.IDLE:
            if self.header_timer is not None:
                self.header_timer.cancel()
            self.header_timer = None
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self.close_late)

    def close_late(self) -> None:
        if self.conn.trailing_data[0]:  # a client that has sent nothing has asked for nothing
            self.transport.write(TIMEOUT_ANSWER)
        self.transport.close()


def http_config(app: ASGIApp, shutdown_seconds: int) -> uvicorn.Config:
    """Return uvicorn's settings, with that much time for open connections when the server ends."""
    return uvicorn.Config(
        app, http=TimedConnection, log_level="warning", access_log=False, server_header=False,
        lifespan="off", timeout_graceful_shutdown=shutdown_seconds,
    )  # fmt: skip


class PortTaken(HeedfulError):
    """Another program listens on this port, or it cannot be used."""


def bind_socket(port: int, host: str = LOOPBACK) -> socket.socket:
    """Return a listening socket, on loopback unless another host is given; port 0 is any that is free."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = "is taken" if "in use" in str(error) else f"cannot be used ({error.strerror})"
        hint = "choose another with --port, or 0 for any that is free"
        raise PortTaken(f"port {port} {reason}", hint=hint) from None
    return sock
