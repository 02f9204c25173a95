"""What the engine does for a request: an iterator each, so that it can be left between two tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decode.loop import Piece, stream
from heedful.models.base import LM
from heedful.pooling import Pooling, embed, pool
from heedful.serve.openai_errors import not_a_number, too_long
from heedful.serve.openai_requests import CompletionRequest
from heedful.serve.served_model import ServedModel

TOGETHER = 32  # texts embedded between two looks at whether somebody still waits


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
    """Prompts to go on with."""

    served: ServedModel
    prompts: list[list[int]]
    asked: CompletionRequest
    limit: int
    echo: bool = False

    @property
    def read(self) -> int:
        return sum(map(len, self.prompts))


def generate_tokens(task: GenerationJob) -> Iterator[Piece | TokenResult]:
    """The prompts if they are to be sent back, then every token of every row as it is chosen."""
    served, asked = task.served, task.asked
    if task.echo:
        assert isinstance(served.model, LM)
        for row, ids in enumerate(task.prompts):
            yield TokenResult(
                row, [] if asked.logprobs is None else token_scores(served.model, ids, asked.logprobs)
            )
    if not task.limit:
        return
    pieces = stream(
        served.writer(), task.prompts, n=asked.n, max_tokens=task.limit, logprobs=asked.logprobs or 0,
        **asked.settings,
    )  # fmt: skip
    for piece in pieces:
        if math.isnan(piece.logprob):
            raise not_a_number(served.id)
        yield piece


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
    """Texts to be made vectors: strings, or ids as they are."""

    served: ServedModel
    inputs: list[str | list[int]]
    read: int  # tokens


def make_embedding_job(served_model: ServedModel, inputs: list[str | list[int]]) -> EmbeddingJob:
    """Counted as `heedful.embed` reads them: a checkpoint for sentences says where it cuts."""
    cut = served_model.model.pooling.length if served_model.model.pooling is not None else None
    encode = served_model.model.tokenizer.encode
    sizes = [len(encode(i) if isinstance(i, str) else i) for i in inputs]
    sizes = sizes if cut is None else [min(size, cut) for size in sizes]
    if max(sizes) > served_model.context:
        raise too_long(served_model.context, max(sizes))
    return EmbeddingJob(served_model, inputs, sum(sizes))


def compute_embeddings(task: EmbeddingJob) -> Iterator[Tensor]:
    """(N, D) for a few inputs at a time, in order."""
    model = task.served.model
    assert isinstance(model, LM)
    for start in range(0, len(task.inputs), TOGETHER):
        some = task.inputs[start : start + TOGETHER]
        texts = [i for i in some if isinstance(i, str)]
        found = embed(model, texts) if texts else torch.stack([of_ids(model, i) for i in some if i])
        if not bool(found.isfinite().all()):
            raise not_a_number(task.served.id)
        yield found


@torch.no_grad()
def of_ids(model: LM, ids: str | list[int]) -> Tensor:
    """(D,): one text of ids, cut where the checkpoint says."""
    how = model.pooling or Pooling()
    tokens = torch.tensor([list(ids)[: how.length]], device=model.device)
    return pool(model.encode(tokens), torch.ones_like(tokens, dtype=torch.bool), how)[0].float().cpu()
