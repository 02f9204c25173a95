"""/v1/completions and /v1/chat/completions: text, whole or as it is written."""

from __future__ import annotations

from dataclasses import replace

from heedful.core.errors import InputError, MissingPackage
from heedful.decode.continuous import GenerationTask
from heedful.decode.request import make_request
from heedful.models.base import Seq2Seq
from heedful.serve.openai_errors import invalid, unsupported_parameter
from heedful.serve.openai_requests import (
    MAX_TOP_LOGPROBS,
    RequestFields,
    read_inputs,
    read_messages,
    read_sampling,
)
from heedful.serve.openai_responses import Chat, Completion, Job, TextBuilder
from heedful.serve.openai_server import Server


def read_completion(server: Server, fields: RequestFields) -> Job:
    """Return a request for completions as a job: prompts tokenised, everything checked."""
    served, limits = server.find(fields, "/v1/completions"), server.limits
    most = min(MAX_TOP_LOGPROBS, served.model.config.vocab)
    max_tokens, logprobs = fields.integer("max_tokens", 0), fields.integer("logprobs", 0, most)
    request = read_sampling(fields, limits.rows, max_tokens=max_tokens, logprobs=logprobs)
    echo = fields.boolean("echo")
    if echo and isinstance(served.model, Seq2Seq):
        message = f"{served.id} reads the prompt apart from what it writes; leave echo out"
        raise unsupported_parameter("echo", message)
    if echo and request.logprobs is not None and served.model.mesh is not None:
        message = f"{served.id} is split over processes and gives no scores of a prompt; leave echo out"
        raise unsupported_parameter("echo", message)
    inputs = read_inputs(fields, "prompt", limits.rows)
    if (texts := len(inputs) * request.settings.samples) > limits.rows:
        each = f"{len(inputs)} prompts of n={request.settings.samples}"
        raise invalid("n", f"{each} are {texts} texts; {limits.rows} are the most")
    scoring = echo and request.max_tokens == 0
    prompts = [served.prompt(one, scoring=scoring) for one in inputs]
    limit = limits.bound(served.max_new_tokens(prompts, request.max_tokens, 16, limits.strict))
    return generation_job(TextBuilder(Completion(), served, prompts, request, limit, echo))


def read_chat(server: Server, fields: RequestFields) -> Job:
    """Return a conversation as a job. Its answer may fill the context unless a limit is given."""
    served, limits = server.find(fields, "/v1/chat/completions"), server.limits
    newer, older = fields.integer("max_completion_tokens", 1), fields.integer("max_tokens", 1)
    scored, top = fields.boolean("logprobs"), fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not scored:
        raise invalid("top_logprobs", "top_logprobs goes with logprobs=true only")
    request = read_sampling(
        fields, limits.rows, max_tokens=older if newer is None else newer,
        logprobs=min(top or 0, served.model.config.vocab) if scored else None,
    )  # fmt: skip
    prompts = [served.conversation(read_messages(fields))]
    limit = limits.bound(served.max_new_tokens(prompts, request.max_tokens, None, limits.strict))
    return generation_job(TextBuilder(Chat(), served, prompts, request, limit))


def generation_job(text: TextBuilder) -> Job:
    """Check the settings, compile the constraint if there is one, and return the work."""
    request, served, task = text.request, text.served, None
    if text.limit:
        settings = replace(request.settings, max_tokens=text.limit, logprobs=request.logprobs or 0)
        try:
            checked = make_request(served.model, settings, scored=request.logprobs is not None)
        except MissingPackage as error:
            raise unsupported_parameter("response_format", str(error)) from None
        except InputError as error:
            parameter = "response_format" if settings.is_constrained else None
            raise invalid(parameter, " ".join(str(error).split())) from None
        task = GenerationTask(checked, text.prompts)
    return Job(
        rows=list(enumerate(text.prompts)) if text.echo else [], compute=text.echo_prompts, rows_at_once=1,
        batch=served.batch, task=task, tokens=text.prompt_tokens,
        render=lambda items, usage: text.full_response(items), text=text, stream=request.stream,
    )  # fmt: skip
