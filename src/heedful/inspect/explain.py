"""heedful.explain: the arithmetic of a model on a text, of a file of vectors, or of a shipped exercise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import InputError, NotFound, nearest
from heedful.inspect import topics
from heedful.inspect.from_model import explain_model
from heedful.inspect.inputs import Input, Text, position_of
from heedful.inspect.worked import Derivation, Sheet
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
        known = sentences()
        text = known[text]["text"] if isinstance(text, str) and text in known else text
        return explain_model(subject, text, target, **options)
    if text is not None or target is not None or options:
        raise InputError("a file or an exercise says itself what to work out", hint="leave out the rest")
    return explain_values(subject if isinstance(subject, Mapping) else read_exercise(subject))


def examples() -> dict[str, str]:
    """The exercises that are shipped, and what each is about."""
    folder = files("heedful.inspect") / "examples"
    found = (f.name for f in folder.iterdir() if f.name.endswith(".yaml"))
    names = sorted(name for name in found if name != "sentences.yaml")
    return {name.removesuffix(".yaml"): str(_parse_yaml(folder / name, name)["about"]) for name in names}


def sentences() -> dict[str, dict[str, str]]:
    """Sentences worth reading with a model, by name: the text, and what to look for."""
    return _parse_yaml(files("heedful.inspect") / "examples" / "sentences.yaml", "sentences.yaml")


def read_exercise(name: str | Path) -> dict[str, Any]:
    """An exercise by its name, or a YAML or JSON file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        if not path.is_file():
            raise NotFound(f"there is no file {path}")
        return _parse_yaml(path, str(path))
    known = examples()
    if str(name) not in known:
        close = nearest(str(name), known) or f"there are {', '.join(known)}"
        raise NotFound(f"no exercise {str(name)!r}", hint=close)
    return _parse_yaml(files("heedful.inspect") / "examples" / f"{name}.yaml", str(name))


def _parse_yaml(path: Any, name: str) -> dict[str, Any]:
    import yaml

    class Plain(yaml.SafeLoader):
        """Words stay words: YAML 1.1 would read “on”, “no” and “yes” as true and false."""

    words = lambda rules: [rule for rule in rules if not rule[0].endswith(":bool")]
    Plain.yaml_implicit_resolvers = {c: words(r) for c, r in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    Plain.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if name.endswith(".json") else yaml.load(text, Plain)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise InputError(f"{name} must hold names and values, such as topic: attention")
    return found


def explain_values(values: Mapping[str, Any]) -> Derivation:
    """What a file or a mapping asks for; `parts` is a list of several."""
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


def check_numbers(values: Mapping[str, Any], key: str, depth: int) -> np.ndarray:
    """A number (0), vector (1) or matrix (2) of finite numbers."""
    try:
        value = np.asarray(values[key], dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{key} is not made of numbers in rows of one length") from None
    kind = ("a number", "a vector", "a matrix")[depth]
    if value.ndim != depth or not value.size or not np.isfinite(value).all():
        raise InputError(f"{key} must be {kind} of finite numbers, got shape {value.shape}")
    return value


def maybe(values: Mapping[str, Any], key: str, depth: int) -> np.ndarray | None:
    return check_numbers(values, key, depth) if values.get(key) is not None else None


def _project(values: Mapping[str, Any], letter: str) -> np.ndarray | None:
    """Q, K or V as given, or x W by its matrix."""
    if letter in values:
        return check_numbers(values, letter, 2)
    if "X" in values and f"W_{letter}" in values:
        return check_numbers(values, "X", 2) @ check_numbers(values, f"W_{letter}", 2)
    if letter == "V":
        return None
    raise InputError(f"attention needs {letter}, or X and W_{letter}")


def _attention(values: Mapping[str, Any]) -> Derivation:
    Q, K, V = (_project(values, letter) for letter in "QKV")
    assert Q is not None
    assert K is not None
    names = [str(t) for t in values.get("tokens", range(len(Q)))]
    keys = [str(t) for t in values.get("keys", names)]
    if len(names) != len(Q) or len(keys) != len(K) or (V is not None and len(V) != len(K)):
        sizes = f"{len(names)} tokens, {len(Q)} queries, {len(K)} keys"
        raise InputError(f"{sizes}: each query needs a name, each key a name and a value")
    asked = values.get("query", names)
    asked = [asked] if isinstance(asked, str | int) else asked
    scale = float(values["scale"]) if values.get("scale") is not None else None
    mask, sheet = values.get("mask"), Sheet()
    if mask not in (None, "causal"):
        raise InputError(f"mask={mask!r} is unknown", hint="write causal, or leave it out")
    for word in asked:
        at = position_of(names, word)
        keep = np.arange(len(K)) <= at if mask == "causal" else None
        row = topics.attention_row(Q[at], K, V, query=names[at], keys=keys, scale=scale, keep=keep)
        sheet.section(row)
    return sheet.finish("attention")


def _positions(values: Mapping[str, Any]) -> Derivation:
    add = maybe(values, "add", 1)
    return topics.sinusoid(
        [int(t) for t in values["positions"]], int(values["dim"]), base=float(values.get("base", 10000.0)),
        add=add, tokens=[str(t) for t in values.get("tokens", ())],
    )  # fmt: skip


def _norm(values: Mapping[str, Any]) -> Derivation:
    return topics.add_norm(
        check_numbers(values, "x", 1), maybe(values, "add", 1), gamma=maybe(values, "gamma", 1),
        beta=maybe(values, "beta", 1), eps=float(values.get("eps", 0.0)), rms=bool(values.get("rms", False)),
    )  # fmt: skip


def _softmax(values: Mapping[str, Any]) -> Derivation:
    return topics.softmax(
        check_numbers(values, "logits", 1), temperature=float(values.get("temperature", 1.0)),
        tokens=[str(t) for t in values.get("tokens", ())],
    )  # fmt: skip


def _rnn(values: Mapping[str, Any]) -> Derivation:
    text, letters = str(values["text"]), [str(letter) for letter in values["letters"]]
    W, U, V = (check_numbers(values, key, 2) for key in ("W", "U", "V"))
    if len(text) < 2 or (unknown := [letter for letter in text if letter not in letters]):
        said = f"{unknown[0]!r} is none of {', '.join(letters)}" if len(text) > 1 else "nothing follows"
        raise InputError(f"text={text!r}: {said}", hint="give two letters or more, all of them in `letters`")
    if W.shape != (len(U), len(letters)) or U.shape != (len(U), len(U)) or V.shape != W.shape[::-1]:
        H, C = len(U), len(letters)
        raise InputError(f"W must be {H} × {C}, U {H} × {H} and V {C} × {H}: a state of {H}, {C} letters")
    return topics.rnn_steps(text, letters, W, U, V)


def _lstm(values: Mapping[str, Any]) -> Derivation:
    x, h, c = (check_numbers(values, key, 1) for key in ("x", "h", "c"))
    W, U = check_numbers(values, "W", 2), check_numbers(values, "U", 2)
    if W.shape != (4 * len(h), len(x)) or U.shape != (4 * len(h), len(h)):
        sizes = f"W must be {4 * len(h)} × {len(x)} and U {4 * len(h)} × {len(h)}"
        raise InputError(f"{sizes}: the rows of i, f, g, o in turn")
    return topics.lstm_step(x, h, c, W, U, maybe(values, "b", 1))


def _alignment(values: Mapping[str, Any]) -> Derivation:
    keys = [str(t) for t in values.get("tokens", ())]
    s, v = check_numbers(values, "s", 1), check_numbers(values, "v", 1)
    memory, W, U = (check_numbers(values, key, 2) for key in ("memory", "W", "U"))
    return topics.additive_step(s, memory, W, U, v, keys=keys)


def _word2vec(values: Mapping[str, Any]) -> Derivation:
    outside: list[tuple[str, int, np.ndarray]] = []
    for label, key in ((1, "observed"), (0, "drawn")):
        outside += [(str(word), label, check_numbers(values[key], word, 1)) for word in values[key]]
    rate, centre = float(values.get("rate", 0.5)), str(values.get("centre", "centre"))
    return topics.sgns(check_numbers(values, "vector", 1), outside, rate=rate, centre=centre)


Topic = tuple[
    Callable[[Mapping[str, Any]], Derivation], Sequence[str], Sequence[str]
]  # what it needs, may have
QKV = ("Q", "K", "V", "X", "W_Q", "W_K", "W_V")
TOPICS: dict[str, Topic] = {
    "attention": (_attention, (), (*QKV, "tokens", "keys", "query", "scale", "mask")),
    "positions": (_positions, ("positions", "dim"), ("base", "add", "tokens")),
    "norm": (_norm, ("x",), ("add", "gamma", "beta", "eps", "rms")),
    "softmax": (_softmax, ("logits",), ("tokens", "temperature")),
    "rnn": (_rnn, ("text", "letters", "W", "U", "V"), ()),
    "lstm": (_lstm, ("x", "h", "c", "W", "U"), ("b",)),
    "alignment": (_alignment, ("s", "memory", "W", "U", "v"), ("tokens",)),
    "word2vec": (_word2vec, ("vector", "observed", "drawn"), ("rate", "centre")),
}
