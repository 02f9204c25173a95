"""Run a task: the whole result, or text as it is written."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from heedful.server.json_response import Json
from heedful.studio import playing, searching
from heedful.studio.shelf import Held
from heedful.studio.state import Client, Here
from heedful.studio.streaming import Report, streamed
from heedful.studio.work import Ticket

router = APIRouter()


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
        return streamed(held, lambda report: _written(held, asked, ticket, report), ticket)
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


def _written(held: Held, asked: Task, ticket: Ticket, report: Report) -> dict[str, Any]:
    began = time.perf_counter()
    done = playing.write(held, asked.task, asked.inputs, asked.parameters, ticket, report)
    return done | {"seconds": round(time.perf_counter() - began, 3)}
