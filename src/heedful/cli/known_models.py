"""Every preset and the model of every task, written down: `heed ls` and help need not import torch.

`python -m heedful.cli.known_models` writes the list anew; a test says when that is due.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


def read_known() -> dict[str, Any]:
    """Return {"presets": [{"name", "family", "parameters", "paper"}], "models": {task: model}}.

    The model of a task is the one that is taken if none is named.
    """
    known: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return known


def count_known() -> dict[str, Any]:
    """Return the same, counted from the registry of models and the table of tasks."""
    from heedful.models import FAMILIES, IMAGE_FAMILIES
    from heedful.models.counting import parameters
    from heedful.tasks.pipeline import task_names

    presets = [
        {"name": name, "family": family.name, "parameters": parameters(family, config), "paper": family.paper}
        for family in (*FAMILIES.values(), *IMAGE_FAMILIES.values())
        for name, config in family.presets.items()
    ]
    return {"presets": presets, "models": dict(task_names())}


if __name__ == "__main__":
    FILE.write_text(json.dumps(count_known(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
