"""stream and generate: one loop over a stepper for every model that writes.

    for piece in stream(model, "Once upon a time", max_tokens=64): print(piece.text, end="")
    generate(model, ["one", "two"], temperature=0.8, top_p=0.95, seed=0)        two texts
    generate(model, source, beams=5, length_penalty=1.0, n=3)                   the three best

The settings are those of `decode.request.GenerationSettings`. Without any, the likeliest token is taken.
A row's text depends on its prompt, the seed and its place in the batch, never on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import torch

from heedful.core.errors import InputError
from heedful.core.progress import report_progress
from heedful.decode.beam import BeamSettings, run_beam_search
from heedful.decode.bursts import copy_to_host, decode_bursts
from heedful.decode.contrastive import search_contrastively
from heedful.decode.detokenizer import Detokenizer, decode_after
from heedful.decode.engines.fallback import FastStepper
from heedful.decode.fast import choose_stepper
from heedful.decode.request import (
    GenerationSettings,
    Prompt,
    Prompts,
    Request,
    check_types,
    encode_prompts,
    make_request,
    max_new_tokens,
    prefix_ids,
)
from heedful.decode.sampling import generator
from heedful.decode.speculative import speculate
from heedful.decode.stepper import EagerStepper, Stepper, stepper_for
from heedful.decode.token_choice import UNIFORMS_AT_ONCE, TokenChooser
from heedful.models.base import Model, Seq2Seq

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
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and their logprobs, if asked for


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


class GeneratedRow:
    """One text while it is generated."""

    def __init__(self, model: Model, request: Request, prompt: list[int], number: int, sample: int) -> None:
        self.request, self.prompt, self.number, self.sample = request, prompt, number, sample
        self.before, self.limit = prefix_ids(model, prompt), max_new_tokens(model, request, len(prompt))
        self.text = Detokenizer(model.tokenizer, () if isinstance(model, Seq2Seq) else prompt, request.stop)
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
            self.finish = "length" if len(self.ids) >= self.request.max_tokens else "context"
        if self.finish is not None and self.finish != "stop":
            text += self.text.finish()
            self.finish = "stop" if self.text.stopped else self.finish
        beside = tuple(zip(top, logprobs, strict=True))
        return Piece(text, token, logprob, self.number, self.sample, self.finish, beside)


def make_rows(model: Model, prompts: Prompts, request: Request) -> list[GeneratedRow]:
    """Begin the n texts of every prompt."""
    samples = range(request.n)
    return [GeneratedRow(model, request, ids, i, s) for i, ids in enumerate(prompts.ids) for s in samples]


def decode_tokens(stepper: Stepper, prompts: Prompts, request: Request) -> Iterator[Piece]:
    """Choose a token for every row, yield it, step; rows that are done leave the batch.

    On a GPU the next step is launched before the host reads the tokens, so that it never waits for Python.
    """
    rows = make_rows(stepper.model, prompts, request)
    length = max(len(row.before) for row in rows) + max(row.limit for row in rows)
    logits = prompts.prefill(stepper, request.n, length)
    choose, ahead = TokenChooser(stepper.model, request, rows), logits.device.type == "cuda"
    if ahead and isinstance(stepper, FastStepper) and request.needs_only_logits:
        yield from decode_bursts(stepper, rows, logits, choose)
        return
    while True:
        chosen = choose(logits)
        tokens, ready = chosen[0], copy_to_host(chosen)
        launched = ahead and not any(row.last for row in rows)
        if launched:
            logits = stepper.step(tokens)
        for row, (token, *scores) in zip(rows, zip(*ready(), strict=True), strict=True):
            if row.finish is None:
                yield row.take(token, *scores)
        report_progress("tokens", len(rows[0].ids), rows[0].limit)
        alive = [i for i, row in enumerate(rows) if row.finish is None]
        if not alive:
            return
        if len(alive) < len(rows) and not stepper.fixed_batch:
            index = torch.tensor(alive, device=tokens.device)
            rows, tokens = [rows[i] for i in alive], tokens[index]
            logits = logits[index] if launched else logits
            stepper.reorder(index)
            choose.keep(rows, index)
        if not launched:
            logits = stepper.step(tokens)


def stream(
    model: Model | Stepper,
    prompt: Prompt,
    *,
    n: int = 1,
    fast: bool = True,
    **settings: Unpack[GenerationSettings],
) -> Iterator[Piece]:
    """Yield a text token by token; `row` and `sample` tell several prompts and samples apart.

    A model is stepped by the fast path where that pays (see decode/fast.py); `fast=False` steps it plainly.
    To choose oneself, give a stepper in its place. A `watch` sees the prompt's pass and every step, all plain
    ones; its rows are those of the prompts, n of each, and with beams the beams as they stand.
    """
    known = stepper_for(model).model
    prompts, request = encode_prompts(known, prompt), make_request(known, settings, n=n)
    stepper = stepper_of_request(model, len(prompts.ids) * n, request, fast=fast)
    return decode_pieces(stepper, prompts, request)


def stepper_of_request(model: Model | Stepper, rows: int, request: Request, *, fast: bool) -> Stepper:
    """Return the stepper of a call: the plain one if somebody watches, or if no fast one is wanted."""
    if request.watch is not None:
        return EagerStepper(stepper_for(model).model, watch=request.watch)
    if not fast:
        return stepper_for(model)
    stepper = choose_stepper(model, rows, request.max_tokens)
    if isinstance(stepper, FastStepper) and stepper is not model:
        stepper.is_checked = True  # its text begins now: the model need not be looked at a second time
    return stepper


def decode_pieces(stepper: Stepper, prompts: Prompts, request: Request) -> Iterator[Piece]:
    """Decode step by step, or speculatively if a draft model or lookup is given."""
    if request.draft is None and request.lookup is None:
        return decode_tokens(stepper, prompts, request)
    rows = make_rows(stepper.model, prompts, request)
    return (piece for row in rows for piece in speculate(stepper, row, request))


def generate(
    model: Model | Stepper,
    prompt: Prompt,
    *,
    n: int | None = None,
    beams: int | None = None,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    groups: int = 1,
    diversity: float = 0.0,
    coverage: float = 0.0,
    contrastive: float | None = None,
    details: bool = False,
    fast: bool = True,
    **settings: Unpack[GenerationSettings],
) -> Any:
    """Return a finished text: a string for a string, ids for ids, a list for a list; with n=… a list each.

    `beams` searches for the likeliest text (see decode/beam.py), `contrastive` for one that does not repeat
    itself (decode/contrastive.py); neither draws. `details` gives a Generation instead of the bare text: it
    also says why the text ended.
    A model is stepped by the fast path where that pays, as `stream` says.
    """
    known = stepper_for(model).model
    samples = 1 if n is None else n
    check_types({"n": samples, "beams": 1 if beams is None else beams, "groups": groups})
    beam_settings = BeamSettings(
        1 if beams is None else beams, length_penalty, early_stopping, groups, diversity, coverage
    )
    searches = check_search(beam_settings, beams, samples, contrastive, settings)
    prompts = encode_prompts(known, prompt)
    request = make_request(known, settings, n=samples, samples=not searches)
    rows = len(prompts.ids) * max(samples, beam_settings.width)
    stepper = stepper_of_request(model, rows, request, fast=fast)
    if searches:
        found = run_search(stepper, prompts, request, beam_settings, contrastive)
    else:
        found = collect_generations(stepper, prompts, replace(request, scored=details))
    form: Callable[[Generation], Any] = lambda g: g if details else g.text if prompts.text else g.ids
    several = [[form(g) for g in row] if n is not None else form(row[0]) for row in found]
    return several[0] if prompts.single else several


def collect_generations(stepper: Stepper, prompts: Prompts, request: Request) -> list[list[Generation]]:
    """Return the n texts of each prompt that `stream` would yield in pieces."""
    found: list[list[list[Piece]]] = [[[] for _ in range(request.n)] for _ in prompts.ids]
    for piece in decode_pieces(stepper, prompts, request):
        found[piece.row][piece.sample].append(piece)

    def join(pieces: list[Piece]) -> Generation:
        ids, logprobs = [p.token for p in pieces if p.token not in request.eos], [p.logprob for p in pieces]
        finish = pieces[-1].finish
        assert finish is not None
        return Generation("".join(p.text for p in pieces), ids, finish, sum(logprobs), logprobs)

    return [[join(sample) for sample in row] for row in found]


def check_search(
    beam_settings: BeamSettings,
    beams: int | None,
    n: int,
    contrastive: float | None,
    settings: GenerationSettings,
) -> bool:
    """Return whether this is a search; raise an error for settings that do not go together."""
    if beams is None and contrastive is None:
        if beam_settings != BeamSettings(1):
            raise InputError("length_penalty, early_stopping, groups, diversity and coverage need beams=…")
        return False
    if beams is not None and contrastive is not None:
        raise InputError("beams and contrastive are two ways to search", hint="give one of them")
    what = "beams" if beams is not None else "contrastive"
    own = () if beams is not None else ("top_k",)
    for name in ("temperature", "top_k", "top_p", "min_p", "typical"):
        value = settings.get(name)
        if name not in own and value is not None and (name, value) != ("temperature", 0):
            raise InputError(
                f"{what} searches and never draws", hint=f"{name}={value} is for drawing: leave one out"
            )
    for name in ("stop", "draft", "lookup", "logprobs", *(() if beams is not None else ("watch",))):
        if settings.get(name):
            raise InputError(f"{what} does not go with {name}", hint="leave one of them out")
    if n > (beams or 1):
        raise InputError(f"n={n} is more than {what} keeps, {beams or 1}", hint="ask for fewer")
    return True


def run_search(
    stepper: Stepper,
    prompts: Prompts,
    request: Request,
    beam_settings: BeamSettings,
    contrastive: float | None,
) -> list[list[Generation]]:
    """Search and return the n best texts of each prompt."""
    model = stepper.model
    if contrastive is not None:
        found = search_contrastively(stepper, prompts, request, contrastive)
    else:
        searches = run_beam_search(stepper, prompts, request, beam_settings)
        texts_of = lambda row: [found for group in row for found in group.finished]
        found = [sorted(texts_of(row), key=lambda text: -text[0]) for row in searches]
    out = []
    for prompt, best in zip(prompts.ids, found, strict=True):
        texts = []
        if not best:
            raise InputError(
                "bias, no_repeat and the constraint together leave no text", hint="loosen one of them"
            )
        for score, ids in best[: request.n]:
            ended = bool(ids) and ids[-1] in request.eos
            kept = ids[:-1] if ended else ids
            full = len(ids) >= max_new_tokens(model, request, len(prompt))
            finish: Finish = "length" if len(ids) >= request.max_tokens else "context" if full else "end"
            finish = "end" if ended else finish
            texts.append(Generation(decode_after(model, prompt, kept), kept, finish, score, []))
        out.append(texts)
    return out
