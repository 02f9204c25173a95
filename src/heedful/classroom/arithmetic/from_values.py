"""The arithmetic of a file or a mapping: the keys of a topic are the arguments of its function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from heedful.classroom.arithmetic.worked import Derivation, Numbers
from heedful.core.errors import InputError, nearest

COMMON = ("topic", "title", "note", "about", "exercise")
# The module and the function of each topic. Only gradients, which are compared with autograd, need torch.
TOPICS = {
    "attention": "topics_attention:attention",
    "positions": "topics:sinusoid",
    "norm": "topics:add_norm",
    "softmax": "topics:softmax",
    "rnn": "topics:rnn_steps",
    "lstm": "topics:lstm_step",
    "alignment": "topics:additive_step",
    "word2vec": "topics:sgns",
    "heads": "topics_attention:multi_head",
    "softmax-gradient": "topics_backward:softmax_gradient",
    "cross-entropy-gradient": "topics_backward:cross_entropy_gradient",
    "norm-gradient": "topics_backward:norm_gradient",
    "attention-gradient": "topics_backward:attention_gradient",
    "rnn-gradient": "topics_backward:rnn_gradient",
    "lstm-gradient": "topics_backward:lstm_gradient",
    "similarity": "topics_words:similarity",
    "embedding": "topics_words:embedding",
    "likelihood": "topics_words:likelihood",
    "order": "topics_attention:order",
    "distance": "topics_attention:distance",
    "encoding-properties": "topics_attention:encoding_properties",
    "scores": "topics_attention:score_comparison",
    "weight-count": "topics_words:weight_count",
    "block-cost": "topics_words:block_cost",
    "distillation": "topics_words:distillation",
}


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
    topic = str(values.get("topic"))
    if topic not in TOPICS:
        raise InputError(f"`topic={topic!r}` is unknown", hint=f"choose {', '.join(TOPICS)}")
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
