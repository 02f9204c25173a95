"""What a row of a pattern stands for: the token that is read, or the word that is written.

Attention over oneself asks on behalf of the token it reads. Attention over a source asks in order to write:
the row that reads y_{t−1} chooses what y_t is made from, so it carries y_t, as in figure 3 of Bahdanau et al.
2015. View, studio and exports take their labels from here.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.interp.inputs import Input, names_of, word_head
from heedful.models.base import Model
from heedful.nn.attention import CrossAttention
from heedful.nn.attentive import Decoding

Side = Literal["tokens", "target", "written"]
OPEN = "…"  # the last row of a model that predicts no words


def attends_to_source(part: nn.Module) -> bool:
    """Whether the keys of a part are an encoder's: cross-attention, or alignment in a recurrent decoder."""
    return isinstance(part, CrossAttention | Decoding)


def row_side(path: str, part: nn.Module, *, has_target: bool) -> Side:
    """Return whose tokens name the rows of the pattern at `path`."""
    if attends_to_source(part):
        return "written"
    return "target" if has_target and not path.startswith("encoder") else "tokens"


def key_side(path: str, part: nn.Module, *, has_target: bool) -> Side:
    """Return whose tokens name the columns."""
    return "tokens" if attends_to_source(part) else row_side(path, part, has_target=has_target)


def written_ids(model: Model, inputs: Input, output: Tensor | None) -> list[int | None]:
    """Return the word each target position writes: the next one of the target, and at the last position the
    likeliest by `output`, the logits (1, T, V); None there if the head predicts no words.
    """
    following: list[int | None] = inputs.read[0, 1:].tolist()
    try:
        word_head(model)
    except InputError:
        output = None
    return [*following, None if output is None else int(output[0, -1].argmax())]


def written_names(model: Model, inputs: Input, output: Tensor | None) -> tuple[str, ...]:
    """Return the names of `written_ids` in the vocabulary."""
    return tuple(OPEN if i is None else names_of(model, [i])[0] for i in written_ids(model, inputs, output))
