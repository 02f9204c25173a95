"""heedful.explain: the arithmetic of a model on a text, of a file of vectors, or of a shipped example.

In a file or a mapping the keys of a topic are the arguments of its function. Nothing here needs torch before
a model is explained, so that lists of the examples are printed at once.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import yaml

from heedful.classroom.arithmetic.worked import Derivation, Numbers
from heedful.classroom.text_files import describe_yaml_error, load_yaml
from heedful.core.checks import check_choice
from heedful.core.errors import InputError, NotFound, find_named, nearest

if TYPE_CHECKING:
    from heedful.interp.inputs import Text
    from heedful.models.base import Model


def explain(
    subject: Model | str | Path | Mapping[str, Any], text: Text | None = None,
    target: Text | None = None, **options: Any,
) -> Derivation:  # fmt: skip
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
    if isinstance(subject, str | Path | Mapping):
        if text is not None or target is not None or options:
            raise InputError("a file or an exercise already says what to work out", hint="leave out the rest")
        return explain_values(subject if isinstance(subject, Mapping) else read_exercise(subject))
    from heedful.classroom.arithmetic.from_model import explain_model

    if text is None:
        raise InputError("explain(model, text) needs a text or ids")
    topics = sentences()
    text = topics[text]["text"] if isinstance(text, str) and text in topics else text
    return explain_model(subject, text, target, **options)


# The worked examples as files: their order, what each is about, sentences worth reading with a model.


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
    find_named(examples(), str(name), f"no exercise {str(name)!r}", NotFound)
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


# The arithmetic of a file or a mapping.


COMMON = ("topic", "title", "note", "about", "exercise")
# The module and the function of each topic. Only gradients, which are compared with autograd, need torch.
TOPICS = {
    "attention": "topics_attention:attention", "heads": "topics_attention:multi_head",
    "order": "topics_attention:order", "distance": "topics_attention:distance",
    "encoding-properties": "topics_attention:encoding_properties",
    "scores": "topics_attention:score_comparison",
    "positions": "topics:sinusoid", "norm": "topics:add_norm", "softmax": "topics:softmax",
    "rnn": "topics:rnn_steps", "lstm": "topics:lstm_step", "alignment": "topics:additive_step",
    "word2vec": "topics:sgns", "similarity": "topics:similarity", "embedding": "topics:embedding",
    "likelihood": "topics:likelihood", "weight-count": "topics:weight_count",
    "block-cost": "topics:block_cost", "distillation": "topics:distillation",
    "softmax-gradient": "topics_backward:softmax_gradient",
    "cross-entropy-gradient": "topics_backward:cross_entropy_gradient",
    "norm-gradient": "topics_backward:norm_gradient",
    "attention-gradient": "topics_backward:attention_gradient",
    "rnn-gradient": "topics_backward:rnn_gradient", "lstm-gradient": "topics_backward:lstm_gradient",
}  # fmt: skip


def read_value(value: Any, kind: Any, key: str) -> Any:
    """Return a value of a file as the type that an argument is annotated with."""
    if get_origin(kind) in (Union, UnionType):  # or None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return check_numbers(value, parts[1], key)
    if origin is Literal and value not in parts:
        raise InputError(f"`{key}={value!r}` is unknown", hint=f"write {' or '.join(parts)}, or leave it out")
    if origin is Sequence:
        return [read_value(one, parts[0], key) for one in value]
    if origin is tuple:
        return tuple(read_value(one, part, key) for one, part in zip(value, parts, strict=True))
    if origin is Mapping:
        return {str(name): read_value(one, parts[1], str(name)) for name, one in value.items()}
    return kind(value) if kind in (bool, int, float, str) else value


def check_numbers(value: Any, depth: int, key: str) -> Numbers:
    """Return a vector (depth 1) or a matrix (2) of finite numbers."""
    try:
        numbers = Numbers(value)
    except (TypeError, ValueError):
        raise InputError(f"{key} must be rows of numbers, all of the same length") from None
    if numbers.value.ndim != depth or not numbers.value.size or not np.isfinite(numbers.value).all():
        kind = ("a vector", "a matrix")[depth - 1]
        raise InputError(f"{key} must be {kind} of finite numbers, got shape {numbers.value.shape}")
    return numbers


def explain_values(values: Mapping[str, Any]) -> Derivation:
    """Work out what a file or a mapping asks for; `parts` is a list of several."""
    note = " ".join(str(values.get("note", "")).split())
    if "parts" in values:
        derivation = Derivation()
        for part in values["parts"]:
            derivation.add(explain_values(part))
    else:
        derivation = work_topic(values)
    derivation.title, derivation.note = str(values.get("title", derivation.title)), note or derivation.note
    return derivation


def work_topic(values: Mapping[str, Any]) -> Derivation:
    """Work out one topic by its function."""
    topic = check_choice("topic", str(values.get("topic")), TOPICS)
    module, _, name = TOPICS[topic].partition(":")
    function = getattr(import_module(f"heedful.classroom.arithmetic.{module}"), name)
    kinds = get_type_hints(function, include_extras=True)
    arguments = inspect.signature(function).parameters
    for key in values:
        if key not in arguments and key not in COMMON:
            hint = nearest(key, arguments) or f"it takes {', '.join(arguments)}"
            raise InputError(f"a {topic} has no {key!r}", hint=hint)
    for key, argument in arguments.items():
        if argument.default is argument.empty and key not in values:
            raise InputError(f"a {topic} needs {key!r} as well")
    try:
        derivation: Derivation = function(**{
            key: read_value(values[key], kinds[key], key) for key in arguments if values.get(key) is not None
        })  # fmt: skip
        return derivation
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the sizes or values of this {topic} do not fit: {error}") from None
