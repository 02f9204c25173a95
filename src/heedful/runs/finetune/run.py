"""A fine-tuning run in order: read the file, split it, train, score, save."""

from __future__ import annotations

import math
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.adapters import lora, merge
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.decode.request import context_length
from heedful.errors import ConfigError, InputError, NotFound, nearest
from heedful.models import FAMILIES, presets
from heedful.models.base import Model
from heedful.nn.adapt import adapted_modules
from heedful.progress import show_progress
from heedful.runs.evaluate import load_trained
from heedful.runs.finetune.file_examples import SplitExamples, read_and_split
from heedful.runs.finetune.finetune_result import FinetuneResult, out_lock, output_folder, write_result
from heedful.runs.finetune.linear_head import can_tune, count_upper, fit_linear_head, put_linear_head
from heedful.runs.prepare import check_vocabulary
from heedful.runs.rehearsal import step_seconds
from heedful.runs.requests import FinetuneRequest
from heedful.runs.training_loop import TrainingInterrupted, TrainingLoop, TrainingResult, Validation
from heedful.runs.training_progress import LineReporter, ProgressReporter, format_clock, make_reporter
from heedful.tasks.examples import Examples, limit_characters
from heedful.tasks.model_inputs import Truncated
from heedful.tasks.pipeline import bind_task
from heedful.tasks.task import TrainableTask, TrainingDefaults
from heedful.tasks.tokenized import smallest_limit
from heedful.train.config import TrainConfig
from heedful.train.fit import Step
from heedful.weights.bases import BASES, bundled_models

LORA_PARAMETERS = 100_000_000  # parameters from which on an adapter is trained if nothing is said
DEFAULT_RANK = 16
MAX_STEPS = 20_000
PATIENCE = 4  # evaluations without a better one
MAX_STEPS_BETWEEN_EVALUATIONS = 250
MIN_STEPS_TO_REHEARSE = 50  # of fewer, two more to measure by would cost more than they tell
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones


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
    def settings(self) -> dict[str, Any]:
        """The settings of the run, for the card."""
        c, epochs = self.config, round(self.config.steps / len(self.batches), 2)
        rows = {"batch": self.options.batch, "length": self.options.length}
        return {"epochs": epochs, "lr": c.lr, **rows, "lora": self.adapting, "dtype": c.dtype, "seed": c.seed}


def finetune(request: FinetuneRequest, *, quiet: bool = False) -> FinetuneResult:
    """Fine-tune a trained model on a file. Nothing is saved unless it ends well, or is interrupted."""
    out = output_folder(request)
    with out_lock(out):
        return _finetune(request, out, quiet)


def _finetune(request: FinetuneRequest, out: Path, quiet: bool) -> FinetuneResult:
    reporter: ProgressReporter = ProgressReporter() if quiet else LineReporter()
    with show_progress(f"reading {request.file}", quiet=quiet):
        split = read_and_split(request, reporter)
    with show_progress(f"loading {request.model}", quiet=quiet):
        model = load_base(request.model, request.device)
    split.task.check_model(model)
    free = request.lr is None and request.epochs is None and request.lora is None  # nobody said how to train
    if free and split.task.prefers_linear_head(model, split.examples):
        with show_progress("learning from few rows", quiet=quiet):
            return finetune_linear_head(request, split, model, out, reporter)
    reporter.report(f"validation: {split.split_method}")
    with show_progress("preparing the batches", quiet=quiet):
        setup = prepare_training(request, split, model, reporter)
    report_outlook(setup, split, reporter)
    task, bar = setup.task, make_reporter(setup.config.steps, quiet)
    try:
        training = finetune_model(
            task, setup.batches, split.valid, setup.options, setup.config, bar, setup.has_head
        )
    finally:
        bar.close()
    scores = dict(training.scores)
    if not training.interrupted:
        with warnings.catch_warnings(), show_progress("measuring the result", quiet=quiet):
            warnings.simplefilter("ignore", Truncated)
            scores |= task.final_scores(split.valid, setup.options)
    first = [name for name in (f"{task.metric}_95", task.metric) if name in scores]
    result = FinetuneResult(
        task.command, task.task, request.model, out, {name: scores[name] for name in [*first, *scores]},
        split.found, len(split.train), len(split.valid), training, setup.batches.labels, setup.settings,
        setup.parameters, count_parameters(task.model, trainable_only=True),
    )  # fmt: skip
    write_result(task.model, result, request)
    report_end(result, task, reporter)
    return result


def report_outlook(setup: TrainingSetup, split: SplitExamples, reporter: ProgressReporter) -> None:
    """Say what can be had without training, and how long training will take, before it begins.

    A model that comes with the task's head is scored itself, by the training loop.
    """
    task, model = setup.task, setup.task.model
    if not setup.has_head and (guess := task.best_guess(split.train)) is not None:
        score = task.compare(split.valid, task.guess_answers(split.valid, guess))[task.metric]
        reporter.report(f"without training: {task.metric} {score:.4f}, by always saying {guess!r}")
    if setup.config.steps < MIN_STEPS_TO_REHEARSE:
        return
    kept = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    seconds = step_seconds(model, task.objective, setup.batches, setup.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in kept:
                parameter.copy_(kept[name])
    clock = format_clock(seconds * setup.config.steps)
    reporter.report(f"time: about {clock} without evaluations, {seconds:.2f} s a step")


def report_end(result: FinetuneResult, task: TrainableTask, reporter: ProgressReporter) -> None:
    """Say how sure a score of few rows is, and raise TrainingInterrupted for training that was cut short."""
    training, between = result.training, result.scores.get(f"{task.metric}_95")
    if between and result.valid_rows < MIN_CHOOSING_ROWS:
        few = f"the score is of {result.valid_rows:,} {task.unit} only"
        low, high = (f"{end:.4g}" for end in between)
        reporter.report(f"note: {few}: on others {task.metric} may be anywhere between {low} and {high}")
    if training.interrupted:
        best = "the best weights so far" if training.chosen else f"the weights of step {training.best_step}"
        which = "its weights, not measured yet," if training.best_step is None else best
        end = f"interrupted at step {training.steps}; {which} are in {result.folder}: {result.use}"
        raise TrainingInterrupted(end)


def count_parameters(model: Model, *, trainable_only: bool = False) -> int:
    """Return how many parameters a model has, or how many of them are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def score_quietly(task: TrainableTask, examples: Examples, options: BatchOptions) -> dict[str, Any]:
    """Return the scores of examples, of which `batch_options` has told how many are cut."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Truncated)
        return task.score(examples, batch=options.batch, length=options.length, truncate=True)


def finetune_model(
    task: TrainableTask, batches: Batches, valid: Examples, options: BatchOptions, config: TrainConfig,
    reporter: ProgressReporter, has_head: bool = False,
) -> TrainingResult:  # fmt: skip
    """Train, and leave the model with the weights that score best on the validation examples.

    With few examples the last weights stay. A model that comes with the task's head is scored first, and its
    own weights may stay.
    """
    model, kept = task.model, dict[str, Tensor]()
    valid_batches = task.batches(valid, options) if task.by_loss else None

    def score(step: Step | None) -> dict[str, Any]:
        if valid_batches is not None:
            return task.loss_scores(valid_batches)
        return score_quietly(task, valid, options)

    def keep(step: Step | None) -> None:
        kept.update({n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad})

    validation = Validation(
        score, keep, min(len(batches), MAX_STEPS_BETWEEN_EVALUATIONS), task.metric, task.highest, PATIENCE,
        # Few rows pick a lucky evaluation, or stop the run before their metric has begun to move.
        choose=has_head or task.by_loss or len(valid) >= MIN_CHOOSING_ROWS,
        untrained=has_head,
    )  # fmt: skip
    result = TrainingLoop(model, task.objective, batches, config, validation, reporter).run()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in kept:
                parameter.copy_(kept[name])
    model.eval()
    return result


def finetune_linear_head(
    request: FinetuneRequest, split: SplitExamples, body: Model, out: Path, reporter: ProgressReporter
) -> FinetuneResult:
    """Fit a linear head on the sentence vectors of few rows: all of them, once the score is known.

    Where that takes no more than a minute, the vectors are tuned on pairs first.
    """
    began = time.perf_counter()
    examples, valid = split.examples, split.valid if request.valid else split.examples.select([])
    split.task.check_examples(examples, valid)
    labels = split.task.label_order(examples) or ()
    model = put_linear_head(body, labels)
    model.hf_config |= split.task.head_settings
    task = bind_task(split.task, model)
    options = batch_options(replace(split, train=examples, valid=valid), model, request, reporter)
    names = split.task.name_examples(examples)
    known = replace(
        examples, items=[*examples.items, *names.items], locations=[*examples.locations, *names.locations]
    )
    batches = task.batches(known, options)
    pairs = can_tune(model, batches)
    vector = f"the {model.config.classifier_pooling} of its vectors"
    reporter.report(f"model: {request.model} ({model.family.name}) with a linear head on {vector}")
    way = "its upper blocks learn pairs, then the head is fitted" if pairs else "the head alone is fitted"
    few = f"{len(examples):,} rows of {len(labels)} {task.label_unit} are few"
    reporter.report(f"training: {few}: {way}; --full or --lora trains the model itself")
    if len(names):
        shown = ", ".join(repr(text) for text, _ in names.items[:3])
        more = " …" if len(names) > 3 else ""
        reporter.report(f"names: the classes' own are texts to learn from, too: {shown}{more}")
    weights = split.task.class_weights(examples)
    found = fit_linear_head(
        model, batches, request.seed, pairs=pairs, names=len(names), class_weights=weights
    )
    folds, checked = 0, found.validation
    if request.valid:
        scores = score_quietly(task, valid, options)
        rows, split_method = len(valid), split.split_method
    else:
        rows, folds = len(set(checked.rows)), checked.folds
        scores = task.compare_logits(examples.select(checked.rows), checked.logits, checked.trials)
        scores["rows"] = rows
        split_method = f"{folds}-fold cross-validation of {rows:,} rows (seed {request.seed})"
    reporter.report(f"validation: {split_method}")
    settings = {"way": found.way, "penalty": found.penalty, "length": options.length, "lora": False}
    settings["seed"] = request.seed
    learning = count_parameters(model, trainable_only=True) + (found.share > 0) * count_upper(model)
    result = FinetuneResult(
        task.command, task.task, request.model, out, scores, split.found, len(examples), rows,
        TrainingResult(seconds=time.perf_counter() - began), labels, settings,
        count_parameters(model), learning, folds,
    )  # fmt: skip
    write_result(model, result, request)
    return result


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
    config = schedule(split.task.training_defaults(split.train), len(batches), request, adapting, model)
    setup = TrainingSetup(task, options, batches, config, adapting, count, model is body)
    adapter = f"a LoRA adapter of {count_parameters(model, trainable_only=True):,} learns"
    learns = adapter if adapting else "all of them learn"
    reporter.report(
        f"model: {request.model} ({model.family.name}) with {head}; {count:,} parameters, {learns}"
    )
    often = setup.settings["epochs"]
    steps = f"{config.steps:,} steps of {options.batch} rows, {often:g} epoch{'s' * (often != 1)}"
    reporter.report(f"training: at most {steps}; learning rate {config.lr:g}, {model.device}")
    return setup


def load_base(name: str, device: str) -> Model:
    """Load the model to start from, in float32: adapters are merged."""
    try:
        model = load_trained(name, device)
    except NotFound:
        if name in presets() or name in FAMILIES:
            what = f"{name!r} is known here by its shape and has no weights to start from"
            way = "give a folder, a model at hand (heed ls) or a hub id"
            raise NotFound(what, hint=way) from None
        known = [*BASES, *bundled_models()]
        if name not in known and (hint := nearest(name, known)):
            raise NotFound(f"no model is called {name!r}", hint=hint) from None
        raise
    if "quantization" in model.hf_config:
        raise InputError(f"{name} was quantised and cannot learn", hint="take the model it was made from")
    check_vocabulary(model, model.tokenizer, name)
    if next(adapted_modules(model), None) is not None:
        merge(model)
    model.float()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


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
    if request.epochs is not None:
        steps = max(1, round(request.epochs * an_epoch))
    lr = request.lr if request.lr is not None else defaults.lora_lr if adapting else defaults.lr
    dtype = request.dtype or ("bfloat16" if model.device.type == "cuda" else "float32")
    return TrainConfig(
        steps=steps, lr=lr, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=round(0.06 * steps), dtype=dtype, seed=request.seed,
    )  # fmt: skip
