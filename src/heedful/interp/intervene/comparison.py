"""Two inputs that lead to different answers, and a fast way to patch thousands of values between them.

Patching needs a clean and a corrupt input of the same length, and one number d that tells their answers
apart: the logit of the right answer minus that of the wrong one. The effect of a patch is the share of the
gap that it closes, (d − d_corrupt) / (d_clean − d_corrupt). 0 means that it does nothing, 1 that it restores
the clean answer. `CounterfactualPair` holds the two inputs and `InterventionRunner` measures many patches per
batch.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from heedful.core.errors import InputError, nearest
from heedful.core.progress import report_progress
from heedful.interp.inputs import (
    Input,
    Result,
    Text,
    answer_id,
    choices,
    position_of,
    reading,
    stack_of,
)
from heedful.interp.observe.mixing import parts_of
from heedful.models.base import LM, Model, State, evaluation_mode
from heedful.models.calls import advance, positions
from heedful.nn.block import NamedParts
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.head import Head

HEAD_VALUES = {"heads": "heads", "queries": "q", "keys": "k", "values": "v", "patterns": "pattern"}
KINDS = ("residual", "attention", "mlp", *HEAD_VALUES)


def both_inputs(model: Model, clean: Text, corrupt: Text, target: Text | None) -> tuple[Input, Input]:
    """Return two inputs of the same length, which an encoder-decoder reads with the same target."""
    fixed = [x.target for x in (clean, corrupt) if isinstance(x, Input)]
    first = reading(model, clean, fixed[0] if target is None and fixed else target)
    second = reading(model, corrupt, first.target)
    sides = {"inputs": (first.ids, second.ids)}
    if first.target is not None and second.target is not None:
        sides = {"sources": sides["inputs"], "targets": (first.target, second.target)}
    for what, (one, other) in sides.items():
        if one.shape != other.shape:
            counts = f"they have {one.shape[1]} and {other.shape[1]}"
            raise InputError(f"the two {what} must have as many tokens", hint=counts)
    return first, second


class CounterfactualPair:
    """Two inputs, and what tells their answers apart: d, the logit of `right` minus that of `wrong`.

    Both are run with their watches, and must answer differently. d is `best` for the clean input and `worst`
    for the corrupt one. A gradient can be taken of `corrupt_gap` (1,), but in `torch.no_grad()`.
    """

    def __init__(
        self, model: Model, clean: Text, corrupt: Text, right: int | str, wrong: int | str | None, *,
        target: Text | None = None, position: int = -1,
        watches: tuple[Watch | None, Watch | None] = (None, None),
    ) -> None:  # fmt: skip
        self.model = model
        self.clean, self.corrupt = first, second = both_inputs(model, clean, corrupt, target)
        if first.target is not None and not torch.equal(first.target, cast(Tensor, second.target)):
            raise InputError(
                "the two inputs have different targets, after which no answers can be compared",
                hint="give texts, or one `target=` for both",
            )
        self.position = position_of(first.names, position)
        with torch.no_grad():
            plain = choices(model, first.run(model, watches[0]), self.position)
        other = choices(model, second.run(model, watches[1]), self.position)
        self.right = answer_id(model, right, plain[0])
        self.wrong = None if wrong is None else answer_id(model, wrong, plain[0])
        self.corrupt_gap = self.gap(other)
        self.best, self.worst = float(self.gap(plain)), float(self.corrupt_gap.detach())
        if self.best == self.worst:
            raise InputError(
                "both inputs have the same answer", hint="choose two that differ in what they predict"
            )

    def gap(self, choices: Tensor) -> Tensor:
        """d per row of what a head chooses from, (B, C) → (B,)."""
        return choices[:, self.right] - (0.0 if self.wrong is None else choices[:, self.wrong])

    def restored_share(self, gap: Tensor) -> Tensor:
        """(d − d_corrupt) / (d_clean − d_corrupt)"""
        return (gap.double() - self.worst) / (self.best - self.worst)

    def values(self, names: Sequence[str]) -> tuple[Watch, Watch]:
        """The values called `names` of the clean and of the corrupt input."""
        return self.clean.record(self.model, *names), self.corrupt.record(self.model, *names)

    def measure(self, changes: Sequence[Intervention], rows: int | None = None) -> Tensor:
        """Return how much of the clean answer each change of the corrupt run brings back."""
        other = (self.clean.ids != self.corrupt.ids)[0].nonzero()
        differ_from = int(other[0]) if len(other) else 0
        runner = InterventionRunner(self.model, self.corrupt, self.position, rows, differ_from)
        score = lambda choices: self.restored_share(self.gap(choices))
        return runner.run([(change,) for change in changes], score)


class Patch(NamedTuple):
    """One value to put in: of one position, of one head, of both, or whole."""

    name: str
    position: int | None = None
    head: int | None = None


def select_entries(value: Tensor, patch: Patch, axis: int | None, first: int = 0) -> Tensor:
    """Return the entries of a value (B, …) that a patch is of; the value begins with the token `first`."""
    value = value if patch.head is None else value[:, patch.head]
    return value if patch.position is None or axis is None else value.select(axis, patch.position - first)


@dataclass(frozen=True)
class PatchingResult(Result):
    """The share of the clean answer that each patch brings back: 0 nothing, 1 all; rows × columns.

    A row is a value; a column is a position, or a head if `columns` are their numbers. `clean` and `corrupt`
    are the differences of logits d between which the values are measured.
    """

    what: str
    method: str  # exact, or the approximation that was used
    names: tuple[str, ...]
    columns: tuple[str, ...]
    values: Tensor  # (rows, columns), NaN where a row has fewer
    clean: float
    corrupt: float

    def correlation(self, other: PatchingResult) -> float:
        """Return Pearson's r with another way to compute the same patches."""
        if (self.names, self.columns) != (other.names, other.columns):
            raise InputError("the two results are of other patches", hint="compute both with the same `what`")
        pair = torch.stack([r.values.double().flatten() for r in (self, other)])
        return float(torch.corrcoef(pair[:, pair.isfinite().all(0)])[0, 1])

    def top(self, count: int = 5) -> list[tuple[str, str, float]]:
        """Return the patches that move the answer most: name of the value, column, how much they restore."""
        flat, wide = self.values.flatten(), len(self.columns)
        filled = flat.isnan().logical_not().nonzero()[:, 0]  # a row may have fewer columns than others
        best = filled[flat[filled].abs().topk(min(count, len(filled))).indices].tolist()
        return [(self.names[i // wide], self.columns[i % wide], float(flat[i])) for i in best]


def names_to_patch(model: Model, inputs: Input, kind: str) -> list[str]:
    """Return the watched names that `kind` stands for: a kind of value, or a name, perhaps with wildcards."""
    where, stack = stack_of(model)
    if kind == "residual":
        return [f"{where}.{i}.output" for i in range(len(stack))]
    if kind in KINDS:
        if kind in HEAD_VALUES:
            paths = [path for path, part in parts_of(model) if part.pattern_kind is not None]
            names = [f"{path}.{HEAD_VALUES[kind]}" for path in paths if path.startswith(f"{where}.")]
        else:
            blocks = {f"{where}.{i}": stack[i] for i in range(len(stack))}
            names = [
                f"{path}.{name}.output"
                for path, block in blocks.items() if isinstance(block, NamedParts)
                for name in block.names if (name == "ffn") == (kind == "mlp")
            ]  # fmt: skip
        if not names:
            raise InputError(f"this model has no {kind} to patch", hint="patch `what='residual'`")
        return names
    if "." not in kind:
        near = nearest(kind, KINDS) or f"use {', '.join(KINDS)}, or a watched name such as 'blocks.*.input'"
        raise InputError(f"nothing here is called {kind!r}", hint=near)
    seen = inputs.record(model, kind)
    if not len(seen):
        raise seen.missing(kind)
    return list(seen)


def all_patches(
    watch: Watch, names: Sequence[str], kind: str, by_position: bool | None = None
) -> Iterator[Patch]:
    """Yield every patch of the values called `names`, value by value.

    By default a value is patched at each position alone, but a head at all of them together.
    """
    heads = kind in HEAD_VALUES
    by_position = not heads if by_position is None else by_position
    for name in names:
        axis = watch.positions[name]
        length = None if axis is None else watch[name].shape[axis]
        if heads:
            for head, t in itertools.product(
                range(watch[name].shape[1]), range(length or 0) if by_position else [None]
            ):
                yield Patch(name, t, head)
        else:
            yield from (Patch(name, t) for t in (range(length) if length and by_position else [None]))


def collect(
    kind: str, method: str, inputs: Input, patches: Sequence[Patch], scores: Tensor, clean: float,
    corrupt: float,
) -> PatchingResult:  # fmt: skip
    """Return numbers, one for each patch, as a matrix with the names of its rows and columns."""
    by_head = patches[0].head is not None and patches[0].position is None
    row = lambda p: p.name if p.head is None or by_head else f"{p.name} {p.head}"
    column = lambda p: (p.head if by_head else p.position) or 0
    names = list(dict.fromkeys(map(row, patches)))
    wide = max(map(column, patches)) + 1
    values = torch.full((len(names), wide), torch.nan, dtype=torch.float64)
    at = {name: i for i, name in enumerate(names)}
    for one, value in zip(patches, scores.tolist(), strict=True):
        values[at[row(one)], column(one)] = value
    read = inputs.names if len(inputs.names) == wide else inputs.tokens
    columns = tuple(map(str, range(wide))) if by_head or len(read) != wide else read
    if patches[0].position is None and not by_head:
        columns = ("all positions",)
    return PatchingResult(kind, method, tuple(names), columns, values, clean, corrupt)


# Interventions: one input is run many times, each time with one value changed. The rows of a batch differ
# only in that value. What a change cannot reach is not computed again: the layers before it and, in a causal
# model, the tokens before it, whose state is cached.

Edit = Callable[[Tensor], Tensor]
Write = Callable[[Tensor, int], object]  # changes rows (B, …) of a value that begins with the token `first`

MAX_TOKENS = {"cpu": 96, "cuda": 4096}  # of all rows of one batch: more would begin too far below its changes
ONWARD = ("input", "output", "heads", "hidden", "q")  # what a cached step shows of its own tokens alone


class Intervention(NamedTuple):
    """A change of one value.

    `position` is the first token that is changed; None if that is where the two inputs begin to differ.
    """

    name: str
    position: int | None
    write: Write


Changes = Sequence[Intervention]  # those of one row


def row_edits(batch: Sequence[Changes], first: int = 0) -> dict[str, Edit]:
    """Return an edit for each value that is changed: row b of the batch has the changes b alone."""
    rows: dict[str, list[tuple[int, Intervention]]] = {}
    for row, changes in enumerate(batch):
        for change in changes:
            rows.setdefault(change.name, []).append((row, change))

    def edit(changes: Sequence[tuple[int, Intervention]], now: Tensor) -> Tensor:
        for row, change in changes:
            change.write(now[row : row + 1], first)
        return now

    return {name: partial(edit, changes) for name, changes in rows.items()}


class InterventionRunner:
    """Runs an input with other changes in each row, and scores the logits at a position.

    No change is made before the token `differ_from`. `start` edits the embeddings in every pass, for any
    number of the first tokens.
    """

    def __init__(
        self, model: Model, inputs: Input, position: int, rows: int | None = None, differ_from: int = 0,
        start: Mapping[str, Edit] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.inputs, self.position = model, inputs, position
        self.rows, self.differ_from, self.start = rows, differ_from, dict(start or {})
        self.where, self.stack = stack_of(model)
        self.tokens, self.head = inputs.read.shape[1], cast(Head, model.head)
        self.entries: list[Tensor | None] = [None] * len(self.stack)
        names = [f"{self.where}.*.input"] if isinstance(model, LM) else []
        watch = Watch(*names, edit=self.start)
        self.plain = choices(model, inputs.run(model, watch), position)  # (1, C), without a change
        if names:  # an encoder-decoder is run whole: its decoder starts from its encoder
            self.entries = [watch.values.get(f"{self.where}.{i}.input") for i in range(len(self.stack))]
        self.continues = False  # whether tokens before a change are left out
        self.prefixes: dict[int, State] = {}

    def run(self, rows: Sequence[Changes], score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the score of each row of changes; `score` gets what the head chooses from, (B, C) → (B,)."""
        causal = isinstance(self.model, LM) and self.model.causal and self.head.positions is not None
        words = {change.name.rpartition(".")[2] for changes in rows for change in changes}
        self.continues = causal and words <= {*ONWARD} and all(self._layer(changes) >= 0 for changes in rows)
        scores, done = torch.zeros(len(rows), dtype=torch.float64), 0
        for batch in self._batches(rows):
            report_progress("patches", done, len(rows))
            scores[batch] = score(self._run_batch([rows[i] for i in batch])).double().cpu()
            done += len(batch)
        report_progress("patches", done, len(rows))
        return scores

    def _batches(self, changes: Sequence[Changes]) -> Iterator[list[int]]:
        """Yield numbers of rows that share a first token and stand in layers near each other."""
        key = lambda i: (self._first(changes[i]), self._layer(changes[i]))
        order = sorted(range(len(changes)), key=key)
        for first, same in itertools.groupby(order, key=lambda i: self._first(changes[i])):
            limit = MAX_TOKENS["cuda" if self.model.device.type == "cuda" else "cpu"]
            rows = self.rows or max(1, limit // (self.tokens - first))
            listed = list(same)
            yield from (listed[start : start + rows] for start in range(0, len(listed), rows))

    def _first(self, changes: Changes) -> int:
        """The first token that is computed: before the two inputs differ nothing changes."""
        if not self.continues:
            return 0
        return min(self.differ_from if one.position is None else one.position for one in changes)

    def _layer(self, changes: Changes) -> int:
        """Return the layer to begin with: the first that computes a changed value, −1 for the embedding."""
        layers = []
        for change in changes:
            top, word, *_ = *change.name.split("."), ""
            layers.append(int(word) if top == self.where and word.isdigit() else -1)
        return -1 if self.entries[min(layers)] is None else min(layers)

    def _run_batch(self, batch: Sequence[Changes]) -> Tensor:
        """Return what the head chooses from in each row, in which one value is changed: (B, C)."""
        first = self._first(batch[0])
        if first > self.position and self.continues:  # nothing there looks ahead
            return self.plain.expand(len(batch), -1)
        watch, layer = Watch(edit=row_edits(batch, first)), min(map(self._layer, batch))
        if layer < 0:
            begun = watch if not self.start else Watch(edit=self.start) + watch
            logits = self.inputs.run(self.model, begun, repeat=len(batch))
            return choices(self.model, logits, self.position)
        with evaluation_mode(self.model):
            logits = self._run_from(layer, first, watch, len(batch))
        return choices(self.model, logits, 0 if self.head.positions is not None else self.position)

    def _run_from(self, layer: int, first: int, watch: Watch, rows: int) -> Tensor:
        """The logits of the input from a layer and a token on, `rows` times."""
        model, state = cast(LM, self.model), None
        tokens = self.inputs.ids.expand(rows, -1)[:, first:]
        if first:
            state = self._prefix(first)
            state.reorder(torch.zeros(rows, dtype=torch.long, device=tokens.device))
            ctx = advance(tokens, state, watch=watch)
        else:
            pos = positions(None, tokens.shape[1], tokens.device)
            ctx = Context(pos, pos, Mask(causal=model.causal), watch=watch)
        x = cast(Tensor, self.entries[layer])[:, first:].expand(rows, -1, -1)
        hidden = self.stack.run_from(layer, x, ctx.at(self.where), None if state is None else state.parts)
        if self.head.positions is not None:
            hidden = hidden[:, self.position - first, None]
        return self.head.predict(hidden, ctx)

    def _prefix(self, first: int) -> State:
        """Return the model's memory of the tokens before `first`, as a copy that may be written to."""
        if first not in self.prefixes:
            model, ids = cast(LM, self.model), self.inputs.ids[:, :first]
            state = model.new_state(1, self.tokens)
            with evaluation_mode(model):
                watch = Watch(edit=self.start) if self.start else None
                model.decode(ids, advance(ids, state, watch=watch), state.parts)
            self.prefixes = {first: state}
        return copy.deepcopy(self.prefixes[first])
