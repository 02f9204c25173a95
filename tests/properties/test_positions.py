"""Every watched value says which of its axes runs over positions, and patching goes by what it says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful import Watch
from heedful.interp.inputs import Input, reading
from heedful.interp.intervene.patching import carry, patch
from heedful.models.base import Model, Seq2Seq
from tests.properties.tiny import ALL, by_kinds, ids, module_at, source_ids, tiny

SOURCE, TARGET = 4, 5  # tokens


def given(model: Model, seed: int, more: int = 0) -> Input:
    tokens = ids(model, 1, TARGET + more, seed)
    if isinstance(model, Seq2Seq):
        return reading(model, source_ids(model, 1, SOURCE + more, seed), tokens)
    return reading(model, tokens)


def watched(model: Model, text: Input) -> Watch:
    watch = Watch("*")
    text.run(model, watch)
    return watch


def axes(short: Tensor, long: Tensor) -> list[int]:
    """The axes that grow with the text, counted from the end: rows of a pattern come before its columns."""
    pairs = zip(short.shape, long.shape, strict=True)
    return [i - short.dim() for i, (a, b) in enumerate(pairs) if a != b]


def one_of_each(model: Model, names: list[str]) -> list[str]:
    """One name for each value of each kind of part: layers that are alike show the same."""
    kinds: dict[tuple[str, str, str], str] = {}
    for name in names:
        path, _, word = name.rpartition(".")
        owner = "" if path == "target_embed" else type(module_at(model, path)).__name__
        kinds.setdefault((path.split(".")[0], owner, word), name)
    return list(kinds.values())


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_the_axis_that_a_value_declares_is_the_one_that_grows_with_the_text(family: str) -> None:
    model = tiny(family)
    short, long = watched(model, given(model, 1)), watched(model, given(model, 1, more=2))
    for name in short:
        assert short.positions[name] == axes(short[name], long[name])[0], name


@pytest.mark.parametrize("family", by_kinds(ALL))
@torch.no_grad()
def test_patching_a_position_replaces_that_position_of_every_value_and_no_other(family: str) -> None:
    model, t = tiny(family), 2
    clean, corrupt = given(model, 1), given(model, 7)
    first, second, longer = (watched(model, x) for x in (clean, corrupt, given(model, 1, more=2)))
    for name in one_of_each(model, list(first)):
        axis = axes(first[name], longer[name])[0]

        def replaced(now: Tensor, axis: int = axis, value: Tensor = first[name]) -> Tensor:
            now.select(axis, t).copy_(value.select(axis, t))
            return now

        expected = corrupt.run(model, Watch(edit={name: replaced}))
        where = t - first[name].shape[axis]  # counted from the end
        assert (patch(model, clean, corrupt, [name], [where]) - expected).abs().max() <= 1e-5, name
        put = carry(model, clean, [name], [t]).edit[name](second[name].clone())
        for i in range(put.shape[axis]):
            source = first if i == t else second
            far = (put.select(axis, i) - source[name].select(axis, i)).abs().max()
            assert far <= (1e-5 if i == t else 0), (name, i)


@pytest.mark.parametrize("family", ["mamba", "s4"])
@torch.no_grad()
def test_a_state_that_is_put_in_at_one_position_is_where_the_recurrence_goes_on_from(family: str) -> None:
    """h_t of another text, then the same tokens: as if a step had found that state."""
    model = tiny(family, layers=1)
    first, second = ids(model, 1, 3, 1), ids(model, 1, 3, 7)
    tail = ids(model, 1, 4, 9)
    clean, corrupt = (reading(model, torch.cat((head, tail), 1)) for head in (first, second))
    path = "blocks.0.ssm.h"
    carried = carry(model, clean, [path], [3])
    watch = Watch(path, edit=carried.edit)
    corrupt.run(model, watch)
    state = model.start(clean.ids[:, :4])  # type: ignore[operator]
    other = model.start(corrupt.ids[:, :4])  # type: ignore[operator]
    # The convolution before the state space still remembers the corrupt tokens: only h is the clean one's.
    other.parts["0"]["ssm"].update(h=state.parts["0"]["ssm"]["h"])  # type: ignore[index,union-attr]
    steps = [model.step(tail[:, i : i + 1], other)[:, 0] for i in range(1, 4)]  # type: ignore[operator]
    got = patch(model, clean, corrupt, [path], [3])
    assert (got[:, 4:] - torch.stack(steps, 1)).abs().max() <= 1e-4
    assert (got[:, 4:] - corrupt.run(model)[:, 4:]).abs().max() > 1e-4
