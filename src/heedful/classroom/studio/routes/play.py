"""Run a task: the whole result, or text as it is written."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from heedful.classroom.studio import task_runner
from heedful.classroom.studio.model_registry import LoadedModel, Ticket
from heedful.classroom.studio.responses import Report, run_while_connected, stream_job
from heedful.classroom.studio.traces import Client, Here, Studio
from heedful.core.errors import InputError
from heedful.serve.guard import Json

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
    if body.stream and body.task == task_runner.IMAGE_TASK:
        raise InputError("the text in an image is not streamed", hint="leave stream out")
    task_runner.form_inputs(body.task, body.inputs)  # what is missing is said before anything is streamed
    if body.stream:
        held = await run_while_connected(request, ticket, lambda: studio.registry.get(body.model))
        held.sequence  # noqa: B018
        return stream_job(held.worker, lambda report: _stream_task(held, body, ticket, report), ticket)
    return Json(await run_while_connected(request, ticket, lambda: _run_task(studio, body, ticket)))


def _run_task(studio: Studio, body: PlayRequest, ticket: Ticket) -> dict[str, Any]:
    held = studio.registry.get(body.model)
    began = time.perf_counter()
    milliseconds = lambda: round((time.perf_counter() - began) * 1000, 1)
    if body.task == task_runner.IMAGE_TASK:

        def read() -> dict[str, Any]:
            with studio.listening:  # Python keeps one list of filters of warnings for all threads
                return task_runner.read_image(held, body.inputs)

        return {"task": body.task, **held.run(read, ticket), "ms": milliseconds()}
    result, warnings, python = held.run(
        lambda: task_runner.run_task(held, body.task, body.inputs, body.parameters, studio.listening), ticket
    )
    ticket.check()
    return {"task": body.task, "result": result, "warnings": warnings, "ms": milliseconds(), "python": python}


@router.post("/api/beams")
async def beams(body: PlayRequest, request: Request, studio: Here, client: Client = None) -> Response:
    """A task written with beams: the text and the search that found it."""
    ticket = studio.clients.ticket(client)
    if body.task == task_runner.IMAGE_TASK:
        raise InputError("the search over an image is drawn by heedful.view.beams", hint="leave beams out")

    def search() -> dict[str, Any]:
        held = studio.registry.get(body.model)
        work = lambda: task_runner.search_beams(held, body.task, body.inputs, body.parameters, ticket)
        return held.run(work, ticket)

    return Json(await run_while_connected(request, ticket, search))


def _stream_task(
    loaded_model: LoadedModel, body: PlayRequest, ticket: Ticket, report: Report
) -> dict[str, Any]:
    began = time.perf_counter()
    done = task_runner.generate_text(loaded_model, body.task, body.inputs, body.parameters, ticket, report)
    return done | {"seconds": round(time.perf_counter() - began, 3)}
