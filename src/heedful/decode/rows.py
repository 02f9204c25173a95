"""One text while it is written: from logits to a token, and from tokens to text.

A `GeneratedRow` is one text of a batch. It keeps its own random numbers, its place in a constraint and the
reason why it ended, so a text does not depend on its neighbours. The `Detokenizer` turns tokens into text as
they arrive. A token need not be a whole character, and a stop string can be spread over several tokens, so
text is only shown once nothing that follows can change it. `TokenChooser` serves the rows of one request,
which stand at the same step; `choose_for_rows` serves rows of different requests, each at its own step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from heedful.core.errors import HeedfulError
from heedful.core.padding import pad_rows
from heedful.decode.request import Request, max_new_tokens, prefix_ids
from heedful.decode.sampling import apply_penalties, check_tokens_left, choose_token, generator, uniforms
from heedful.decode.stepper import EagerStepper
from heedful.models.base import Model, Seq2Seq, Tokenizer

UNIFORMS_AT_ONCE = 256  # random numbers drawn at once for a row
HALF = "\ufffd"  # what decoders write for bytes that are not yet a character

Finish = Literal["end", "stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of one row.

    `text` is the text that became certain with it: none while a character is incomplete or a stop string
    possible. `logprob` is the model's own, before any rule. `finish` stands on a row's last piece: "end" if
    the model ended the text, "stop" if it wrote a stop string, "length" after max_tokens, "context" if the
    model's context was full before that. Recurrent and state-space models have no longest text.
    """

    text: str
    token: int
    logprob: float
    row: int = 0
    sample: int = 0
    finish: Finish | None = None
    top: tuple[tuple[int, float], ...] = ()  # the most likely tokens and their logprobs, if asked for


@dataclass(frozen=True)
class Generation:
    """One finished text, without the end token; `score` is its log-probability, or what a search ranks by.

    `finish` says why it ended, as in `Piece`. "context": before max_tokens, because the context was full.
    """

    text: str
    ids: list[int]
    finish: Finish
    score: float
    logprobs: list[float]

    @classmethod
    def join(cls, pieces: Sequence[Piece], eos: frozenset[int]) -> Generation:
        """Put the pieces of one text together."""
        ids, logprobs = [p.token for p in pieces if p.token not in eos], [p.logprob for p in pieces]
        finish = pieces[-1].finish
        assert finish is not None
        return cls("".join(p.text for p in pieces), ids, finish, sum(logprobs), logprobs)


class Detokenizer:
    """The text of one row, token by token.

    A token's text depends on its neighbours (bytes of one character, spaces between pieces), so the newest
    few are decoded with and without it, and the difference is new. What ends in half a character waits, and
    so does what may be the beginning of a stop string. `prompt` only gives the first token a neighbour.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.ids = list(prompt[-8:])  # those whose text is out, as neighbours, and then those that wait
        self.out = len(self.ids)
        self.shown = self._decode(self.ids).rstrip(HALF)  # a prompt may end in half a character
        self.pending = ""  # decoded, but perhaps part of a stop string
        self.stopped = False

    def _decode(self, ids: list[int]) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(ids)

    def push(self, token: int) -> str:
        """One more token; the text that is certain now."""
        if self.tokenizer is None:
            return ""
        self.ids.append(token)
        text = self._decode(self.ids)
        if len(text) <= len(self.shown) or text.endswith(HALF):
            return ""
        return self._release(self._advance(text))

    def _advance(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.ids = self.ids[self.out :]  # the newest are neighbours enough for the next
        self.out, self.shown = len(self.ids), self._decode(self.ids)
        return new

    def _release(self, new: str) -> str:
        """Return what may be shown of the text so far; the rest may turn out to be a stop string."""
        if not self.stop:
            return new
        text = self.pending + new
        starts = [at for s in self.stop if (at := text.find(s)) >= 0]
        if starts:
            self.stopped, self.pending = True, ""
            return text[: min(starts)]
        keep = max(overlap(text, s) for s in self.stop)
        self.pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The row is done: what was held back, half characters included."""
        if self.tokenizer is None:
            return ""
        text = self._decode(self.ids)
        tail = self._release(self._advance(text)) if len(text) > len(self.shown) else ""
        pending, self.pending = self.pending, ""
        return tail + pending


def decode_after(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of ids that a model wrote after a prompt; an encoder-decoder's follow nothing."""
    text = Detokenizer(model.tokenizer, () if isinstance(model, Seq2Seq) else prompt)
    return "".join([*map(text.push, ids), text.finish()])


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class GeneratedRow:
    """One text while it is generated."""

    def __init__(self, model: Model, request: Request, prompt: list[int], number: int, sample: int) -> None:
        self.request, self.prompt, self.number, self.sample = request, prompt, number, sample
        settings = request.settings
        self.before = prefix_ids(model, prompt)
        self.limit = max_new_tokens(model, settings.max_tokens, len(prompt))
        self.text = Detokenizer(model.tokenizer, () if isinstance(model, Seq2Seq) else prompt, settings.stop)
        self.guided = None if request.guide is None else request.guide.start()
        self.random = generator(request.seed, number, sample)
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self.uniforms: list[float] = []

    def uniform(self) -> float:
        """Return the random number of the next token: those that TokenChooser draws for the row."""
        if len(self.ids) % UNIFORMS_AT_ONCE == 0:
            drawn = torch.rand(UNIFORMS_AT_ONCE, generator=self.random, dtype=torch.float64)
            self.uniforms = drawn.tolist()
        return self.uniforms[len(self.ids) % UNIFORMS_AT_ONCE]

    @property
    def last(self) -> bool:
        """Whether the next token is the last that may follow."""
        return len(self.ids) + 1 >= self.limit

    def take(
        self, token: int, logprob: float = math.nan, top: Sequence[int] = (), logprobs: Sequence[float] = ()
    ) -> Piece:
        """Append one token and return the piece of text that is certain now."""
        self.ids.append(token)
        text = "" if token in self.request.eos else self.text.push(token)
        guide = self.request.guide
        if guide is not None:
            self.guided = guide.next(self.guided, token)
        if self.text.stopped:
            self.finish = "stop"
        elif token in self.request.eos or (guide is not None and guide.complete(self.guided)):
            self.finish = "end"
        elif len(self.ids) >= self.limit:
            self.finish = "length" if len(self.ids) >= self.request.settings.max_tokens else "context"
        if self.finish is not None and self.finish != "stop":
            text += self.text.finish()
            self.finish = "stop" if self.text.stopped else self.finish
        beside = tuple(zip(top, logprobs, strict=True))
        return Piece(text, token, logprob, self.number, self.sample, self.finish, beside)


def choose_tokens(
    logits: Tensor, request: Request, rows: Sequence[GeneratedRow], history: Tensor | None, step: int,
    uniform: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return tokens (B,), their logprobs (B,) if scored, and the N most likely if logprobs=N.

    `history` (B, S) are the tokens so far, if a rule looks back; the last `step` columns were generated.
    `uniform` (B,) are the random numbers that decide, unless the choice is greedy.
    """
    raw, settings = logits.float(), request.settings
    z = apply_penalties(settings, raw, history, step) if settings.changes else raw
    if request.guide is not None:
        allowed = torch.stack([request.guide.allowed_tokens(row.guided) for row in rows])
        z = z.masked_fill(~allowed.to(z.device), -torch.inf)
    if request.guide is not None or settings.forbids:
        going = torch.tensor([row.finish is None for row in rows], device=z.device)
        check_tokens_left(z[going], step)
    tokens = choose_token(settings, z, uniform)
    if not request.scored:
        return (tokens,)
    logs = raw.log_softmax(-1)
    logprobs = logs.gather(1, tokens[:, None])[:, 0]
    if not settings.logprobs:
        return tokens, logprobs
    likeliest = logs.topk(settings.logprobs)
    return tokens, logprobs, likeliest.indices, likeliest.values


class TokenChooser:
    """Chooses one token per row from logits (B, V). A rule that is off keeps no history."""

    def __init__(self, model: Model, request: Request, rows: list[GeneratedRow]) -> None:
        self.request, self.rows, self.t = request, rows, 0
        self.u: Tensor | None = None  # (B, some), the random numbers of each row that were drawn so far
        self.history: Tensor | None = None
        if request.settings.looks_back:
            history = pad_rows([r.before for r in rows], -1, left=True)  # −1: no token
            self.history = torch.from_numpy(history).to(model.device)

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return what `choose_tokens` does as columns: tokens (B, 1), logprobs (B, 1) and more."""
        uniform = None if self.request.settings.greedy else self.uniforms(1, logits.device)[:, 0]
        chosen = choose_tokens(logits, self.request, self.rows, self.history, self.t, uniform)
        columns = tuple(t[:, None] for t in chosen)
        if self.history is not None:
            self.history = torch.cat((self.history, columns[0]), 1)
        self.t += 1
        return columns

    def uniforms(self, count: int, device: torch.device) -> Tensor:
        """Return the random numbers of each row's next `count` tokens, (B, count)."""
        while self.u is None or self.u.shape[1] < self.t + count:
            drawn = uniforms([row.random for row in self.rows], UNIFORMS_AT_ONCE).to(device)
            self.u = drawn if self.u is None else torch.cat((self.u, drawn), 1)
        return self.u[:, self.t : self.t + count]

    def ahead(self, stepper: EagerStepper, tokens: Tensor, count: int) -> tuple[Tensor]:
        """Append tokens (B,) and let the stepper choose the next of each row, (B, at most `count`)."""
        settings = self.request.settings
        numbers = None if settings.greedy else self.uniforms(count, tokens.device)
        chosen = stepper.step_ahead(tokens, count, settings, numbers, self.request.eos)
        self.t += chosen.shape[1]  # each row's next random number is that of its next token
        return (chosen,)

    def keep(self, rows: list[GeneratedRow], index: Tensor) -> None:
        """Keep only these rows."""
        self.rows = rows
        self.u = None if self.u is None else self.u[index]
        self.history = None if self.history is None else self.history[index]


def choose_for_rows(rows: Sequence[GeneratedRow], logits: Tensor) -> list[list[Any] | Exception]:
    """Return each row's token with its scores, in the order of `GeneratedRow.take`, or what forbade it one.

    Rows that are chosen alike are chosen together; one with penalties or a constraint is chosen alone.
    """
    chosen: list[list[Any] | Exception] = [[] for _ in rows]
    for places in group_rows(rows):
        some = [rows[place] for place in places]
        here = logits if len(places) == len(rows) else logits[torch.tensor(places, device=logits.device)]
        request, history = some[0].request, None
        if request.settings.looks_back:
            history = torch.tensor([some[0].before + some[0].ids], device=logits.device)
        uniform = None
        if not request.settings.greedy:
            numbers = [row.uniform() for row in some]
            uniform = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
        try:
            columns = choose_tokens(here, request, some, history, len(some[0].ids), uniform)
        except HeedfulError as error:  # of a row that is alone: a rule left it no token
            chosen[places[0]] = error
            continue
        for place, token in zip(places, zip(*(t.tolist() for t in columns), strict=True), strict=True):
            chosen[place] = list(token)
    return chosen


def group_rows(rows: Sequence[GeneratedRow]) -> Iterable[list[int]]:
    """Return the places of rows that can be chosen together."""
    groups: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        settings = row.request.settings
        alone = settings.changes or row.request.guide is not None
        alike = (settings.drawing, row.request.scored, settings.logprobs)
        groups.setdefault(id(row) if alone else alike, []).append(place)
    return groups.values()
