"""`heed ls`: every known model, and those on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.commands.known_models import read_known
from heedful.commands.output import Json, as_json, console, print_listing, short

# What a narrow terminal is spared, the first ones first; --json has it all.
PRESET_DROPS = ("paper", "parameters")
TRAINED_DROPS = ("from", "data licence", "base", "score", "size")


def ls(json: Json = False) -> None:
    """Presets by family with their parameters; trained models at hand: ours, installed, and in ./models.

    What a trained model is for, the model it stands on, the licence of its data and its score are read from
    its card, README.md. Names are never cut: a narrow terminal gets fewer columns, --json has them all.

    Examples:

      heed ls

      heed ls --json
    """
    presets, here = read_known()["presets"], trained()
    if json:
        return as_json({"presets": presets, "models": here})
    out = console()
    print_listing(
        out, preset_rows(presets), right=("parameters", ""), folded={"paper": 20}, optional=PRESET_DROPS
    )
    out.print()
    print_listing(
        out, [trained_row(row) for row in here], right=("size",), folded={"data licence": 14, "score": 20},
        optional=TRAINED_DROPS,
    )  # fmt: skip
    return None


def preset_rows(presets: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The presets as cells; of a family's several the first names it and its paper."""
    rows, family = [], ""
    for row in presets:
        first, family, size = row["family"] != family, row["family"], row["parameters"]
        told = {"family": family if first else "", "preset": row["name"], "parameters": f"{size:,}"}
        rows.append(told | {"": short(size), "paper": row["paper"] if first else ""})
    return rows


def trained_row(row: Mapping[str, Any]) -> dict[str, str]:
    """A trained model as cells."""
    names = {"trained model": "name", "for": "for", "size": "size", "base": "base",
             "data licence": "data_license", "score": "score", "from": "from"}  # fmt: skip
    told = {**row, "size": short(row["bytes"], "B")}
    return {column: str(told[name] or "–") for column, name in names.items()}


def trained() -> list[dict[str, Any]]:
    """The trained models at hand: where each lies, and what its card says."""
    from heedful.weights.bases import bundled, installed

    root = Path("models")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    folders = [p for p in folders if (p / "config.json").is_file() or p.suffix == ".gguf"]
    found = [("heedful", name, path) for name, path in bundled().items()]
    found += [("package", name, path) for name, path in installed().items()]
    found += [("./models", path.name, path) for path in folders]
    usual = read_known()["tasks"]
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
