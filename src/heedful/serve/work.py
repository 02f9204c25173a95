"""What the engine does for a request: an iterator each, so that it can be left between two tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decode.loop import Piece, stream
from heedful.loading import embed
from heedful.models.base import LM
from heedful.pooling import Pooling, pool
from heedful.serve.errors import not_a_number, too_long
from heedful.serve.served import Served
from heedful.serve.wire import Asked

TOGETHER = 32  # texts embedded between two looks at whether somebody still waits


@dataclass(frozen=True)
class Score:
    """A token, how likely it was, and which were likeliest in its place; None for a text's first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Read:
    """A prompt that is sent back before what follows it."""

    row: int
    scores: list[Score]


@dataclass(frozen=True)
class Writing:
    """Prompts to go on with."""

    served: Served
    prompts: list[list[int]]
    asked: Asked
    limit: int
    echo: bool = False

    @property
    def read(self) -> int:
        return sum(map(len, self.prompts))


def write(task: Writing) -> Iterator[Piece | Read]:
    """The prompts if they are to be sent back, then every token of every row as it is chosen."""
    served, asked = task.served, task.asked
    if task.echo:
        assert isinstance(served.model, LM)
        for row, ids in enumerate(task.prompts):
            yield Read(row, [] if asked.logprobs is None else scores(served.model, ids, asked.logprobs))
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
def scores(model: LM, ids: list[int], top: int) -> list[Score]:
    """log p(token | those before it) of every token of a text"""
    found = [Score(ids[0], None)]
    if len(ids) == 1:
        return found
    logs = model(torch.tensor([ids], device=model.device))[0, :-1].float().log_softmax(-1)  # (T − 1, V)
    own = logs.gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[:, 0].tolist()
    likeliest = logs.topk(top)
    beside = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    for token, logprob, (names, values) in zip(ids[1:], own, beside, strict=True):
        found.append(Score(token, logprob, tuple(zip(names, values, strict=True))))
    return found


@dataclass(frozen=True)
class Embedding:
    """Texts to be made vectors: strings, or ids as they are."""

    served: Served
    inputs: list[str | list[int]]
    read: int  # tokens


def embedding(served: Served, inputs: list[str | list[int]]) -> Embedding:
    """Counted as `heedful.embed` reads them: a checkpoint for sentences says where it cuts."""
    cut = served.model.pooling.length if served.model.pooling is not None else None
    encode = served.model.tokenizer.encode
    sizes = [len(encode(i) if isinstance(i, str) else i) for i in inputs]
    sizes = sizes if cut is None else [min(size, cut) for size in sizes]
    if max(sizes) > served.context:
        raise too_long(served.context, max(sizes))
    return Embedding(served, inputs, sum(sizes))


def vectors(task: Embedding) -> Iterator[Tensor]:
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
