"""The progress of a student, in one small JSON file: which exercises are right, tries, hints taken.

    {"exercises": {"attention": {"done": "2026-01-31", "tries": 3, "hints": 1, "verdict": "right"}}}

The file lies in the user's state folder: $HEED_STATE, else $XDG_STATE_HOME/heedful, else
~/.local/state/heedful. It is written whole or not at all. A damaged one is put aside and a new one begun.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from heedful.core.errors import CorruptFile
from heedful.core.files import read_json, write_text

FILE = "exercises.json"
WRITING = threading.Lock()  # one thread of a server at a time reads, changes and writes


@dataclass(frozen=True)
class ExerciseProgress:
    """The progress of one exercise; `done` is the day it was right for the first time."""

    done: str | None = None
    tries: int = 0
    hints: int = 0
    verdict: str | None = None  # of the last try


def state_folder() -> Path:
    """Return the folder in which a user's state is kept; it may not exist yet."""
    if folder := os.environ.get("HEED_STATE"):
        return Path(folder)
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "heedful"
    states = os.environ.get("XDG_STATE_HOME")
    return (Path(states) if states else Path.home() / ".local" / "state") / "heedful"


def read_progress(names: Sequence[str]) -> dict[str, ExerciseProgress]:
    """Return how far each of these exercises is."""
    table = _read_table().get("exercises")
    return {name: _entry(table.get(name) if isinstance(table, dict) else None) for name in names}


def record_verdicts(verdicts: Mapping[str, str]) -> None:
    """Count a try of each exercise; one that is right is done, and stays so."""
    today = time.strftime("%Y-%m-%d")
    with WRITING:
        before = read_progress(list(verdicts))
        after = {
            name: replace(
                before[name],
                tries=before[name].tries + 1,
                verdict=verdict,
                done=before[name].done or (today if verdict == "right" else None),
            )
            for name, verdict in verdicts.items()
        }
        _write_entries(after)


def record_hint(name: str, levels: int) -> int:
    """Take the next hint of an exercise and return its level, 1 to `levels`; the last can be taken again."""
    with WRITING:
        before = read_progress([name])[name]
        level = min(before.hints + 1, levels)
        _write_entries({name: replace(before, hints=level)})
    return level


def next_exercise(progress: Mapping[str, ExerciseProgress]) -> str | None:
    """Return the first exercise that is not done; None after the last."""
    return next((name for name, entry in progress.items() if entry.done is None), None)


def describe_states(progress: Mapping[str, ExerciseProgress]) -> dict[str, str]:
    """Return done, next, tried or open for each exercise."""
    following = next_exercise(progress)
    states = {}
    for name, entry in progress.items():
        other = "tried" if entry.tries else "open"
        states[name] = "done" if entry.done else "next" if name == following else other
    return states


def _entry(value: Any) -> ExerciseProgress:
    """Return an entry of the file; what does not belong there counts as nothing."""
    value = value if isinstance(value, dict) else {}
    word = lambda name: value[name] if isinstance(value.get(name), str) else None
    number = lambda name: value[name] if isinstance(value.get(name), int) and value[name] >= 0 else 0
    return ExerciseProgress(word("done"), number("tries"), number("hints"), word("verdict"))


def _read_table() -> dict[str, Any]:
    path = state_folder() / FILE
    try:
        table: dict[str, Any] = read_json(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except CorruptFile:
        path.replace(path.with_suffix(".damaged"))
        return {}
    return table


def _write_entries(entries: Mapping[str, ExerciseProgress]) -> None:
    """Change some entries; all others stay as they are, also those that this version does not know."""
    table = _read_table()
    before = table.get("exercises")
    before = before if isinstance(before, dict) else {}
    table["exercises"] = before | {name: asdict(entry) for name, entry in entries.items()}
    write_text(state_folder() / FILE, json.dumps(table, indent=1) + "\n")


def count_done(entries: Iterable[ExerciseProgress]) -> int:
    """Return how many exercises are done."""
    return sum(entry.done is not None for entry in entries)
