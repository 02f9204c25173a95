"""/v1/completions and /v1/chat/completions: text, whole or as it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from starlette.requests import Request
from starlette.responses import Response

from heedful.core.errors import InputError, MissingPackage
from heedful.decode.continuous import GenerationTask
from heedful.decode.request import make_request
from heedful.models.base import LM, Seq2Seq
from heedful.serve.json_response import Json
from heedful.serve.openai_errors import invalid, unsupported_parameter
from heedful.serve.openai_requests import (
    MAX_TOP_LOGPROBS,
    CompletionRequest,
    RequestFields,
    read_inputs,
    read_messages,
    read_sampling,
)
from heedful.serve.openai_responses import Events, ResponseBuilder, ResponseShape, TokenResult, TokenScore
from heedful.serve.openai_server import ServedModel, Server, parse_request


@dataclass(frozen=True)
class GenerationJob:
    """Prompts to continue, checked; `limit` is how many tokens each may get."""

    served: ServedModel
    prompts: list[list[int]]
    request: CompletionRequest
    limit: int
    echo: bool = False
    task: GenerationTask | None = None  # for the model's batch; None if no token was asked for

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def score_prompts(self, rows: Sequence[tuple[int, list[int]]]) -> list[TokenResult]:
        """Return the prompts that are sent back, with their scores if those were asked for."""
        top, model = self.request.logprobs, self.served.model
        assert isinstance(model, LM)
        return [TokenResult(row, [] if top is None else token_scores(model, ids, top)) for row, ids in rows]


def make_generation_job(
    served_model: ServedModel,
    prompts: list[list[int]],
    completion: CompletionRequest,
    limit: int,
    echo: bool = False,
) -> GenerationJob:
    """Check the settings, compile the constraint if there is one, and return the work."""
    if not limit:
        return GenerationJob(served_model, prompts, completion, limit, echo)
    settings = replace(completion.settings, max_tokens=limit, logprobs=completion.logprobs or 0)
    try:
        request = make_request(served_model.model, settings, scored=completion.logprobs is not None)
    except MissingPackage as error:
        raise unsupported_parameter("response_format", str(error)) from None
    except InputError as error:
        parameter = "response_format" if settings.is_constrained else None
        raise invalid(parameter, " ".join(str(error).split())) from None
    return GenerationJob(served_model, prompts, completion, limit, echo, GenerationTask(request, prompts))


@torch.no_grad()
def token_scores(model: LM, ids: list[int], top: int) -> list[TokenScore]:
    """log p(token | those before it) of every token of a text"""
    scores = [TokenScore(ids[0], None)]
    if len(ids) == 1:
        return scores
    logs = model(torch.tensor([ids], device=model.device))[0, :-1].float().log_softmax(-1)  # (T − 1, V)
    own = logs.gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[:, 0].tolist()
    likeliest = logs.topk(top)
    beside = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    for token, logprob, (names, values) in zip(ids[1:], own, beside, strict=True):
        scores.append(TokenScore(token, logprob, tuple(zip(names, values, strict=True))))
    return scores


def read_completion(server: Server, fields: RequestFields) -> GenerationJob:
    """Return a request for completions as a job: prompts tokenised, everything checked."""
    served = server.find(fields, "/v1/completions")
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
    if echo and sampling.logprobs is not None and served.model.mesh is not None:
        raise unsupported_parameter(
            "echo", f"{served.id} is split over processes and gives no scores of a prompt; leave echo out"
        )
    inputs = read_inputs(fields, "prompt", server.limits.rows)
    if (texts := len(inputs) * sampling.settings.samples) > server.limits.rows:
        each = f"{len(inputs)} prompts of n={sampling.settings.samples}"
        raise invalid("n", f"{each} are {texts} texts; {server.limits.rows} are the most")
    scoring = echo and sampling.max_tokens == 0
    prompts = [served.prompt(one, scoring=scoring) for one in inputs]
    limit = served.max_new_tokens(prompts, sampling, 16, server.limits.strict)
    return make_generation_job(served, prompts, sampling, server.limits.bound(limit), echo)


def read_chat(server: Server, fields: RequestFields) -> GenerationJob:
    """Return a conversation as a job. Its answer may fill the context unless a limit is given."""
    served = server.find(fields, "/v1/chat/completions")
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


async def generate_response(
    server: Server,
    request: Request,
    read: Callable[[Server, RequestFields], GenerationJob],
    shape: ResponseShape,
) -> Response:
    """Answer with a text, whole or as a stream."""
    begun = time.perf_counter()
    job = await parse_request(server, request, read)
    builder, label, seconds = ResponseBuilder(shape, job), request.scope["request_id"], server.limits.seconds
    echoed = list(enumerate(job.prompts)) if job.echo else []
    running = server.engine.submit(
        label, rows=echoed, compute=job.score_prompts, rows_at_once=1, batch=job.served.batch, task=job.task
    )
    server.metrics.prompt_tokens.add(job.prompt_tokens)

    def count(reason: str) -> None:
        server.metrics.requests.add(1, request.url.path, "200", reason)
        server.metrics.latency.observe(time.perf_counter() - begun)

    if job.request.stream:
        return Events(running, builder, seconds, count)
    async with running.following(request.receive, seconds):
        for item in await running.collect():
            builder.take(item)
    count(builder.finish_reason)
    return await asyncio.to_thread(lambda: Json(builder.full_response()))
