"""`heed scale`: models of several sizes on several amounts of text by one recipe, and their predictions.

The sweep is fitted first; its prediction for the larger, held-out runs is written to predictions.json; only
then are these trained. Every run has its own folder, and a run that is there is not trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.classroom.experiments.ledger import hardware
from heedful.classroom.experiments.loss_surface import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    ScalePoint,
    SurfaceFit,
    extend_line,
    fit_surface,
    prediction_errors,
)
from heedful.classroom.experiments.measurement_store import Comparison, Measurement
from heedful.classroom.experiments.report import Report, Section
from heedful.classroom.experiments.systems import shared_tokenizer
from heedful.classroom.experiments.translation_data import find_texts
from heedful.classroom.figures import panels
from heedful.core.errors import ConfigError, InputError
from heedful.core.files import write_text
from heedful.models import find_config
from heedful.models.counting import parameter_count
from heedful.train.config import TrainConfig
from heedful.train.recipes.folder import read_metrics
from heedful.train.recipes.recipes import Evaluation, Recipe, ResolvedSettings, TokenizerOptions
from heedful.train.recipes.train import run_training

HELD_OUT = 0.1  # of the text, for validation
LEAST_FACTOR = 4  # how much more compute than any fitted run a held-out one takes


@dataclass(frozen=True)
class ScaleSettings:
    """The sizes and amounts of data of a sweep, and the recipe that all its runs share."""

    family: str = "llama"
    dims: tuple[int, ...] = (48, 64, 96, 128, 192)
    tokens: tuple[int, ...] = (1_000_000, 2_000_000, 4_000_000, 8_000_000)
    held_out: tuple[tuple[int, int], ...] = ((256, 20_000_000), (320, 16_000_000))  # (dim, tokens)
    layers: int = 4
    heads: int = 4
    tokenizer: str = "char"
    vocab: int = 256
    length: int = 256
    batch: int = 16
    lr: float = 3e-3  # of a model 64 wide; it falls as the width grows, or wide models learn worse
    evaluation_batches: int = 64
    dtype: str = "bfloat16"
    seed: int = 0

    def model(self, dim: int) -> dict[str, Any]:
        """Return the fields of the config of a model of this width."""
        sizes: dict[str, Any] = {"dim": dim, "layers": self.layers, "heads": self.heads}
        sizes["context"] = self.length
        options = find_config(self.family)[1].field_names()
        sizes |= {"hidden": 8 * dim // 3} if "kv_heads" in options else {"hidden": 4 * dim}
        sizes |= {n: v for n, v in (("tied", True), ("dropout", 0.0)) if n in options}
        return {n: v for n, v in sizes.items() if n in options}


FULL_SCALE = ScaleSettings()
QUICK_SCALE = ScaleSettings(
    dims=(12, 16, 24, 32), tokens=(131_072, 262_144, 524_288), held_out=((48, 1_310_720),), layers=2, heads=2,
    tokenizer="char", vocab=128, length=64, batch=8, lr=1.9e-3, evaluation_batches=96,
    dtype="float32",
)  # fmt: skip


class ScaleSweep(Comparison):
    """One sweep in a folder: runs below points/ and held-out/, the fit and the predictions next to them."""

    def __init__(
        self, folder: Path, files: Sequence[str], settings: ScaleSettings, device: torch.device,
        report: Callable[[str], None] = lambda line: None, budget: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, device, report, {"family": settings.family, "seed": settings.seed})
        self.settings, self.budget = settings, budget  # FLOPs, for which the best size is found too
        self.files, self.text_name = find_texts(files, folder)
        self.points: list[ScalePoint] = []
        self.fits: list[SurfaceFit] = []
        self.predictions: list[dict[str, Any]] = []
        self.held_out: list[ScalePoint] = []
        self.tokenizer = shared_tokenizer(
            folder / "tokenizer", settings.tokenizer, self.files, settings.vocab
        )
        largest = max(self.parameters(d) * t for d, t in product(settings.dims, settings.tokens))
        for dim, tokens in settings.held_out:  # far enough beyond the sweep to tell anything
            factor = self.parameters(dim) * tokens / largest
            if factor < LEAST_FACTOR:
                raise ConfigError(
                    f"the held-out run of width {dim} on {tokens:,} tokens takes {factor:.2f} × the compute "
                    "of the sweep's largest",
                    hint=f"give it {LEAST_FACTOR} × or more: a wider model or more tokens",
                )

    def parameters(self, dim: int) -> int:
        """Return how many parameters a model of this width has."""
        family, config = find_config(self.settings.family)
        return parameter_count(family, config.change(vocab=len(self.tokenizer), **self.settings.model(dim)))

    def run(self, dim: int, tokens: int, kind: str) -> ScalePoint:
        """Train one run, unless it is there; the loss is that of its last step."""
        settings = self.point_settings(dim, tokens)
        train, folder = settings.recipe.train, self.folder / kind / settings.name

        def measure() -> float:
            run_training(settings, folder, resume=True, quiet=True)
            lines = [x for x in read_metrics(folder) if x.get("train/global_step") == train.steps]
            losses = [x["eval/loss"] for x in lines if "eval/loss" in x]
            if not losses:
                raise InputError("the text is too short to hold out a part of it", hint="name a longer one")
            return float(losses[-1])

        depends_on = {"model": self.settings.model(dim), "steps": train.steps, "lr": train.lr}
        loss = self.take(Measurement(f"{kind}-{settings.name}", depends_on, measure))
        s = self.settings
        return ScalePoint(self.parameters(dim), train.steps * s.batch * s.length, loss)

    def point_settings(self, dim: int, tokens: int) -> ResolvedSettings:
        """Return the settings of a run: the same recipe for all, its schedule as long as the run."""
        s = self.settings
        steps = max(1, tokens // (s.batch * s.length))
        recipe = Recipe(
            s.family, "one point of a sweep over size and data",
            tokenizer=TokenizerOptions(str(self.folder / "tokenizer"), s.vocab), model=s.model(dim),
            data={"length": s.length, "batch": s.batch, "holdout": HELD_OUT},
            train=TrainConfig(
                steps=steps, lr=s.lr * 64 / dim, warmup=max(1, steps // 20), dtype=s.dtype, seed=s.seed,
                save_every=max(1, steps // 4), keep=1,
            ),
            evaluate=Evaluation(
                every=steps, batches=s.evaluation_batches, log=max(1, steps // 20), sample=0
            ),
            device=str(self.device),
        )  # fmt: skip
        return ResolvedSettings(f"d{dim}-t{tokens}", recipe, tuple(self.files))

    def predict(self, points: Sequence[ScalePoint], fits: Sequence[SurfaceFit]) -> list[dict[str, Any]]:
        """Write down what the fits say of the held-out runs, before these are trained.

        Predictions on disk stay as they are unless the runs that they were fitted to are others.
        """
        path, s = self.folder / "predictions.json", self.settings
        fitted = [[p.parameters, p.tokens, p.loss] for p in points]
        if path.is_file():
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved["fitted"] == fitted and saved["held_out"] == [list(one) for one in s.held_out]:
                return list(saved["predictions"])
        predictions, errors = [], prediction_errors(points)
        for dim, tokens in s.held_out:
            n, steps = self.parameters(dim), self.point_settings(dim, tokens).recipe.train.steps
            d = steps * s.batch * s.length
            compute = ScalePoint(n, d, 0.0).compute
            predictions.append({
                "dim": dim, "parameters": n, "tokens": d, "compute": compute,
                "compute_factor": compute / max(p.compute for p in points),
                "line": extend_line(points, compute), "best_form": min(errors, key=lambda form: errors[form]),
                "prediction_errors": errors,
                **{f.form: {"loss": f.predict(n, d), "interval": f.predict_interval(n, d)} for f in fits},
            })  # fmt: skip
        text = {
            "written": time.time(), "fitted": fitted, "held_out": s.held_out, "predictions": predictions,
            "held_out_trained_already": (self.folder / "held-out").is_dir(),
        }  # fmt: skip
        write_text(path, json.dumps(text, indent=1) + "\n")
        return list(json.loads(json.dumps(predictions)))

    def measure(self) -> None:
        """Train the sweep, the cheapest run first, fit it, predict, and train the held-out runs."""
        s = self.settings
        for dim, tokens in sorted(product(s.dims, s.tokens), key=lambda run: run[0] * run[1]):
            self.points.append(self.run(dim, tokens, "points"))
        self.report("fitting the loss surface")
        self.fits = [fit_surface(self.points, form) for form in ("chinchilla", "kaplan")]
        self.predictions = self.predict(self.points, self.fits)
        for dim, tokens in s.held_out:
            self.held_out.append(self.run(dim, tokens, "held-out"))

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was trained so far."""
        s = self.settings
        about = {
            "text": self.text_name, "family": s.family,
            "tokenizer": f"{s.tokenizer}, {len(self.tokenizer)} tokens",
            "machine": hardware(self.device.type),
        }  # fmt: skip
        sections = scale_sections(self.points, self.fits, self.predictions, self.held_out, self.budget)
        return Report("Loss by size, data and compute", command, about, sections if self.points else [])


# The report of a sweep over size and data: the surface, what it foretold, the best size for a budget.


BUDGETS = 4  # curves of equal compute
GRID = 33  # points of each


def scale_sections(
    points: Sequence[ScalePoint], fits: Sequence[SurfaceFit], predictions: Sequence[dict[str, Any]],
    held_out: Sequence[ScalePoint], budget: float | None,
) -> list[Section]:  # fmt: skip
    """Return a section for everything that is there so far."""
    sections = [point_section(points)]
    if fits:
        sections += [fit_section(points, fits), iso_flop_section(points, fits[0], budget)]
    if predictions:
        sections.insert(1, prediction_section(predictions, held_out))
    return sections


def point_section(points: Sequence[ScalePoint]) -> Section:
    """Return the loss of every run: rows are sizes, columns amounts of data."""
    sizes, amounts = (sorted({getattr(p, n) for p in points}) for n in ("parameters", "tokens"))
    losses = {(p.parameters, p.tokens): p.loss for p in points}
    values = np.array([[losses.get((n, d), np.nan) for d in amounts] for n in sizes])
    rows, x = [f"{n:,} parameters" for n in sizes], [f"{np.log10(d):.4f}" for d in amounts]
    drawn = panels.lines("loss over data", values, rows, x, axes=("validation loss", "log₁₀ tokens"))
    cells = [["" if np.isnan(v) else f"{v:.4f}" for v in row] for row in values]
    table = panels.table("loss", cells, rows, [f"{d:,}" for d in amounts], axes=("size", "tokens"))
    text = [f"{len(points)} runs by one recipe, each with its own folder."]
    return Section("runs", "The runs", text, [drawn], [table])


def prediction_section(predictions: Sequence[dict[str, Any]], held_out: Sequence[ScalePoint]) -> Section:
    """Return the predictions for the held-out runs and their results."""
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
    named = ", ".join(f"{form} {error:.2%}" for form, error in predictions[0]["prediction_errors"].items())
    text = [
        "The predictions were written to predictions.json before these runs were trained. So was the form "
        "that counts: the one that predicts the most expensive quarter of the small runs best from the "
        f"others (off by: {named}). The line goes through the last two runs that no cheaper one equals, "
        "ln L over ln C."
    ]
    if errors:
        best, (fit, line) = predictions[0]["best_form"], (max(e[i] for e in errors) for i in (0, 1))
        text.append(f"{best} was off by at most {fit:.2%}, the line through the last two runs by {line:.2%}.")
    columns = ["compute, of the largest fitted", "Chinchilla form", "Kaplan form"]
    columns += ["line through two", "measured"]
    table = panels.table("held-out runs", rows, names, columns, axes=("held-out run", ""))
    return Section("predictions", "What the small runs predicted", text, tables=[table])


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
