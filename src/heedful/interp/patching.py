"""Values of one input put into another: which of them carry the answer, by layer, position and head.

A patch is one value, at one position or of one head, as it was in the clean input. Many are tried in one
batch, whose rows differ in what is patched (see `interventions`); one that puts in what is there is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.interp.comparison import (
    HEAD_VALUES,
    Comparison,
    Patch,
    PatchingResult,
    all_patches,
    both_inputs,
    collect,
    select_entries,
    value_names,
)
from heedful.interp.inputs import Input, Text, reading
from heedful.interp.interventions import Intervention, InterventionRunner, Report
from heedful.models.base import Model
from heedful.nn.context import Watch

Edit = Callable[[Tensor], Tensor]


@torch.no_grad()
def carry(
    model: Model, clean: Text | Input, names: Sequence[str], positions: Sequence[int] | None = None,
    *, target: Text | None = None,
) -> Watch:  # fmt: skip
    """Return a watch that puts the values called `names`, as they are in `clean`, into any call given it.

    `positions` carries over those alone, along the axis that the part declares; a negative one counts from
    the end. By default everything is carried over.
    """
    seen = Watch(*names)
    reading(model, clean, target).run(model, seen)
    for name in names:
        if name not in seen.met:  # a wildcard that matched nothing
            raise seen.missing(name)
    return Watch(edit={name: _replace_positions(name, seen, positions) for name in seen})


def _replace_positions(name: str, watch: Watch, positions: Sequence[int] | None) -> Edit:
    value, axis = watch[name], watch.positions[name]
    where = None if positions is None else _indices(name, value, axis, positions)

    def edit(now: Tensor) -> Tensor:
        _check_shape(name, value, now)
        if where is None or axis is None:
            return value
        return now.index_copy_(axis, where, value.index_select(axis, where))

    return edit


def _check_shape(name: str, value: Tensor, now: Tensor) -> None:
    if now.shape[1:] != value.shape[1:]:
        sizes = f"{name} is {tuple(value.shape)} in one and {tuple(now.shape)} in the other"
        raise InputError("the two inputs must have as many tokens", hint=sizes)


def _indices(name: str, value: Tensor, axis: int | None, positions: Sequence[int]) -> Tensor:
    if axis is None:
        raise InputError(f"{name} has no positions: it is of the whole text", hint="leave positions out")
    length = value.shape[axis]
    bad = [t for t in positions if not -length <= t < length]
    if bad:
        raise InputError(f"{name} has positions 0 … {length - 1}", hint=f"there is no position {bad[0]}")
    return torch.tensor([t % length for t in positions], device=value.device)


@torch.no_grad()
def patch(
    model: Model, clean: Text | Input, corrupt: Text | Input, names: Sequence[str],
    positions: Sequence[int] | None = None, *, target: Text | None = None,
) -> Tensor:  # fmt: skip
    """Return the logits of `corrupt` with the values called `names` as they were in `clean`

    (Meng et al. 2022 §2.) `positions` carries over those alone (see `carry`); by default all. The decoder of
    an encoder-decoder reads the same `target` both times: by default what the model writes for `clean`.
    """
    first, second = both_inputs(model, clean, corrupt, target)
    return second.run(model, carry(model, first, names, positions))


@torch.no_grad()
def activation_patching(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str,
    wrong: int | str | None = None, what: str = "residual", *, by_position: bool | None = None,
    target: Text | None = None, position: int = -1, report: Report | None = None, rows: int | None = None,
) -> PatchingResult:  # fmt: skip
    """Return which values carry the answer: each alone, as in `clean`, in a run of `corrupt` otherwise

    (Meng et al. 2022 §2; Zhang and Nanda 2024, arXiv 2309.16042.) `what` is "residual" (what each layer hands
    on), "attention" or "mlp" (what those parts add), "heads", or "queries", "keys", "values" or "patterns" of
    heads, or a watched name with or without wildcards, such as "blocks.*.input". Each value is patched at
    every position alone; heads each over all positions, or with `by_position=True` at every one. Values are
    (d − d_corrupt) / (d_clean − d_corrupt), with d the difference of the logits of `right` and `wrong`, or
    the logit of `right` alone, at `position`. Answers are ids, texts of one token (" Paris") or labels.
    `report` is called before each batch with the number of patches done and of all, and may raise to stop;
    `rows` is how many share a batch.
    """
    comparison = Comparison.of(model, clean, corrupt, right, wrong, target=target, position=position)
    names = value_names(model, comparison.clean, what)
    clean_values, corrupt_values = comparison.values(names)
    heads = what in HEAD_VALUES
    each = not heads if by_position is None else by_position
    patches = list(all_patches(clean_values, names, heads=heads, by_position=each))
    run = [i for i, one in enumerate(patches) if _differs(clean_values, corrupt_values, one)]
    change = lambda one: Intervention(one.name, one.position, _patch_writer(clean_values, one))
    found = torch.zeros(len(patches), dtype=torch.float64)
    skipped = len(patches) - len(run)
    counted = None if report is None else lambda done, count: report(done + skipped, count + skipped)
    found[run] = InterventionRunner(comparison, rows).run([change(patches[i]) for i in run], counted)
    return collect(what, "exact", comparison, patches, found)


def _differs(clean: Watch, corrupt: Watch, patch: Patch) -> bool:
    """Whether the clean value is another than the corrupt one: else a patch changes nothing."""
    values = [seen[patch.name] for seen in (clean, corrupt)]
    _check_shape(patch.name, *values)
    axis = clean.positions[patch.name]
    return not torch.equal(*(select_entries(value[0], patch, axis) for value in values))


def _patch_writer(clean: Watch, patch: Patch) -> Callable[[Tensor, int], None]:
    """Return what writes a patch into a row's value, which begins with the token `first`."""
    value, axis = clean[patch.name][0], clean.positions[patch.name]

    def write(row: Tensor, first: int) -> None:
        source = value if axis is None or not first else value.narrow(axis, first, value.shape[axis] - first)
        select_entries(row, patch, axis, first).copy_(select_entries(source, patch, axis, first))

    return write


def causal_trace(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str, wrong: int | str,
    *, target: Text | None = None,
) -> dict[str, list[float]]:  # fmt: skip
    """Return which layer and position carry the answer: 0 where a patch does nothing, 1 where it restores all

    Lists of `activation_patching` of every layer's output, by its name.
    """
    found = activation_patching(model, clean, corrupt, right, wrong, target=target)
    return dict(zip(found.names, found.values.tolist(), strict=True))
