"""heedful.explain: the arithmetic of a model on a text, of a file of vectors, or of a shipped exercise."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from heedful.classroom.arithmetic.from_model import explain_model
from heedful.classroom.arithmetic.topic_values import TOPICS
from heedful.classroom.arithmetic.worked import Derivation, Sheet
from heedful.core.errors import InputError, NotFound, nearest
from heedful.interp.inputs import Input, Text
from heedful.models.base import Model

COMMON = ("topic", "title", "note", "about")


def explain(
    subject: Model | str | Path | Mapping[str, Any],
    text: Text | Input | None = None,
    target: Text | None = None,
    **options: Any,
) -> Derivation:
    """A worked calculation: every operand and every result.

    explain("cat-sat"): an exercise that is shipped; `heed explain --list` names them. explain("mine.yaml") or
    a mapping with the same keys: your own vectors and matrices. explain(model, "text", topic="block",
    token="cat"): a model's own arithmetic, checked against what it computed. Topics of a model: attention,
    block, positions, norm, lstm, alignment, softmax; `part`, `head` and `token` say where.
    """
    if isinstance(subject, Model):
        if text is None:
            raise InputError("explain(model, text) needs a text or ids")
        topics = sentences()
        text = topics[text]["text"] if isinstance(text, str) and text in topics else text
        return explain_model(subject, text, target, **options)
    if text is not None or target is not None or options:
        raise InputError("a file or an exercise says itself what to work out", hint="leave out the rest")
    return explain_values(subject if isinstance(subject, Mapping) else read_exercise(subject))


def examples() -> dict[str, str]:
    """The exercises that are shipped, and what each is about."""
    folder = files("heedful.classroom.arithmetic") / "examples"
    yaml_files = (f.name for f in folder.iterdir() if f.name.endswith(".yaml"))
    names = sorted(name for name in yaml_files if name != "sentences.yaml")
    return {name.removesuffix(".yaml"): str(_parse_yaml(folder / name, name)["about"]) for name in names}


@functools.cache
def sentences() -> dict[str, dict[str, str]]:
    """Sentences worth reading with a model, by name: the text, and what to look for."""
    return _parse_yaml(
        files("heedful.classroom.arithmetic") / "examples" / "sentences.yaml", "sentences.yaml"
    )


def read_exercise(name: str | Path) -> dict[str, Any]:
    """An exercise by its name, or a YAML or JSON file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        if not path.is_file():
            raise NotFound(f"there is no file {path}")
        return _parse_yaml(path, str(path))
    bundled = examples()
    if str(name) not in bundled:
        close = nearest(str(name), bundled) or f"there are {', '.join(bundled)}"
        raise NotFound(f"no exercise {str(name)!r}", hint=close)
    return _parse_yaml(files("heedful.classroom.arithmetic") / "examples" / f"{name}.yaml", str(name))


def _parse_yaml(path: Any, name: str) -> dict[str, Any]:
    import yaml

    from heedful.classroom.yaml_files import load_yaml

    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if name.endswith(".json") else load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{name} must hold names and values, such as topic: attention")
    return values


def explain_values(values: Mapping[str, Any]) -> Derivation:
    """Work out what a file or a mapping asks for; `parts` is a list of several."""
    if "parts" in values:
        sheet = Sheet()
        for part in values["parts"]:
            sheet.section(explain_values(part))
        return sheet.finish(str(values.get("title", "")), _note(values))
    topic = str(values.get("topic"))
    if topic not in TOPICS:
        raise InputError(f"topic={topic!r} is unknown", hint=f"choose {', '.join(TOPICS)}")
    make, needed, allowed = TOPICS[topic]
    for key in values:
        if key not in (*needed, *allowed, *COMMON):
            close = nearest(key, (*needed, *allowed)) or f"it takes {', '.join((*needed, *allowed))}"
            raise InputError(f"a {topic} has no {key!r}", hint=close)
    missing = [key for key in needed if key not in values]
    if missing:
        raise InputError(f"a {topic} needs {missing[0]!r} as well")
    try:
        worked = make(values)
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the sizes or values of this {topic} do not fit: {error}") from None
    title = str(values.get("title", worked.title))
    return replace(worked, title=title, note=_note(values) or worked.note)


def _note(values: Mapping[str, Any]) -> str:
    return " ".join(str(values.get("note", "")).split())
