"""Circuits: the few edges between parts that are enough for an answer, measured over many pairs of prompts.

One pair of prompts can mislead. `average_over_pairs` repeats any patching over many pairs and gives every
number an interval. A circuit is a set of edges. It is run on the clean prompt with all other edges cut: each
part then reads through them what was written in the corrupt prompt. Its faithfulness is the share of the
clean answer that is left, 1 for all edges and 0 for none. `find_circuit` removes one edge after the other as
long as nothing changes (ACDC: Conmy et al. 2023, arXiv 2304.14997). `circuit_curve` keeps the edges with the
largest scores of `edge_attribution`, which costs a few passes instead of thousands (Hanna et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.core.checks import check_integer, check_number
from heedful.core.errors import InputError
from heedful.interp.inputs import Result, Text, choices, with_progress
from heedful.interp.intervene.comparison import CounterfactualPair, PatchingResult
from heedful.interp.intervene.nodes import Node, NodeTable
from heedful.interp.measurements import mean_interval
from heedful.models.base import Model
from heedful.nn.context import Watch

Edge = tuple[str, str]  # the names of a sender and a receiver, as `path_patching` has them


class PromptPair(NamedTuple):
    """Two prompts of one length, and the answers that tell them apart."""

    clean: Text
    corrupt: Text
    right: int | str
    wrong: int | str | None = None


@dataclass(frozen=True)
class AveragedPatching(PatchingResult):
    """The mean of a patching over pairs of prompts, and the 95 % interval of each number.

    `each` has the values of every pair, (pairs, rows, columns).
    """

    low: Tensor
    high: Tensor
    each: Tensor


def average_over_pairs(
    patching: Callable[..., PatchingResult], model: Model, pairs: Sequence[PromptPair], *,
    interval: str = "bootstrap", seed: int = 0, **options: Any,
) -> AveragedPatching:  # fmt: skip
    """Return the mean of `patching(model, *pair, **options)` over pairs of prompts, with intervals.

    `patching` is `activation_patching`, `attribution_patching`, `path_patching` or `edge_attribution`.
    `interval` is "bootstrap" (the pairs are drawn again 2,000 times) or "normal" (1.96 standard errors).
    Positions are compared by their number, so that values at positions need prompts of one length.
    """
    pairs = _check_pairs(pairs)
    results = [patching(model, *pair, **options) for pair in with_progress(pairs, "pairs", len(pairs))]
    first = results[0]
    for number, result in enumerate(results):
        if (result.names, result.values.shape) != (first.names, first.values.shape):
            sizes = f"{tuple(result.values.shape)} and {tuple(first.values.shape)}"
            raise InputError(
                f"the values of pair {number} do not fit those of pair 0: they are {sizes}",
                hint="give prompts of one length, or patch what all lengths have, such as `what='heads'`",
            )
    alike = all(result.columns == first.columns for result in results)
    columns = first.columns if alike else tuple(map(str, range(len(first.columns))))
    each = torch.stack([result.values for result in results])
    mean, low, high = mean_interval(each, interval, seed)
    clean, corrupt = (sum(getattr(r, end) for r in results) / len(results) for end in ("clean", "corrupt"))
    method = f"{first.method}, mean of {len(results)} pairs"
    return AveragedPatching(first.what, method, first.names, columns, mean, clean, corrupt, low, high, each)


def _check_pairs(pairs: Iterable[PromptPair]) -> list[PromptPair]:
    """Return the pairs; raise InputError if there are none, or if one is given without a list around it."""
    listed, hint = list(pairs), "give [PromptPair(clean, corrupt, right, wrong), …]"
    if not listed:
        raise InputError("no pairs of prompts were given", hint=hint)
    is_pair = lambda pair: isinstance(pair, list | tuple) and len(pair) in (3, 4)
    if isinstance(pairs, PromptPair) or not all(map(is_pair, listed)):
        what = "one pair of prompts" if isinstance(pairs, PromptPair) else f"{listed!r:.60}"
        raise InputError(f"a list of pairs of prompts is needed; got {what}", hint=hint)
    return [PromptPair(*pair) for pair in listed]


class _CircuitRunner:
    """Runs the clean prompts of several pairs with some edges cut."""

    def __init__(
        self, model: Model, pairs: Sequence[PromptPair], senders: Sequence[str] | str | None
    ) -> None:
        pairs = _check_pairs(pairs)
        self.model, self.table = model, NodeTable(model)
        self.senders, self.receivers = self.table.find_writes(senders), list(self.table.reads)
        backwards = [(s, r) for r in reversed(self.receivers) for s in reversed(self.senders)]
        self.edges = [(s.name, r.name) for s, r in backwards if s.depth < r.depth]
        self.names = self.table.value_names(self.senders)
        self.corrupt = [Watch(*self.names) for _ in pairs]
        self.comparisons = [
            CounterfactualPair(model, *pair, watches=(None, watch))
            for pair, watch in zip(pairs, self.corrupt, strict=True)
        ]

    def faithfulness(self, removed: set[Edge]) -> float:
        """Return the share of the clean answer that is left without these edges, the mean over pairs."""
        shares = []
        for comparison, corrupt in zip(self.comparisons, self.corrupt, strict=True):
            watch = Watch(*self.names)
            for reader in self.receivers:
                cut = [s for s in self.senders if (s.name, reader.name) in removed]
                if cut:
                    watch.edit[reader.value] = partial(self._cut_edges, cut, watch, corrupt)
            logits = comparison.clean.run(self.model, watch)
            gap = comparison.gap(choices(self.model, logits, comparison.position))
            shares.append(float(comparison.restored_share(gap)))
        return sum(shares) / len(shares)

    def _cut_edges(self, cut: Sequence[Node], watch: Watch, corrupt: Watch, stream: Tensor) -> Tensor:
        """Return the stream that a part reads if some senders write as they did in the corrupt prompt."""
        for sender in cut:
            stream = stream - self.table.output_change(sender, watch, corrupt)
        return stream


@dataclass(frozen=True)
class Circuit(Result):
    """The edges of a circuit, from the logits down, and its faithfulness.

    `curve` has the number of edges that were left, and the faithfulness, after each removal.
    """

    edges: tuple[Edge, ...]
    faithfulness: float
    curve: tuple[tuple[int, float], ...]


@torch.no_grad()
def find_circuit(
    model: Model, pairs: Sequence[PromptPair], threshold: float = 0.01, *,
    senders: Sequence[str] | str | None = None,
) -> Circuit:  # fmt: skip
    """Return the edges that are left when every edge whose removal changes little is removed (ACDC).

    Edges are tried from the logits down, and an edge goes if the faithfulness moves by less than `threshold`.
    `senders` are all parts by default, "heads", or names. What other parts write reaches every reader. If all
    that a part writes comes from senders and none of their edges is left, it loses its own edges without a
    run. There is one pass for each other edge and pair.
    """
    check_number("threshold", threshold, minimum=0.0)
    runner = _CircuitRunner(model, pairs, senders)
    removed, current = set[Edge](), 1.0
    curve = [(len(runner.edges), current)]
    # A block that reads for all its parts is a receiver of that name: it writes what they write.
    within = lambda sender, receiver: f"{sender.partition(' ')[0]}.".startswith(f"{receiver}.")
    # What a part writes beside the senders is never cut, so it always matters what such a part reads.
    names, heads = {s.name for s in runner.senders}, [node.name for node in runner.table.head_writes()]
    uncut = {"logits"}
    for part in (node.name for node in runner.table.writes if node.name not in names):
        own = {head for head in heads if head.startswith(f"{part} ")}
        if not own or not own <= names:
            uncut |= {reader.name for reader in runner.receivers if within(part, reader.name)}
    for edge in with_progress(runner.edges, "edges", len(runner.edges)):
        used = edge[1] in uncut or any(e not in removed and within(e[0], edge[1]) for e in runner.edges)
        without = runner.faithfulness(removed | {edge}) if used else current
        if abs(current - without) < threshold:
            removed.add(edge)
            current = without
            curve.append((len(runner.edges) - len(removed), current))
    return Circuit(tuple(e for e in runner.edges if e not in removed), current, tuple(curve))


@torch.no_grad()
def circuit_curve(
    model: Model, pairs: Sequence[PromptPair], scores: PatchingResult, counts: Sequence[int] | None = None
) -> list[tuple[int, float]]:
    """Return the faithfulness of the circuits of the `counts` edges with the largest scores by size.

    `scores` are those of `edge_attribution` or `path_patching`, also averaged over pairs. By default the
    counts double from 1 to all edges.
    """
    for count in counts or ():
        check_integer("counts", count, minimum=0)
    runner = _CircuitRunner(model, pairs, scores.names)
    at = {name: i for i, name in enumerate(scores.columns)}
    value = lambda edge: abs(float(scores.values[scores.names.index(edge[0]), at[edge[1]]].nan_to_num()))
    missing = [receiver for _, receiver in runner.edges if receiver not in at]
    if missing:
        raise InputError(
            f"the scores have no receiver {missing[0]!r}", hint="compute them with edge_attribution"
        )
    ranked = sorted(runner.edges, key=value, reverse=True)
    doubled = [2**i for i in range(len(ranked).bit_length()) if 2**i < len(ranked)]
    return [(n, runner.faithfulness(set(ranked[n:]))) for n in counts or [*doubled, len(ranked)]]
