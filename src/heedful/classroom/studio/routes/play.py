"""Run a task: the whole result, or text as it is written."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from heedful.classroom.studio.jobs import Report, run_while_connected, stream_job
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.task_runner import (
    IMAGE_TASKS,
    form_inputs,
    generate_text,
    run_task,
    search_beams,
)
from heedful.classroom.studio.traces import Client, Here, run_model
from heedful.core.errors import InputError
from heedful.serve.json_response import Json

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
    if body.stream and body.task in IMAGE_TASKS:
        raise InputError("the text in an image is not streamed", hint="leave stream out")
    form_inputs(body.task, body.inputs)  # what is missing is said before anything is streamed
    if body.stream:
        ticket = studio.clients.ticket(client)
        loaded_model = await run_while_connected(request, ticket, lambda: studio.registry.get(body.model))
        loaded_model.sequence  # noqa: B018

        def write(report: Report) -> dict[str, Any]:
            began = time.perf_counter()
            done = generate_text(loaded_model, body.task, body.inputs, body.parameters, report)
            return done | {"seconds": round(time.perf_counter() - began, 3)}

        return stream_job(loaded_model.worker, write, ticket)

    def run(loaded_model: LoadedModel) -> dict[str, Any]:
        began = time.perf_counter()
        answer = run_task(loaded_model, body.task, body.inputs, body.parameters)
        return {"task": body.task, **answer, "ms": round((time.perf_counter() - began) * 1000, 1)}

    return Json(await run_model(studio, request, body.model, run, client))


@router.post("/api/beams")
async def beams(body: PlayRequest, request: Request, studio: Here, client: Client = None) -> Response:
    """A task written with beams: the text and the search that found it."""
    if body.task in IMAGE_TASKS:
        raise InputError("the search over an image is drawn by heedful.view.beams", hint="leave beams out")
    search = lambda loaded_model: search_beams(loaded_model, body.task, body.inputs, body.parameters)
    return Json(await run_model(studio, request, body.model, search, client))
