"""Patching: put a value of one input into a run of another, and see how much of the answer comes with it.

Take two inputs that differ in one fact, such as "Paris … France" and "Rome … Italy". Run the corrupt one, but
copy one value from the clean run: one layer, position or head. If the answer flips to the clean one, that
value carries the fact (Meng et al. 2022). Each number is the share of the clean answer that the patch
restores: 0 is nothing and 1 is all. Ablation says what a model needs in general, patching what tells these
two inputs apart. `comparison` has the two inputs and the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.interp.inputs import Input, Result, Text, check_names, choices, reading
from heedful.interp.intervene.comparison import (
    CounterfactualPair,
    Edit,
    Intervention,
    Patch,
    PatchingResult,
    all_patches,
    both_inputs,
    collect,
    names_to_patch,
    select_entries,
)
from heedful.interp.intervene.nodes import Node, NodeTable
from heedful.models.base import Model
from heedful.nn.context import Watch


@torch.no_grad()
def carry(
    model: Model, clean: Text, names: Sequence[str], positions: Sequence[int] | None = None,
    *, target: Text | None = None,
) -> Watch:  # fmt: skip
    """Return a watch that puts the values called `names`, as they are in `clean`, into any call given it.

    `positions` carries over those alone, along the axis that the part declares; a negative one counts from
    the end. By default everything is carried over.
    """
    check_names(names)
    seen = reading(model, clean, target).record(model, *names)
    for name in names:
        if name not in seen.met:  # a wildcard that matched nothing
            raise seen.missing(name)
    return Watch(edit={name: _replace_positions(name, seen, positions) for name in seen})


def _replace_positions(name: str, watch: Watch, positions: Sequence[int] | None) -> Edit:
    value, axis, where = watch[name], watch.positions[name], None
    if positions is not None:
        if axis is None:
            raise InputError(
                f"{name} has no positions: it belongs to the whole text", hint="leave positions out"
            )
        length = value.shape[axis]
        bad = [t for t in positions if not -length <= t < length]
        if bad:
            raise InputError(f"{name} has positions 0 … {length - 1}", hint=f"unknown position {bad[0]}")
        where = torch.tensor([t % length for t in positions], dtype=torch.long, device=value.device)

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


@torch.no_grad()
def patch(
    model: Model, clean: Text, corrupt: Text, names: Sequence[str],
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
    model: Model, clean: Text, corrupt: Text, right: int | str,
    wrong: int | str | None = None, what: str = "residual", *, by_position: bool | None = None,
    target: Text | None = None, position: int = -1, rows: int | None = None,
) -> PatchingResult:  # fmt: skip
    """Return which values carry the answer: each alone, as in `clean`, in a run of `corrupt` otherwise

    (Meng et al. 2022 §2; Zhang and Nanda 2024, arXiv 2309.16042.) `what` is "residual" (what each layer hands
    on), "attention" or "mlp" (what those parts add), "heads", or "queries", "keys", "values" or "patterns" of
    heads, or a watched name with or without wildcards, such as "blocks.*.input". Each value is patched at
    every position alone; heads each over all positions, or with `by_position=True` at every one. Values are
    (d − d_corrupt) / (d_clean − d_corrupt), with d the difference of the logits of `right` and `wrong`, or
    the logit of `right` alone, at `position`. Answers are ids, texts of one token (" Paris") or labels.
    `rows` is how many share a batch.
    """
    comparison = CounterfactualPair(model, clean, corrupt, right, wrong, target=target, position=position)
    names = names_to_patch(model, comparison.clean, what)
    clean_values, corrupt_values = comparison.values(names)
    for name in names:
        _check_shape(name, clean_values[name], corrupt_values[name])
    patches = list(all_patches(clean_values, names, what, by_position))
    # Where the clean value is the corrupt one, a patch changes nothing and is not run.
    entries = lambda seen, one: select_entries(seen[one.name], one, clean_values.positions[one.name])
    differs = lambda one: not torch.equal(entries(clean_values, one), entries(corrupt_values, one))
    run = [i for i, one in enumerate(patches) if differs(one)]
    restored = torch.zeros(len(patches), dtype=torch.float64)
    restored[run] = comparison.measure([put_back(clean_values, patches[i]) for i in run], rows)
    ends = comparison.best, comparison.worst
    return collect(what, "exact", comparison.clean, patches, restored, *ends)


def put_back(clean: Watch, patch: Patch) -> Intervention:
    """Return the change that writes a patch, as it is in the clean run, into rows."""
    value, axis = clean[patch.name], clean.positions[patch.name]

    def write(rows: Tensor, first: int) -> None:
        source = value if axis is None or not first else value.narrow(axis, first, value.shape[axis] - first)
        select_entries(rows, patch, axis, first).copy_(select_entries(source, patch, axis, first))

    return Intervention(patch.name, patch.position, write)


def causal_trace(
    model: Model, clean: Text, corrupt: Text, right: int | str, wrong: int | str,
    *, target: Text | None = None,
) -> dict[str, list[float]]:  # fmt: skip
    """Return which layer and position carry the answer: 0 where a patch does nothing, 1 where it restores all

    Lists of `activation_patching` of every layer's output, by its name.
    """
    result = activation_patching(model, clean, corrupt, right, wrong, target=target)
    return dict(zip(result.names, result.values.tolist(), strict=True))


# Path patching: a patch changes what one part reads from one other part, while everything between stays as
# it was. So it separates what a head sends on directly from what it sends through later parts.

ROWS = 16  # whose queries, keys or values are computed at once


@torch.no_grad()
def path_patching(
    model: Model, clean: Text, corrupt: Text, right: int | str,
    wrong: int | str | None = None, senders: Sequence[str] | str | None = None,
    receivers: Sequence[str] | str | None = None, *, target: Text | None = None, position: int = -1,
    rows: int | None = None,
) -> PatchingResult:  # fmt: skip
    """Return how much of the answer comes back when a sender's clean output reaches one receiver alone

    (Wang et al. 2023, arXiv 2211.00593; Goldowsky-Dill et al. 2023, arXiv 2304.05969.) In a run of `corrupt`
    the receiver reads the stream as if the sender had written what it wrote in `clean`; every other part
    reads it as it was, and what comes after the receiver follows from it. Senders are "embed",
    "blocks.0.attn", "blocks.0.attn head 3"; receivers "blocks.1.ffn", "logits", "blocks.1.attn.q head 2" (or
    k, v). By default all parts; senders="heads" are all heads, receivers="q", "k" or "v" those of every head.
    Values are as in `activation_patching`, NaN where a sender comes after a receiver. Blocks that add to no
    stream are refused.
    """
    comparison = CounterfactualPair(model, clean, corrupt, right, wrong, target=target, position=position)
    table = NodeTable(model)
    sends, receives = table.find_writes(senders), table.find_reads(receivers)
    pairs = [(s, r) for r in receives for s in sends if s.depth < r.depth]
    if not pairs:
        raise InputError(
            "no sender comes before a receiver", hint=f"{sends[0].name} cannot reach {receives[0].name}"
        )
    first, second = comparison.values(table.value_names(sends))
    change = {node.name: table.output_change(node, first, second)[0] for node in sends}
    direct = [(s, r) for s, r in pairs if not r.projection]
    projected = [(s, r) for s, r in pairs if r.projection]
    add = lambda added, rows, first: rows.add_(added[first:])  # a norm reads the stream with the change in it
    interventions = [Intervention(r.value, None, partial(add, change[s.name])) for s, r in direct]
    interventions += _through_projections(comparison, projected, change)
    restored = comparison.measure(interventions, rows)
    return edge_result("exact", comparison, sends, receives, direct + projected, restored)


def edge_result(
    method: str, comparison: CounterfactualPair, senders: Sequence[Node], receivers: Sequence[Node],
    pairs: Sequence[tuple[Node, Node]], scores: Tensor,
) -> PatchingResult:  # fmt: skip
    """Return numbers, one for each pair, as a matrix of senders by receivers."""
    rows, columns = [n.name for n in senders], [n.name for n in receivers]
    values = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
    for (sender, receiver), value in zip(pairs, scores.tolist(), strict=True):
        values[rows.index(sender.name), columns.index(receiver.name)] = value
    return PatchingResult(
        "paths", method, tuple(rows), tuple(columns), values, comparison.best, comparison.worst
    )


def _through_projections(
    comparison: CounterfactualPair, pairs: Sequence[tuple[Node, Node]], change: dict[str, Tensor]
) -> list[Intervention]:
    """Put into one head the queries, keys or values that it would have if it read the changed stream."""
    made: dict[tuple[str, str], Tensor] = {}
    wanted = list(dict.fromkeys((s.name, r.value, r.part) for s, r in pairs))  # the part is a value: attn.q
    for value, name in dict.fromkeys((v, n) for _, v, n in wanted):
        these = [s for s, v, n in wanted if (v, n) == (value, name)]
        for start in range(0, len(these), ROWS):
            some = these[start : start + ROWS]
            added = torch.stack([change[s] for s in some])
            watch = Watch(name, edit={value: partial(torch.add, added)})
            comparison.corrupt.run(comparison.model, watch, repeat=len(some))
            made |= {(s, name): row for s, row in zip(some, watch[name], strict=True)}

    def write(values: Tensor, head: int | None, rows: Tensor, first: int) -> None:
        rows[:, head] = values[head, first:]

    return [Intervention(r.part, None, partial(write, made[s.name, r.part], r.head)) for s, r in pairs]


# Attribution patching: a gradient estimates every patch, or every edge, to first order. A few passes replace
# thousands. `result.correlation(exact)` tells how good the estimate is for a model and a text.

EDGE_STEPS = 8


def attribution_patching(
    model: Model, clean: Text, corrupt: Text, right: int | str,
    wrong: int | str | None = None, what: str = "residual", *, steps: int = 1,
    by_position: bool | None = None, target: Text | None = None, position: int = -1,
) -> PatchingResult:  # fmt: skip
    """Return what `activation_patching` returns, to first order: (clean − corrupt) · ∂d/∂value

    (Nanda 2023; Syed et al. 2023, arXiv 2310.10348.) With steps=1 the gradient is that of the corrupt run:
    two passes forward and one back. With more it is the mean over inputs between the corrupt and the clean
    one (Hanna et al. 2024, arXiv 2403.17806), which is nearer to the exact value where layers saturate.
    `result.correlation(exact)` says how near.
    """
    inputs = both_inputs(model, clean, corrupt, target)
    names = names_to_patch(model, inputs[0], what)
    comparison, first, second, slopes = _differentiate(
        model, inputs, (right, wrong), names, names, steps, position
    )
    patches = list(all_patches(first, names, what, by_position))
    moved = {name: ((first[name] - second[name]) * slopes[name]).double() for name in names}
    shares = [float(select_entries(moved[p.name], p, first.positions[p.name]).sum()) for p in patches]
    restored = torch.tensor(shares, dtype=torch.float64) / (comparison.best - comparison.worst)
    ends = comparison.best, comparison.worst
    return collect(what, _method(steps), comparison.clean, patches, restored, *ends)


def edge_attribution(
    model: Model, clean: Text, corrupt: Text, right: int | str,
    wrong: int | str | None = None, senders: Sequence[str] | str | None = None, *, steps: int = EDGE_STEPS,
    target: Text | None = None, position: int = -1,
) -> PatchingResult:  # fmt: skip
    """Return what `path_patching` returns for all parts as receivers, by integrated gradients

    (EAP-IG: Hanna et al. 2024, arXiv 2403.17806; steps=1 is EAP: Syed et al. 2023.) An edge is what the
    sender writes in `clean` beyond what it writes in `corrupt`, times the gradient by what the receiver alone
    reads: a few passes for all edges together. `result.correlation(path_patching(…))` says how near it is.
    """
    table = NodeTable(model)
    sends, receives = table.find_writes(senders), list(table.reads)
    comparison, first, second, slopes = _differentiate(
        model, both_inputs(model, clean, corrupt, target), (right, wrong), table.value_names(sends),
        [node.value for node in receives], steps, position,
    )  # fmt: skip
    change = {node.name: table.output_change(node, first, second)[0].double() for node in sends}
    pairs = [(s, r) for r in receives for s in sends if s.depth < r.depth]
    shares = [float((change[s.name] * slopes[r.value][0].double()).sum()) for s, r in pairs]
    restored = torch.tensor(shares, dtype=torch.float64) / (comparison.best - comparison.worst)
    return edge_result(_method(steps), comparison, sends, receives, pairs, restored)


def _method(steps: int) -> str:
    return "gradient" if steps == 1 else f"integrated gradients, {steps} steps"


def _differentiate(
    model: Model, inputs: tuple[Input, Input], answers: tuple[int | str, int | str | None],
    names: Sequence[str], readers: Sequence[str], steps: int, position: int,
) -> tuple[CounterfactualPair, Watch, Watch, dict[str, Tensor]]:  # fmt: skip
    """Return the comparison, the values called `names` of both inputs, and ∂d/∂value of `readers`, (1, …).

    The gradient is the mean over `steps` inputs from corrupt to clean. With one step it is taken in the run
    of the corrupt input: two passes forward and one back. Each value is given to whoever reads it under that
    name alone: of a norm's input, to that norm.
    """
    check_integer("steps", steps, minimum=1)
    # An edit is given a copy: what is recorded is then read under this name alone.
    copies: dict[str, Edit] = {name: lambda value: value for name in readers if name != "embed.token"}
    start: dict[str, Edit] = {"embed.token": lambda value: value.detach().requires_grad_()}
    recorded = Watch(*names, "embed.token", detach=True), Watch(*names, "embed.token", detach=True)
    watch = Watch(*readers, edit=start | copies)
    with torch.set_grad_enabled(steps == 1):
        comparison = CounterfactualPair(
            model, *inputs, *answers, position=position,
            watches=(recorded[0], watch + recorded[1] if steps == 1 else recorded[1]),
        )  # fmt: skip
        gap = comparison.corrupt_gap.sum()  # here, for the caller may have switched gradients off
    if steps > 1:
        high, low = (seen["embed.token"] for seen in recorded)
        share = ((torch.arange(steps) + 0.5) / steps).to(low)
        leaf = (low + share[:, None, None] * (high - low)).requires_grad_()
        watch = Watch(*readers, edit={"embed.token": lambda _: leaf} | copies)
        with torch.enable_grad():
            logits = comparison.corrupt.run(model, watch, repeat=steps)
            gap = comparison.gap(choices(model, logits, comparison.position)).sum()
    values = [watch[name] for name in readers]
    slopes = torch.autograd.grad(gap, values, allow_unused=True)
    pairs = zip(readers, values, slopes, strict=True)
    means = {n: torch.zeros_like(v[:1]) if g is None else g.mean(0, keepdim=True) for n, v, g in pairs}
    return comparison, *recorded, means


# The attribution graph: the few parts, and the strongest edges between them, that carry an answer.


@dataclass(frozen=True)
class AttributionGraph(Result):
    """Nodes from the embedding up to the logits, and edges (sender, receiver, value) between them.

    A value is how much of the clean answer an edge brings back, by integrated gradients; `all_edges` has all.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str, float], ...]
    all_edges: PatchingResult


def attribution_graph(
    model: Model, clean: Text, corrupt: Text, right: int | str,
    wrong: int | str | None = None, *, edges: int = 16, senders: Sequence[str] | str | None = None,
    steps: int = EDGE_STEPS, target: Text | None = None, position: int = -1,
) -> AttributionGraph:  # fmt: skip
    """Return the `edges` strongest edges that lead to the logits

    (Hanna et al. 2024, arXiv 2403.17806.) The graph is grown from the logits: each time the strongest edge is
    added whose receiver is in it already, so that every node has a way up. senders="heads" has a node for
    every head that writes; a part then reads for all its heads.
    """
    check_integer("edges", edges, minimum=1)
    every = edge_attribution(
        model, clean, corrupt, right, wrong, senders, steps=steps, target=target, position=position
    )
    values = every.values.nan_to_num(0.0)
    strength, strongest = values.abs(), list[tuple[str, str, float]]()
    readers = {column: j for j, column in enumerate(every.columns)}
    open_columns = torch.zeros(len(every.columns), dtype=torch.bool)
    open_columns[readers["logits"]] = True
    while len(strongest) < edges:
        best = int(strength.where(open_columns, 0.0).argmax())
        i, j = divmod(best, len(every.columns))
        if strength[i, j] == 0 or not open_columns[j]:
            break
        strongest.append((every.names[i], every.columns[j], float(values[i, j])))
        strength[i, j] = 0.0
        part = every.names[i].partition(" ")[0]  # that writes: it reads itself, or its block for all parts
        for name in (part, part.rpartition(".")[0]):
            if name in readers:
                open_columns[readers[name]] = True
                break
    used = {name for sender, receiver, _ in strongest for name in (sender, receiver)}
    order = [name for name in dict.fromkeys((*every.names, *every.columns[:-1], "logits")) if name in used]
    return AttributionGraph(tuple(order), tuple(strongest), every)
