"""What all addresses share: the models, the engine, the limits; how a body becomes a request."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import TypeVar

import uvicorn
from starlette.requests import Request

from heedful.serve.engine import Engine
from heedful.serve.guard import Guard
from heedful.serve.http_connection import http_config
from heedful.serve.metrics import Metrics
from heedful.serve.openai_errors import shutting_down, unknown_model
from heedful.serve.openai_requests import RequestFields, parse_body
from heedful.serve.served_model import ServedModel

T = TypeVar("T")
log = logging.getLogger("heedful.serve")


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    rows: int = 64  # prompts times choices, written at once
    seconds: float = 600.0  # from its arrival to its end
    strict: bool = False  # refuse more tokens than fit, rather than write those that do
    tokens: int | None = None  # that one answer may have

    def bound(self, tokens: int) -> int:
        """Return the number of new tokens, or the limit if that is less."""
        return tokens if self.tokens is None else min(tokens, self.tokens)


@dataclass(frozen=True)
class Server:
    """The models, the engine and the limits that all routes share."""

    models: dict[str, ServedModel]
    engine: Engine = field(default_factory=Engine)
    limits: Limits = field(default_factory=Limits)

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics

    def find(self, fields: RequestFields, *, default: bool = False) -> ServedModel:
        """The model that was asked for; only those given at the start are there.

        `default` takes the only one if none is named.
        """
        if default and fields.get("model") is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        id = fields.text("model")
        if id not in self.models:
            raise unknown_model(id, list(self.models))
        return self.models[id]


async def parse_request(server: Server, request: Request, parse: Callable[[Server, RequestFields], T]) -> T:
    """Parse, check and tokenise a body in a thread of its own: a long prompt holds nobody up."""
    if server.engine.draining:
        raise shutting_down()
    body = await request.body()

    def parse_fields() -> tuple[T, list[str]]:
        fields = RequestFields(parse_body(body))
        return parse(server, fields), fields.left

    found, left = await asyncio.to_thread(parse_fields)
    if left:
        log.warning(
            "%s: ignored %s", request.scope["request_id"], ", ".join(f"{name!r:.40}" for name in left[:20])
        )
    return found


# Options of `heed serve`: where it listens, who may ask, and what one request may take.


# The server on a socket. A first signal lets what runs come to its end; a second one does not.


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
