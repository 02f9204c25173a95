"""Connections on a port: how long a client may take to send the headers of a request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from heedful.serve.http_connection import bind_socket
from heedful.serve.openai_app import Draining, create_openai_app, run_until_signal

HALF = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server without models that waits half a second for headers."""
    monkeypatch.setattr("heedful.serve.http_connection.HEADER_TIMEOUT_SECONDS", 0.5, raising=False)
    app, server = create_openai_app([])
    sock = bind_socket(0)
    number, started, running = sock.getsockname()[1], threading.Event(), list[Draining]()

    def ready(one: Draining) -> None:
        running.append(one)
        started.set()

    thread = threading.Thread(target=run_until_signal, args=(app, server, sock), kwargs={"on_ready": ready})
    thread.start()
    assert started.wait(60)
    yield number
    running[0].stop()
    running[0].stop()
    thread.join(60)


def read_to_end(wire: socket.socket) -> bytes:
    """Return what the server sends until it hangs up; half a minute of silence is a failure."""
    wire.settimeout(30)
    parts = []
    while data := wire.recv(4096):
        parts.append(data)
    return b"".join(parts)


@pytest.mark.parametrize(("sent", "answer"), [(HALF, b"HTTP/1.1 408 "), (b"", b"")])
def test_a_connection_without_complete_headers_is_closed(port: int, sent: bytes, answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(sent)
        assert read_to_end(wire)[: len(HALF)].startswith(answer)


def test_headers_that_trickle_in_do_not_extend_the_time(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as wire:
        for i in range(100):
            try:
                wire.sendall(b"GET /" if i == 0 else b"x")
            except OSError:
                return
            time.sleep(0.1)
    pytest.fail("the server still reads after ten seconds")


def test_a_request_after_another_on_one_connection_is_timed_as_well(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(HALF + b"\r\n" + HALF)
        answers = read_to_end(wire)
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert answers.count(b"HTTP/1.1 200 ") == 1


def test_a_connection_whose_headers_came_in_time_lives_on(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as wire:
        for _ in range(2):
            wire.sendall(HALF)
            wire.sendall(b"\r\n")
            wire.settimeout(30)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                data = wire.recv(4096)
                assert data
                answer += data
            time.sleep(0.6)
