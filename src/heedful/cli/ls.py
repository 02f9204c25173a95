"""`heed ls`: all presets, and the trained models on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.cli.known_models import read_known
from heedful.cli.output import Json, as_json, console, format_size, print_listing

# Columns that a narrow terminal leaves out, the first ones first.
PRESET_DROPS = ("paper", "parameters")
TRAINED_DROPS = ("from", "data licence", "base", "score", "size")


def ls_command(json: Json = False) -> None:
    """List presets by family, and the trained models on this machine: bundled, installed, and in ./models.

    The task, base model, data licence and score of a trained model are read from its card, README.md.
    Names are never cut: a narrow terminal gets fewer columns, --json has them all.

    Examples:

      heed ls

      heed ls --json
    """
    presets, models = read_known()["presets"], find_trained_models()
    if json:
        return as_json({"presets": presets, "models": models})
    out = console()
    print_listing(
        out, _preset_cells(presets), right=("parameters", ""), min_widths={"paper": 20}, optional=PRESET_DROPS
    )
    out.print()
    print_listing(
        out, [_model_cells(row) for row in models], right=("size",), optional=TRAINED_DROPS,
        min_widths={"data licence": 14, "score": 20},
    )  # fmt: skip
    return None


def _preset_cells(presets: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the presets' cells by column; the first preset of a family names it and its paper."""
    rows, family = [], ""
    for row in presets:
        first, family, size = row["family"] != family, row["family"], row["parameters"]
        cells = {"family": family if first else "", "preset": row["name"], "parameters": f"{size:,}"}
        rows.append(cells | {"": format_size(size), "paper": row["paper"] if first else ""})
    return rows


def _model_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a trained model's cells by column."""
    names = {"trained model": "name", "for": "for", "size": "size", "base": "base",
             "data licence": "data_license", "score": "score", "from": "from"}  # fmt: skip
    values = {**row, "size": format_size(row["bytes"], "B")}
    return {column: str(values[name] or "–") for column, name in names.items()}


def find_trained_models() -> list[dict[str, Any]]:
    """Return the trained models on this machine: the path of each, and what its card says."""
    from heedful.weights.hub import bundled_models, installed_models

    root = Path("models")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    folders = [p for p in folders if (p / "config.json").is_file() or p.suffix == ".gguf"]
    found = [("heedful", name, path) for name, path in bundled_models().items()]
    found += [("package", name, path) for name, path in installed_models().items()]
    found += [("./models", path.name, path) for path in folders]
    # of the tasks that a model does, the first one that the table names
    default_tasks = {model: task for task, model in reversed(read_known()["models"].items())}
    return [
        {"name": name, "path": str(path), "from": source}
        | {"bytes": sum(p.stat().st_size for p in (path, *path.rglob("*")) if p.is_file())}
        | read_card(path, default_tasks.get(name) if source != "./models" else None)
        for source, name, path in found
    ]


def read_card(path: Path, default_task: str | None = None) -> dict[str, Any]:
    """Return what a model's card says in its YAML head; None where it says nothing."""
    head = _head(path / "README.md") if path.is_dir() else {}
    values = {name: head.get(name) for name in ("base_model", "license", "data_license")}
    joined = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in values.items()}
    return {
        "for": head.get("pipeline_tag") or default_task,
        "what": head.get("what"),
        "base": joined["base_model"],
        "license": joined["license"],
        "data_license": joined["data_license"],
        "score": _score(head),
    }


def _head(path: Path) -> Mapping[str, Any]:
    """Return the YAML between two lines of --- at the top of a card; {} if there is none or it is broken."""
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
    """Return the score of our cards, "SST-2 dev accuracy 91.2", or a model-index's first, "F1 91 (SST-2)"."""
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
