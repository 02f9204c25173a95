"""From logits to tokens: the rules of a request in their order, for one row or for many.

`TokenChooser` serves the rows of one request, which stand at the same step. `choose_for_rows` serves rows of
different requests, each at its own step; what it chooses for a row does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.core.errors import HeedfulError
from heedful.core.padding import pad_rows
from heedful.decode.request import Request
from heedful.decode.sampling import check_tokens_left, uniforms
from heedful.decode.stepper import EagerStepper
from heedful.models.base import Model

if TYPE_CHECKING:
    from heedful.decode.loop import GeneratedRow

UNIFORMS_AT_ONCE = 256  # random numbers drawn at once for a row


def choose_tokens(
    logits: Tensor, request: Request, rows: Sequence[GeneratedRow], history: Tensor | None, step: int,
    uniform: Callable[[], Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return tokens (B,), their logprobs (B,) if scored, and the likeliest with theirs if logprobs=N.

    `history` (B, S) are the tokens so far, if a rule looks back; the last `step` columns were generated.
    """
    raw, sampling = logits.float(), request.sampling
    z = sampling.apply_penalties(raw, history, step) if sampling.changes else raw
    if request.guide is not None:
        allowed = torch.stack([request.guide.allowed_tokens(row.guided) for row in rows])
        z = z.masked_fill(~allowed.to(z.device), -torch.inf)
    if request.guide is not None or sampling.forbids:
        going = torch.tensor([row.finish is None for row in rows], device=z.device)
        check_tokens_left(z[going], step)
    tokens = sampling.choose(z, None if sampling.greedy else uniform())
    if not request.scored:
        return (tokens,)
    logs = raw.log_softmax(-1)
    logprobs = logs.gather(1, tokens[:, None])[:, 0]
    if not request.logprobs:
        return tokens, logprobs
    likeliest = logs.topk(request.logprobs)
    return tokens, logprobs, likeliest.indices, likeliest.values


class TokenChooser:
    """Chooses one token per row from logits (B, V). A rule that is off keeps no history."""

    def __init__(self, model: Model, request: Request, rows: list[GeneratedRow]) -> None:
        self.request, self.rows, self.t = request, rows, 0
        self.u: Tensor | None = None  # (B, some), the random numbers of each row that were drawn so far
        self.history: Tensor | None = None
        if request.sampling.looks_back:
            history = pad_rows([r.before for r in rows], -1, left=True)  # −1: no token
            self.history = torch.from_numpy(history).to(model.device)

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return tokens (B,), their logprobs (B,) if scored, and the likeliest with theirs if logprobs=N."""
        uniform = lambda: self.uniforms(1, logits.device)[:, 0]
        chosen = choose_tokens(logits, self.request, self.rows, self.history, self.t, uniform)
        if self.history is not None:
            self.history = torch.cat((self.history, chosen[0][:, None]), 1)
        self.t += 1
        return chosen

    def uniforms(self, count: int, device: torch.device) -> Tensor:
        """Return the random numbers of each row's next `count` tokens, (B, count)."""
        while self.u is None or self.u.shape[1] < self.t + count:
            drawn = uniforms([row.random for row in self.rows], UNIFORMS_AT_ONCE).to(device)
            self.u = drawn if self.u is None else torch.cat((self.u, drawn), 1)
        return self.u[:, self.t : self.t + count]

    def choose_ahead(self, stepper: EagerStepper, tokens: Tensor, count: int) -> Tensor:
        """Append tokens (B,) and let the stepper choose the next `count` of each row, (B, count)."""
        sampling = self.request.sampling
        numbers = None if sampling.greedy else self.uniforms(count, tokens.device)
        self.t += count
        return stepper.step_ahead(tokens, count, sampling, numbers)

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
        if request.sampling.looks_back:
            history = torch.tensor([some[0].before + some[0].ids], device=logits.device)
        uniform = lambda some=some: torch.tensor(
            [row.uniform() for row in some], dtype=torch.float64, device=logits.device
        )
        try:
            found = choose_tokens(here, request, some, history, len(some[0].ids), uniform)
        except HeedfulError as error:  # of a row that is alone: a rule left it no token
            chosen[places[0]] = error
            continue
        for place, token in zip(places, zip(*(t.tolist() for t in found), strict=True), strict=True):
            chosen[place] = list(token)
    return chosen


def group_rows(rows: Sequence[GeneratedRow]) -> Iterable[list[int]]:
    """Return the places of rows that can be chosen together."""
    groups: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        request, s = row.request, row.request.sampling
        alone = s.changes or request.guide is not None
        groups.setdefault(id(row) if alone else (s.drawing, request.scored, request.logprobs), []).append(
            place
        )
    return groups.values()
