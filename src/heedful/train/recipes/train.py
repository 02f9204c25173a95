"""A training run, from settings to a checkpoint. `python -m heedful.train.recipes.train` is `heed train`."""

from __future__ import annotations

import math
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from heedful.core.devices import resolve_device
from heedful.core.progress import show_progress
from heedful.data.batches import Batches
from heedful.models.base import evaluation_mode
from heedful.train.checkpoint import newest, of_run
from heedful.train.distributed import Processes, processes
from heedful.train.fit import Step
from heedful.train.recipes.folder import Files, RunFolder
from heedful.train.recipes.prepare import PreparedRun, prepare_run
from heedful.train.recipes.settings import ResolvedSettings
from heedful.train.recipes.training_loop import TrainingInterrupted, TrainingLoop, TrainingResult, Validation
from heedful.train.recipes.training_progress import make_reporter

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
