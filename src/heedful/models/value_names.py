"""The names of the values that a model computes, with their shapes, found without computing them.

A copy of the model on torch's `meta` device, which has shapes and no numbers, is watched twice, with texts of
two sizes: what changes with the batch is B, with the length T, with the length of a source S.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heedful.errors import InputError
from heedful.nn.context import Watch

if TYPE_CHECKING:
    from heedful.models.base import Model

Shape = tuple[int | str, ...]
SIZES = ((1, 2, 3), (2, 4, 5))  # of the two passes: rows, tokens, source tokens
SYMBOLS = dict(zip(zip(*SIZES, strict=True), "BTS", strict=True))


def value_names(model: Model, batch: int | None = None, length: int | None = None) -> dict[str, Shape]:
    """Return the shape of every value by its name: with B, T and S in it, or of a text of the sizes given."""
    for said, value in (("batch", batch), ("length", length)):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{said}={value!r} must be a whole number, at least 1")
    first, second = (watched_shapes(model, *sizes) for sizes in SIZES)
    found = {name: tuple(map(symbol, shape, second[name])) for name, shape in first.items()}
    given: dict[int | str, int | str | None] = {"B": batch, "T": length, "S": length}
    return {name: tuple(given.get(n) or n for n in shape) for name, shape in found.items()}


def symbol(size: int, other: int) -> int | str:
    """Return what a size stands for that is `other` in the second pass."""
    return size if size == other else SYMBOLS.get((size, other), f"{size}…{other}")


@torch.no_grad()
def watched_shapes(model: Model, batch: int, length: int, source: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one pass; a part that `meta` does not know is computed in earnest."""
    outline = meta_copy(model)
    for candidate in (outline, model):
        tokens = torch.zeros(batch, length, dtype=torch.long, device=candidate.device)
        watch = Watch("*")
        try:
            run_pass(candidate, tokens, tokens.new_zeros(batch, source), watch)
        except (NotImplementedError, RuntimeError):
            if candidate is model:
                raise
            continue
        return {name: tuple(watch[name].shape) for name in watch}
    raise AssertionError("the second candidate returns or raises")


def run_pass(model: Model, tokens: Tensor, source: Tensor, watch: Watch) -> None:
    """Read the tokens, behind a source if the model has an encoder; without a head, as far as it goes."""
    from heedful.models.base import Seq2Seq
    from heedful.nn.head import NoHead

    bare = isinstance(getattr(model, "head", None), NoHead)
    if isinstance(model, Seq2Seq):
        (model.hidden if bare else model)(source, tokens, watch=watch)
    else:
        (model.encode if bare else model)(tokens, watch=watch)  # type: ignore[operator]


def meta_copy(model: Model) -> Model:
    """Return a copy in evaluation mode that has the shapes of the model's weights, and no memory for them."""
    memo: dict[int, object] = {id(model.tokenizer): model.tokenizer}
    for module in model.modules():
        for held in (*module._parameters.values(), *module._buffers.values()):
            if held is None:
                continue
            bare, learned = held.detach().to("meta"), isinstance(held, nn.Parameter)
            memo[id(held)] = nn.Parameter(bare, requires_grad=False) if learned else bare
    return copy.deepcopy(model, memo).eval()
