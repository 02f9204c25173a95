"""Folders of training runs, read while they are being written."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from heedful.core.errors import NotFound, nearest
from heedful.train.checkpoint import list_checkpoints

STEP = "train/global_step"
EXAMPLE_COMMAND = "heed train shakespeare-char-cpu input.txt --steps 500 --set evaluate.every=50"
EXAMPLES = Path(__file__).parent / "example_run"  # the log of one finished run, without its weights
FRESH = 60.0  # seconds after which a run that writes nothing counts as over


class RunNotFound(NotFound):
    """A run that is not there."""


def runs_in(root: Path) -> dict[str, Path]:
    """Every run below a folder, by its name there; the example that comes along where there is none."""
    return _folders(root) or _folders(EXAMPLES)


def _folders(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        return {}
    found = sorted(p.parent for p in root.glob("**/metrics.jsonl") if len(p.relative_to(root).parts) <= 3)
    return {("-".join(p.relative_to(root).parts) or root.resolve().name): p for p in found}


def run_at(root: Path, id: str) -> Path:
    known = runs_in(root)
    if id not in known:
        close = nearest(id, known) or f"there are {', '.join(list(known)[:8]) or 'none'}"
        raise RunNotFound(f"no run {id[:80]!r} in {root}", hint=close)
    return known[id]


def lines_of(file: Path, start: int = 0) -> tuple[list[tuple[int, dict[str, Any]]], int, int]:
    """The lines from a byte on, each with where the next begins; how many were damaged; where the last ended.

    What has no end yet is half a line, and is left for later.
    """
    if not file.is_file():
        return [], 0, start
    with file.open("rb") as source:
        source.seek(start)
        data = source.read()
    found, skipped, at = [], 0, start
    for raw in data.split(b"\n")[:-1]:
        at += len(raw) + 1
        try:
            line = json.loads(raw)
        except ValueError:
            skipped += bool(raw.strip())
            continue
        if isinstance(line, dict):
            found.append((at, line))
        else:
            skipped += 1
    return found, skipped, at


def run_curves(lines: list[tuple[int, dict[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Each metric over steps, and over tokens and seconds where these were logged."""
    out: dict[str, dict[str, list[Any]]] = {}
    for _, line in lines:
        step = line.get(STEP)
        if not isinstance(step, int | float):
            continue
        tokens, seconds = line.get("train/tokens"), line.get("train/seconds", line.get("train/runtime"))
        for name, value in line.items():
            if name == STEP or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            curve = out.setdefault(name, {"step": [], "value": [], "tokens": [], "seconds": []})
            for key, one in (("step", step), ("value", value), ("tokens", tokens), ("seconds", seconds)):
                curve[key].append(one)
    for curve in out.values():
        for key in ("tokens", "seconds"):
            if all(v is None for v in curve[key]):
                curve[key] = None  # type: ignore[assignment]
    return out


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
    lines, _, _ = lines_of(folder / "metrics.jsonl")
    last: dict[str, Any] = {}
    for _, line in lines:
        last |= {k: v for k, v in line.items() if isinstance(v, int | float)}
    return {
        "id": id, "path": str(folder), "steps": int(last.get(STEP, 0)), "live": is_live(folder), "last": last,
        "example": is_example(folder), "updated": (folder / "metrics.jsonl").stat().st_mtime,
    }  # fmt: skip


def run_details(id: str, folder: Path) -> dict[str, Any]:
    """Everything a run wrote so far."""
    lines, skipped, end = lines_of(folder / "metrics.jsonl")
    samples, _, _ = lines_of(folder / "samples.jsonl")
    config = folder / "config.yaml"
    said = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None
    return {
        "id": id, "path": str(folder), "metrics": run_curves(lines), "skipped": skipped, "end": end,
        "samples": [{"step": line.get(STEP), "text": str(line.get("text", ""))} for _, line in samples],
        "checkpoints": checkpoints(id, folder), "config": said, "live": is_live(folder),
        "example": is_example(folder),
        "command": None if said is None else EXAMPLE_COMMAND if is_example(folder)
        else f"heed train {config} --resume --folder {folder}",
        "python": f"import heedful\n\nheedful.view.training({str(folder)!r}).save('training.html')",
    }  # fmt: skip


def follow(id: str, folder: Path, start: int, reported_steps: set[int]) -> tuple[list[str], int]:
    """New events since a byte: lines, a file that became shorter, new checkpoints."""
    file, out = folder / "metrics.jsonl", []
    if file.is_file() and file.stat().st_size < start:
        start = 0
        out.append("event: reset\nid: 0\ndata: {}\n\n")
    lines, _, end = lines_of(file, start)
    for at, line in lines:
        data = json.dumps(
            {k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in line.items()}
        )
        out.append(f"event: metrics\nid: {at}\ndata: {data}\n\n")
    for one in checkpoints(id, folder):
        if one["step"] not in reported_steps:
            reported_steps.add(one["step"])
            out.append(f"event: checkpoint\ndata: {json.dumps(one)}\n\n")
    return out, end
