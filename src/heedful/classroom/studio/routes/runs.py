"""Training runs: those on disk, and one as it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse

from heedful.classroom.studio import run_curves
from heedful.classroom.studio.run_curves import RunNotFound
from heedful.classroom.studio.traces import Here
from heedful.core.errors import CorruptFile, nearest
from heedful.core.files import read_json
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


# Reports of comparisons (`heed race`, `heed scale`) among the runs on disk.


def reports_in(root: Path) -> dict[str, Path]:
    """Return every report below the folder of runs by its name there, the newest first."""
    found = sorted(root.glob("*/report.json"), key=lambda p: -p.stat().st_mtime) if root.is_dir() else []
    return {path.parent.name: path for path in found}


def read_report(path: Path) -> dict[str, Any]:
    """Return a report as it was written; raise CorruptFile for a file that is none."""
    found: dict[str, Any] = read_json(path)
    if not isinstance(found.get("title"), str) or not isinstance(found.get("sections"), list):
        raise CorruptFile(f"{path} is no report", hint="run the comparison again")
    return found


@router.get("/api/reports")
def list_reports(studio: Here) -> Response:
    """The names of the reports."""
    return Json({"reports": list(reports_in(studio.runs)), "folder": str(studio.runs)})


@router.get("/api/reports/{id}")
def one_report(id: str, studio: Here) -> Response:
    """One report: its sentences, and each section's figure as the page draws it."""
    known = reports_in(studio.runs)
    if id not in known:
        hint = nearest(id, known) or f"there are {', '.join(list(known)[:8]) or 'none'}"
        raise RunNotFound(f"no report {id[:80]!r} in {studio.runs}", hint=hint)
    return Json(read_report(known[id]) | {"id": id, "path": str(known[id].parent / "report.html")})
