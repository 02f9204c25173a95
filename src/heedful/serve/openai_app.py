"""The addresses, and what each does with a request."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

import heedful
from heedful.models.base import Seq2Seq
from heedful.serve.engine import Engine
from heedful.serve.generation_jobs import (
    EmbeddingJob,
    GenerationJob,
    compute_embeddings,
    generate_tokens,
    make_embedding_job,
)
from heedful.serve.openai_errors import (
    Gone,
    OpenAIError,
    as_openai_error,
    invalid,
    model_cannot,
    shutting_down,
    unknown_model,
    unsupported_parameter,
)
from heedful.serve.openai_requests import (
    TOP,
    CompletionRequest,
    RequestFields,
    parse_body,
    read_inputs,
    read_messages,
    read_sampling,
    read_token_ids,
)
from heedful.serve.openai_responses import Chat, Completion, ResponseBuilder, ResponseShape
from heedful.serve.served_model import ServedModel
from heedful.serve.streams import Events, following
from heedful.server.guard import AccessRules, Guard
from heedful.server.json_response import Json

T = TypeVar("T")
MOST_INPUTS = 2048  # texts of one request for embeddings, as OpenAI allows
log = logging.getLogger("heedful.serve")


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    rows: int = 64  # prompts times choices, written at once
    seconds: float = 600.0  # from its arrival to its end
    strict: bool = False  # refuse more tokens than fit, rather than write those that do


@dataclass(frozen=True)
class Server:
    """What all addresses share."""

    models: dict[str, ServedModel]
    engine: Engine = field(default_factory=Engine)
    limits: Limits = field(default_factory=Limits)

    def find(self, fields: RequestFields) -> ServedModel:
        """The model that was asked for; only those given at the start are there."""
        id = fields.text("model")
        if id not in self.models:
            raise unknown_model(id, list(self.models))
        return self.models[id]


Handler = Callable[[Server, Request], Awaitable[Response]]


def create_openai_app(models: Sequence[ServedModel], *, queue: int = 64, limits: Limits | None = None,
               rules: AccessRules | None = None) -> tuple[Guard, Server]:  # fmt: skip
    """The application, and what it shares; close the server's engine when done."""
    server = Server({m.id: m for m in models}, Engine(queue), limits or Limits())
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", health), ("GET", "/v1/health", health), ("GET", "/version", version),
        ("GET", "/v1/models", list_models), ("GET", "/v1/models/{id:path}", one_model),
        ("POST", "/v1/completions", completions), ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/embeddings", embeddings), ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
    ]  # fmt: skip
    routes = [
        Route(path, handle_errors(server, handler), methods=[method]) for method, path, handler in table
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
    told = as_openai_error(error)
    return Json(told.body, told.status, told.headers)


def handle_errors(server: Server, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose every failure is an answer in the one shape."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(server, request)
        except Gone:
            return Response(status_code=499)  # never read: the client is not there
        except Exception as error:
            if as_openai_error(error).code == "internal_error":
                log.exception("%s failed", request.scope["request_id"])
            return render_refusal(error)

    return endpoint


def unknown_url(request: Request, error: Exception) -> Response:
    """A path that is not there, or a method that it does not have."""
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path[:120]!r} is not there; docs/serving.md lists what is"
    told = OpenAIError(error.status_code, "unknown_url", said)
    return Json(told.body, error.status_code, dict(error.headers or {}))


async def health(server: Server, request: Request) -> Response:
    if server.engine.draining:
        return Json({"status": "shutting down"}, 503, {"Retry-After": "5"})
    return Json({"status": "ok"})


async def version(server: Server, request: Request) -> Response:
    return Json({"version": heedful.__version__})


async def list_models(server: Server, request: Request) -> Response:
    return Json({"object": "list", "data": [m.description for m in server.models.values()]})


async def one_model(server: Server, request: Request) -> Response:
    id = request.path_params["id"]
    if id not in server.models:
        raise unknown_model(id, list(server.models))
    return Json(server.models[id].description)


async def completions(server: Server, request: Request) -> Response:
    return await generate_response(server, request, read_completion, Completion())


async def chat(server: Server, request: Request) -> Response:
    return await generate_response(server, request, read_chat, Chat())


def read_completion(server: Server, fields: RequestFields) -> GenerationJob:
    """A request for completions as work: prompts tokenised, everything checked."""
    served = server.find(fields)
    served.writer()
    asked = read_sampling(fields, server.limits.rows)
    vocab = served.model.config.vocab
    asked = replace(
        asked,
        max_tokens=fields.integer("max_tokens", 0),
        logprobs=fields.integer("logprobs", 0, min(TOP, vocab)),
    )
    echo = fields.boolean("echo")
    if echo and isinstance(served.model, Seq2Seq):
        raise unsupported_parameter(
            "echo", f"{served.id} reads the prompt apart from what it writes; leave echo out"
        )
    given = read_inputs(fields, "prompt", server.limits.rows)
    check_rows(len(given), asked, server.limits.rows)
    scoring = echo and asked.max_tokens == 0
    prompts = [served.prompt(one, scoring=scoring) for one in given]
    limit = served.max_new_tokens(prompts, asked, 16, server.limits.strict)
    return GenerationJob(served, prompts, asked, limit, echo)


def read_chat(server: Server, fields: RequestFields) -> GenerationJob:
    """A conversation as work. Its answer may be as long as the context, unless said otherwise."""
    served = server.find(fields)
    served.writer()
    asked = read_sampling(fields, server.limits.rows)
    newer, older = fields.integer("max_completion_tokens", 1), fields.integer("max_tokens", 1)
    wanted, top = fields.boolean("logprobs"), fields.integer("top_logprobs", 0, TOP)
    if top is not None and not wanted:
        raise invalid("top_logprobs", "top_logprobs goes with logprobs=true only")
    asked = replace(
        asked, max_tokens=older if newer is None else newer,
        logprobs=min(top or 0, served.model.config.vocab) if wanted else None,
    )  # fmt: skip
    prompt = served.conversation(read_messages(fields))
    return GenerationJob(
        served, [prompt], asked, served.max_new_tokens([prompt], asked, None, server.limits.strict)
    )


def check_rows(prompts: int, request: CompletionRequest, max_rows: int) -> None:
    if prompts * request.n > max_rows:
        raise invalid(
            "n",
            f"{prompts} prompts of n={request.n} are {prompts * request.n} texts; {max_rows} are the most",
        )


async def generate_response(
    server: Server,
    request: Request,
    read: Callable[[Server, RequestFields], GenerationJob],
    form: ResponseShape,
) -> Response:
    """Text, whole or as it is written."""
    task = await parse_request(server, request, read)
    answer, label = ResponseBuilder(form, task), request.scope["request_id"]
    job = server.engine.submit(lambda: generate_tokens(task), label)
    if task.asked.stream:
        return Events(job, answer, server.limits.seconds)
    async with following(job, request.receive, server.limits.seconds):
        async for item in job:
            answer.take(item)
    return await asyncio.to_thread(lambda: Json(answer.full_response()))


async def parse_request(server: Server, request: Request, read: Callable[[Server, RequestFields], T]) -> T:
    """A body parsed, checked and tokenised, in a thread of its own: a long prompt holds nobody up."""
    if server.engine.draining:
        raise shutting_down()
    body = await request.body()

    def work() -> tuple[T, list[str]]:
        fields = RequestFields(parse_body(body))
        return read(server, fields), fields.left

    found, left = await asyncio.to_thread(work)
    if left:
        log.warning(
            "%s: ignored %s", request.scope["request_id"], ", ".join(f"{name!r:.40}" for name in left[:20])
        )
    return found


async def embeddings(server: Server, request: Request) -> Response:
    def read(server: Server, fields: RequestFields) -> tuple[EmbeddingJob, str]:
        served = server.find(fields)
        if not served.embeds:
            raise model_cannot(served.id, f"({served.kind}) has no vectors of texts", served.can)
        form, wanted = fields.choice("encoding_format", ("float", "base64")), fields.integer("dimensions", 1)
        if wanted not in (None, served.model.config.dim):
            said = f"{served.id} has vectors of {served.model.config.dim} numbers and cannot shorten them"
            raise unsupported_parameter("dimensions", said)
        inputs = read_inputs(fields, "input", MOST_INPUTS)
        if not all(inputs):
            raise invalid("input", "input has an empty text; leave it out")
        return make_embedding_job(served, inputs), form

    task, form = await parse_request(server, request, read)
    job = server.engine.submit(lambda: compute_embeddings(task), request.scope["request_id"])
    found: list[Tensor] = []
    async with following(job, request.receive, server.limits.seconds):
        async for some in job:
            found += some
    usage = {"prompt_tokens": task.read, "total_tokens": task.read}

    def answer() -> Response:  # a million numbers take their time
        rows = [
            {"object": "embedding", "index": i, "embedding": base64_floats(v, form)}
            for i, v in enumerate(found)
        ]
        return Json({"object": "list", "data": rows, "model": task.served.id, "usage": usage})

    return await asyncio.to_thread(answer)


def base64_floats(vector: Tensor, form: str) -> str | list[float]:
    """Numbers, or their bytes as little-endian float32."""
    if form == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(np.ascontiguousarray(vector.numpy(), "<f4").tobytes()).decode()


async def tokenize(server: Server, request: Request) -> Response:
    def read(server: Server, fields: RequestFields) -> Response:
        served, text = server.find(fields), fields.get("prompt")
        if not isinstance(text, str):
            raise invalid("prompt", "prompt must be a string")
        tokenizer = served.model.tokenizer
        if tokenizer is None:
            raise model_cannot(served.id, "has no tokenizer", served.can)
        ids = tokenizer.encode(text, special=fields.boolean("add_special_tokens", True))
        names = tokenizer.tokens(ids)
        return Json({"count": len(ids), "max_model_len": served.context, "tokens": ids, "token_strs": names})

    return await parse_request(server, request, read)


async def detokenize(server: Server, request: Request) -> Response:
    def read(server: Server, fields: RequestFields) -> Response:
        served = server.find(fields)
        if served.model.tokenizer is None:
            raise model_cannot(served.id, "has no tokenizer", served.can)
        return Json({"prompt": served.text(read_token_ids("tokens", fields.get("tokens")))})

    return await parse_request(server, request, read)
