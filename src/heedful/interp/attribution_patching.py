"""Patching by gradients: every patch, or every edge, from a few passes, to first order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.interp.comparison import (
    HEAD_VALUES,
    Comparison,
    PatchingResult,
    all_patches,
    collect,
    select_entries,
    value_names,
)
from heedful.interp.inputs import Input, Text, choices
from heedful.interp.nodes import NodeTable
from heedful.interp.path_patching import edge_result
from heedful.models.base import Model
from heedful.nn.context import Watch

EDGE_STEPS = 8


def attribution_patching(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str,
    wrong: int | str | None = None, what: str = "residual", *, steps: int = 1,
    by_position: bool | None = None, target: Text | None = None, position: int = -1,
) -> PatchingResult:  # fmt: skip
    """Return what `activation_patching` returns, to first order: (clean − corrupt) · ∂d/∂value

    (Nanda 2023; Syed et al. 2023, arXiv 2310.10348.) With steps=1 the gradient is that of the corrupt run;
    with more it is the mean over inputs between the corrupt and the clean one (Hanna et al. 2024, arXiv
    2403.17806), which is nearer to the exact value where layers saturate. `result.correlation(exact)` says
    how near.
    """
    comparison = Comparison.of(model, clean, corrupt, right, wrong, target=target, position=position)
    names = value_names(model, comparison.clean, what)
    with torch.no_grad():
        first, second = comparison.values(names)
    slopes = mean_gradients(comparison, names, steps)
    heads = what in HEAD_VALUES
    each = not heads if by_position is None else by_position
    patches = list(all_patches(first, names, heads=heads, by_position=each))
    moved = {name: ((first[name] - second[name]) * slopes[name])[0].double() for name in names}
    shares = [float(select_entries(moved[p.name], p, first.positions[p.name]).sum()) for p in patches]
    found = torch.tensor(shares, dtype=torch.float64) / (comparison.best - comparison.worst)
    return collect(what, _method(steps), comparison, patches, found)


def edge_attribution(
    model: Model, clean: Text | Input, corrupt: Text | Input, right: int | str,
    wrong: int | str | None = None, senders: Sequence[str] | str | None = None, *, steps: int = EDGE_STEPS,
    target: Text | None = None, position: int = -1,
) -> PatchingResult:  # fmt: skip
    """Return what `path_patching` returns for all parts as receivers, by integrated gradients

    (EAP-IG: Hanna et al. 2024, arXiv 2403.17806; steps=1 is EAP: Syed et al. 2023.) An edge is what the
    sender writes in `clean` beyond what it writes in `corrupt`, times the gradient by what the receiver alone
    reads: a few passes for all edges together. `result.correlation(path_patching(…))` says how near it is.
    """
    comparison = Comparison.of(model, clean, corrupt, right, wrong, target=target, position=position)
    table = NodeTable.of(model)
    sends, receives = table.find_writes(senders), list(table.reads)
    with torch.no_grad():
        first, second = comparison.values(table.value_names(sends))
        change = {node.name: table.output_change(node, first, second)[0].double() for node in sends}
    slopes = mean_gradients(comparison, [node.value for node in receives], steps)
    pairs = [(s, r) for r in receives for s in sends if s.depth < r.depth]
    shares = [float((change[s.name] * slopes[r.value][0].double()).sum()) for s, r in pairs]
    found = torch.tensor(shares, dtype=torch.float64) / (comparison.best - comparison.worst)
    return edge_result(_method(steps), comparison, sends, receives, pairs, found)


def _method(steps: int) -> str:
    return "gradient" if steps == 1 else f"integrated gradients, {steps} steps"


def mean_gradients(comparison: Comparison, names: Sequence[str], steps: int) -> dict[str, Tensor]:
    """Return ∂d/∂value of each name, (1, …), the mean over `steps` inputs from corrupt to clean.

    Each value is given to whoever reads it under that name alone: of a norm's input, to that norm.
    """
    check_integer("steps", steps, minimum=1)
    with torch.no_grad():
        low, high = (seen["embed.token"] for seen in comparison.values(["embed.token"])[::-1])
    share = torch.zeros(1) if steps == 1 else (torch.arange(steps) + 0.5) / steps
    between = low + share.to(low)[:, None, None] * (high - low)
    with torch.enable_grad():
        leaf = between.detach().requires_grad_()
        start: dict[str, Callable[[Tensor], Tensor]] = {"embed.token": lambda _: leaf}
        # An edit is given a copy: what is recorded is then read under this name alone.
        watch = Watch(*names, edit=start | {name: lambda value: value for name in names if name not in start})
        logits = comparison.corrupt.run(comparison.model, watch, repeat=steps)
        gap = comparison.gap(choices(comparison.model, logits, comparison.position)).sum()
        values = [watch[name] for name in names]
        slopes = torch.autograd.grad(gap, values, allow_unused=True)
    pairs = zip(names, values, slopes, strict=True)
    return {n: torch.zeros_like(v[:1]) if g is None else g.mean(0, keepdim=True) for n, v, g in pairs}
