"""Who may ask, how much, and what every answer says to the browser.

A page elsewhere can point its own name at 127.0.0.1 (DNS rebinding): so the Host header must be ours, and so
must the Origin, where a browser sends one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST = 2_000_000  # bytes of a request
HOSTS = ("127.0.0.1", "localhost", "[::1]")


def policy(page: str) -> str:
    """The Content-Security-Policy of a page: all from here, inline elements by their hashes."""
    scripts = _hashes(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", page)
    styles = _hashes(r"<style[^>]*>(.*?)</style>", page)
    return "; ".join(
        [
            "default-src 'self'",
            " ".join(["script-src 'self'", *scripts]),
            " ".join(["style-src 'self'", *styles]),
            "img-src 'self' data: blob:",
            "worker-src 'self' blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hashes(pattern: str, page: str) -> list[str]:
    found = re.findall(pattern, page, re.DOTALL | re.IGNORECASE)
    digest = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return [f"'sha256-{digest(text)}'" for text in dict.fromkeys(found)]


class Guard:
    """Refuses foreign hosts and origins and large bodies; puts the safety headers on every answer."""

    def __init__(self, app: ASGIApp, csp: str, hosts: Sequence[str] = HOSTS, largest: int = LARGEST) -> None:
        self.app, self.hosts, self.largest = app, tuple(hosts), largest
        self.headers = [
            (b"content-security-policy", csp.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *self.headers]}
            await send(message)

        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if re.sub(r":\d+$", "", host) not in self.hosts or origin not in (None, f"http://{host}"):
            said = "this server answers its own page only"
            await _refuse(guarded, 403, "bad_host", said, "open the address that heed studio printed")
            return
        length = headers.get(b"content-length", "0")
        body = _Body(receive, self.largest)
        if (length.isdigit() and int(length) > self.largest) or not await body.read(scope["method"]):
            said = f"the request is over {self.largest:,} bytes"
            await _refuse(guarded, 413, "too_large", said, "send a shorter text")
            return
        await self.app(scope, body, guarded)


class _Body:
    """The body of a request, read whole before anything else is done with it; then what comes after it."""

    def __init__(self, receive: Receive, largest: int) -> None:
        self.receive, self.largest = receive, largest
        self.kept: list[Message] = []

    async def read(self, method: str) -> bool:
        """Whether it is small enough."""
        if method in ("GET", "HEAD"):
            return True
        size, more = 0, True
        while more:
            message = await self.receive()
            self.kept.append(message)
            size += len(message.get("body", b""))
            more = bool(message.get("more_body"))
            if size > self.largest:
                return False
        return True

    async def __call__(self) -> Message:
        return self.kept.pop(0) if self.kept else await self.receive()


async def _refuse(send: Send, status: int, code: str, message: str, hint: str) -> None:
    told: dict[str, Any] = {"error": {"code": code, "message": message, "hint": hint}}
    body = json.dumps(told).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": body})
