"""What the engine does for a request: texts for a model's batch, or an iterator that it can leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.core.errors import InputError, MissingPackage
from heedful.decode.continuous import NO_NUMBER, GenerationTask, NotANumber
from heedful.decode.request import make_request
from heedful.models.base import LM
from heedful.serve.openai_errors import invalid, too_long, unsupported_parameter
from heedful.serve.openai_requests import CompletionRequest
from heedful.serve.served_model import ServedModel
from heedful.weights.pooling import Pooling, embed_ids, encode_truncated

TEXTS_AT_ONCE = 32  # embedded between two steps of the engine


@dataclass(frozen=True)
class TokenScore:
    """A token, how likely it was, and which were likeliest in its place; None for a text's first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenResult:
    """A prompt that is sent back before what follows it."""

    row: int
    scores: list[TokenScore]


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


def score_prompts(job: GenerationJob) -> Iterator[TokenResult]:
    """Yield the prompts that are sent back, with their scores if those were asked for."""
    assert isinstance(job.served.model, LM)
    top = job.request.logprobs
    for row, ids in enumerate(job.prompts):
        yield TokenResult(row, [] if top is None else token_scores(job.served.model, ids, top))


@torch.no_grad()
def token_scores(model: LM, ids: list[int], top: int) -> list[TokenScore]:
    """log p(token | those before it) of every token of a text"""
    found = [TokenScore(ids[0], None)]
    if len(ids) == 1:
        return found
    logs = model(torch.tensor([ids], device=model.device))[0, :-1].float().log_softmax(-1)  # (T − 1, V)
    own = logs.gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[:, 0].tolist()
    likeliest = logs.topk(top)
    beside = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    for token, logprob, (names, values) in zip(ids[1:], own, beside, strict=True):
        found.append(TokenScore(token, logprob, tuple(zip(names, values, strict=True))))
    return found


@dataclass(frozen=True)
class EmbeddingJob:
    """Texts to embed, as ids: the engine's thread tokenizes nothing."""

    served: ServedModel
    rows: list[list[int]]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.rows))


def make_embedding_job(served: ServedModel, inputs: list[str | list[int]]) -> EmbeddingJob:
    """Tokenize the inputs as `heedful.embed` does: a checkpoint for sentences says where a text is cut.

    Other models refuse a text that exceeds the context.
    """
    tokenizer = served.model.tokenizer
    assert tokenizer is not None
    cut = served.model.pooling.length if served.model.pooling is not None else None
    rows = [
        encode_truncated(tokenizer, served.check_length(one) if cut is None else one, cut)
        if isinstance(one, str)
        else one[:cut]
        for one in inputs
    ]
    if (longest := max(map(len, rows))) > served.context:
        raise too_long(served.context, longest)
    return EmbeddingJob(served, rows)


def compute_embeddings(task: EmbeddingJob) -> Iterator[Tensor]:
    """(N, D) for a few inputs at a time, in order."""
    model = task.served.model
    assert isinstance(model, LM)
    for start in range(0, len(task.rows), TEXTS_AT_ONCE):
        found = embed_ids(model, task.rows[start : start + TEXTS_AT_ONCE], model.pooling or Pooling())
        if not bool(found.isfinite().all()):
            raise NotANumber(NO_NUMBER)
        yield found
