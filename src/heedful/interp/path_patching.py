"""Direct paths from one part to another: one write changed for one read alone, everything between held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.interp.comparison import Comparison, PatchingResult
from heedful.interp.inputs import Input, Text
from heedful.interp.interventions import Intervention, InterventionRunner, Report
from heedful.interp.nodes import Node, NodeTable
from heedful.models.base import Model
from heedful.nn.context import Watch

ROWS = 16  # whose queries, keys or values are computed at once


@torch.no_grad()
def path_patching(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str,
    wrong: int | str | None = None, senders: Sequence[str] | str | None = None,
    receivers: Sequence[str] | str | None = None, *, target: Text | None = None, position: int = -1,
    report: Report | None = None, rows: int | None = None,
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
    comparison = Comparison.of(model, clean, corrupt, right, wrong, target=target, position=position)
    table = NodeTable.of(model)
    sends, receives = table.find_writes(senders), table.find_reads(receivers)
    pairs = [(s, r) for r in receives for s in sends if s.depth < r.depth]
    if not pairs:
        raise InputError(
            "no sender comes before a receiver", hint=f"{sends[0].name} cannot reach {receives[0].name}"
        )
    first, second = comparison.values(table.value_names(sends))
    change = {node.name: table.output_change(node, first, second)[0] for node in sends}
    interventions = [_direct(s, r, change[s.name]) for s, r in pairs if not r.projection]
    interventions += _through_projections(comparison, [p for p in pairs if p[1].projection], change)
    order = [p for p in pairs if not p[1].projection] + [p for p in pairs if p[1].projection]
    found = InterventionRunner(comparison, rows).run(interventions, report)
    return edge_result("exact", comparison, sends, receives, order, found)


def edge_result(
    method: str, comparison: Comparison, senders: Sequence[Node], receivers: Sequence[Node],
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


def _direct(sender: Node, receiver: Node, change: Tensor) -> Intervention:
    """Let a norm read the stream with the sender's change in it."""

    def write(row: Tensor, first: int) -> None:
        row += change[first:]

    return Intervention(receiver.value, None, write)


def _through_projections(
    comparison: Comparison, pairs: Sequence[tuple[Node, Node]], change: dict[str, Tensor]
) -> list[Intervention]:
    """Put into one head the queries, keys or values that it would have if it read the changed stream."""
    made: dict[tuple[str, str], Tensor] = {}
    wanted = list(dict.fromkeys((s.name, r.value, _projection_name(r)) for s, r in pairs))
    for value, name in dict.fromkeys((v, n) for _, v, n in wanted):
        these = [s for s, v, n in wanted if (v, n) == (value, name)]
        for start in range(0, len(these), ROWS):
            some = these[start : start + ROWS]
            added = torch.stack([change[s] for s in some])
            watch = Watch(name, edit={value: partial(torch.add, added)})
            comparison.corrupt.run(comparison.model, watch, repeat=len(some))
            made |= {(s, name): row for s, row in zip(some, watch[name], strict=True)}
    put = lambda s, r, name: Intervention(name, None, _put_head(made[s.name, name], r))
    return [put(s, r, _projection_name(r)) for s, r in pairs]


def _projection_name(receiver: Node) -> str:
    return receiver.name.partition(" ")[0]


def _put_head(values: Tensor, receiver: Node) -> Callable[[Tensor, int], None]:
    def write(row: Tensor, first: int) -> None:
        row[receiver.head] = values[receiver.head, first:]

    return write
