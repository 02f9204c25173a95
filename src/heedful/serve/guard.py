"""Who may ask, and how much; what every answer carries.

A page elsewhere can point its own name at 127.0.0.1 (DNS rebinding), or send a form there: so on loopback the
Host header must be ours, and everywhere the Origin, where a browser sends one, must be the host itself. Other
users of this machine reach loopback as well, so a server can ask for a key: programs send it as a header, and
a browser gets it as a cookie when it opens an address that ends in `?token=KEY`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from urllib.parse import parse_qsl, urlencode

from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.core.errors import HeedfulError

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
BODY_TIMEOUT_SECONDS = 30.0
log = logging.getLogger("heedful.serve")


class RequestRefused(HeedfulError):
    """A request that gets no answer but this one; each server writes it in its own shape."""

    def __init__(
        self, status: int, code: str, message: str, hint: str | None = None, *,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, hint)
        self.status, self.code, self.headers = status, code, dict(headers or {})


@dataclass(frozen=True)
class AccessRules:
    """Rules for a request to be let in, and the headers that every answer carries."""

    hosts: Sequence[str] | None = LOOPBACK_HOSTS  # names this server answers to; None: any
    api_key: str | None = None
    cookie: str | None = None  # the name of a cookie that may also carry the key
    key_hint: str = "send it as Authorization: Bearer KEY"
    max_body_bytes: int = 10_000_000
    paths_without_key: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)  # on every answer
    timing_header: str | None = None  # the name under which answers say their milliseconds


class Guard:
    """The outermost application: refuses foreign hosts, wrong keys and large bodies, and logs answers."""

    def __init__(
        self, app: ASGIApp, rules: AccessRules, render_refusal: Callable[[RequestRefused], Response]
    ) -> None:
        self.app, self.rules, self.render_refusal = app, rules, render_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, headers = time.perf_counter(), {n: v.decode("latin-1") for n, v in scope["headers"]}
        name = headers.get(b"x-request-id", "")
        request_id = name if re.fullmatch(r"[!-~]{1,128}", name) else f"req_{secrets.token_hex(12)}"
        scope["request_id"] = request_id

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                milliseconds = f"{1000 * (time.perf_counter() - started):.0f}"
                more = {"x-request-id": request_id, **self.rules.headers}
                if self.rules.timing_header is not None:
                    more[self.rules.timing_header] = milliseconds
                raw = [(k.encode(), v.encode()) for k, v in more.items()]
                message = {**message, "headers": [*message.get("headers", []), *raw]}
                line = (request_id, scope["method"], scope["path"], message["status"], milliseconds)
                log.info("%s %s %r %d after %s ms", *line)
            await send(message)

        try:
            self.check_host(headers)
            if (page := self.sign_in(scope)) is not None:
                await page(scope, receive, send_marked)
                return
            self.check_key(scope["path"], headers)
            body = await read_body(receive, self.rules.max_body_bytes, scope["method"])
        except RequestRefused as error:
            await self.render_refusal(error)(scope, receive, send_marked)
            return
        if body is not None:
            await self.app(scope, replay_body(body, receive), send_marked)

    def check_host(self, headers: Mapping[bytes, str]) -> None:
        """Refuse a request that comes from elsewhere, or announces too large a body."""
        rules, host, origin = self.rules, headers.get(b"host", ""), headers.get(b"origin")
        is_ours = rules.hosts is None or re.sub(r":\d+$", "", host.lower()) in rules.hosts
        if not is_ours or origin not in (None, f"http://{host}", f"https://{host}"):
            message = f"this server does not answer {origin or host!r:.80}"
            raise RequestRefused(403, "bad_host", message, "ask it by its own address")
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length[:20]) > rules.max_body_bytes:
            raise _body_too_large(rules.max_body_bytes)

    def sign_in(self, scope: Scope) -> Response | None:
        """Return a page that sets the cookie and goes on without the token, if the address has the right one.

        The browser goes on by itself: after a redirect it would not send a strict cookie if a link of another
        site had led here.
        """
        rules, pairs = self.rules, parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in pairs if name == "token"]
        if rules.cookie is None or scope["method"] != "GET" or not any(map(self.is_key, tokens)):
            return None
        # One slash: an address that begins with two is another host's.
        query = urlencode([pair for pair in pairs if pair[0] != "token"])
        address = escape("/" + scope["path"].lstrip("/") + (f"?{query}" if query else ""))
        page = HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">')
        page.set_cookie(rules.cookie, rules.api_key or "", httponly=True, samesite="strict")
        return page

    def check_key(self, path: str, headers: Mapping[bytes, str]) -> None:
        """Refuse a request without the key."""
        rules = self.rules
        if rules.api_key is None or path in rules.paths_without_key:
            return
        scheme, _, key = headers.get(b"authorization", "").partition(" ")
        keys = [key.strip()] if scheme.lower() == "bearer" else []
        if rules.cookie is not None:
            keys.append(cookie_parser(headers.get(b"cookie", "")).get(rules.cookie, ""))
        if not any(map(self.is_key, keys)):
            raise RequestRefused(401, "invalid_api_key", "the key is missing or wrong", rules.key_hint)

    def is_key(self, text: str) -> bool:
        """Compare in a time that does not tell how much of a key was right."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), (self.rules.api_key or "").encode())


async def read_body(receive: Receive, max_bytes: int, method: str) -> bytes | None:
    """Return the body, read before anything is done with it; None if the client left in its middle."""
    if method in ("GET", "HEAD"):
        return b""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > max_bytes:
                    raise _body_too_large(max_bytes)
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        message_text = f"the body was not sent in {BODY_TIMEOUT_SECONDS:g} s"
        raise RequestRefused(408, "request_timeout", message_text, headers={"connection": "close"}) from None


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that gives the body once more, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def _body_too_large(max_bytes: int) -> RequestRefused:
    message = f"the body is over {max_bytes:,} bytes"
    close = {"connection": "close"}
    return RequestRefused(413, "request_too_large", message, "send a shorter one", headers=close)
