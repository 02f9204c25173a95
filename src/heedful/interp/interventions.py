"""One input run many times, each time with one value changed, several of them side by side in one batch.

What a change cannot reach is not computed again: layers before it, and, where nothing looks ahead, tokens
before it, of which the model's own state is kept.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from heedful.interp.comparison import Comparison
from heedful.interp.inputs import choices, stack_of
from heedful.models.base import LM, State, evaluation_mode
from heedful.models.calls import advance, positions
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.head import Head

Edit = Callable[[Tensor], Tensor]
Report = Callable[[int, int], None]  # how many are done, and of how many; may raise to stop

MAX_TOKENS = {"cpu": 96, "cuda": 4096}  # of all rows of one batch: more would begin too far below its changes
ONWARD = ("input", "output", "heads", "hidden", "q")  # what a cached step shows of its own tokens alone


class Intervention(NamedTuple):
    """A change of one value: `write(row, first)` changes a row's value, which begins with the token `first`.

    `position` is the first token that is changed; None if that is where the two inputs begin to differ.
    """

    name: str
    position: int | None
    write: Callable[[Tensor, int], None]


class InterventionRunner:
    """Runs the corrupt input of a comparison with one intervention in each row."""

    def __init__(self, comparison: Comparison, rows: int | None = None) -> None:
        self.comparison, self.model, self.rows = comparison, comparison.model, rows
        self.where, self.stack = stack_of(self.model)
        given = comparison.corrupt
        self.tokens, self.head = given.read.shape[1], cast(Head, self.model.head)
        self.entries: list[Tensor | None] = [None] * len(self.stack)
        if isinstance(
            self.model, LM
        ):  # an encoder-decoder's decoder starts from its encoder: it is run whole
            seen = Watch(f"{self.where}.*.input")
            given.run(self.model, seen)
            self.entries = [seen.values.get(f"{self.where}.{i}.input") for i in range(len(self.stack))]
        other = (comparison.clean.ids != given.ids)[0].nonzero()
        self.differ_from = int(other[0]) if len(other) else 0
        self.continues = False  # whether tokens before a change are left out
        self.prefixes: dict[int, State] = {}

    def run(self, changes: Sequence[Intervention], report: Report | None = None) -> Tensor:
        """Return how much of the clean answer each change brings back."""
        causal = isinstance(self.model, LM) and self.model.causal and self.head.positions is not None
        self.continues = causal and all(change.name.rpartition(".")[2] in ONWARD for change in changes)
        found, done = torch.zeros(len(changes), dtype=torch.float64), 0
        for batch in self._batches(changes):
            if report is not None:
                report(done, len(changes))
            found[batch] = self.comparison.restored_share(self._run_batch([changes[i] for i in batch])).cpu()
            done += len(batch)
        if report is not None:
            report(done, len(changes))
        return found

    def _batches(self, changes: Sequence[Intervention]) -> Iterator[list[int]]:
        """Yield numbers of changes that share a first token and stand in layers near each other."""
        key = lambda i: (self._first(changes[i]), self._layer(changes[i]))
        order = sorted(range(len(changes)), key=key)
        for first, same in itertools.groupby(order, key=lambda i: self._first(changes[i])):
            limit = MAX_TOKENS["cuda" if self.model.device.type == "cuda" else "cpu"]
            rows = self.rows or max(1, limit // (self.tokens - first))
            listed = list(same)
            yield from (listed[start : start + rows] for start in range(0, len(listed), rows))

    def _first(self, change: Intervention) -> int:
        """The first token that is computed: before the two inputs differ nothing changes."""
        if not self.continues:
            return 0
        return self.differ_from if change.position is None else change.position

    def _layer(self, change: Intervention) -> int:
        """Return the layer to begin with: the one that computes the value, if its input is known."""
        top, _, rest = change.name.partition(".")
        word = rest.partition(".")[0]
        layer = int(word) if top == self.where and word.isdigit() else 0
        return 0 if self.entries[layer] is None else layer

    def _run_batch(self, batch: Sequence[Intervention]) -> Tensor:
        """Return d of each row, in which one value is changed."""
        comparison, first = self.comparison, self._first(batch[0])
        if first > comparison.position and self.continues:  # nothing there looks ahead
            return torch.full((len(batch),), comparison.worst)
        watch, layer = Watch(edit=_edits(batch, first)), min(map(self._layer, batch))
        if not layer and not first:
            logits = comparison.corrupt.run(self.model, watch, repeat=len(batch))
            return comparison.gap(choices(self.model, logits, comparison.position))
        with evaluation_mode(self.model):
            logits = self._run_from(layer, first, watch, len(batch))
        return comparison.gap(
            choices(self.model, logits, 0 if self.head.positions is not None else comparison.position)
        )

    def _run_from(self, layer: int, first: int, watch: Watch, rows: int) -> Tensor:
        """The logits of the corrupt input from a layer and a token on, `rows` times."""
        model, state = cast(LM, self.model), None
        tokens = self.comparison.corrupt.ids.expand(rows, -1)[:, first:]
        if first:
            state = self._prefix(first)
            state.reorder(torch.zeros(rows, dtype=torch.long, device=tokens.device))
            ctx = advance(tokens, state, watch=watch)
        else:
            pos = positions(None, tokens.shape[1], tokens.device)
            ctx = Context(pos, pos, Mask(causal=model.causal), watch=watch)
        given = self.entries[layer] if layer else None
        x = model.embed(tokens, ctx.at("embed")) if given is None else given[:, first:].expand(rows, -1, -1)
        hidden = self.stack.run_from(layer, x, ctx.at(self.where), None if state is None else state.parts)
        if self.head.positions is not None:
            hidden = hidden[:, self.comparison.position - first, None]
        return self.head.predict(hidden, ctx)

    def _prefix(self, first: int) -> State:
        """Return the model's memory of the tokens before `first`, as a copy that may be written to."""
        if first not in self.prefixes:
            model, ids = cast(LM, self.model), self.comparison.corrupt.ids[:, :first]
            state = model.new_state(1, self.tokens)
            with evaluation_mode(model):
                model.decode(ids, advance(ids, state), state.parts)
            self.prefixes = {first: state}
        return copy.deepcopy(self.prefixes[first])


def _edits(batch: Sequence[Intervention], first: int) -> dict[str, Edit]:
    """Return an edit for each value that is changed in some rows."""
    rows: dict[str, list[tuple[int, Intervention]]] = {}
    for row, change in enumerate(batch):
        rows.setdefault(change.name, []).append((row, change))

    def edit_of(these: Sequence[tuple[int, Intervention]]) -> Edit:
        def edit(now: Tensor) -> Tensor:
            for row, change in these:
                change.write(now[row], first)
            return now

        return edit

    return {name: edit_of(these) for name, these in rows.items()}
