"""patching, logit_attribution: which values carry an answer; matrix, lines: numbers of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures import panels
from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import Axes, Panel
from heedful.core.errors import InputError
from heedful.interp.comparison import PatchingResult
from heedful.interp.logit_attribution import LogitAttribution


def patching(*results: PatchingResult) -> Figure:
    """How much of an answer each patch brings back, 0 nothing, 1 all; several results stand below each other.

    Of whatever `activation_patching`, `attribution_patching`, `path_patching` or `edge_attribution` gave.
    """
    if not results or not all(isinstance(result, PatchingResult) for result in results):
        raise InputError("give results of activation_patching, or of another way to patch")
    drawn = [_patched(result) for result in results]
    first = results[0]
    about = {"what": ", ".join(r.what for r in results), "method": first.method}
    title = f"Patching of {about['what']}: the share of the answer that each brings back"
    note = f"d is {first.corrupt:.3f} in the corrupt run (0) and {first.clean:.3f} in the clean one (1)."
    return Figure("patching", title, about, {"panels": drawn}, note, "heedful.view.patching(result)")


def _patched(result: PatchingResult) -> Panel:
    by_head = result.columns == tuple(map(str, range(len(result.columns))))
    axes = ("sender", "receiver") if result.what == "paths" else ("value", "head" if by_head else "position")
    return panels.matrix(
        result.what, result.values, result.names, result.columns, axes=axes, note=result.method
    )


def logit_attribution(result: LogitAttribution) -> Figure:
    """What every part, head and token adds to a logit by itself: shares that sum to it."""
    names, rows = [str(h) for h in range(max(map(len, result.heads.values()), default=0))], []
    for name, share in zip(result.names, result.values.tolist(), strict=True):
        heads = result.heads.get(name, result.values.new_zeros(0)).tolist()
        blank = [np.nan] * (len(names) - len(heads))
        rows.append([*heads, *blank, share - sum(heads)])
    columns = [*(f"head {h}" for h in names), "the rest" if names else "share"]
    parts = panels.matrix("parts", np.array(rows), result.names, columns, axes=("part", ""), note=result.note)
    tokens = panels.matrix(
        "tokens", result.by_token()[None], ["share"], result.tokens,
        axes=("", "token"), note="What heads brought from each token, and at the position itself all else.",
    )  # fmt: skip
    against = "" if result.wrong is None else f" over {result.wrong}"
    about = {"answer": result.answer, "wrong": result.wrong, "position": result.position}
    title = f"Shares in the logit of token {result.answer}{against}: {result.logit:.3f}"
    call = "heedful.view.logit_attribution(result)"
    return Figure("logit_attribution", title, about, {"panels": [parts, tokens]}, result.note, call)


def matrix(
    values: Any, rows: Sequence[Any] | None = None, columns: Sequence[Any] | None = None, *, title: str = "",
    axes: Axes = ("", ""),
) -> Figure:  # fmt: skip
    """A heat map of any numbers (R, C); NaN is hatched. `axes` say what rows and columns are."""
    numbers = torch.as_tensor(values).detach().float().cpu()
    if numbers.dim() != 2:
        raise InputError(
            f"the numbers have shape {tuple(numbers.shape)}", hint="give rows and columns (R, C)"
        )
    drawn = panels.matrix("", numbers, rows, columns, axes=axes)
    return Figure("matrix", title, {}, {"panels": [drawn]}, "", "heedful.view.matrix(values)")


def lines(values: Any, x: Sequence[float] | None = None, *, title: str = "", axes: Axes = ("", "")) -> Figure:
    """A line over x, or one for each name of a mapping; `axes` are the titles of y and x."""
    curves = values if isinstance(values, Mapping) else {"": values}
    numbers = torch.stack([torch.as_tensor(curve).detach().float().cpu() for curve in curves.values()])
    drawn = panels.lines("", numbers, list(curves), x, axes=axes)
    return Figure("lines", title, {}, {"panels": [drawn]}, "", "heedful.view.lines(values)")
