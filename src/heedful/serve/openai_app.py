"""The addresses, and what each does with a request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import heedful
from heedful.serve.engine import Engine
from heedful.serve.generation_routes import chat, completions
from heedful.serve.guard import AccessRules, Guard, Json
from heedful.serve.openai_errors import Gone, OpenAIError, as_openai_error, unknown_model
from heedful.serve.openai_server import Limits, Server
from heedful.serve.rerank_routes import rerank
from heedful.serve.served_model import ServedModel
from heedful.serve.text_routes import detokenize, embeddings, tokenize, tokenizer_info

log = logging.getLogger("heedful.serve")


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
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", health), ("GET", "/v1/health", health), ("GET", "/version", version),
        ("GET", "/v1/models", list_models), ("GET", "/v1/models/{id:path}", one_model),
        ("POST", "/v1/completions", completions), ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/embeddings", embeddings), ("POST", "/tokenize", tokenize),
        ("POST", "/rerank", rerank), ("POST", "/v1/rerank", rerank), ("POST", "/v2/rerank", rerank),
        ("POST", "/detokenize", detokenize), ("GET", "/tokenizer_info", tokenizer_info),
        ("GET", "/metrics", metrics),
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
    message = f"{request.method} {request.url.path[:120]!r} is not there; docs/serving.md lists what is"
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
