"""`heed ls`: every known model, and those on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.commands.output import Json, as_json, console, short, table


def ls(json: Json = False) -> None:
    """Presets by family with their parameters; installed trained models; model folders in ./models.

    Examples:

      heed ls

      heed ls --json
    """
    from heedful.weights.bases import installed

    known = _presets()
    here = [*({"name": n, "path": str(p), "from": "package"} for n, p in installed().items()), *_folders()]
    if json:
        return as_json({"presets": known, "models": here})
    out = console()
    rows = table("family", "preset", "parameters", "", "paper", right=("parameters", ""))
    family = ""
    for row in known:
        first = row["family"] != family
        family = row["family"]
        size = row["parameters"]
        paper = row["paper"] if first else ""
        rows.add_row(family if first else "", row["name"], f"{size:,}", short(size), paper)
    out.print(rows)
    out.print()
    if here:
        trained = table("trained model", "from", "path")
        for row in here:
            trained.add_row(row["name"], row["from"], row["path"])
        out.print(trained)
    else:
        out.print("No trained models here: put folders into ./models, or pip install 'heedful[bases]'")


def _presets() -> list[dict[str, Any]]:
    from heedful.models import FAMILIES
    from heedful.models.counting import parameters

    return [
        {"name": name, "family": family.name, "parameters": parameters(family, config), "paper": family.paper}
        for family in FAMILIES.values()
        for name, config in family.presets.items()
    ]


def _folders() -> list[dict[str, str]]:
    root = Path("models")
    if not root.is_dir():
        return []
    found = [p for p in sorted(root.iterdir()) if (p / "config.json").is_file() or p.suffix == ".gguf"]
    return [{"name": p.name, "path": str(p), "from": "./models"} for p in found]
