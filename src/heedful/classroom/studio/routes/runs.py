"""Training runs: those on disk, and one as it goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse

from heedful.classroom.studio.jobs import STREAM_HEADERS, event_bytes
from heedful.classroom.studio.traces import Here
from heedful.core.errors import CorruptFile, NotFound, find_named
from heedful.core.files import read_json
from heedful.serve.json_response import Json
from heedful.train.checkpoint import list_checkpoints
from heedful.train.recipes.folder import STEP, metric_curves, read_lines

router = APIRouter()
LOOK = 0.5  # seconds between looks at a run that goes on
QUIET = 15.0  # seconds after which a line is sent that says nothing
EXAMPLE_COMMAND = "heed train shakespeare-char-cpu input.txt --steps 500 --set evaluate.every=50"
EXAMPLES = Path(__file__).parents[1] / "example_run"  # the log of one finished run, without its weights
EXAMPLE_REPORTS = Path(__file__).parents[1] / "example_report"  # of `heed race` on three small systems
FRESH = 60.0  # seconds after which a run that writes nothing counts as over


class RunNotFound(NotFound):
    """A run that is not there."""


def runs_in(root: Path) -> dict[str, Path]:
    """Every run below a folder, by its name there; or the bundled example."""
    return _folders(root) or _folders(EXAMPLES)


def _folders(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        return {}
    folders = sorted(p.parent for p in root.glob("**/metrics.jsonl") if len(p.relative_to(root).parts) <= 3)
    return {("-".join(p.relative_to(root).parts) or root.resolve().name): p for p in folders}


def run_at(root: Path, id: str) -> Path:
    return find_named(runs_in(root), id, f"no run {id[:80]!r} in {root}", RunNotFound)


def checkpoints(id: str, folder: Path) -> list[dict[str, Any]]:
    whole = [path for path in list_checkpoints(folder) if (path / "config.json").is_file()]
    steps = [int(path.name.removeprefix("step-")) for path in whole]
    return [{"step": step, "model": f"{id}@{step}"} for step in steps]


def is_example(folder: Path) -> bool:
    return EXAMPLES in (folder, *folder.parents)


def is_live(folder: Path) -> bool:
    return not is_example(folder) and time.time() - (folder / "metrics.jsonl").stat().st_mtime < FRESH


def overview(id: str, folder: Path) -> dict[str, Any]:
    """One line about a run."""
    lines, _, _ = read_lines(folder / "metrics.jsonl")
    last: dict[str, Any] = {}
    for _, line in lines:
        last |= {k: v for k, v in line.items() if isinstance(v, int | float)}
    return {
        "id": id, "path": str(folder), "steps": int(last.get(STEP, 0)), "live": is_live(folder), "last": last,
        "example": is_example(folder), "updated": (folder / "metrics.jsonl").stat().st_mtime,
    }  # fmt: skip


def run_details(id: str, folder: Path) -> dict[str, Any]:
    """Everything a run wrote so far."""
    lines, damaged, end = read_lines(folder / "metrics.jsonl")
    samples, _, _ = read_lines(folder / "samples.jsonl")
    config = folder / "config.yaml"
    settings = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None
    return {
        "id": id, "path": str(folder), "metrics": metric_curves(line for _, line in lines),
        "skipped": len(damaged), "end": end,
        "samples": [{"step": line.get(STEP), "text": str(line.get("text", ""))} for _, line in samples],
        "checkpoints": checkpoints(id, folder), "config": settings, "live": is_live(folder),
        "example": is_example(folder),
        "command": None if settings is None else EXAMPLE_COMMAND if is_example(folder)
        else f"heed train {config} --resume --folder {folder}",
        "python": f"import heedful\n\nheedful.view.training({str(folder)!r}).save('training.html')",
    }  # fmt: skip


def follow(id: str, folder: Path, start: int, reported_steps: set[int]) -> tuple[list[bytes], int]:
    """New events since a byte: lines, a file that became shorter, new checkpoints."""
    file, out = folder / "metrics.jsonl", []
    if file.is_file() and file.stat().st_size < start:
        start = 0
        out.append(event_bytes("reset", {}, 0))
    lines, _, end = read_lines(file, start)
    out += [event_bytes("metrics", line, at) for at, line in lines]
    for one in checkpoints(id, folder):
        if one["step"] not in reported_steps:
            reported_steps.add(one["step"])
            out.append(event_bytes("checkpoint", one))
    return out, end


@router.get("/api/runs")
def runs(studio: Here) -> Response:
    rows = [overview(id, folder) for id, folder in runs_in(studio.runs).items()]
    return Json({"runs": sorted(rows, key=lambda r: -r["updated"]), "folder": str(studio.runs)})


@router.get("/api/runs/{id}")
def run_of(id: str, studio: Here) -> Response:
    return Json(run_details(id, run_at(studio.runs, id)))


@router.get("/api/runs/{id}/live")
def follow_run(
    id: str, request: Request, studio: Here, after: int | None = None,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:  # fmt: skip
    """Lines as they are written, from where the page stopped reading."""
    folder = run_at(studio.runs, id)
    reached = last_event_id if last_event_id is not None and last_event_id.isdigit() else None
    start = int(reached) if reached is not None else after or 0

    async def lines() -> AsyncIterator[bytes]:
        at, waited = start, 0.0
        reported_steps = {one["step"] for one in checkpoints(id, folder)}
        yield b"retry: 2000\n\n"
        while not studio.stopping() and not await request.is_disconnected():
            events, at = await asyncio.to_thread(follow, id, folder, at, reported_steps)
            for event in events:
                yield event
            waited = 0.0 if events else waited + LOOK
            if waited >= QUIET:
                waited = 0.0
                yield b": still there\n\n"
            await asyncio.sleep(LOOK)

    return StreamingResponse(lines(), media_type="text/event-stream", headers=STREAM_HEADERS)


# Reports of comparisons (`heed race`, `heed scale`) among the runs on disk.


def reports_in(root: Path) -> dict[str, Path]:
    """Return every report below the folder of runs by its name there, the newest first; or the example."""
    files = sorted(root.glob("*/report.json"), key=lambda p: -p.stat().st_mtime) if root.is_dir() else []
    files = files or list(EXAMPLE_REPORTS.glob("*/report.json"))
    return {path.parent.name: path for path in files}


@router.get("/api/reports")
def list_reports(studio: Here) -> Response:
    """The names of the reports."""
    return Json({"reports": list(reports_in(studio.runs)), "folder": str(studio.runs)})


@router.get("/api/reports/{id}")
def one_report(id: str, studio: Here) -> Response:
    """One report: its sentences, and each section's figure as the page draws it."""
    problem = f"no report {id[:80]!r} in {studio.runs}"
    file = find_named(reports_in(studio.runs), id, problem, RunNotFound)
    report: dict[str, Any] = read_json(file)
    if not isinstance(report.get("title"), str) or not isinstance(report.get("sections"), list):
        raise CorruptFile(f"{file} is not a report", hint="run the comparison again")
    example = EXAMPLE_REPORTS in file.parents
    path = None if example else str(file.parent / "report.html")
    return Json(report | {"id": id, "path": path, "example": example})
