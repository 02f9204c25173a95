"""A training run, from settings to a checkpoint. `python -m heedful.train.recipes.train` is `heed train`."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.core.devices import resolve_device
from heedful.core.progress import show_progress
from heedful.data.batch import Batch
from heedful.data.batches import Batches
from heedful.models.base import Model, evaluation_mode
from heedful.train.checkpoint import newest, of_run
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes, processes
from heedful.train.fit import Step, fit
from heedful.train.objectives import Objective
from heedful.train.recipes.folder import Files, RunFolder
from heedful.train.recipes.prepare import MOMENTS, PreparedRun, prepare_run
from heedful.train.recipes.recipes import ResolvedSettings
from heedful.train.recipes.training_loop import (
    TrainingInterrupted,
    TrainingLoop,
    TrainingResult,
    Validation,
    format_clock,
    make_reporter,
    peak_memory,
)

MAX_PERPLEXITY_LOSS = 50  # beyond, e to its power says nothing


@dataclass
class TrainResult(TrainingResult):
    """The outcome of a run with a folder."""

    checkpoint: Path = Path()  # the best one if the run was validated, else the last
    parameters: int = 0


def run_training(
    settings: ResolvedSettings,
    folder: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
) -> TrainResult:
    """Prepare, train, evaluate and save; alone, or with the processes this one was started with."""
    recipe = settings.recipe
    device = resolve_device(recipe.device)
    with processes(recipe.parallel, gpu=device.type == "cuda") as by:
        device = torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
        open_folder = lambda: RunFolder(folder, settings, resume, tensorboard)
        files: Files = by.run_on_first(open_folder) or Files(folder)
        with closing(files):
            # The first process writes the vocabulary and the tokens, which the others then find.
            own = lambda: prepare_run(settings, device, folder)
            with show_progress("reading the files", quiet=quiet or by.rank > 0):
                run = by.run_on_first(own) or own()
            config = replace(recipe.train, folder=folder, resume=resume)
            with closing(make_reporter(config.steps, quiet or by.rank > 0)) as reporter:
                loop = TrainingLoop(
                    run.model, run.purpose, run.batches, config,
                    make_validation(settings, run, files, by), reporter, files, by, recipe.evaluate.log,
                )  # fmt: skip
                return train_and_report(settings, run, loop)


def train_and_report(settings: ResolvedSettings, run: PreparedRun, loop: TrainingLoop) -> TrainResult:
    """Report the model and the data, run the loop, and find its best checkpoint."""
    model, batches, folder = run.model, run.batches, loop.files.path
    parameters = sum(p.numel() for p in model.parameters())
    rows = f"{batches.row_count:,} rows, {len(batches):,} steps an epoch"
    size = f"{model.family.name} of {parameters:,} parameters on {model.device}"
    loop.report(f"{settings.name}: {size}; {rows}")
    for note in run.notes:
        loop.report(f"note: {note}")
    batch_limit = evaluation_batches(settings, run.valid)
    if run.valid is not None and batch_limit is not None and settings.recipe.evaluate.batches is None:
        of = f"the first {batch_limit} of {len(run.valid)} batches held out"
        loop.report(f"note: evaluations read {of}; --set evaluate.batches={len(run.valid)} for all")
    if loop.config.resume and (at := newest(folder)) is not None:
        loop.report(f"resuming from {at}")
    result = loop.run()
    if result.interrupted:
        hint = f"--resume continues from {result.saved}"
        message = f"interrupted at step {result.steps}"
        raise TrainingInterrupted(message, hint, signal_number=result.interrupted)
    return TrainResult(**vars(result), checkpoint=Path(of_run(folder)), parameters=parameters)


def make_validation(settings: ResolvedSettings, run: PreparedRun, files: Files, by: Processes) -> Validation:
    """Return how a run is evaluated: by the loss on validation data; the best checkpoint stays."""
    evaluation, valid = settings.recipe.evaluate, run.valid
    batch_limit = evaluation_batches(settings, valid)

    def score(step: Step | None) -> dict[str, float]:
        assert step is not None
        scores = {} if valid is None else step.evaluate(valid, batch_limit)
        if scores and run.batches.labels == () and scores["loss"] < MAX_PERPLEXITY_LOSS:
            scores["perplexity"] = math.exp(scores["loss"])
        writes = run.batches.settings.get("kind") == "next_token" and run.model.config.head == "lm"
        if evaluation.sample and writes and by.world == 1:
            seed = settings.recipe.train.seed
            files.sample(step.number, sample_text(run, evaluation.sample, seed))
        return scores

    def keep(step: Step | None) -> None:
        assert step is not None
        step.save(best=True)

    return Validation(score, keep, evaluation.every, patience=evaluation.patience)


def evaluation_batches(settings: ResolvedSettings, valid: Batches | None) -> int | None:
    """Return how many batches an evaluation reads; None for all.

    The held-out part grows with the data. Unless the settings say otherwise, an evaluation reads no more
    batches than were trained on since the last one, so that a short run on a large text stays short.
    """
    evaluation = settings.recipe.evaluate
    if evaluation.batches is not None or settings.valid or valid is None:
        return evaluation.batches
    limit = min(evaluation.every, settings.recipe.train.steps)
    return limit if limit < len(valid) else None


def sample_text(run: PreparedRun, tokens: int, seed: int) -> str:
    """Generate a text that shows what the model has learnt."""
    from heedful.decode.loop import generate

    model = run.model
    first = next((i for i in (model.tokenizer.bos, model.tokenizer.eos) if i is not None), None)
    prompt = [first] if first is not None else run.batches[0].tokens[0, :1].tolist()
    with evaluation_mode(model):
        ids = generate(model, prompt, max_tokens=tokens, temperature=0.8, top_k=50, seed=seed)
    text: str = model.tokenizer.decode(list(ids))
    return text


if __name__ == "__main__":
    from heedful.cli import main

    main(["train", *sys.argv[1:]])


# Start several processes of one run on this machine. torchrun does the same over several machines.


GRACE_SECONDS = 30.0  # for the other processes to end after one has failed


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `heed train` in `count` processes; return the exit code of the first that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared = os.environ | place | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "heedful.train.recipes.train", *arguments]
    # In sessions of their own, so that Ctrl-C reaches them once: from here.
    processes = [
        subprocess.Popen(command, env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)}, start_new_session=True)
        for r in range(count)
    ]

    def forward(number: int, frame: Any) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(processes)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended and return the exit code. If one fails, the others are ended too."""
    failed: int | None = None
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        codes = [process.returncode for process in processes if process.poll() is not None]
        if failed is None and any(codes):
            failed, deadline = next(code for code in codes if code), time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    codes = [process.returncode for process in processes]
    code = codes[0] or failed or next((c for c in codes if c), 0)
    return code if code >= 0 else 128 - code


# `heed train --dry-run`: measure the model and one batch, and write nothing.


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
