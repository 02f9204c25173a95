"""/v1/completions and /v1/chat/completions: text, whole or as it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from heedful.models.base import Seq2Seq
from heedful.serve.generation_jobs import GenerationJob, make_generation_job, score_prompts
from heedful.serve.guard import Json
from heedful.serve.openai_errors import invalid, unsupported_parameter
from heedful.serve.openai_requests import (
    MAX_TOP_LOGPROBS,
    CompletionRequest,
    RequestFields,
    read_inputs,
    read_messages,
    read_sampling,
)
from heedful.serve.openai_responses import Chat, Completion, ResponseBuilder, ResponseShape
from heedful.serve.openai_server import Server, parse_request
from heedful.serve.streams import Events, following


async def completions(server: Server, request: Request) -> Response:
    return await generate_response(server, request, read_completion, Completion())


async def chat(server: Server, request: Request) -> Response:
    return await generate_response(server, request, read_chat, Chat())


def read_completion(server: Server, fields: RequestFields) -> GenerationJob:
    """Return a request for completions as a job: prompts tokenised, everything checked."""
    served = server.find(fields)
    served.check_generates()
    sampling = read_sampling(fields, server.limits.rows)
    vocab = served.model.config.vocab
    sampling = replace(
        sampling,
        max_tokens=fields.integer("max_tokens", 0),
        logprobs=fields.integer("logprobs", 0, min(MAX_TOP_LOGPROBS, vocab)),
    )
    echo = fields.boolean("echo")
    if echo and isinstance(served.model, Seq2Seq):
        raise unsupported_parameter(
            "echo", f"{served.id} reads the prompt apart from what it writes; leave echo out"
        )
    inputs = read_inputs(fields, "prompt", server.limits.rows)
    check_rows(len(inputs), sampling, server.limits.rows)
    scoring = echo and sampling.max_tokens == 0
    prompts = [served.prompt(one, scoring=scoring) for one in inputs]
    limit = served.max_new_tokens(prompts, sampling, 16, server.limits.strict)
    return make_generation_job(served, prompts, sampling, server.limits.bound(limit), echo)


def read_chat(server: Server, fields: RequestFields) -> GenerationJob:
    """Return a conversation as a job. Its answer may fill the context unless a limit is given."""
    served = server.find(fields)
    served.check_generates()
    sampling = read_sampling(fields, server.limits.rows)
    newer, older = fields.integer("max_completion_tokens", 1), fields.integer("max_tokens", 1)
    scored, top = fields.boolean("logprobs"), fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not scored:
        raise invalid("top_logprobs", "top_logprobs goes with logprobs=true only")
    sampling = replace(
        sampling, max_tokens=older if newer is None else newer,
        logprobs=min(top or 0, served.model.config.vocab) if scored else None,
    )  # fmt: skip
    prompt = served.conversation(read_messages(fields))
    limit = served.max_new_tokens([prompt], sampling, None, server.limits.strict)
    return make_generation_job(served, [prompt], sampling, server.limits.bound(limit))


def check_rows(prompts: int, request: CompletionRequest, max_rows: int) -> None:
    n = request.settings.samples
    if prompts * n > max_rows:
        raise invalid("n", f"{prompts} prompts of n={n} are {prompts * n} texts; {max_rows} are the most")


async def generate_response(
    server: Server,
    request: Request,
    parse: Callable[[Server, RequestFields], GenerationJob],
    shape: ResponseShape,
) -> Response:
    """Answer with a text, whole or as a stream."""
    begun = time.perf_counter()
    job = await parse_request(server, request, parse)
    builder, label, seconds = ResponseBuilder(shape, job), request.scope["request_id"], server.limits.seconds
    work = score_prompts(job) if job.echo else None if job.task is not None else iter(())
    running = server.engine.submit(label, work=work, batch=job.served.batch, task=job.task)
    server.metrics.prompt_tokens.add(job.prompt_tokens)

    def count(reason: str) -> None:
        server.metrics.requests.add(1, request.url.path, "200", reason)
        server.metrics.latency.observe(time.perf_counter() - begun)

    if job.request.stream:
        return Events(running, builder, seconds, count)
    async with following(running, request.receive, seconds):
        for item in await running.collect():
            builder.take(item)
    count(builder.finish_reason)
    return await asyncio.to_thread(lambda: Json(builder.full_response()))
