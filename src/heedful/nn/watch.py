"""The Watch: records, and may replace, the values that a model computes, by their names.

A name is the path of the part and one word: blocks.3.attn.pattern, decoder.5.cross.scores. `model.names()`
lists them. In a pattern a `*` between dots stands for one word of the path. At the beginning and at the end
of a pattern it stands for any number of words, and so does `**` anywhere. So blocks.*.output are the outputs
of the blocks, and *.output those of all parts.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError, nearest

Edit = Callable[[Tensor], Tensor]
WILDCARD = re.compile(r"[*?\[]")
PIECE = re.compile(r"\*+|\?|\[!?[^\]]+\]|[^*?\[]+|\[")
# The output of an embedding, a layer or a stack, not of a part within a layer.
LAYER_OUTPUT = re.compile(r"^\w+(\.\d+(\.(ahead|back))?)?\.output$")
RUNS = itertools.count(1)


@functools.lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the expression that a whole name must match."""
    out = []
    for piece in PIECE.finditer(pattern):
        text = piece.group()
        if text == "?":
            out.append("[^.]")
        elif text[0] == "*":
            outermost = piece.start() == 0 or piece.end() == len(pattern)
            out.append(".*" if outermost or len(text) > 1 else "[^.]*")
        elif text[0] == "[" and len(text) > 1:
            out.append(text.replace("[!", "[^", 1))
        else:
            out.append(re.escape(text))
    return re.compile("".join(out))


def matches(name: str, pattern: str) -> bool:
    """Return whether `pattern`, a name or one with wildcards, means the value called `name`."""
    return name == pattern or compile_pattern(pattern).fullmatch(name) is not None


def apply_edit(name: str, value: Tensor, fn: Edit) -> Tensor:
    """fn(value) of a copy, so that an edit in place changes nothing else; an error if it does not fit."""
    new: object = fn(value.clone())
    is_like = lambda t: (t.shape, t.dtype, t.device) == (value.shape, value.dtype, value.device)
    if isinstance(new, Tensor) and is_like(new):
        return new
    describe = lambda t: f"{tuple(t.shape)} of {t.dtype} on {t.device}"
    gave = describe(new) if isinstance(new, Tensor) else f"a {type(new).__name__}"
    raise InputError(f"the edit of {name!r} gave {gave}", hint=f"it must return {describe(value)}")


class Axes(NamedTuple):
    """The axes of a value that run over tokens and over keys, counted from the end, as its part declares.

    Of keys and values both are one axis: a cached step has those of all tokens so far. `valid` (B, T) is
    False on padding; `in_order` is False where keys stand in the slots of a window, not as in the text.
    """

    positions: int | None = -2
    keys: int | None = None
    valid: Tensor | None = None
    in_order: bool = True


def last_position(value: Tensor, axes: Axes) -> Tensor:
    """The last token of each row that is not padding, as a copy; the axis stays, with one entry."""
    axis, valid = axes.positions, axes.valid
    if axis is None:
        return value
    if valid is None or value.shape[axis] != valid.shape[1] or len(value) != len(valid):
        return value.narrow(axis, value.shape[axis] - 1, 1).clone()
    at = valid.shape[1] - 1 - valid.flip(1).int().argmax(1)
    shape = [len(value), *(1 for _ in value.shape[1:])]
    size = list(value.shape)
    size[axis] = 1
    return value.gather(axis % value.dim(), at.view(shape).expand(size))


def join_passes(name: str, values: list[Tensor], axes: Axes) -> Tensor:
    """The values of passes that follow each other as one over all of them would show them.

    What runs over keys alone, or over no tokens, is the newest: it has them all. Rows over keys are as long
    as the newest: what an earlier token could not see yet has the weight 0 and the score −∞.
    """
    axis, keys = axes.positions, axes.keys
    if axis is None or axis == keys or (keys is not None and not axes.in_order):
        return values[-1]
    rows = max(map(len, values))
    values = [v if len(v) == rows else v.expand(rows, *v.shape[1:]) for v in values]
    if keys is not None:
        fill, longest = -math.inf if name.endswith("scores") else 0.0, max(v.shape[keys] for v in values)
        pad = [0, 0] * (-keys - 1)
        values = [F.pad(v, [*pad, 0, longest - v.shape[keys]], value=fill) for v in values]
    return torch.cat(values, axis)


class Watch:
    """Record, and if you like replace, values that are computed inside a forward pass.

    `Watch("blocks.*.attn.pattern")` records every value whose name matches. After the pass, `watch[name]` is
    the tensor. `Watch(edit={name: function})` replaces a value by `function(value)`, and records the
    replacement.

    >>> import heedful, torch
    >>> model = heedful.build("llama", vocab=128, dim=64, layers=2, heads=4, seed=0).eval()
    >>> watch = heedful.Watch("blocks.*.attn.pattern")
    >>> logits = model(torch.tensor([[3, 1, 4, 1, 5]]), watch=watch)
    >>> watch["blocks.0.attn.pattern"].shape     # rows, heads, queries, keys
    torch.Size([1, 4, 5, 5])
    >>> off = heedful.Watch(edit={"blocks.0.attn.pattern": lambda pattern: pattern * 0})
    >>> bool(torch.equal(model(torch.tensor([[3, 1, 4, 1, 5]]), watch=off), logits))
    False

    Every call of a model takes a watch, and so do `generate` and `stream`. While the same watch continues
    from the same state, `watch[name]` joins the positions of all passes so far. `watch.passes(name)` has the
    values of each pass. Any other call starts again and replaces what was recorded. An edit is called in
    every pass.

    Args:
        names: Names of values, with `*` as a wildcard. `model.names()` lists them.
        edit: Functions that replace values, by name. A function gets a copy, which it can change in place,
            and returns a tensor of the same shape and type.
        device: Store what is recorded on this device.
        detach: Detach what is recorded from the graph of gradients.
        last: Record only the last token of each pass.

    A name without a wildcard, and every edit, must match a value of this or an earlier pass. Otherwise the
    model raises an error that suggests the nearest name. `first + second` applies the edits of both in this
    order. `positions` maps each name to the axis that runs over tokens, counted from the end, or to None.
    """

    def __init__(
        self,
        *names: str,
        edit: Mapping[str, Edit] | None = None,
        device: str | torch.device | None = None,
        detach: bool = False,
        last: bool = False,
    ) -> None:
        self.names = names
        self.edit = dict(edit or {})
        self.device, self.detach, self.last = device, detach, last
        self.clear()

    def clear(self) -> None:
        """Forget everything that was recorded and met, so that the next call begins again."""
        self.values: dict[str, Tensor] = {}  # of the newest pass that had the name
        self.positions: dict[str, int | None] = {}
        self.seen: set[str] = set()  # names of the passes so far, watched or not
        self.met: set[str] = set()  # names and edits that matched one of them
        self.run = 0  # which run of passes this is: those that read on from one state
        self._passes = self._first = 0  # how many passes there were; the number of the run's first
        self._pass_of: dict[str, int] = {}  # in which pass a name was last recorded
        self._earlier: dict[str, list[Tensor]] = {}  # what the run's passes before that recorded
        self._axes: dict[str, Axes] = {}

    @property
    def members(self) -> tuple[Watch, ...]:
        """The watches that record: this one, or those it was made of."""
        return (self,)

    def edits(self) -> Iterator[tuple[str, Edit]]:
        """Yield the edits in the order in which they are applied."""
        yield from self.edit.items()

    def begin(self, runs: frozenset[int] = frozenset()) -> frozenset[int]:
        """Called by the model before a pass that reads on from `runs`; return those that it belongs to."""
        self._passes += 1
        if self.run not in runs:
            self.run, self._first = next(RUNS), self._passes
        return frozenset([self.run])

    def wants(self, name: str) -> bool:
        """Whether the value called `name` is to be recorded or replaced."""
        return any(matches(name, p) for p in (*self.names, *self.edit))

    def show(self, name: str, value: Tensor, axes: Axes) -> Tensor:
        """Called by the model for every value it computes; what comes back is used from here on."""
        self.note(name, axes)
        return self.visit(name, value)

    def note(self, name: str, axes: Axes) -> None:
        """Keep what a part declares of a value."""
        self.seen.add(name)
        self.positions[name], self._axes[name] = axes.positions, axes

    def visit(self, name: str, value: Tensor) -> Tensor:
        """Replace and record one value; return what is used from here on."""
        return self.record(name, self.replace(name, value))

    def replace(self, name: str, value: Tensor) -> Tensor:
        """Apply the edits that match the name."""
        for pattern, fn in self.edits():
            if matches(name, pattern):
                self.met.add(pattern)
                value = apply_edit(name, value, fn)
        return value

    def record(self, name: str, value: Tensor) -> Tensor:
        """Record a value if its name matches; return it, or the copy that was recorded."""
        wanted = [p for p in self.names if matches(name, p)]
        if not wanted:
            return value
        self.met.update(wanted)
        # A view may be one of a cache, which changes; what is recorded is also what is used from here on.
        value = value.clone() if value._is_view() else value
        before = self._pass_of.get(name, -1)
        if before < self._first or name not in self.values:
            self._earlier[name] = []
        elif before < self._passes:
            self._earlier[name].append(self.values[name])
        self._pass_of[name] = self._passes
        shown = last_position(value, self._axes[name]) if self.last else value
        shown = shown.detach() if self.detach else shown
        self.values[name] = shown if self.device is None else shown.to(self.device)
        return value

    def reorder(self, index: Tensor) -> None:
        """Let row b continue what row index[b] was: what was recorded of it goes along (beam search)."""
        rows = lambda t: t if len(t) == 1 and len(index) > 1 else t[index.to(t.device)]
        self._earlier = {name: list(map(rows, several)) for name, several in self._earlier.items()}
        self.values = {name: rows(value) for name, value in self.values.items()}

    def withhold(self, name: str, reason: str, hint: str) -> None:
        """Called by a part that cannot show `name` in this pass: an error if that name was asked for.

        A wildcard that only records asks what there is, and is left without it.
        """
        if any(matches(name, p) for p, _ in self.edits()) or name in self.names:
            raise InputError(f"{name} cannot be watched here: {reason}", hint=hint)

    def check(self) -> None:
        """Called by the model at the end of a pass: an error for a name or an edit that met no value."""
        for name in (*self.edit, *self.names):
            if name in self.met:
                continue
            if name in self.edit or not WILDCARD.search(name):
                raise self.missing(name)
            deeper = re.sub(r"(?<!\*)\*(?!\*)", "**", name)
            if any(matches(seen, deeper) for seen in self.seen):
                raise InputError(
                    f"nothing here is called {name!r}: a * between dots is one word", hint=f"use {deeper!r}"
                )

    def missing(self, name: str) -> InputError:
        """The error for a name that nothing has."""
        roots = sorted({n.partition(".")[0] for n in self.seen})
        where = "" if name.partition(".")[0] in roots else f": this call runs {', '.join(roots)}"
        hint = nearest(name, sorted(self.seen)) or "model.names() lists the names"
        if "hook_" in name:
            hint = "this is a name of TransformerLens; model.names() lists those here"
        return InputError(f"nothing here is called {name!r}{where}", hint=hint)

    def passes(self, name: str) -> list[Tensor]:
        """Return the values of each pass of the run: the prompt's, then those of each step."""
        if name not in self.values:
            if not self.values and not self.seen:
                raise InputError(
                    f"no value was recorded under {name!r}", hint="pass this watch to a model first"
                )
            names = self.values or self.seen
            raise InputError(
                f"no value {name!r} was recorded (asked for: {', '.join(self.names) or 'none'})",
                hint=(nearest(name, names) or f"recorded: {', '.join(sorted(names)[:6])}"),
            )
        return [*self._earlier.get(name, ()), self.values[name]]

    def __getitem__(self, name: str) -> Tensor:
        several = self.passes(name)
        if len(several) == 1:
            return several[0]
        axes = self._axes[name]
        if self.last and axes.keys == axes.positions:  # the newest key of each pass, not all of them
            axes = axes._replace(keys=None)
        return join_passes(name, several, axes)

    def __add__(self, other: Watch) -> Watch:
        return CombinedWatch(*self.members, *other.members) if isinstance(other, Watch) else NotImplemented

    def __bool__(self) -> bool:
        return True  # though nothing may be recorded yet

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, name: object) -> bool:
        return name in self.values


class CombinedWatch(Watch):
    """Several watches in one call: all edits in order, then each records for itself.

    What is recorded can be read here too; of two that recorded one name, the first is read.
    """

    def __init__(self, *members: Watch) -> None:
        self._members: tuple[Watch, ...] = ()  # what they have recorded stays
        super().__init__(*dict.fromkeys(name for member in members for name in member.names))
        self._members = members
        self.edit = {name: fn for member in members for name, fn in member.edit.items()}

    def clear(self) -> None:
        super().clear()
        for member in self._members:
            member.clear()

    @property
    def members(self) -> tuple[Watch, ...]:
        return self._members

    def edits(self) -> Iterator[tuple[str, Edit]]:
        for member in self.members:
            yield from member.edits()

    def begin(self, runs: frozenset[int] = frozenset()) -> frozenset[int]:
        super().begin(runs)
        return frozenset().union(*(member.begin(runs) for member in self.members))

    def note(self, name: str, axes: Axes) -> None:
        super().note(name, axes)
        for member in self.members:
            member.note(name, axes)
            member.met.update(p for p in member.edit if matches(name, p))

    def record(self, name: str, value: Tensor) -> Tensor:
        for member in self.members:
            value = member.record(name, value)
            self.met.update(member.met)
        group = next((member for member in self.members if name in member), None)
        if group is not None:
            self.values[name] = group.values[name]
        return value

    def reorder(self, index: Tensor) -> None:
        for member in self.members:
            member.reorder(index)

    def passes(self, name: str) -> list[Tensor]:
        group = next((member for member in self.members if name in member), None)
        return super().passes(name) if group is None else group.passes(name)
