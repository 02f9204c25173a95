"""`heed ls`: every known model, and those on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.commands.output import Json, as_json, console, short, table


def ls(json: Json = False) -> None:
    """Presets by family with their parameters; trained models at hand: ours, installed, and in ./models.

    What a trained model is for, the model it stands on, the licence of its data and its score are read from
    its card, README.md.

    Examples:

      heed ls

      heed ls --json
    """
    known, here = _presets(), trained()
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
    from rich.text import Text

    listed = table("trained model", "for", "size", "base", "data licence", "score", "from", right=("size",))
    for row in here:
        told = row | {"size": short(row["bytes"], "B")}
        said = (told[name] for name in ("for", "size", "base", "data_license", "score", "from"))
        listed.add_row(Text(row["name"]), *(Text(str(value or "–")) for value in said))
    out.print(listed)
    return None


def _presets() -> list[dict[str, Any]]:
    from heedful.models import FAMILIES
    from heedful.models.counting import parameters

    return [
        {"name": name, "family": family.name, "parameters": parameters(family, config), "paper": family.paper}
        for family in FAMILIES.values()
        for name, config in family.presets.items()
    ]


def trained() -> list[dict[str, Any]]:
    """The trained models at hand: where each lies, and what its card says."""
    from heedful.tasks.pipeline import names
    from heedful.weights.bases import bundled, installed

    root = Path("models")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    folders = [p for p in folders if (p / "config.json").is_file() or p.suffix == ".gguf"]
    found = [("heedful", name, path) for name, path in bundled().items()]
    found += [("package", name, path) for name, path in installed().items()]
    found += [("./models", path.name, path) for path in folders]
    usual: dict[str, str] = {}
    for task, model in names().items():
        usual.setdefault(model, task)  # a task's own name comes before its other ones
    return [
        {"name": name, "path": str(path), "from": source, "bytes": size(path)}
        | card(path, usual.get(name) if source != "./models" else None)
        for source, name, path in found
    ]


def size(path: Path) -> int:
    """Bytes on disk of a model: its file, or all files of its folder."""
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def card(path: Path, usual: str | None = None) -> dict[str, Any]:
    """What a model's card says in its YAML head; None where it is silent."""
    head = _head(path / "README.md") if path.is_dir() else {}
    said = {name: head.get(name) for name in ("base_model", "license", "data_license")}
    joined = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in said.items()}
    return {
        "for": head.get("pipeline_tag") or usual,
        "what": head.get("what"),
        "base": joined["base_model"],
        "license": joined["license"],
        "data_license": joined["data_license"],
        "score": _score(head),
    }


def _head(path: Path) -> Mapping[str, Any]:
    """The YAML between two lines of --- at the top of a card; nothing for a card without, or a broken one."""
    import yaml

    text = path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else ""
    parts = text.split("\n---", 1)
    if not text.startswith("---\n") or len(parts) < 2:
        return {}
    try:
        found = yaml.safe_load(parts[0].removeprefix("---\n"))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _score(head: Mapping[str, Any]) -> str | None:
    """The score of our cards, "SST-2 dev accuracy 91.2"; else the first of a model-index, "F1 91 (SST-2)"."""
    if "score" in head:
        return " ".join([*str(head.get("metric") or "").split(), _short(head["score"])])
    try:
        result = head["model-index"][0]["results"][0]
        metric, data = result["metrics"][0], result.get("dataset") or {}
        where = f" ({data['name']})" if data.get("name") else ""
        return f"{metric.get('name') or metric['type']} {_short(metric['value'])}{where}"
    except (TypeError, KeyError, IndexError, AttributeError):
        return None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
