"""Connections of both servers: how uvicorn runs them, and how long a client may take to send its headers."""

from __future__ import annotations

import asyncio

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT_SECONDS = 10.0
TIMEOUT_ANSWER = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedConnection(H11Protocol):
    """A connection that is closed if the headers of a request are not complete in time.

    uvicorn waits for them without end, so that clients which never finish them could hold every connection
    that the system allows. A body has a time limit of its own (`guard.read_body`).
    """

    header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.time_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
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
