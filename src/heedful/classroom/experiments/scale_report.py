"""The report of a sweep over size and data: the surface, what it foretold, the best size for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heedful.classroom.experiments.loss_surface import FLOPS_PER_PARAMETER_AND_TOKEN, ScalePoint, SurfaceFit
from heedful.classroom.experiments.report import Section
from heedful.classroom.figures import panels

BUDGETS = 4  # curves of equal compute
GRID = 33  # points of each


def scale_sections(
    points: Sequence[ScalePoint],
    fits: Sequence[SurfaceFit],
    predictions: Sequence[dict[str, Any]],
    held_out: Sequence[ScalePoint],
    budget: float | None,
) -> list[Section]:
    """Return a section for everything that is there so far."""
    found = [point_section(points)]
    if fits:
        found += [fit_section(points, fits), iso_flop_section(points, fits[0], budget)]
    if predictions:
        found.insert(1, prediction_section(predictions, held_out))
    return found


def point_section(points: Sequence[ScalePoint]) -> Section:
    """Return the loss of every run: rows are sizes, columns amounts of data."""
    sizes, amounts = (sorted({getattr(p, n) for p in points}) for n in ("parameters", "tokens"))
    known = {(p.parameters, p.tokens): p.loss for p in points}
    values = np.array([[known.get((n, d), np.nan) for d in amounts] for n in sizes])
    rows, x = [f"{n:,} parameters" for n in sizes], [f"{np.log10(d):.4f}" for d in amounts]
    drawn = panels.lines("loss over data", values, rows, x, axes=("validation loss", "log₁₀ tokens"))
    cells = [["" if np.isnan(v) else f"{v:.4f}" for v in row] for row in values]
    table = panels.table("loss", cells, rows, [f"{d:,}" for d in amounts], axes=("size", "tokens"))
    text = [f"{len(points)} runs by one recipe, each with a folder of its own."]
    return Section("runs", "The runs", text, [drawn], [table])


def prediction_section(predictions: Sequence[dict[str, Any]], held_out: Sequence[ScalePoint]) -> Section:
    """Return what was foretold of the held-out runs beside what came out."""
    rows, names, errors = [], [], []
    for i, one in enumerate(predictions):
        truth = held_out[i].loss if i < len(held_out) else None
        names.append(f"{one['parameters']:,} parameters, {one['tokens']:,} tokens")
        off = lambda value, truth=truth: "" if truth is None else f" ({value / truth - 1:+.2%})"
        forms = [
            f"{one[f]['loss']:.4f}{off(one[f]['loss'])} [{one[f]['interval'][0]:.3f}, "
            f"{one[f]['interval'][1]:.3f}]"
            for f in ("chinchilla", "kaplan")
        ]
        line = f"{one['line']:.4f}{off(one['line'])}"
        rows.append([f"{one['compute_factor']:.1f} ×", *forms, line, "" if truth is None else f"{truth:.4f}"])
        if truth is not None:
            errors.append((abs(one[one["best_form"]]["loss"] / truth - 1), abs(one["line"] / truth - 1)))
    named = ", ".join(f"{form} {error:.2%}" for form, error in predictions[0]["foretelling_errors"].items())
    text = [
        "The predictions were written to predictions.json before these runs were trained. So was the form "
        f"that counts: the one that foretells the dearest quarter of the small runs best from the others "
        f"(off by: {named}). The line goes through the last two runs that no cheaper one equals, ln L over "
        "ln C."
    ]
    if errors:
        best, (fit, line) = predictions[0]["best_form"], (max(e[i] for e in errors) for i in (0, 1))
        text.append(f"{best} was off by at most {fit:.2%}, the line through the last two runs by {line:.2%}.")
    columns = ["compute, of the largest fitted", "Chinchilla form", "Kaplan form"]
    columns += ["line through two", "measured"]
    table = panels.table("held-out runs", rows, names, columns, axes=("held-out run", ""))
    return Section("predictions", "What the small runs foretold", text, tables=[table])


def fit_section(points: Sequence[ScalePoint], fits: Sequence[SurfaceFit]) -> Section:
    """Return the values of the fitted forms with their intervals."""
    tables = []
    for fit in fits:
        rows = [[f"{v:.3f}", f"[{low:.3f}, {high:.3f}]"] for v, low, high in fit.intervals().values()]
        title = f"{fit.form} (off by {fit.error:.2%} on the fitted runs, root mean square)"
        columns = ["value", "95 % of bootstrap samples"]
        tables.append(panels.table(title, rows, list(fit.intervals()), columns, axes=(fit.form, "")))
    text = [
        "Chinchilla: L = E + A/N^α + B/D^β. Kaplan: L = ((N_c/N)^(α_N/α_D) + D_c/D)^α_D. Fitted to the "
        f"logarithm of the loss of {len(points)} runs; intervals are of fits to samples of the runs.",
        *(f"{fit.form}: off by {fit.error:.2%} on the runs it was fitted to." for fit in fits),
    ]
    return Section("fits", "The surface", text, tables=tables)


def iso_flop_section(points: Sequence[ScalePoint], fit: SurfaceFit, budget: float | None) -> Section:
    """Return curves of equal compute over the size, and the best size for each."""
    low, high = (f(p.compute for p in points) for f in (min, max))
    budgets = sorted({*np.geomspace(low * 2, high, BUDGETS), *([budget] if budget is not None else [])})
    sizes = np.geomspace(min(p.parameters for p in points) / 2, max(p.parameters for p in points) * 4, GRID)
    curves = [[fit.predict(n, c / FLOPS_PER_PARAMETER_AND_TOKEN / n) for n in sizes] for c in budgets]
    rows = []
    for c in budgets:
        best, (least, most) = fit.optimal_parameters(c), fit.optimal_interval(c)
        tokens = c / FLOPS_PER_PARAMETER_AND_TOKEN / best
        around, each = f"[{least:,.0f}, {most:,.0f}]", f"{tokens / best:.1f}"
        loss = f"{fit.predict(best, tokens):.3f}"
        rows.append([f"{best:,.0f}", around, f"{tokens:,.0f}", each, loss])
    names = [f"{c:.2e} FLOPs" for c in budgets]
    columns = ["best parameters", "95 % interval", "tokens", "tokens per parameter", "loss"]
    text = [
        "Along a curve of equal compute C = 6·N·D a model too small and one read too little both lose: the "
        "lowest point is the best size."
    ]
    x, axes = [f"{np.log10(n):.4f}" for n in sizes], ("loss by the fit", "log₁₀ parameters")
    drawn = panels.lines("loss at equal compute", np.array(curves), names, x, axes=axes)
    table = panels.table("best size", rows, names, columns, axes=("compute", ""))
    return Section("budgets", "The best size for a budget", text, [drawn], [table])
