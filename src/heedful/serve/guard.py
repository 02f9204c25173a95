"""Who may ask, and how much; an id and a time on every answer.

A page elsewhere can point its own name at 127.0.0.1 (DNS rebinding), or send a form there: so on loopback the
Host header must be ours, and everywhere the Origin, where a browser sends one, must be the host itself.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.serve.answers import Json
from heedful.serve.errors import Refused

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OPEN = ("/health", "/v1/health")  # without a key
SENDING = 30.0  # seconds in which a body must have come
log = logging.getLogger("heedful.serve")


@dataclass(frozen=True)
class Rules:
    """What a request must be; `hosts` None is any name."""

    hosts: Sequence[str] | None = LOOPBACK
    key: str | None = None
    largest: int = 10_000_000  # bytes of a body


class Guard:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, headers = time.perf_counter(), {n: v.decode("latin-1") for n, v in scope["headers"]}
        name = headers.get(b"x-request-id", "")
        scope["heed_id"] = name if re.fullmatch(r"[!-~]{1,128}", name) else f"req_{secrets.token_hex(12)}"

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = f"{1000 * (time.perf_counter() - began):.0f}"
                more = {"x-request-id": scope["heed_id"], "openai-processing-ms": took}
                raw = [(k.encode(), v.encode()) for k, v in more.items()]
                message = {**message, "headers": [*message.get("headers", []), *raw]}
                line = (scope["heed_id"], scope["method"], scope["path"], message["status"], took)
                log.info("%s %s %r %d after %s ms", *line)
            await send(message)

        try:
            self.admit(scope, headers)
            body = await whole(receive, self.rules.largest, scope["method"])
        except Refused as error:
            await Json(error.body, error.status, error.headers)(scope, receive, marked)
            return
        if body is not None:
            await self.app(scope, replay(body, receive), marked)

    def admit(self, scope: Scope, headers: dict[bytes, str]) -> None:
        """Refuse what comes from elsewhere, without a key, or announces too much."""
        rules, host, origin = self.rules, headers.get(b"host", ""), headers.get(b"origin")
        known = rules.hosts is None or re.sub(r":\d+$", "", host.lower()) in rules.hosts
        if not known or origin not in (None, f"http://{host}", f"https://{host}"):
            said = f"this server does not answer {origin or host!r:.80}; ask it by its own address"
            raise Refused(403, "bad_host", said)
        if rules.key is not None and scope["path"] not in OPEN:
            kind, _, given = headers.get(b"authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1"), rules.key.encode())
            if kind.lower() != "bearer" or not right:
                said = "the key is missing or wrong; send it as Authorization: Bearer KEY"
                raise Refused(401, "invalid_api_key", said, type="authentication_error")
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length[:20]) > rules.largest:
            raise too_large(rules.largest)


async def whole(receive: Receive, largest: int, method: str) -> bytes | None:
    """The body, read before anything is done with it; None if the client left in its middle."""
    if method in ("GET", "HEAD"):
        return b""
    parts, size = [], 0
    try:
        async with asyncio.timeout(SENDING):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > largest:
                    raise too_large(largest)
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        said = f"the body was not sent in {SENDING:g} s"
        raise Refused(408, "request_timeout", said, headers={"connection": "close"}) from None


def replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


def too_large(largest: int) -> Refused:
    said = f"the body is over {largest:,} bytes; send a shorter one"
    return Refused(413, "request_too_large", said, headers={"connection": "close"})
