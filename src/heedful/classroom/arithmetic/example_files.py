"""The worked examples as files: their order, what each is about, sentences worth reading with a model.

Nothing here needs torch, so that lists are printed at once.
"""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from heedful.classroom.text_files import describe_yaml_error, load_yaml
from heedful.core.errors import InputError, NotFound, nearest

FOLDER = files("heedful.classroom.arithmetic") / "examples"
LEARNING_ORDER = (  # of the examples: as the course goes
    "motel", "embedding", "likelihood", "wampimuk", "hello", "hello-lstm", "rnn-gradient", "lstm-gradient",
    "counselor", "alignment", "additive-dot", "queries-keys", "cat-sat", "dragons", "apple", "two-heads",
    "order", "positions", "encoding-properties", "add-norm", "block-cost", "temperature", "softmax-gradient",
    "cross-entropy-gradient", "norm-gradient", "attention-gradient", "distilbert", "gpt3-weights",
)  # fmt: skip


@functools.cache
def examples() -> dict[str, str]:
    """Return the shipped examples in learning order, and what each is about."""
    return {name: str(_parse_yaml(FOLDER / f"{name}.yaml", name)["about"]) for name in LEARNING_ORDER}


@functools.cache
def sentences() -> dict[str, dict[str, str]]:
    """Sentences worth reading with a model, by name: the text, and what to look for."""
    return _parse_yaml(FOLDER / "sentences.yaml", "sentences.yaml")


def read_exercise(name: str | Path) -> dict[str, Any]:
    """An exercise by its name, or a YAML or JSON file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        if not path.is_file():
            raise NotFound(f"file not found: {path}")
        return _parse_yaml(path, str(path))
    bundled = examples()
    if str(name) not in bundled:
        close = nearest(str(name), bundled) or f"there are {', '.join(bundled)}"
        raise NotFound(f"no exercise {str(name)!r}", hint=close)
    return _parse_yaml(FOLDER / f"{name}.yaml", str(name))


def _parse_yaml(path: Any, name: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if name.endswith(".json") else load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {describe_yaml_error(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{name} must hold names and values, such as topic: attention")
    return values
