"""heedful.explain: the arithmetic of a model on a text, of a file of vectors, or of a shipped exercise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import InputError, NotFound, nearest
from heedful.inspect import topics
from heedful.inspect.from_model import explain_model
from heedful.inspect.inputs import Input, Text, position_of
from heedful.inspect.worked import Sheet, Worked
from heedful.models.base import Model

COMMON = ("topic", "title", "note", "about")


def explain(
    subject: Model | str | Path | Mapping[str, Any],
    text: Text | Input | None = None,
    target: Text | None = None,
    **options: Any,
) -> Worked:
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
        raise InputError("a file or an exercise says itself what to work out; leave out the rest")
    return explain_values(subject if isinstance(subject, Mapping) else read(subject))


def examples() -> dict[str, str]:
    """The exercises that are shipped, and what each is about."""
    folder = files("heedful.inspect") / "examples"
    found = (f.name for f in folder.iterdir() if f.name.endswith(".yaml"))
    names = sorted(name for name in found if name != "sentences.yaml")
    return {name.removesuffix(".yaml"): str(_parsed(folder / name, name)["about"]) for name in names}


def sentences() -> dict[str, dict[str, str]]:
    """Sentences worth reading with a model, by name: the text, and what to look for."""
    return _parsed(files("heedful.inspect") / "examples" / "sentences.yaml", "sentences.yaml")


def read(name: str | Path) -> dict[str, Any]:
    """An exercise by its name, or a YAML or JSON file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        if not path.is_file():
            raise NotFound(f"there is no file {path}")
        return _parsed(path, str(path))
    known = examples()
    if str(name) not in known:
        close = nearest(str(name), known) or f"there are {', '.join(known)}"
        raise NotFound(f"no exercise {str(name)!r}; {close}")
    return _parsed(files("heedful.inspect") / "examples" / f"{name}.yaml", str(name))


def _parsed(path: Any, name: str) -> dict[str, Any]:
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


def explain_values(given: Mapping[str, Any]) -> Worked:
    """What a file or a mapping asks for; `parts` is a list of several."""
    if "parts" in given:
        sheet = Sheet()
        for part in given["parts"]:
            sheet.section(explain_values(part))
        return sheet.done(str(given.get("title", "")), _note(given))
    topic = str(given.get("topic"))
    if topic not in TOPICS:
        raise InputError(f"topic={topic!r} is unknown; choose {', '.join(TOPICS)}")
    make, needed, allowed = TOPICS[topic]
    for key in given:
        if key not in (*needed, *allowed, *COMMON):
            close = nearest(key, (*needed, *allowed)) or f"it takes {', '.join((*needed, *allowed))}"
            raise InputError(f"a {topic} has no {key!r}; {close}")
    missing = [key for key in needed if key not in given]
    if missing:
        raise InputError(f"a {topic} needs {missing[0]!r} as well")
    try:
        worked = make(given)
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the sizes or values of this {topic} do not fit: {error}") from None
    title = str(given.get("title", worked.title))
    return Worked(title, worked.lines, _note(given) or worked.note, worked.check)


def _note(given: Mapping[str, Any]) -> str:
    return " ".join(str(given.get("note", "")).split())


def numbers(given: Mapping[str, Any], key: str, depth: int) -> np.ndarray:
    """A number (0), vector (1) or matrix (2) of finite numbers."""
    try:
        value = np.asarray(given[key], dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{key} is not made of numbers in rows of one length") from None
    kind = ("a number", "a vector", "a matrix")[depth]
    if value.ndim != depth or not value.size or not np.isfinite(value).all():
        raise InputError(f"{key} must be {kind} of finite numbers; got shape {value.shape}")
    return value


def maybe(given: Mapping[str, Any], key: str, depth: int) -> np.ndarray | None:
    return numbers(given, key, depth) if given.get(key) is not None else None


def _projected(given: Mapping[str, Any], letter: str) -> np.ndarray | None:
    """Q, K or V as given, or x W by its matrix."""
    if letter in given:
        return numbers(given, letter, 2)
    if "X" in given and f"W_{letter}" in given:
        return numbers(given, "X", 2) @ numbers(given, f"W_{letter}", 2)
    if letter == "V":
        return None
    raise InputError(f"attention needs {letter}, or X and W_{letter}")


def _attention(given: Mapping[str, Any]) -> Worked:
    Q, K, V = (_projected(given, letter) for letter in "QKV")
    assert Q is not None
    assert K is not None
    names = [str(t) for t in given.get("tokens", range(len(Q)))]
    keys = [str(t) for t in given.get("keys", names)]
    if len(names) != len(Q) or len(keys) != len(K) or (V is not None and len(V) != len(K)):
        sizes = f"{len(names)} tokens, {len(Q)} queries, {len(K)} keys"
        raise InputError(f"{sizes}: each query needs a name, each key a name and a value")
    asked = given.get("query", names)
    asked = [asked] if isinstance(asked, str | int) else asked
    scale = float(given["scale"]) if given.get("scale") is not None else None
    mask, sheet = given.get("mask"), Sheet()
    if mask not in (None, "causal"):
        raise InputError(f"mask={mask!r} is unknown; write causal, or leave it out")
    for word in asked:
        at = position_of(names, word)
        keep = np.arange(len(K)) <= at if mask == "causal" else None
        row = topics.attention_row(Q[at], K, V, query=names[at], keys=keys, scale=scale, keep=keep)
        sheet.section(row)
    return sheet.done("attention")


def _positions(given: Mapping[str, Any]) -> Worked:
    add = maybe(given, "add", 1)
    return topics.sinusoid(
        [int(t) for t in given["positions"]], int(given["dim"]), base=float(given.get("base", 10000.0)),
        add=add, tokens=[str(t) for t in given.get("tokens", ())],
    )  # fmt: skip


def _norm(given: Mapping[str, Any]) -> Worked:
    return topics.add_norm(
        numbers(given, "x", 1), maybe(given, "add", 1), gamma=maybe(given, "gamma", 1),
        beta=maybe(given, "beta", 1), eps=float(given.get("eps", 0.0)), rms=bool(given.get("rms", False)),
    )  # fmt: skip


def _softmax(given: Mapping[str, Any]) -> Worked:
    return topics.softmax(
        numbers(given, "logits", 1), temperature=float(given.get("temperature", 1.0)),
        tokens=[str(t) for t in given.get("tokens", ())],
    )  # fmt: skip


def _rnn(given: Mapping[str, Any]) -> Worked:
    text, letters = str(given["text"]), [str(letter) for letter in given["letters"]]
    W, U, V = (numbers(given, key, 2) for key in ("W", "U", "V"))
    if len(text) < 2 or (unknown := [letter for letter in text if letter not in letters]):
        said = f"{unknown[0]!r} is none of {', '.join(letters)}" if len(text) > 1 else "nothing follows"
        raise InputError(f"text={text!r}: {said}; give two letters or more, all of them in `letters`")
    if W.shape != (len(U), len(letters)) or U.shape != (len(U), len(U)) or V.shape != W.shape[::-1]:
        H, C = len(U), len(letters)
        raise InputError(f"W must be {H} × {C}, U {H} × {H} and V {C} × {H}: a state of {H}, {C} letters")
    return topics.rnn_steps(text, letters, W, U, V)


def _lstm(given: Mapping[str, Any]) -> Worked:
    x, h, c = (numbers(given, key, 1) for key in ("x", "h", "c"))
    W, U = numbers(given, "W", 2), numbers(given, "U", 2)
    if W.shape != (4 * len(h), len(x)) or U.shape != (4 * len(h), len(h)):
        sizes = f"W must be {4 * len(h)} × {len(x)} and U {4 * len(h)} × {len(h)}"
        raise InputError(f"{sizes}: the rows of i, f, g, o in turn")
    return topics.lstm_step(x, h, c, W, U, maybe(given, "b", 1))


def _alignment(given: Mapping[str, Any]) -> Worked:
    keys = [str(t) for t in given.get("tokens", ())]
    s, v = numbers(given, "s", 1), numbers(given, "v", 1)
    memory, W, U = (numbers(given, key, 2) for key in ("memory", "W", "U"))
    return topics.additive_step(s, memory, W, U, v, keys=keys)


def _word2vec(given: Mapping[str, Any]) -> Worked:
    outside: list[tuple[str, int, np.ndarray]] = []
    for label, key in ((1, "observed"), (0, "drawn")):
        outside += [(str(word), label, numbers(given[key], word, 1)) for word in given[key]]
    rate, centre = float(given.get("rate", 0.5)), str(given.get("centre", "centre"))
    return topics.sgns(numbers(given, "vector", 1), outside, rate=rate, centre=centre)


Topic = tuple[Callable[[Mapping[str, Any]], Worked], Sequence[str], Sequence[str]]  # what it needs, may have
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
