"""Values of one input put into another: which of them carry the answer, by layer, position and head.

A patch is one value, at one position or of one head, as it was in the clean input. Many are tried in one
batch, whose rows differ in what is patched. What a patch cannot change is not computed again: layers before
it, and, where nothing looks ahead, tokens before it. A patch that puts in what is there is not run at all.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from heedful.errors import InputError
from heedful.inspect.comparison import (
    Comparison,
    Patch,
    PatchingResult,
    all_patches,
    both_inputs,
    collect,
    value_names,
)
from heedful.inspect.inputs import Input, Text, choices, reading, stack_of
from heedful.models.base import LM, Model, State, evaluation_mode
from heedful.models.calls import advance, positions
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.head import Head

Edit = Callable[[Tensor], Tensor]
Report = Callable[[int, int], None]  # how many are done, and of how many; may raise to stop

MAX_TOKENS = {"cpu": 96, "cuda": 4096}  # of all rows of one batch: more would begin too far below its patches
ONWARD = ("input", "output", "heads", "hidden", "q")  # what a cached step shows of its own tokens alone


@torch.no_grad()
def carry(
    model: Model, clean: Text | Input, names: Sequence[str], positions: Sequence[int] | None = None,
    *, target: Text | None = None,
) -> Watch:  # fmt: skip
    """Return a watch that puts the values called `names`, as they are in `clean`, into any call given it.

    `positions` carries over those alone, along the axis that the part declares; a negative one counts from
    the end. By default everything is carried over.
    """
    seen = Watch(*names)
    reading(model, clean, target).run(model, seen)
    for name in names:
        if name not in seen.met:  # a wildcard that matched nothing
            raise seen.missing(name)
    return Watch(edit={name: _replace_positions(name, seen, positions) for name in seen})


def _replace_positions(name: str, seen: Watch, positions: Sequence[int] | None) -> Edit:
    value, axis = seen[name], seen.positions[name]
    where = None if positions is None else _indices(name, value, axis, positions)

    def edit(now: Tensor) -> Tensor:
        _check_shape(name, value, now)
        if where is None or axis is None:
            return value
        return now.index_copy_(axis, where, value.index_select(axis, where))

    return edit


def _check_shape(name: str, value: Tensor, now: Tensor) -> None:
    if now.shape[1:] != value.shape[1:]:
        sizes = f"{name} is {tuple(value.shape)} in one and {tuple(now.shape)} in the other"
        raise InputError("the two inputs must have as many tokens", hint=sizes)


def _indices(name: str, value: Tensor, axis: int | None, positions: Sequence[int]) -> Tensor:
    if axis is None:
        raise InputError(f"{name} has no positions: it is of the whole text", hint="leave positions out")
    length = value.shape[axis]
    bad = [t for t in positions if not -length <= t < length]
    if bad:
        raise InputError(f"{name} has positions 0 … {length - 1}", hint=f"there is no position {bad[0]}")
    return torch.tensor([t % length for t in positions], device=value.device)


@torch.no_grad()
def patch(
    model: Model, clean: Text | Input, corrupt: Text | Input, names: Sequence[str],
    positions: Sequence[int] | None = None, *, target: Text | None = None,
) -> Tensor:  # fmt: skip
    """Return the logits of `corrupt` with the values called `names` as they were in `clean`

    (Meng et al. 2022 §2.) `positions` carries over those alone (see `carry`); by default all. The decoder of
    an encoder-decoder reads the same `target` both times: by default what the model writes for `clean`.
    """
    first, second = both_inputs(model, clean, corrupt, target)
    return second.run(model, carry(model, first, names, positions))


@torch.no_grad()
def activation_patching(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str,
    wrong: int | str | None = None, what: str = "residual", *, by_position: bool | None = None,
    target: Text | None = None, position: int = -1, report: Report | None = None, rows: int | None = None,
) -> PatchingResult:  # fmt: skip
    """Return which values carry the answer: each alone, as in `clean`, in a run of `corrupt` otherwise

    (Meng et al. 2022 §2; Zhang and Nanda 2024, arXiv 2309.16042.) `what` is "residual" (what each layer hands
    on), "attention" or "mlp" (what those parts add), "heads", or a watched name with or without wildcards,
    such as "blocks.*.input". Each value is patched at every position alone; heads each over all positions,
    or with `by_position=True` at every one. Values are (d − d_corrupt) / (d_clean − d_corrupt), with d the
    difference of the logits of `right` and `wrong`, or the logit of `right` alone, at `position`. Answers are
    ids, texts of one token (" Paris") or labels. `report` is called before each batch with the number of
    patches done and of all, and may raise to stop; `rows` is how many share a batch.
    """
    asked = Comparison.of(model, clean, corrupt, right, wrong, target=target, position=position)
    names = value_names(model, asked.clean, what)
    runner = _PatchRunner(asked, names, rows)
    heads = what == "heads"
    each = not heads if by_position is None else by_position
    patches = list(all_patches(runner.clean, names, heads=heads, by_position=each))
    found = runner.run(patches, report)
    return collect(what, "exact", asked, patches, found)


class _PatchRunner:
    """Runs the corrupt input with patches of the clean one, from the first layer and token they change on."""

    def __init__(self, asked: Comparison, names: Sequence[str], rows: int | None) -> None:
        self.asked, self.model, self.rows = asked, asked.model, rows
        self.where, self.stack = stack_of(self.model)
        given, head = asked.corrupt, cast(Head, self.model.head)
        self.tokens = given.read.shape[1]
        # An encoder-decoder, whose decoder also starts from its encoder's state, is run whole.
        self.skips = isinstance(self.model, LM)
        entries = [f"{self.where}.{i}.input" for i in range(len(self.stack))] if self.skips else []
        self.clean, seen = Watch(*names), Watch(*names, *([f"{self.where}.*.input"] * self.skips))
        asked.clean.run(self.model, self.clean)
        given.run(self.model, seen)
        self.corrupt = seen
        self.entries = [seen.values.get(name) for name in entries]
        onward = all(name.rpartition(".")[2] in ONWARD for name in names)
        causal = isinstance(self.model, LM) and self.model.causal
        self.continues = self.skips and causal and onward and head.positions is not None
        other = (asked.clean.ids != given.ids)[0].nonzero()
        self.differ_from = int(other[0]) if len(other) else 0
        self.prefixes: dict[int, State] = {}

    def run(self, patches: Sequence[Patch], report: Report | None) -> Tensor:
        """Return what each patch restores."""
        found = torch.zeros(len(patches), dtype=torch.float64)
        differ = [i for i, patch in enumerate(patches) if self._differs(patch)]
        done = len(patches) - len(differ)
        for batch in self._batches(patches, differ):
            if report is not None:
                report(done, len(patches))
            gaps = self._run_batch([patches[i] for i in batch])
            found[batch] = self.asked.restored(gaps).cpu()
            done += len(batch)
        if report is not None:
            report(done, len(patches))
        return found

    def _differs(self, patch: Patch) -> bool:
        """Whether the clean value is another than the corrupt one: else a patch changes nothing."""
        if self.clean[patch.name].shape != self.corrupt[patch.name].shape:
            return True
        return not torch.equal(
            *(self._select(seen[patch.name][0], patch) for seen in (self.clean, self.corrupt))
        )

    def _select(self, value: Tensor, patch: Patch, first: int = 0) -> Tensor:
        """The entries of a row's value that a patch is of; the value begins with the token `first`."""
        value, axis = value if patch.head is None else value[patch.head], self.clean.positions[patch.name]
        return value if patch.position is None or axis is None else value.select(axis, patch.position - first)

    def _batches(self, patches: Sequence[Patch], numbers: Sequence[int]) -> Iterator[list[int]]:
        """Yield numbers of patches that share a first token and stand in layers near each other."""
        order = sorted(numbers, key=lambda i: (self._first(patches[i]), self._layer(patches[i])))
        for first, same in itertools.groupby(order, key=lambda i: self._first(patches[i])):
            limit = MAX_TOKENS["cuda" if self.model.device.type == "cuda" else "cpu"]
            rows = self.rows or max(1, limit // (self.tokens - first))
            listed = list(same)
            yield from (listed[start : start + rows] for start in range(0, len(listed), rows))

    def _first(self, patch: Patch) -> int:
        """The first token that a patch can change: before the two inputs differ there is none."""
        if not self.continues:
            return 0
        return self.differ_from if patch.position is None else patch.position

    def _layer(self, patch: Patch) -> int:
        """The layer to begin with: the one that computes the value, if what it is given is known."""
        top, _, rest = patch.name.partition(".")
        word = rest.partition(".")[0]
        layer = int(word) if top == self.where and word.isdigit() and self.skips else 0
        return layer if layer and self.entries[layer] is not None else 0

    def _run_batch(self, batch: Sequence[Patch]) -> Tensor:
        """d of each row, in which one patch is put."""
        asked, first = self.asked, self._first(batch[0])
        if first > asked.position and self.continues:  # nothing there looks ahead
            return torch.full((len(batch),), asked.worst)
        watch = Watch(edit=self._edits(batch, first))
        layer = min(map(self._layer, batch))
        if not layer and not first:
            logits = asked.corrupt.run(self.model, watch, repeat=len(batch))
            return asked.gap(choices(self.model, logits, asked.position))
        with evaluation_mode(self.model):
            logits = self._run_from(layer, first, watch, len(batch))
        at = 0 if cast(Head, self.model.head).positions is not None else asked.position
        return asked.gap(choices(self.model, logits, at))

    def _run_from(self, layer: int, first: int, watch: Watch, rows: int) -> Tensor:
        """The logits of the corrupt input from a layer and a token on, `rows` times."""
        model, given = cast(LM, self.model), self.asked.corrupt
        tokens = given.ids.expand(rows, -1)[:, first:]
        state = None
        if first:
            state = self._prefix(first)
            state.reorder(torch.zeros(rows, dtype=torch.long, device=tokens.device))
            ctx = advance(tokens, state, watch=watch)
        else:
            pos = positions(None, tokens.shape[1], tokens.device)
            ctx = Context(pos, pos, Mask(causal=model.causal), watch=watch)
        start = self.entries[layer] if layer else None
        if start is None:
            x, layer = model.embed(tokens, ctx.at("embed")), 0
        else:
            x = start[:, first:].expand(rows, *(-1,) * (start.dim() - 1))
        hidden = self.stack.run_from(layer, x, ctx.at(self.where), None if state is None else state.parts)
        if model.head.positions is not None:
            at = self.asked.position - first
            hidden = hidden[:, at : at + 1]
        return model.head.predict(hidden, ctx)

    def _prefix(self, first: int) -> State:
        """What the model remembers of the tokens before `first`, as a copy that may be written to."""
        if first not in self.prefixes:
            model, ids = cast(LM, self.model), self.asked.corrupt.ids
            state = model.new_state(1, self.tokens)
            with evaluation_mode(model):
                model.decode(ids[:, :first], advance(ids[:, :first], state), state.parts)
            self.prefixes = {first: state}
        return copy.deepcopy(self.prefixes[first])

    def _edits(self, batch: Sequence[Patch], first: int) -> dict[str, Edit]:
        rows: dict[str, list[tuple[int, Patch]]] = {}
        for row, one in enumerate(batch):
            rows.setdefault(one.name, []).append((row, one))
        return {name: self._put(name, these, first) for name, these in rows.items()}

    def _put(self, name: str, rows: Sequence[tuple[int, Patch]], first: int) -> Edit:
        value, axis = self.clean[name], self.clean.positions[name]
        if first and axis is not None:
            value = value.narrow(axis, first, value.shape[axis] - first)

        def edit(now: Tensor) -> Tensor:
            _check_shape(name, value, now)
            for row, one in rows:
                self._select(now[row], one, first).copy_(self._select(value[0], one, first))
            return now

        return edit


def causal_trace(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str, wrong: int | str,
    *, target: Text | None = None,
) -> dict[str, list[float]]:  # fmt: skip
    """Return which layer and position carry the answer: 0 where a patch does nothing, 1 where it restores all

    Lists of `activation_patching` of every layer's output, by its name.
    """
    found = activation_patching(model, clean, corrupt, right, wrong, target=target)
    return dict(zip(found.names, found.values.tolist(), strict=True))
