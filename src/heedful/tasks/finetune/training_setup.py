"""The setup of a fine-tuning run: the task bound to its model, the batches, the schedule."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heedful.core.errors import ConfigError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.decode.request import context_length
from heedful.models.base import Model
from heedful.tasks.examples import Examples, limit_characters
from heedful.tasks.finetune.file_examples import SplitExamples
from heedful.tasks.model_inputs import Truncated, smallest_limit
from heedful.tasks.pipeline import bind_task
from heedful.tasks.requests import FinetuneRequest
from heedful.tasks.task import TrainableTask, TrainingDefaults
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.config import TrainConfig
from heedful.train.recipes.progress import ProgressReporter
from heedful.weights.adapters import lora

LORA_PARAMETERS = 100_000_000  # parameters from which on an adapter is trained if nothing is said
DEFAULT_RANK = 16
MAX_STEPS = 20_000
MAX_STEPS_BETWEEN_EVALUATIONS = 250


@dataclass(frozen=True)
class TrainingSetup:
    """A task bound to the model that learns it, the batches and the settings of the training."""

    task: TrainableTask
    options: BatchOptions
    batches: Batches
    config: TrainConfig
    adapting: bool
    parameters: int  # without an adapter
    has_head: bool  # whether the model comes with the head that the task needs

    @property
    def steps_between_evaluations(self) -> int:
        """An epoch, or fewer steps where that is long."""
        return min(len(self.batches), MAX_STEPS_BETWEEN_EVALUATIONS)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, for the card."""
        c, epochs = self.config, round(self.config.steps / len(self.batches), 2)
        rows = {"batch": self.options.batch, "length": self.options.length}
        return {"epochs": epochs, "lr": c.lr, **rows, "lora": self.adapting, "dtype": c.dtype, "seed": c.seed}


def prepare_training(
    request: FinetuneRequest, split: SplitExamples, body: Model, reporter: ProgressReporter
) -> TrainingSetup:
    """Return the task bound to the model with its head and perhaps an adapter, the batches, the schedule."""
    model, head = split.task.attach_head(body, split.train, request.seed)
    count = count_parameters(model)
    adapting = count > LORA_PARAMETERS if request.lora is None else request.lora
    if adapting:
        with torch.random.fork_rng():
            torch.manual_seed(request.seed)
            lora(model, rank=DEFAULT_RANK, train=split.task.trained_whole)
    task, options = bind_task(split.task, model), batch_options(split, model, request, reporter)
    batches = task.batches(split.train, options)
    TaskSpecification.of_training(task, split.examples.columns, batches.labels, options.length).write(model)
    config = schedule(split.task.training_defaults(split.train), len(batches), request, adapting, model)
    setup = TrainingSetup(task, options, batches, config, adapting, count, model is body)
    adapter = f"a LoRA adapter of {count_parameters(model, trainable_only=True):,} learns"
    learns = adapter if adapting else "all of them learn"
    reporter.report(
        f"model: {request.model} ({model.family.name}) with {head}; {count:,} parameters, {learns}"
    )
    often = setup.settings["epochs"]
    size, s = min(options.batch, batches.row_count), "s" * (config.steps != 1)
    steps = f"{config.steps:,} step{s} of {size} rows, {often:g} epoch{'s' * (often != 1)}"
    reporter.report(f"training: at most {steps}; learning rate {config.lr:g}, {model.device}")
    for note in () if task.cuts_texts else batches.notes:  # of others `batch_options` has told
        reporter.report(f"note: {note}")
    return setup


def batch_options(
    split: SplitExamples, model: Model, request: FinetuneRequest, reporter: ProgressReporter
) -> BatchOptions:
    """Return the length of rows and the batch size; report how many texts are cut."""
    task, pooled = split.task, None if model.pooling is None else model.pooling.length
    limit = smallest_limit(context_length(model, source=True), pooled) or sys.maxsize
    if request.length is not None and request.length > limit:
        raise ConfigError(f"--length {request.length} is more than the {limit} tokens this model reads")
    length = request.length or min(task.training.length, limit)
    if texts := task.texts(split.train) + task.texts(split.valid):
        cut = limit_characters(texts, length)
        tokens = np.array([len(ids) for ids in model.tokenizer.encode_all(cut, special=False)])
        huge = any(len(a) != len(b) for a, b in zip(texts, cut, strict=True))
        longest = f"{'over ' if huge else ''}{int(tokens.max()):,}"
        reporter.report(f"lengths: {int(np.median(tokens)):,} tokens in the middle, {longest} at the most")
        over = int((tokens + 2 > length).sum())
        if over and task.cuts_texts:
            many = f"1 text of {len(texts):,} is" if over == 1 else f"{over:,} of {len(texts):,} texts are"
            size = f" (the longest has {max(map(len, texts)):,} characters)" if huge else ""
            reporter.report(f"note: {many} longer than {length} tokens and cut there{size}")
    # Small for a small file, so that it gives enough steps.
    rows, most = len(split.train), task.training.batch
    batch = most if rows >= 40 * most else max(4, min(most, 16, rows // 4))
    return BatchOptions(length, request.batch or batch, request.seed, truncate=True)


def schedule(
    defaults: TrainingDefaults, an_epoch: int, request: FinetuneRequest, adapting: bool, model: Model
) -> TrainConfig:
    """Return a schedule of linear decay after warm-up; small files get more epochs, large ones a limit.

    `an_epoch` is the number of batches.
    """
    epochs = min(max(defaults.epochs, math.ceil(defaults.steps / an_epoch)), defaults.max_epochs)
    steps = min(epochs * an_epoch, max(MAX_STEPS, an_epoch))
    if request.epochs == 0:
        raise ConfigError("--epochs 0 teaches nothing", hint="give 1, or a part of it such as 0.5")
    if request.epochs is not None:
        steps = max(1, round(request.epochs * an_epoch))
    lr = request.lr if request.lr is not None else defaults.lora_lr if adapting else defaults.lr
    dtype = request.dtype or ("bfloat16" if model.device.type == "cuda" else "float32")
    return TrainConfig(
        steps=steps, lr=lr, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=round(0.06 * steps), dtype=dtype, seed=request.seed,
    )  # fmt: skip


def count_parameters(model: Model, *, trainable_only: bool = False) -> int:
    """Return how many parameters a model has, or how many of them are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def score_quietly(task: TrainableTask, examples: Examples, options: BatchOptions) -> dict[str, Any]:
    """Return the scores of examples, of which `batch_options` has told how many are cut."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Truncated)
        return task.score(examples, batch=options.batch, length=options.length, truncate=True)
