"""Every preset and the task of every model at hand, written down: `heed ls` need not import torch.

`python -m heedful.commands.known_models` writes the list anew; a test says when that is due.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


def read_known() -> dict[str, Any]:
    """Return {"presets": [{"name", "family", "parameters", "paper"}], "tasks": {model: task}}."""
    known: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return known


def count_known() -> dict[str, Any]:
    """Return the same, counted from the registry of models and the table of tasks."""
    from heedful.models import FAMILIES
    from heedful.models.counting import parameters
    from heedful.tasks.pipeline import task_names

    presets = [
        {"name": name, "family": family.name, "parameters": parameters(family, config), "paper": family.paper}
        for family in FAMILIES.values()
        for name, config in family.presets.items()
    ]
    tasks: dict[str, str] = {}
    for task, model in task_names().items():
        tasks.setdefault(model, task)  # a task's own name comes before its other ones
    return {"presets": presets, "tasks": tasks}


if __name__ == "__main__":
    FILE.write_text(json.dumps(count_known(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
