"""What all addresses share: the models, the engine, the limits; how a body becomes a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from heedful.serve.engine import Engine
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
