"""The few parts and the strongest edges between them that carry an answer, as a small graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heedful.core.checks import check_integer
from heedful.interp.attribution_patching import EDGE_STEPS, edge_attribution
from heedful.interp.comparison import PatchingResult
from heedful.interp.inputs import Input, Text
from heedful.interp.results import Result
from heedful.models.base import Model


@dataclass(frozen=True)
class AttributionGraph(Result):
    """Nodes from the embedding up to the logits, and edges (sender, receiver, value) between them.

    A value is how much of the clean answer an edge brings back, by integrated gradients; `all_edges` has all.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str, float], ...]
    all_edges: PatchingResult


def attribution_graph(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str,
    wrong: int | str | None = None, *, edges: int = 16, senders: Sequence[str] | str | None = None,
    steps: int = EDGE_STEPS, target: Text | None = None, position: int = -1,
) -> AttributionGraph:  # fmt: skip
    """Return the `edges` strongest edges that lead to the logits

    (Hanna et al. 2024, arXiv 2403.17806.) The graph is grown from the logits: each time the strongest edge is
    added whose receiver is in it already, so that every node has a way up. senders="heads" has a node for
    every head that writes; a part then reads for all its heads.
    """
    check_integer("edges", edges, minimum=1)
    found = edge_attribution(
        model, clean, corrupt, right, wrong, senders, steps=steps, target=target, position=position
    )
    values = found.values.nan_to_num(0.0)
    strength, kept = values.abs(), list[tuple[str, str, float]]()
    readers = {column: j for j, column in enumerate(found.columns)}
    open_columns = torch.zeros(len(found.columns), dtype=torch.bool)
    open_columns[readers["logits"]] = True
    while len(kept) < edges:
        best = int(strength.where(open_columns, 0.0).argmax())
        i, j = divmod(best, len(found.columns))
        if strength[i, j] == 0 or not open_columns[j]:
            break
        kept.append((found.names[i], found.columns[j], float(values[i, j])))
        strength[i, j] = 0.0
        part = found.names[i].partition(" ")[0]  # that writes: it reads itself, or its block for all parts
        for name in (part, part.rpartition(".")[0]):
            if name in readers:
                open_columns[readers[name]] = True
                break
    used = {name for sender, receiver, _ in kept for name in (sender, receiver)}
    order = [name for name in dict.fromkeys((*found.names, *found.columns[:-1], "logits")) if name in used]
    return AttributionGraph(tuple(order), tuple(kept), found)
