"""Run a task: the whole result, or text as it is written."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from heedful.server.json_response import Json
from heedful.studio import beam_listener, task_runner
from heedful.studio.model_registry import LoadedModel
from heedful.studio.shared_state import Client, Here, Studio
from heedful.studio.streaming import Report, run_while_connected, stream_job
from heedful.studio.workers import Ticket

router = APIRouter()


class PlayRequest(BaseModel):
    """What is to be done with what."""

    model: str
    task: str
    inputs: dict[str, Any]
    parameters: dict[str, Any] = {}
    stream: bool = False


@router.post("/api/play")
async def play(body: PlayRequest, request: Request, studio: Here, client: Client = None) -> Response:
    ticket = studio.clients.ticket(client)
    task_runner.form_inputs(body.task, body.inputs)  # what is missing is said before anything is streamed
    if body.stream:
        held = await run_while_connected(request, ticket, lambda: studio.registry.get(body.model))
        held.sequence  # noqa: B018
        return stream_job(held, lambda report: _stream_task(held, body, ticket, report), ticket)
    return Json(await run_while_connected(request, ticket, lambda: _run_task(studio, body, ticket)))


def _run_task(studio: Studio, body: PlayRequest, ticket: Ticket) -> dict[str, Any]:
    held = studio.registry.get(body.model)
    began = time.perf_counter()
    result, warnings, python = held.run(
        lambda: task_runner.run_task(held, body.task, body.inputs, body.parameters, studio.listening), ticket
    )
    ticket.check()
    spent = round((time.perf_counter() - began) * 1000, 1)
    return {"task": body.task, "result": result, "warnings": warnings, "ms": spent, "python": python}


@router.post("/api/beams")
async def beams(body: PlayRequest, request: Request, studio: Here, client: Client = None) -> Response:
    """A task written with beams: the text and the search that found it."""
    ticket = studio.clients.ticket(client)

    def search() -> dict[str, Any]:
        held = studio.registry.get(body.model)
        work = lambda: beam_listener.search_beams(held, body.task, body.inputs, body.parameters, ticket)
        return held.run(work, ticket)

    return Json(await run_while_connected(request, ticket, search))


def _stream_task(
    loaded_model: LoadedModel, body: PlayRequest, ticket: Ticket, report: Report
) -> dict[str, Any]:
    began = time.perf_counter()
    done = task_runner.generate_text(loaded_model, body.task, body.inputs, body.parameters, ticket, report)
    return done | {"seconds": round(time.perf_counter() - began, 3)}
