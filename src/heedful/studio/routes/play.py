"""Run a task: the whole result, or text as it is written."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from heedful.studio import playing, searching
from heedful.studio.answers import Json
from heedful.studio.faults import told
from heedful.studio.shelf import Held
from heedful.studio.state import Client, Here
from heedful.studio.work import Ticket

router = APIRouter()
STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Task(BaseModel):
    """What is to be done with what."""

    model: str
    task: str
    inputs: dict[str, Any]
    parameters: dict[str, Any] = {}
    stream: bool = False


@router.post("/api/play")
def play(asked: Task, studio: Here, client: Client = None) -> Response:
    held, ticket = studio.shelf.get(asked.model), studio.clients.ticket(client)
    playing.fields_of(asked.task, asked.inputs)  # what is missing is said before anything is streamed
    if asked.stream:
        held.sequence  # noqa: B018
        return StreamingResponse(
            _streamed(held, asked, ticket), media_type="text/event-stream", headers=STREAM
        )
    began = time.perf_counter()
    result, warnings, python = held.run(
        lambda: playing.play(held, asked.task, asked.inputs, asked.parameters, studio.listening), ticket
    )
    ticket.check()
    spent = round((time.perf_counter() - began) * 1000, 1)
    return Json({"task": asked.task, "result": result, "warnings": warnings, "ms": spent, "python": python})


@router.post("/api/beams")
def beams(asked: Task, studio: Here, client: Client = None) -> Response:
    """A task written with beams: the text and the search that found it."""
    held, ticket = studio.shelf.get(asked.model), studio.clients.ticket(client)
    work = lambda: searching.search(held, asked.task, asked.inputs, asked.parameters, ticket)
    return Json(held.run(work, ticket))


def _streamed(held: Held, asked: Task, ticket: Ticket) -> Iterator[str]:
    """The model's thread writes into a line, this one reads it; who stops reading stops the writing."""
    line: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    began = time.perf_counter()

    def work() -> None:
        try:
            done = playing.write(held, asked.task, asked.inputs, asked.parameters, ticket, line.put)
            line.put(done | {"seconds": round(time.perf_counter() - began, 3)})
        except Exception as error:  # whatever it is, the page must hear of it: the answer has begun
            line.put({"event": "error", **told(error)[1]})

    future = held.worker.submit(work)
    try:
        while True:
            try:
                item = line.get(timeout=0.5)
            except queue.Empty:
                if future.done() and line.empty():
                    return
                yield ": still there\n\n"
                continue
            yield f"event: {item['event']}\ndata: {Json({}).render(item).decode()}\n\n"
            if item["event"] in ("done", "error"):
                return
    finally:
        ticket.cancel()
