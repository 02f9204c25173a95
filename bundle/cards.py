"""The card of a bundled model: data, licence, command, seed, score."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import yaml

from heedful.classroom.experiments.ledger import hardware

PACKAGE = Path(__file__).parents[1] / "src" / "heedful" / "bundled"


@dataclass(frozen=True)
class Card:
    """What is said of a model before it is trained."""

    what: str  # it tells, in one line
    pipeline: str  # the task's name
    data: str
    licence: str  # of the data
    measure: str  # the score's data and name
    bundled: bool = True  # whether the data's licence lets the model be passed on
    learnt: str = "LoRA and head"  # of a model that stands on another
    begun: str = ""  # the command by which the weights were trained that this one went on from


def hash_of(path: Path) -> str:
    """The first 16 digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def lasted(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def write_card(
    folder: Path, name: str, card: Card, scores: dict[str, float], best: str, command: str, seed: int,
    hashes: dict[str, str], base: str | None, seconds: float,
) -> None:  # fmt: skip
    """README.md in the model's folder, with the head that `heed ls` reads."""
    head = {
        "name": name, "what": card.what, "pipeline_tag": card.pipeline, "library_name": "heedful",
        "license": "apache-2.0", "datasets": card.data, "data_license": card.licence,
        "metric": card.measure, "score": round(float(scores[best]), 4),
    }  # fmt: skip
    head |= {"base_model": base} if base else {}
    lines = ["---", yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=1000).strip(), "---", ""]
    lines += [f"# {name}", "", f"Tells {card.what}.", ""]
    lines += [
        f"- base: {base}, {card.learnt} trained by us" if base else "- trained by us from random weights"
    ]
    lines += [f"- data: {card.data}; licence of the data: {card.licence}"]
    files = ", ".join(f"{Path(f).parent.name}/{Path(f).name} {h}" for f, h in hashes.items())
    lines += [f"- files (SHA-256): {files}"]
    lines += (
        [f"- begun by: {card.begun}; went on from what that wrote, by the command below"]
        if card.begun
        else []
    )
    lines += [f"- command: `{command}`, seed {seed}, {lasted(seconds)} on {hardware()}"]
    lines += [f"- {card.measure}: **{scores[best]:.4f}**"]
    lines += [f"- all scores: {', '.join(f'{k} {v:.4f}' for k, v in scores.items())}", ""]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
