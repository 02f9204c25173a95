"""heedful.explain: the arithmetic of a model on a text, of a file of vectors, or of a shipped exercise."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from heedful.classroom.arithmetic import topics, topics_attention, topics_backward, topics_words
from heedful.classroom.arithmetic.from_model import explain_model
from heedful.classroom.arithmetic.worked import Derivation, Sheet
from heedful.core.errors import InputError, NotFound, nearest
from heedful.interp.inputs import Input, Text
from heedful.models.base import Model

COMMON = ("topic", "title", "note", "about", "exercise")
LEARNING_ORDER = (  # of the examples: as the course goes
    "motel", "embedding", "likelihood", "wampimuk", "hello", "hello-lstm", "rnn-gradient", "lstm-gradient",
    "counselor", "alignment", "additive-dot", "queries-keys", "cat-sat", "dragons", "apple", "two-heads",
    "order", "positions", "encoding-properties", "add-norm", "block-cost", "temperature", "softmax-gradient",
    "cross-entropy-gradient", "norm-gradient", "attention-gradient", "distilbert", "gpt3-weights",
)  # fmt: skip


def explain(
    subject: Model | str | Path | Mapping[str, Any],
    text: Text | Input | None = None,
    target: Text | None = None,
    **options: Any,
) -> Derivation:
    """Work through a calculation with every operand and every result.

    >>> import heedful
    >>> heedful.explain("cat-sat").title
    'The cat sat on the mat'
    >>> model = heedful.load("prose")
    >>> worked = heedful.explain(model, "It was a dark night", topic="attention", token=-1)

    Args:
        subject: The name of an included example (`heed explain --list`), a YAML file or a mapping with your
            own vectors and matrices, or a model.
        text: The text for a model. Its arithmetic is checked against the values that the model computed.
        target: The target text for an encoder-decoder.
        options: For a model, `topic` (attention, block, positions, norm, lstm, alignment, softmax), and
            `part`, `head` and `token`, which choose the place.

    Print the result, or convert it with `markdown()`, `html()` or `latex()`.
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


@functools.cache
def examples() -> dict[str, str]:
    """Return the shipped examples in learning order, and what each is about."""
    folder = files("heedful.classroom.arithmetic") / "examples"
    return {name: str(_parse_yaml(folder / f"{name}.yaml", name)["about"]) for name in LEARNING_ORDER}


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
            raise NotFound(f"file not found: {path}")
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


# From the keys of a file or a mapping to a calculation: what each topic needs and may have.


Values = Mapping[str, Any]
Reader = Callable[[Values, str], Any]


def check_numbers(values: Values, key: str, depth: int) -> np.ndarray:
    """Return a vector (depth 1) or a matrix (2) of finite numbers."""
    try:
        value = np.asarray(values[key], dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{key} is not made of numbers in rows of one length") from None
    if value.ndim != depth or not value.size or not np.isfinite(value).all():
        kind = ("a vector", "a matrix")[depth - 1]
        raise InputError(f"{key} must be {kind} of finite numbers, got shape {value.shape}")
    return value


def is_causal(values: Values, key: str) -> bool:
    if values[key] != "causal":
        raise InputError(f"{key}={values[key]!r} is unknown", hint="write causal, or leave it out")
    return True


vector, matrix = (functools.partial(check_numbers, depth=depth) for depth in (1, 2))
anything: Reader = lambda values, key: values[key]
number: Reader = lambda values, key: float(values[key])
whole: Reader = lambda values, key: int(values[key])
wholes: Reader = lambda values, key: [int(value) for value in values[key]]
word: Reader = lambda values, key: str(values[key])
words: Reader = lambda values, key: [str(value) for value in values[key]]
pairs: Reader = lambda values, key: [(str(first), str(second)) for first, second in values[key]]
vectors: Reader = lambda values, key: {str(name): vector(values[key], name) for name in values[key]}
heads: Reader = lambda values, key: [{name: matrix(head, name) for name in head} for head in values[key]]
flag: Reader = lambda values, key: bool(values[key])

# The function of each topic, and how the keys that it needs and may have are read; they are its arguments.
Readers = dict[str, Reader]
LSTM: Readers = {"h": vector, "c": vector, "W": matrix, "U": matrix}
TOPICS: dict[str, tuple[Callable[..., Derivation], Readers, Readers]] = {
    "attention": (
        topics_attention.attention, {},
        dict.fromkeys(("Q", "K", "V", "X", "W_Q", "W_K", "W_V"), matrix)
        | {"tokens": words, "keys": words, "query": anything, "scale": number, "mask": is_causal},
    ),
    "positions": (
        topics.sinusoid, {"positions": wholes, "dim": whole},
        {"base": number, "add": vector, "tokens": words},
    ),
    "norm": (
        topics.add_norm, {"x": vector},
        {"add": vector, "gamma": vector, "beta": vector, "eps": number, "rms": flag},
    ),
    "softmax": (topics.softmax, {"logits": vector}, {"tokens": words, "temperature": number}),
    "rnn": (topics.rnn_steps, {"text": word, "letters": words, "W": matrix, "U": matrix, "V": matrix}, {}),
    "lstm": (topics.lstm_step, {"x": vector} | LSTM, {"b": vector}),
    "alignment": (
        topics.additive_step, {"s": vector, "memory": matrix, "W": matrix, "U": matrix, "v": vector},
        {"tokens": words},
    ),
    "word2vec": (
        topics.sgns, {"vector": vector, "observed": vectors, "drawn": vectors},
        {"rate": number, "centre": word},
    ),
    "heads": (
        topics_attention.multi_head, {"X": matrix, "heads": heads, "query": anything},
        {"tokens": words, "W_O": matrix, "scale": number, "mask": is_causal},
    ),
    "softmax-gradient": (topics_backward.softmax_gradient, {"logits": vector, "above": vector}, {}),
    "cross-entropy-gradient": (
        topics_backward.cross_entropy_gradient, {"logits": vector, "target": anything}, {"tokens": words},
    ),
    "norm-gradient": (
        topics_backward.norm_gradient, {"x": vector, "above": vector},
        {"gamma": vector, "beta": vector, "eps": number},
    ),
    "attention-gradient": (
        topics_backward.attention_gradient, dict.fromkeys(("Q", "K", "V", "above"), matrix),
        {"tokens": words, "mask": is_causal},
    ),
    "rnn-gradient": (
        topics_backward.rnn_gradient, {"X": matrix, "W": matrix, "U": matrix, "above": vector}, {"h": vector},
    ),
    "lstm-gradient": (
        topics_backward.lstm_gradient, {"X": matrix} | LSTM | {"above": vector}, {"b": vector},
    ),
    "similarity": (topics_words.similarity, {"vectors": vectors, "pairs": pairs}, {}),
    "embedding": (topics_words.embedding, {"E": matrix, "text": words}, {"words": words}),
    "likelihood": (
        topics_words.likelihood, {"text": words, "centre": vectors, "outside": vectors}, {"window": whole},
    ),
    "order": (
        topics_attention.order, {"X": matrix, "order": words, "query": anything},
        {"tokens": words, "positions": flag, "mask": is_causal},
    ),
    "distance": (
        topics_attention.distance, {"tokens": words, "first": anything, "second": anything},
        {"kernel": whole},
    ),
    "encoding-properties": (
        topics_attention.encoding_properties, {"dim": whole},
        {"count": whole, "shift": whole, "far": whole, "base": number},
    ),
    "scores": (
        topics_attention.score_comparison,
        {"q": vector, "K": matrix, "V": matrix, "W": matrix, "U": matrix, "v": vector, "sizes": wholes},
        {"tokens": words},
    ),
    "weight-count": (
        topics_words.weight_count, dict.fromkeys(("layers", "heads", "head_dim", "dim", "vocab"), whole), {},
    ),
    "block-cost": (topics_words.block_cost, {"n": whole, "d": whole}, {}),
    "distillation": (topics_words.distillation, dict.fromkeys(("scores", "sizes", "times"), vector), {}),
}  # fmt: skip


def explain_values(values: Values) -> Derivation:
    """Work out what a file or a mapping asks for; `parts` is a list of several."""
    note = " ".join(str(values.get("note", "")).split())
    if "parts" in values:
        sheet = Sheet()
        for part in values["parts"]:
            sheet.section(explain_values(part))
        return sheet.finish(str(values.get("title", "")), note)
    topic = str(values.get("topic"))
    if topic not in TOPICS:
        raise InputError(f"topic={topic!r} is unknown", hint=f"choose {', '.join(TOPICS)}")
    function, needed, allowed = TOPICS[topic]
    readers = needed | allowed
    for key in values:
        if key not in readers and key not in COMMON:
            hint = nearest(key, readers) or f"it takes {', '.join(readers)}"
            raise InputError(f"a {topic} has no {key!r}", hint=hint)
    if missing := [key for key in needed if key not in values]:
        raise InputError(f"a {topic} needs {missing[0]!r} as well")
    try:
        worked = function(**{k: read(values, k) for k, read in readers.items() if values.get(k) is not None})
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the sizes or values of this {topic} do not fit: {error}") from None
    return replace(worked, title=str(values.get("title", worked.title)), note=note or worked.note)
