"""Run many texts through a model in padded batches and collect what it computes, token by token.

Probes, steering vectors, dictionaries and tuned lenses all learn from the same thing: the vectors that a part
of a model computes for thousands of tokens. `collect_activations` returns them as a matrix with a row per
token, next to the token's id, text and position. A pass stops after the last layer that is needed.
`mean_loss` measures what the model loses, in nats per token, when a `Watch` changes something in the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.core.padding import pad_rows, valid_mask
from heedful.core.progress import report_progress
from heedful.interp.inputs import (
    Input,
    Text,
    check_names,
    check_texts,
    reading,
    run_batch,
    word_head,
)
from heedful.interp.observe.prediction import is_causal, predicts, special_ids
from heedful.models.base import Model, Seq2Seq
from heedful.nn.context import Watch
from heedful.nn.watch import LAYER_OUTPUT, WILDCARD, Axes

Texts = Sequence[Text]

MAX_TOKENS = 512  # of all rows of one batch, padding included
SOURCE_SIDE = ("encoder.", "embed.")  # where names of what an encoder-decoder computes of its source begin


class EndPass(Exception):
    """Raised by an `EarlyWatch` that has all it wants: the rest of the pass is not computed."""


class EarlyWatch(Watch):
    """A watch that ends the pass with the layer in which the last of its names is met."""

    def show(self, name: str, value: Tensor, axes: Axes) -> Tensor:
        value = super().show(name, value, axes)
        if LAYER_OUTPUT.match(name) and self.met.issuperset(self.names):
            raise EndPass
        return value


@dataclass(frozen=True)
class InputBatch:
    """Several inputs, padded on the right. `index` says where each stood among the texts."""

    index: tuple[int, ...]
    inputs: tuple[Input, ...]
    ids: Tensor  # (B, S)
    valid: Tensor  # (B, S) False on padding
    target: Tensor | None = None  # (B, T)
    target_valid: Tensor | None = None

    @property
    def read(self) -> tuple[Tensor, Tensor]:
        """The ids of the side that predicts, and which of them are not padding."""
        if self.target is None or self.target_valid is None:
            return self.ids, self.valid
        return self.target, self.target_valid

    def side(self, name: str) -> tuple[Tensor, Tensor]:
        """The ids of the side that a value is of, and which of them are not padding."""
        return (self.ids, self.valid) if name.startswith(SOURCE_SIDE) else self.read

    def run(self, model: Model, watch: Watch | None = None) -> Tensor:
        """Return what `run_batch` returns for the batch."""
        types = [t for i in self.inputs if (t := i.types) is not None]
        return run_batch(
            model, self.ids, self.target, types=_pad(types)[0] if types else None, watch=watch,
            valid=None if bool(self.valid.all()) else self.valid, target_valid=self.target_valid,
        )  # fmt: skip


def _pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows (1, T) of different lengths as one matrix, and which of its entries are real."""
    lengths = [row.shape[1] for row in rows]
    ids = torch.from_numpy(pad_rows([row[0].cpu().numpy() for row in rows]))
    return ids.to(rows[0].device), torch.from_numpy(valid_mask(lengths, max(lengths))).to(rows[0].device)


def prepare_inputs(
    model: Model, texts: Texts, *, max_length: int | None = None, source_only: bool = False
) -> list[Input]:
    """Return the inputs of texts or ids, each cut to `max_length` tokens; an error if there are none.

    An encoder-decoder writes a target for each, but for `source_only`, where nobody looks at its decoder.
    """
    check_texts(texts)
    if max_length is not None:
        check_integer("max_length", max_length)
    target = [model.start_token] if source_only and isinstance(model, Seq2Seq) else None
    inputs = [reading(model, text, target) for text in texts]
    return [
        one if max_length is None or one.ids.shape[1] <= max_length
        else replace(one, ids=one.ids[:, :max_length], tokens=one.tokens[:max_length], second=None,
                     types=None if one.types is None else one.types[:, :max_length])
        for one in inputs
    ]  # fmt: skip


def make_batches(inputs: Sequence[Input], max_tokens: int = MAX_TOKENS) -> Iterator[InputBatch]:
    """Yield batches of inputs of alike lengths, the longest first, each of about `max_tokens` tokens.

    Progress is reported before each batch and at the end.
    """
    width = lambda i: max(inputs[i].ids.shape[1], inputs[i].read.shape[1])
    order = sorted(range(len(inputs)), key=width, reverse=True)
    first = 0
    while first < len(order):
        report_progress("texts", first, len(order))
        rows = max(1, max_tokens // width(order[first]))
        index = tuple(order[first : first + rows])
        # What has types, or has none, stays together.
        kind = inputs[index[0]].types is None
        count = next((n for n, i in enumerate(index) if (inputs[i].types is None) != kind), len(index))
        index = index[:count]
        some = tuple(inputs[i] for i in index)
        targets = [t for i in some if (t := i.target) is not None]
        yield InputBatch(index, some, *_pad([i.ids for i in some]), *(_pad(targets) if targets else ()))
        first += count
    report_progress("texts", first, len(order))


def token_rows(value: Tensor, axis: int | None, name: str = "this value") -> Tensor:
    """Return a value as (B, T, W): one vector per token, of all heads if there are several."""
    if axis is None:
        raise InputError(f"{name} belongs to the whole text", hint="choose a value that each token has")
    return value.movedim(axis, 1).flatten(2)


class TokenWatch(Watch):
    """A watch whose edits get one vector per token, (B, T, W), for values of any shape."""

    def __init__(self, edit: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__(edit={name: partial(self._edit_rows, change) for name, change in edit.items()})

    def note(self, name: str, axes: Axes) -> None:
        super().note(name, axes)
        self._newest = name, axes.positions

    def _edit_rows(self, change: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        name, axis = self._newest  # a part declares the axes of a value before its edits are called
        rows = change(token_rows(value, axis, name)).to(value.dtype)
        assert axis is not None  # token_rows refuses what has none
        sizes = list(value.shape)
        tokens = sizes.pop(axis)
        return rows.unflatten(2, sizes[1:]).movedim(1, axis) if len(sizes) > 1 else rows.view(-1, tokens)


@dataclass(frozen=True)
class Activations:
    """The values called `name` of many tokens, (N, W), and where each token stands."""

    name: str
    values: Tensor
    ids: Tensor  # (N,)
    text: Tensor  # (N,) the number of the text
    position: Tensor  # (N,) in the text


@torch.no_grad()
def collect_activations(
    model: Model, texts: Texts, names: Sequence[str], *, max_length: int | None = None,
    max_tokens: int = MAX_TOKENS,
) -> dict[str, Activations]:  # fmt: skip
    """Return the values called `names` of every token of many texts, as vectors on the CPU.

    Rows come in the order of the texts and of their tokens, however the texts were put into batches.
    What is not needed for them, layers after the last of them, is not computed. A wildcard is refused: name
    each value, as `model.names()` lists them. The decoder of an encoder-decoder reads what it writes itself.
    """
    check_names(names)
    for name in names:
        if WILDCARD.search(name):
            raise InputError(f"{name!r} has a wildcard", hint="name one value: model.names() lists them")
        if name.endswith((".pattern", ".scores")):
            raise InputError(
                f"{name} has one row per key, and the number of keys differs between texts",
                hint="choose a vector",
            )
    source_only = all(name.startswith(SOURCE_SIDE) for name in names)
    inputs = prepare_inputs(model, texts, max_length=max_length, source_only=source_only)
    by_text: dict[str, dict[int, tuple[Tensor, ...]]] = {name: {} for name in names}
    for batch in make_batches(inputs, max_tokens):
        watch = EarlyWatch(*names, detach=True)
        with contextlib.suppress(EndPass):
            batch.run(model, watch)
        for name in names:
            rows = token_rows(watch[name], watch.positions[name], name)
            ids, valid = batch.side(name)
            if rows.shape[:2] != valid.shape:
                raise InputError(f"{name} has {rows.shape[1]} rows for {valid.shape[1]} tokens")
            text, position = valid.nonzero(as_tuple=True)
            number = torch.tensor(batch.index)[text.cpu()]
            columns = rows[valid].float().cpu(), ids[valid].cpu(), number, position.cpu()
            parts = zip(*(column.split(valid.sum(1).tolist()) for column in columns), strict=True)
            by_text[name].update(zip(batch.index, parts, strict=True))
    in_order = {name: [parts[number] for number in range(len(inputs))] for name, parts in by_text.items()}
    joined = {name: map(torch.cat, zip(*parts, strict=True)) for name, parts in in_order.items()}
    return {name: Activations(name, *columns) for name, columns in joined.items()}


def content_tokens(model: Model, activations: Activations) -> Tensor:
    """(N,): False for tokens that stand for no text, and for the first of a causal model.

    The first token sees nothing else, and its vector is often many times longer than all others. An encoder
    looks both ways, so its first token counts.
    """
    special = torch.tensor(sorted(special_ids(model)), dtype=torch.long)
    keep = ~torch.isin(activations.ids, special)
    source = isinstance(model, Seq2Seq) and activations.name.startswith(SOURCE_SIDE)
    return keep & (activations.position > 0) if is_causal(model) and not source else keep


def text_vectors(model: Model, values: Sequence[Activations], tokens: str = "mean") -> list[Tensor]:
    """Return a vector for each text, (texts, W), of several values of the same tokens.

    It is the mean of the tokens of `content_tokens`, or the last of them ("last"). A text that has none of
    them is the mean, or the last, of all its tokens.
    """
    first = values[0]
    text, index = first.text.unique(return_inverse=True)
    keep = content_tokens(model, first)
    keep |= (torch.zeros(len(text)).index_add(0, index, keep.float()) == 0)[index]
    rows, index = keep.nonzero()[:, 0], index[keep]
    if tokens == "last":
        last = rows.new_zeros(len(text)).scatter_reduce(0, index, rows, "amax", include_self=False)
        return [one.values[last].float() for one in values]
    counts = index.bincount(minlength=len(text))[:, None]
    width = lambda one: one.values.shape[1]
    return [
        torch.zeros(len(text), width(one)).index_add(0, index, one.values[rows].float()) / counts
        for one in values
    ]


@torch.no_grad()
def mean_loss(
    model: Model, texts: Texts, watch: Watch | None = None, *, max_length: int | None = None
) -> float:
    """Return the mean −log p of the next token over all tokens of many texts, in nats."""
    check_predicts_next(model)
    inputs = prepare_inputs(model, texts, max_length=max_length)
    total, count = 0.0, 0
    for batch in make_batches(inputs):
        logp, (ids, valid) = F.log_softmax(batch.run(model, watch)[:, :-1].float(), -1), batch.read
        losses = -logp.gather(-1, ids[:, 1:, None])[..., 0][valid[:, 1:]]
        total, count = total + float(losses.double().sum()), count + len(losses)
    if not count:
        raise InputError("no token is predicted", hint="give texts of at least two tokens")
    return total / count


def check_predicts_next(model: Model) -> None:
    """Raise an error for a model that does not predict the next token."""
    word_head(model)
    if not is_causal(model) or predicts(model) != "words":
        raise InputError(f"this {model.family.name} does not predict the next token", hint="choose a decoder")
