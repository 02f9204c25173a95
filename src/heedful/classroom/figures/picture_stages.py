"""What a picture of a model is made of: vectors, one head's pattern, experts, an answer, stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heedful.interp.results import Result
from heedful.interp.row_labels import Side

WIDTH = 64  # numbers of a vector that are kept


@dataclass(frozen=True)
class VectorRows(Result):
    """The vectors of one watched value, one for each token: the first `WIDTH` of `size` numbers each.

    `name` is the value's name in a Watch. Of a value that has heads, or channels, it is the entry `head` of
    the axis `axis` (counted without the batch). `lengths` are the norms of the whole vectors.
    """

    label: str
    name: str
    side: str  # whose tokens the rows are: a Side, or "text" where one vector stands for all
    numbers: Tensor  # (T, ≤ WIDTH)
    lengths: Tensor  # (T,)
    size: int
    head: int | None = None
    axis: int = 0


@dataclass(frozen=True)
class HeadPattern(Result):
    """The pattern of one head of `heads`: (T, S), with the scores before the softmax where there are some.

    `unit` is what a head is called: a state space has channels. Kind "softmax": rows sum to 1. Kind
    "effective": signed, what a recurrence amounts to without what `leaves_out` names.
    """

    name: str
    head: int
    heads: int
    kind: str
    values: Tensor
    scores: Tensor | None
    queries: Side
    keys: Side
    leaves_out: str = ""
    unit: str = "head"


@dataclass(frozen=True)
class ExpertChoice(Result):
    """A router's score of every expert (T, E), the experts each token goes to (T, k), and their weights."""

    name: str
    router: Tensor
    chosen: Tensor
    weights: Tensor


@dataclass(frozen=True)
class StagePrediction(Result):
    """The predictions, the likeliest first: `names` and `chances` have a row for each of `rows`.

    Kind "words": a row for each token; "labels": one; "tags": one for each token; "spans": start and end;
    "vectors": none. `follows` says that a word is the one after its row, `filled_names` are what an
    encoder puts in place of the picture's row when that row is masked.
    """

    kind: str
    follows: bool
    rows: list[str]
    names: list[list[str]]
    chances: Tensor
    position: int
    filled_names: list[str] = field(default_factory=list)
    filled_chances: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class PartSize(Result):
    """A part of a layer that is not unfolded: its title, its equations, and how long what it gives is."""

    path: str
    title: str
    equations: list[str]
    lengths: Tensor  # (T,)


@dataclass(frozen=True)
class Stage(Result):
    """One station of the text on its way through the model.

    `kind` says how it is drawn: tokens, embedding, layer (folded: `parts`), norm, attention, sum, recurrence,
    state, mlp, experts, convolution, other, residual, memory, head. `page` and `params` lead to the page of
    the studio that shows more of it, `row_param` is the parameter that takes the row.
    """

    kind: str
    title: str
    path: str
    side: Side
    equations: list[str] = field(default_factory=list)
    note: str = ""
    vectors: list[VectorRows] = field(default_factory=list)
    pattern: HeadPattern | None = None
    experts: ExpertChoice | None = None
    answer: StagePrediction | None = None
    parts: list[PartSize] = field(default_factory=list)
    page: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    row_param: str = ""
