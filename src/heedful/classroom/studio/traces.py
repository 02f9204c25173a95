"""One pass with capture, kept for many looks: what was read, what came out, and what was computed between.

A value that was not kept (scores, or what went over the budget) is computed again when somebody asks for it:
the same input, the same edits, one name watched.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from fastapi import Depends, Header, Request
from pydantic import BaseModel
from starlette.responses import Response
from torch import Tensor

from heedful.classroom.studio import snippets
from heedful.classroom.studio.features import FeatureSource
from heedful.classroom.studio.jobs import Clients, run_while_connected
from heedful.classroom.studio.model_registry import Entry, LoadedModel, ModelRegistry
from heedful.core.errors import InputError, find_named, nearest
from heedful.interp.inputs import Input
from heedful.interp.intervene.ablation import without
from heedful.interp.observe.mixing import AttentionGroup
from heedful.models.base import Model
from heedful.nn.context import Watch
from heedful.serve.guard import RequestRefused
from heedful.serve.json_response import Json

LIMIT = 512 * 2**20  # bytes of all traces together


class Edit(BaseModel):
    """Changes: heads and layers off, or at their mean over this text or another; tokens replaced."""

    heads: dict[str, list[int]] = {}
    layers: list[str] = []
    mean: bool = False
    reference: str | None = None  # the text of the mean; by default what is read
    tokens: dict[str, int | str] = {}
    target_tokens: dict[str, int | str] = {}

    @property
    def any_off(self) -> bool:
        """Whether a head or a layer is switched off."""
        return bool(self.heads) or bool(self.layers)


class TraceRecorder(Watch):
    """One pass. `keep` says what of each value is recorded: nothing, all of it, or less.

    A value is given without its batch axis. All values are watched, even those that are not kept: what is
    watched is computed openly, so that every pass gives the same numbers to the bit.
    """

    def __init__(
        self, model: Model, edit: Edit, usual: Input | None, keep: Callable[[str, Tensor], Tensor | None]
    ) -> None:
        super().__init__("*", edit=without(model, edit.heads, edit.layers, mean=usual).edit)
        self.keep = keep

    def visit(self, name: str, value: Tensor) -> Tensor:
        value = super().visit(name, value)
        part = self.keep(name, self.values.pop(name)[0])
        if part is not None:
            self.values[name] = part
        return value


@dataclass
class Trace:
    """What one run left. `values` have no batch axis."""

    id: str
    entry: Entry
    text: str | tuple[str, ...] | None  # where the text alone, or two of them, gives the same input
    given: Input
    edit: Edit
    usual: Input | None  # whose means take the place of what is off; None where zeros do
    groups: list[AttentionGroup]
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, Tensor]
    output: Tensor | None  # the logits as the head gives them, without the batch axis; None of word vectors
    response: dict[str, Any] = field(default_factory=dict)  # what POST /api/trace said
    scores: list[dict[str, Any]] | None = None
    effects: dict[tuple[str, bool], dict[str, list[float]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(value.nbytes for value in (*self.values.values(), self.output) if value is not None)

    def group(self, name: str) -> AttentionGroup:
        groups = {group.name: group for group in self.groups}
        return find_named(groups, name, f"no group {name[:80]!r} in this trace")

    def value(self, loaded_model: LoadedModel, name: str) -> Tensor:
        """A value by its name, computed again if it was not kept."""
        if name in self.values:
            return self.values[name]
        if name == "head.logits" and self.output is not None:
            return self.output
        if name not in self.shapes:
            close = nearest(name, self.shapes) or "GET /api/trace/{id} lists them under shapes"
            raise InputError(f"no value {name[:80]!r} in this trace", hint=close)
        model = loaded_model.sequence
        value = loaded_model.run(lambda: self.recompute(model, [name])[name])
        if self.bytes + value.nbytes <= LIMIT:
            self.values[name] = value
        return value

    @torch.no_grad()
    def recompute(
        self, model: Model, names: Sequence[str], shrink: Callable[[Tensor], Tensor] = lambda x: x
    ) -> dict[str, Tensor]:
        """Values that were not kept, by one more pass; in the model's own thread."""
        keep = lambda name, value: shrink(value) if name in names else None
        recorder = TraceRecorder(model, self.edit, self.usual, keep)
        self.given.run(model, recorder)
        return recorder.values


class Traces:
    """The traces used last, within a number of bytes."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.boot = limit, secrets.token_hex(3)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Trace] = OrderedDict()

    def new_id(self) -> str:
        """Return an id that no trace of this or another server has."""
        return f"{self.boot}-{next(self._numbers)}"

    def add(self, trace: Trace) -> None:
        with self._lock:
            self._kept[trace.id] = trace
        self.fit()

    def fit(self) -> None:
        """Let the oldest go until the rest fits; the newest always stays."""
        with self._lock:
            while len(self._kept) > 1 and sum(t.bytes for t in self._kept.values()) > self.limit:
                self._kept.popitem(last=False)

    def get(self, id: str) -> Trace:
        with self._lock:
            if id not in self._kept:
                message, hint = f"the trace {id[:40]} is no longer held", "run again: the text is still there"
                raise RequestRefused(410, "trace_gone", message, hint)
            self._kept.move_to_end(id)
            return self._kept[id]

    def state(self) -> dict[str, int]:
        with self._lock:
            return {
                "count": len(self._kept), "bytes": sum(t.bytes for t in self._kept.values()),
                "limit": self.limit,
            }  # fmt: skip


# What all routes of one server share, and how a route comes by it.


T = TypeVar("T")


@dataclass
class Studio:
    """One server: its models, its traces, the pages that ask."""

    registry: ModelRegistry
    runs: Path
    features: FeatureSource | None = None
    traces: Traces = field(default_factory=Traces)
    clients: Clients = field(default_factory=Clients)
    stopping: Callable[[], bool] = lambda: False  # whether the server is going down: streams end then


@dataclass(frozen=True)
class Look:
    """A look at a trace; its model is loaded again if it was put away."""

    studio: Studio
    trace: Trace

    @property
    def loaded_model(self) -> LoadedModel:
        return self.studio.registry.get(self.trace.entry.id)

    def run(self, function: Callable[[LoadedModel], T]) -> T:
        """In the thread that owns the model."""
        loaded_model = self.loaded_model
        return loaded_model.run(lambda: function(loaded_model))

    def call(self, function: Callable[..., T], **options: Any) -> T:
        """Call `function(model, input, …)` on what the trace read, in the model's thread."""
        return self.run(lambda loaded_model: function(loaded_model.sequence, self.trace.given, **options))

    def respond(self, function: Callable[..., Any], suffix: str = "", **options: Any) -> Response:
        """Answer with what such a call gives, and with the lines that make the same call."""
        result = self.call(function, **options).to_dict()
        return Json(result | {"python": snippets.of_call(self.trace, function, suffix, **options)})


async def run_model(
    studio: Studio, request: Request, id: str, function: Callable[[LoadedModel], T], client: str | None = None
) -> T:
    """Load a model, and return what `function` gives in the model's thread, as long as the client waits."""
    ticket = studio.clients.ticket(client)

    def job() -> T:
        loaded_model = studio.registry.get(id)
        return loaded_model.run(lambda: function(loaded_model), ticket)

    return await run_while_connected(request, ticket, job)


def studio_of(request: Request) -> Studio:
    studio: Studio = request.app.state.studio
    return studio


def look_at(id: str, request: Request) -> Look:
    """The trace that a path names."""
    studio = studio_of(request)
    return Look(studio, studio.traces.get(id))


Here = Annotated[Studio, Depends(studio_of)]
Seen = Annotated[Look, Depends(look_at)]
Client = Annotated[str | None, Header(alias="X-Client")]
