"""heedful.explain: the arithmetic of a model on a text, of a file of vectors, or of a shipped exercise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.classroom.arithmetic.example_files import read_exercise, sentences
from heedful.classroom.arithmetic.from_values import explain_values
from heedful.classroom.arithmetic.worked import Derivation
from heedful.core.errors import InputError

if TYPE_CHECKING:
    from heedful.interp.inputs import Input, Text
    from heedful.models.base import Model


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
