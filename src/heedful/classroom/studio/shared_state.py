"""What all routes of one server share, and how a route comes by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request
from starlette.responses import Response

from heedful.classroom.studio import snippets
from heedful.classroom.studio.model_registry import LoadedModel, ModelRegistry
from heedful.classroom.studio.traces import Trace, Traces
from heedful.classroom.studio.workers import Clients
from heedful.serve.guard import Json

T = TypeVar("T")


@dataclass
class Studio:
    """One server: its models, its traces, the pages that ask."""

    registry: ModelRegistry
    runs: Path
    traces: Traces = field(default_factory=Traces)
    clients: Clients = field(default_factory=Clients)
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    listening: threading.Lock = field(
        default_factory=threading.Lock
    )  # for warnings: see task_runner.run_task
    stopping: Callable[[], bool] = lambda: False  # whether the server is going down: streams end then

    def look_at_trace(self, id: str) -> Look:
        """A trace, and its model loaded again if it was put away."""
        trace = self.traces.get(id)
        return Look(self, trace)


@dataclass(frozen=True)
class Look:
    """A look at a trace."""

    studio: Studio
    trace: Trace

    @property
    def loaded_model(self) -> LoadedModel:
        return self.studio.registry.get(self.trace.entry.id)

    def run(self, function: Callable[[LoadedModel], T]) -> T:
        """In the thread that owns the model."""
        held = self.loaded_model
        return held.run(lambda: function(held))

    def call(self, function: Callable[..., T], **options: Any) -> T:
        """Call `function(model, input, …)` on what the trace read, in the model's thread."""
        return self.run(lambda held: function(held.sequence, self.trace.given, **options))

    def respond(self, function: Callable[..., Any], suffix: str = "", **options: Any) -> Response:
        """Answer with what such a call gives, and with the lines that make the same call."""
        found = self.call(function, **options).to_dict()
        return Json(found | {"python": snippets.of_call(self.trace, function, suffix, **options)})


def studio_of(request: Request) -> Studio:
    found: Studio = request.app.state.studio
    return found


def look_at(id: str, request: Request) -> Look:
    """The trace that a path names."""
    return studio_of(request).look_at_trace(id)


Here = Annotated[Studio, Depends(studio_of)]
Seen = Annotated[Look, Depends(look_at)]
Client = Annotated[str | None, Header(alias="X-Client")]
