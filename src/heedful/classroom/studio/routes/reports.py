"""Reports of comparisons (`heed race`, `heed scale`) among the runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from heedful.classroom.studio.error_responses import RunNotFound
from heedful.classroom.studio.shared_state import Here
from heedful.core.errors import CorruptFile, nearest
from heedful.core.files import read_json
from heedful.serve.guard import Json

router = APIRouter()


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
