"""Models measured on the spot: windows of a text for the loss by place, and how fast one reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from heedful.core.errors import InputError
from heedful.data.tokenization import find_template
from heedful.decode.loop import stream
from heedful.decode.request import context_length
from heedful.interp.inputs import Input, names_of, probe_input
from heedful.interp.prediction import is_causal
from heedful.interp.results import Result
from heedful.models.base import Model, Seq2Seq

MAX_TOKENS, MAX_HIDDEN = 2048, 96  # of a text; of an encoder, which hides each in turn
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
WRITTEN_TOKENS = 8  # to time one
MAX_SECONDS = 1.5  # for one point; longer inputs are then left out
Checkpoint = Callable[[], None]


def text_windows(model: Model, text: str, length: int) -> list[Input]:
    """Cut a text into windows of equal length, each between the special tokens its model knows.

    A rest is left out unless it is all there is.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so no text can be cut for it", hint="choose another")
    around, hides = find_template(tokenizer), not is_causal(model)
    ids = tokenizer.encode(text, special=False)[: MAX_HIDDEN if hides else MAX_TOKENS]
    if len(ids) < 2:
        raise InputError("the text is too short", hint="give at least two tokens")
    context = context_length(model) or MAX_TOKENS
    size = max(1, min(length, context - len(around.before) - len(around.after)))
    cut = [ids[i : i + size] for i in range(0, len(ids), size)]
    whole = [c for c in cut if len(c) == size] or cut
    rows = [[*around.before, *c, *(around.after if hides else ())] for c in whole]
    return [Input(torch.tensor([row], device=model.device), names_of(model, row)) for row in rows]


@dataclass(frozen=True)
class SpeedCurve(Result):
    """Tokens a second (`rate`) at some lengths."""

    length: list[int]
    rate: list[float]


@dataclass(frozen=True)
class Speeds(Result):
    """The speed of a model that reads a text at once, and that writes token by token behind it (or None)."""

    read: SpeedCurve
    write: SpeedCurve | None
    threads: int
    device: str


@torch.no_grad()
def measure_speeds(model: Model, *, checkpoint: Checkpoint = lambda: None) -> Speeds:
    """Measure tokens a second by length; `checkpoint` is called between passes and may raise to stop."""
    if model.image_processor is not None:
        raise InputError("every image that this model reads is as long", hint="take a model that reads text")
    few = probe_input(model)
    few.run(model)  # the first pass of a model is slower than all others
    context = context_length(model, source=True)
    longest = (
        LENGTHS[-1] if context is None else context - (not isinstance(model, Seq2Seq)) * (WRITTEN_TOKENS + 1)
    )
    read, write = SpeedCurve([], []), SpeedCurve([], [])
    for length in [n for n in LENGTHS if n <= longest] or [max(1, longest)]:
        row = few.ids[0, :1].repeat(length)
        given = Input(row[None], ("",) * length, few.target, few.target_tokens)
        spent = [0.0]
        while len(spent) <= 3 and sum(spent) <= MAX_SECONDS:
            checkpoint()
            began = time.perf_counter()
            given.run(model)
            spent.append(time.perf_counter() - began)
        best = min(spent[1:])  # what else the machine does only ever adds
        read.length.append(length)
        read.rate.append(length / best)
        if best > MAX_SECONDS:
            break
        if is_causal(model):
            write.length.append(length)
            write.rate.append(
                WRITTEN_TOKENS / min(time_writing(model, row.tolist(), checkpoint) for _ in range(4))
            )
    found = write if write.length else None
    return Speeds(read, found, torch.get_num_threads(), str(model.device))


def time_writing(model: Model, ids: list[int], checkpoint: Checkpoint) -> float:
    """Return the seconds for a few tokens behind these, the first of which is not counted."""
    pieces = stream(model, ids, max_tokens=WRITTEN_TOKENS + 1, eos=())
    next(pieces)
    began = time.perf_counter()
    for _ in pieces:
        checkpoint()
    return time.perf_counter() - began
