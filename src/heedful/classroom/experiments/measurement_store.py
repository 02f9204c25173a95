"""Measurements on disk: each is taken once, so that a comparison that was stopped goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heedful.core.files import make_folder, write_text
from heedful.interp.results import to_plain


class MeasurementStore:
    """A folder with one JSON file for each measurement: its settings and what came out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def take(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """Return the value of a measurement: the one on disk if its settings are the same, else a new one."""
        path, plain = self.folder / f"{name}.json", json.loads(json.dumps(to_plain(settings)))
        found = self._load(path)
        if found is None or found["settings"] != plain:
            found = {"settings": plain, "value": to_plain(measure())}
            write_text(path, json.dumps(found, indent=1) + "\n")
            found = json.loads(json.dumps(found))  # a new value has the types of one that was read
        return found["value"]

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # half a file of a process that was killed is measured again
        return found if isinstance(found, dict) and {"settings", "value"} <= found.keys() else None

    def values(self, prefix: str) -> dict[str, Any]:
        """Return all measurements whose name is `prefix-…`, by the rest of their names."""
        found = {
            p.stem.removeprefix(f"{prefix}-"): self._load(p) for p in self.folder.glob(f"{prefix}-*.json")
        }
        return {name: one["value"] for name, one in sorted(found.items()) if one is not None}
