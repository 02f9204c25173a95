"""`heed train --dry-run`: measure the model and one batch, and write nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.core.devices import resolve_device
from heedful.data.batch import Batch
from heedful.data.batches import Batches
from heedful.models.base import Model
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.objectives import Objective
from heedful.train.recipes.prepare import MOMENTS, PreparedRun, prepare_run
from heedful.train.recipes.settings import ResolvedSettings
from heedful.train.recipes.training_progress import format_clock, peak_memory


def rehearse(settings: ResolvedSettings) -> dict[str, Any]:
    """Return sizes, memory and time of a run, from one row's activations and two steps of training."""
    device = resolve_device(settings.recipe.device)
    run = prepare_run(settings, device)
    config, batches, model = settings.recipe.train, run.batches, run.model
    batch = batches[0]
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    kept = activations(run, batch) // config.accumulate
    moments = MOMENTS[config.optimiser]
    seconds = step_seconds(model, run.purpose, batches, config)
    return {
        "recipe": settings.name, "family": model.family.name, "device": str(device), "parameters": parameters,
        "vocabulary": len(model.tokenizer), "rows": batches.row_count,
        "valid_rows": run.valid.row_count if run.valid else 0,
        "batch": list(batch.tokens.shape), "tokens_per_step": batch.tokens_read, "steps": config.steps,
        "epochs": round(config.steps / len(batches), 2), "weights_bytes": held, "gradients_bytes": held,
        "moments_bytes": moments * held, "activations_bytes": kept,
        "memory_bytes": (2 + moments) * held + kept, "process_bytes": peak_memory(device),
        "seconds_per_step": round(seconds, 4), "eta": format_clock(seconds * config.steps),
    }  # fmt: skip


def activations(run: PreparedRun, batch: Batch) -> int:
    """Return the bytes that a step's forward pass keeps for the backward pass: one row's, times the rows."""
    weights = {p.untyped_storage().data_ptr() for p in run.model.parameters()}
    seen: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        place = t.untyped_storage()
        if place.data_ptr() not in weights:
            seen[place.data_ptr()] = place.nbytes()
        return t

    held: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        held.append(run.purpose(run.model.train(), batch.rows(slice(0, 1)).to(run.model.device)))
    return sum(seen.values()) * len(batch)


def step_seconds(model: Model, purpose: str | Objective, batches: Batches, config: TrainConfig) -> float:
    """Return the seconds of the second of two steps; the first one also warms up. The model learns them."""
    two = replace(
        config, steps=2, warmup=0, decay=None, folder=None, resume=False, compile=False, graph=False
    )
    at = seconds = 0.0
    for step in fit(model, purpose, batches, two):
        _ = step.loss  # waits for the device
        seconds, at = time.perf_counter() - at, time.perf_counter()
    return seconds
