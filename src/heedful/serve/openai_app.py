"""The application: its addresses, its errors, its metrics; and how it runs on a socket until a signal."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import heedful
from heedful.serve.engine import Engine
from heedful.serve.generation_routes import read_chat, read_completion
from heedful.serve.guard import AccessRules, Guard
from heedful.serve.http_connection import http_config
from heedful.serve.json_response import Json
from heedful.serve.openai_errors import Gone, OpenAIError, as_openai_error, unknown_model
from heedful.serve.openai_responses import answer_request
from heedful.serve.openai_server import Limits, ServedModel, Server, parse_request
from heedful.serve.task_routes import (
    read_answer,
    read_classify,
    read_predict,
    read_summarize,
    read_tag,
    read_translate,
)
from heedful.serve.text_routes import detokenize, read_embeddings, read_rerank, tokenize, tokenizer_info

log = logging.getLogger("heedful.serve")
# The engine gives up the interpreter's lock in every operation of torch; the event loop, which then writes
# dozens of events, would keep it for Python's 5 ms each time.
SWITCH_SECONDS = 0.0002

Handler = Callable[[Server, Request], Awaitable[Response]]


def create_openai_app(models: Sequence[ServedModel], *, queue: int = 64, limits: Limits | None = None,
               rules: AccessRules | None = None) -> tuple[Guard, Server]:  # fmt: skip
    """Return the application and the server behind it; close the server's engine when done."""
    server = Server({m.id: m for m in models}, Engine(queue), limits or Limits())
    engine, counted = server.engine, server.metrics
    slots = [m.batch.slots for m in server.models.values() if m.batch is not None]
    counted.running.read = lambda: len(engine.running)
    counted.waiting.read = lambda: engine.waiting
    counted.cache_usage.read = lambda: max((one.usage for one in slots), default=0.0)  # of the fullest batch
    readers = {
        "/v1/completions": read_completion, "/v1/chat/completions": read_chat,
        "/v1/embeddings": read_embeddings,
        "/rerank": read_rerank, "/v1/rerank": read_rerank, "/v2/rerank": read_rerank,
        "/classify": read_classify, "/predict": read_predict, "/v1/tag": read_tag, "/v1/answer": read_answer,
        "/v1/summarize": read_summarize, "/v1/translate": read_translate,
    }  # fmt: skip
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", health), ("GET", "/v1/health", health), ("GET", "/version", version),
        ("GET", "/v1/models", list_models), ("GET", "/v1/models/{id:path}", one_model),
        *(("POST", path, partial(answer_request, read=read)) for path, read in readers.items()),
        ("POST", "/tokenize", partial(parse_request, parse=tokenize)),
        ("POST", "/detokenize", partial(parse_request, parse=detokenize)),
        ("GET", "/tokenizer_info", tokenizer_info), ("GET", "/metrics", metrics),
    ]  # fmt: skip
    routes = [
        Route(path, handle_errors(server, path, handler), methods=[method]) for method, path, handler in table
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: unknown_url})
    app.router.redirect_slashes = False
    rules = replace(
        rules or AccessRules(),
        paths_without_key=("/health", "/v1/health"),
        timing_header="openai-processing-ms",
    )
    return Guard(app, rules, render_refusal), server


def render_refusal(error: Exception) -> Json:
    """Return any failure as an answer in the shape that OpenAI's clients read."""
    refusal = as_openai_error(error)
    return Json(refusal.body, refusal.status, refusal.headers)


def handle_errors(server: Server, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler whose every failure is an answer in the one shape."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(server, request)
        except Gone:
            server.metrics.requests.add(1, path, "499", "abort")
            return Response(status_code=499)  # never read: the client is not there
        except Exception as error:
            refused = as_openai_error(error)
            if refused.code == "internal_error":
                log.exception("%s failed", request.scope["request_id"])
            server.metrics.requests.add(1, path, str(refused.status), "error")
            return render_refusal(error)

    return endpoint


def unknown_url(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path, or by a method that a path does not have."""
    assert isinstance(error, HTTPException)
    message = (
        f"there is no {request.method} {request.url.path[:120]!r} here; docs/serving.md lists the addresses"
    )
    refusal = OpenAIError(error.status_code, "unknown_url", message)
    return Json(refusal.body, error.status_code, dict(error.headers or {}))


async def health(server: Server, request: Request) -> Response:
    if server.engine.draining:
        return Json({"status": "shutting down"}, 503, {"Retry-After": "5"})
    return Json({"status": "ok"})


async def version(server: Server, request: Request) -> Response:
    return Json({"version": heedful.__version__})


async def metrics(server: Server, request: Request) -> Response:
    return PlainTextResponse(server.metrics.text(), media_type="text/plain; version=0.0.4")


async def list_models(server: Server, request: Request) -> Response:
    return Json({"object": "list", "data": [m.description for m in server.models.values()]})


async def one_model(server: Server, request: Request) -> Response:
    id = request.path_params["id"]
    if id not in server.models:
        raise unknown_model(id, list(server.models))
    return Json(server.models[id].description)


# The server on a socket. A first signal lets what runs come to its end; a second one does not.


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
