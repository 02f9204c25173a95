"""The layer in front of every application: keys, sizes of bodies, names of requests, headers of answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response

from heedful.serve import guard
from heedful.serve.guard import AccessRules, Guard, RequestRefused, replay_body

HOST = (b"host", b"127.0.0.1")
OURS = AccessRules(max_body_bytes=10)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread of its own: a browser of other tests may have a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def ask(
    rules: AccessRules, *headers: tuple[bytes, bytes], method: str = "POST", path: str = "/",
    query: bytes = b"", pieces: tuple[bytes, ...] = (b"",), leaves: bool = False,
) -> tuple[int, dict[str, str], bytes, list[bytes]]:  # fmt: skip
    """Return the status, headers and body of an answer, and the bodies that the application was given."""
    seen: list[bytes] = []
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        await PlainTextResponse(scope["request_id"])(scope, receive, send)

    def messages() -> Iterator[dict[str, Any]]:
        for i, piece in enumerate(pieces):
            yield {"type": "http.request", "body": piece, "more_body": leaves or i + 1 < len(pieces)}
        yield {"type": "http.disconnect"}

    waiting = messages()

    async def receive() -> Any:
        return next(waiting)

    async def send(message: Any) -> None:
        sent.append(message)

    def render(refusal: RequestRefused) -> Response:
        return PlainTextResponse(refusal.code, refusal.status, refusal.headers)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [HOST, *headers],
    }
    run(Guard(application, rules, render)(scope, receive, send))
    if not sent:
        return 0, {}, b"", seen
    carried = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], carried, b"".join(m.get("body", b"") for m in sent[1:]), seen


@pytest.mark.parametrize(
    ("pieces", "status"),
    [((b"x" * 10,), 200), ((b"x" * 9, b"y"), 200), ((b"x" * 11,), 413), ((b"x", b"y" * 10), 413)],
)
def test_a_body_of_exactly_the_limit_is_read(pieces: tuple[bytes, ...], status: int) -> None:
    found, headers, _, seen = ask(OURS, pieces=pieces)
    assert found == status
    assert seen == ([b"".join(pieces)] if status == 200 else [])
    assert headers.get("connection") == (None if status == 200 else "close")


@pytest.mark.parametrize(
    ("length", "status"), [(b"10", 200), (b"11", 413), (b"1" + b"0" * 5000, 413), (b"ten", 200), (b"-5", 200)]
)
def test_a_body_announced_as_too_large_is_refused(length: bytes, status: int) -> None:
    assert ask(OURS, (b"content-length", length))[0] == status


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_body_of_a_request_that_has_none_is_not_awaited(method: str) -> None:
    assert ask(OURS, method=method, pieces=(b"x" * 50,))[3] == [b""]


def test_a_client_that_leaves_in_the_middle_reaches_nobody() -> None:
    assert ask(OURS, pieces=(b"x",), leaves=True) == (0, {}, b"", [])


def test_a_body_that_does_not_come_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(guard, "BODY_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(RequestRefused, match=r"not sent in 0.01 s") as refusal:
        run(guard.read_body(never, 10, "POST"))
    assert (refusal.value.status, refusal.value.headers) == (408, {"connection": "close"})


def test_a_body_is_given_once_more_and_then_what_comes_after_it() -> None:
    async def later() -> Any:
        return {"type": "http.disconnect"}

    again = replay_body(b"abc", later)
    assert run(again()) == {"type": "http.request", "body": b"abc", "more_body": False}
    assert run(again()) == {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("name", "kept"), [(b"a" * 128, True), (b"a" * 129, False), (b"", False), (b"a b", False)]
)
def test_a_request_keeps_its_name_up_to_128_letters(name: bytes, kept: bool) -> None:
    _, headers, body, _ = ask(OURS, (b"x-request-id", name))
    assert headers["x-request-id"] == body.decode()
    assert (body == name) == kept
    assert kept or re.fullmatch(rb"req_[0-9a-f]{24}", body)


def test_answers_carry_the_headers_of_the_rules_and_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((5.0, 15.25))
    monkeypatch.setattr(guard.time, "perf_counter", lambda: next(clock, 6.0))
    _, headers, _, _ = ask(AccessRules(headers={"x-more": "1"}, timing_header="x-ms"))
    assert (headers["x-more"], headers["x-ms"]) == ("1", "10250")
    assert headers["content-type"].startswith("text/plain")
    assert "x-ms" not in ask(AccessRules())[1]


@pytest.mark.parametrize(
    ("authorization", "path", "status"),
    [
        (b"Bearer sesam", "/", 200),
        (b"bearer  sesam ", "/", 200),
        (b"Basic sesam", "/", 401),
        (b"Bearer sesamo", "/", 401),
        (b"Bearer ", "/", 401),
        (b"", "/", 401),
        (b"", "/health", 200),
        (b"", "/health/", 401),
    ],
)
def test_a_key_must_be_the_right_one_unless_its_path_needs_none(
    authorization: bytes, path: str, status: int
) -> None:
    rules = AccessRules(api_key="sesam", paths_without_key=("/health",))
    found, _, body, seen = ask(rules, (b"authorization", authorization), path=path)
    assert (found, len(seen)) == (status, int(status == 200))
    assert status == 200 or body == b"invalid_api_key"


BROWSER = AccessRules(api_key="sesam", cookie="heed")


@pytest.mark.parametrize(
    ("rules", "cookie", "status"),
    [
        (BROWSER, b"heed=sesam", 200),
        (BROWSER, b"other=1; heed=sesam", 200),
        (BROWSER, b"heed=sesa", 401),
        (BROWSER, b"other=sesam", 401),
        (BROWSER, b"", 401),
        (AccessRules(api_key="sesam"), b"heed=sesam", 401),
    ],
)
def test_a_cookie_carries_the_key_if_the_rules_name_one(
    rules: AccessRules, cookie: bytes, status: int
) -> None:
    assert ask(rules, (b"cookie", cookie))[0] == status


@pytest.mark.parametrize(
    ("path", "query", "address"),
    [
        ("/", b"token=sesam", "/"),
        ("/page", b"a=1&token=sesam&b=", "/page?a=1&amp;b="),
        ("//evil.example/", b"token=sesam", "/evil.example/"),
        ("/", b"token=no&token=sesam", "/"),
    ],
)
def test_an_address_with_the_token_sets_the_cookie_and_goes_on_without_it(
    path: str, query: bytes, address: str
) -> None:
    status, headers, body, seen = ask(BROWSER, method="GET", path=path, query=query)
    assert (status, seen) == (200, [])
    assert f'content="0;url={address}"' in body.decode()
    cookie = headers["set-cookie"].lower()
    assert all(part in cookie for part in ("heed=sesam", "httponly", "samesite=strict"))


@pytest.mark.parametrize(
    ("rules", "method", "query"),
    [
        (BROWSER, "POST", b"token=sesam"),
        (BROWSER, "GET", b"token=sesa"),
        (BROWSER, "GET", b"key=sesam"),
        (BROWSER, "GET", b""),
        (AccessRules(api_key="sesam"), "GET", b"token=sesam"),
    ],
)
def test_nothing_else_in_an_address_is_a_key(rules: AccessRules, method: str, query: bytes) -> None:
    status, headers, _, _ = ask(rules, method=method, query=query)
    assert (status, "set-cookie" in headers) == (401, False)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({b"host": "evil.example"}, "'evil.example'"),
        ({b"host": "localhost", b"origin": "http://x"}, "'http://x'"),
    ],
)
def test_a_refusal_names_the_host_or_the_page(headers: dict[bytes, str], named: str) -> None:
    none: Any = None
    with pytest.raises(RequestRefused, match=named):
        Guard(none, OURS, none).check_host(headers)


def test_what_is_no_request_goes_through() -> None:
    seen = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    none: Any = None
    run(Guard(application, OURS, none)({"type": "lifespan"}, none, none))
    assert seen == ["lifespan"]


def test_the_rules_of_a_server_that_names_none() -> None:
    rules = AccessRules()
    assert (rules.hosts, rules.api_key, rules.cookie) == (("127.0.0.1", "localhost", "[::1]"), None, None)
    assert (rules.max_body_bytes, guard.BODY_TIMEOUT_SECONDS) == (10_000_000, 30.0)
