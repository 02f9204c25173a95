"""Training runs: those on disk, and one as it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse

from heedful.classroom.studio import run_curves
from heedful.classroom.studio.shared_state import Here
from heedful.serve.guard import Json

router = APIRouter()
LOOK = 0.5  # seconds between looks at a run that goes on
QUIET = 15.0  # seconds after which a line is sent that says nothing


@router.get("/api/runs")
def runs(studio: Here) -> Response:
    found = [run_curves.overview(id, folder) for id, folder in run_curves.runs_in(studio.runs).items()]
    return Json({"runs": sorted(found, key=lambda r: -r["updated"]), "folder": str(studio.runs)})


@router.get("/api/runs/{id}")
def run_of(id: str, studio: Here) -> Response:
    return Json(run_curves.run_details(id, run_curves.run_at(studio.runs, id)))


@router.get("/api/runs/{id}/live")
def follow_run(
    id: str, request: Request, studio: Here, after: int | None = None,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:  # fmt: skip
    """Lines as they are written, from where the page stopped reading."""
    folder = run_curves.run_at(studio.runs, id)
    said = last_event_id if last_event_id is not None and last_event_id.isdigit() else None
    start = int(said) if said is not None else after or 0

    async def lines() -> AsyncIterator[str]:
        at, waited = start, 0.0
        known = {one["step"] for one in run_curves.checkpoints(id, folder)}
        yield "retry: 2000\n\n"
        while not studio.stopping() and not await request.is_disconnected():
            events, at = await asyncio.to_thread(run_curves.follow, id, folder, at, known)
            for event in events:
                yield event
            waited = 0.0 if events else waited + LOOK
            if waited >= QUIET:
                waited = 0.0
                yield ": still there\n\n"
            await asyncio.sleep(LOOK)

    headers = {"Cache-Control": "no-store"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
