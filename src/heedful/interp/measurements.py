"""Measure a model on the spot: speed by length of text, windows for the loss, and the shuffle test.

`measure_speeds` times how fast a model reads a text at once and how fast it writes token by token behind it.
Attention slows down with the length, a recurrence does not. `shuffle_test` asks whether a model uses the
order of its tokens: it moves them and measures how far the predictions move, as a KL divergence in nats. 0
means that the order makes no difference.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.core.progress import report_progress
from heedful.data.tokenization import find_template
from heedful.decode.loop import stream
from heedful.decode.request import context_length
from heedful.interp.inputs import Input, Result, Text, names_of, probe_input, reading
from heedful.interp.observe.prediction import default_position, divergence, is_causal, predicts, special_ids
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Watch

MAX_TOKENS, MAX_HIDDEN = 2048, 96  # of a text; of an encoder, which hides each in turn
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
WRITTEN_TOKENS = 8  # to time one
MAX_SECONDS = 1.5  # for one point; longer inputs are then left out
RESAMPLES = 2000


def mean_interval(rows: Tensor, method: str = "bootstrap", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean over rows (N, …), and the ends of its 95 % interval.

    "bootstrap" draws the rows again and again; "normal" is the mean ± 1.96 standard errors. One row says
    nothing about the spread, so its interval is infinite.
    """
    check_choice("interval", method, ("bootstrap", "normal"))
    rows = rows.double()
    mean = rows.mean(0)
    if len(rows) < 2:
        return mean, mean - math.inf, mean + math.inf
    if method == "normal":
        half = 1.96 * rows.std(0) / len(rows) ** 0.5
        return mean, mean - half, mean + half
    draw = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(rows), (RESAMPLES, len(rows)), generator=draw)
    counts = torch.zeros(RESAMPLES, len(rows), dtype=torch.float64)
    counts.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
    means = (counts @ rows.reshape(len(rows), -1)).reshape(-1, *mean.shape) / len(rows)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    return mean, low, high


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
class Speeds(Result):
    """The speed of a model that reads a text at once, and that writes token by token behind it (or None).

    Both are {"length": […], "rate": […]}: the tokens a second at some lengths.
    """

    read: dict[str, list[float]]
    write: dict[str, list[float]] | None
    threads: int
    device: str


@torch.no_grad()
def measure_speeds(model: Model) -> Speeds:
    """Measure tokens a second by length."""
    if model.processor is not None:
        raise InputError(
            "every image or sound that this model reads is as long", hint="take a model that reads text"
        )
    few = probe_input(model)
    few.run(model)  # the first pass of a model is slower than all others
    context = context_length(model, source=True)
    longest = (
        LENGTHS[-1] if context is None else context - (not isinstance(model, Seq2Seq)) * (WRITTEN_TOKENS + 1)
    )
    read: dict[str, list[float]] = {"length": [], "rate": []}
    write: dict[str, list[float]] = {"length": [], "rate": []}
    for length in [n for n in LENGTHS if n <= longest] or [max(1, longest)]:
        row = few.ids[0, :1].repeat(length)
        given = Input(row[None], ("",) * length, few.target, few.target_tokens)
        spent = [0.0]
        while len(spent) <= 3 and sum(spent) <= MAX_SECONDS:
            report_progress("tokens", length)
            began = time.perf_counter()
            given.run(model)
            spent.append(time.perf_counter() - began)
        best = min(spent[1:])  # what else the machine does only ever adds
        read["length"].append(length)
        read["rate"].append(length / best)
        if best > MAX_SECONDS:
            break
        if is_causal(model):
            seconds = min(time_writing(model, row.tolist()) for _ in range(4))
            write["length"].append(length)
            write["rate"].append(WRITTEN_TOKENS / seconds)
    written = write if write["length"] else None
    return Speeds(read, written, torch.get_num_threads(), str(model.device))


def time_writing(model: Model, ids: list[int]) -> float:
    """Return the seconds for a few tokens behind these, the first of which is not counted."""
    pieces = stream(model, ids, max_tokens=WRITTEN_TOKENS + 1, eos=())
    next(pieces)
    began = time.perf_counter()
    for _ in pieces:
        pass
    return time.perf_counter() - began


# The shuffle test: the same tokens in another order, and how far the predictions move. The token at which the
# model predicts stays in place, so that only the order of the others makes a difference: the last token of a
# decoder, or an encoder's mask. An encoder-decoder reads a shuffled source with the same target and predicts
# each word of it. Tags and the ends of a span move with their tokens.


@dataclass(frozen=True)
class ShuffleResult:
    """The predictions on an input and on the same one with some tokens moved, without the batch axis.

    `over` says which predictions were compared (next, token, target, labels, tags, spans), None if there are
    none; `change` is the KL of each, in nats; `cosine` compares the mean hidden states.
    """

    shuffled: Input
    before: Tensor
    after: Tensor
    over: str | None
    change: Tensor
    cosine: float


def shuffle_ids(model: Model, inputs: Input, seed: int) -> tuple[Input, Tensor]:
    """Move every token that is neither special nor predicted at; the tensor says where each position went."""
    if inputs.ids.is_floating_point():
        raise InputError(
            "the pieces of an image or a sound are not shuffled", hint="take a model that reads text"
        )
    ids, special = inputs.ids[0], special_ids(model)
    stays = {i for i, token in enumerate(ids.tolist()) if token in special}
    if isinstance(model, LM) and predicts(model) == "words":
        stays.add(default_position(model, inputs))
    free = [i for i in range(len(ids)) if i not in stays]
    if len(free) < 2:
        raise InputError(
            "too few tokens can change places: there is only one order", hint="take a longer text"
        )
    draw = torch.Generator().manual_seed(seed)
    moved = [free[i] for i in torch.randperm(len(free), generator=draw).tolist()]
    if ids[moved].equal(ids[free]):
        moved = free[1:] + free[:1]
    new, back = ids.clone(), torch.arange(len(ids))
    new[free], back[moved] = ids[moved], torch.tensor(free)
    return replace(inputs, ids=new[None], tokens=names_of(model, new)), back


def changes(
    model: Model, inputs: Input, before: Tensor, after: Tensor, destinations: Tensor
) -> tuple[str | None, Tensor]:
    """Return which predictions are compared, and the KL of each; `inputs` are the shuffled ones."""
    kind = predicts(model)
    if kind == "words" and isinstance(model, Seq2Seq):
        return "target", divergence(before, after)
    if kind == "words":
        at = default_position(model, inputs)
        return "next" if is_causal(model) else "token", divergence(before[at], after[at])[None]
    if kind == "labels":
        return kind, divergence(before, after)[None]
    if kind == "spans":
        return kind, divergence(before.T, after[destinations].T)
    if kind == "tags":
        after = after[destinations]
        if before.dim() == 1:  # one logit per token: σ is a softmax over it and 0
            before, after = (torch.stack((torch.zeros_like(x), x), -1) for x in (before, after))
        return kind, divergence(before, after)
    return None, torch.zeros(0)


@torch.no_grad()
def shuffle_test(
    model: Model, text: Text, target: Text | None = None, *, seed: int = 0, positions: bool = True
) -> ShuffleResult:
    """Shuffle the tokens of a text, as `seed` says, and compare what the model predicts.

    With positions=False the vectors of positions are 0, for a model that adds such vectors to its tokens.
    Attention without positions is the same for its tokens in any order, but for a causal mask, which still
    tells what came before.
    """
    inputs = reading(model, text, target)
    shuffled, back = shuffle_ids(model, inputs, seed)
    watch = None if positions else Watch(edit={"embed.position": torch.zeros_like})
    before, after = (given.run(model, watch)[0].float() for given in (inputs, shuffled))
    over, change = changes(model, shuffled, before, after, back)
    hidden = [model.encode(given.ids, watch=watch) for given in (inputs, shuffled)]  # type: ignore[operator]
    vectors = [rows[0].float().mean(0) for rows in hidden]
    cosine = float(F.cosine_similarity(vectors[0], vectors[1], dim=0))
    return ShuffleResult(shuffled, before, after, over, change, cosine)
