"""A fine-tuning run in order: read the file, split it, train, score, save."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heedful.core.errors import InputError, NotFound, nearest
from heedful.core.progress import show_progress
from heedful.models import FAMILIES, presets
from heedful.models.base import Model
from heedful.nn.adapt import adapted_modules
from heedful.tasks.evaluate import load_trained
from heedful.tasks.examples import Examples
from heedful.tasks.finetune.file_examples import SplitExamples, read_and_split
from heedful.tasks.finetune.finetune_result import FinetuneResult, out_lock, output_folder, write_result
from heedful.tasks.finetune.linear_head import can_tune, fit_linear_head, put_linear_head
from heedful.tasks.finetune.outlook import describe_base, foretell
from heedful.tasks.finetune.training import (
    MIN_CHOOSING_ROWS,
    finetune_model,
    keep_checkpoints,
    remove_checkpoints,
)
from heedful.tasks.finetune.training_setup import (
    batch_options,
    count_parameters,
    prepare_training,
    score_quietly,
)
from heedful.tasks.model_inputs import Truncated
from heedful.tasks.pipeline import bind_task
from heedful.tasks.requests import FinetuneRequest
from heedful.tasks.task import TrainableTask
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.fit import DivergedError
from heedful.train.logistic import CrossValidation
from heedful.train.recipes.prepare import check_vocabulary
from heedful.train.recipes.progress import LineReporter, ProgressReporter, format_clock, make_reporter
from heedful.train.recipes.train import TrainingInterrupted, TrainingResult
from heedful.weights.adapters import merge
from heedful.weights.hub import BASES, bundled_models


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
            return finetune_linear_head(request, split, model, out, reporter, quiet)
    reporter.report(f"validation: {split.split_method}")
    with show_progress("preparing the batches", quiet=quiet):
        setup = prepare_training(request, split, model, reporter)
    with show_progress("measuring the base and the time of a step", quiet=quiet):
        outlook = foretell(setup, split.valid)
        base = None if quiet else describe_base(setup, split, model, outlook)
    for line in filter(None, (base, outlook.line)):
        reporter.report(line)
    setup = keep_checkpoints(setup, request, out, split.found["sha256"], outlook.seconds, reporter)
    task, bar = setup.task, make_reporter(setup.config.steps, quiet)
    try:
        training = finetune_model(setup, split.valid, bar)
    except DivergedError:
        remove_checkpoints(out)
        raise
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
    remove_checkpoints(out)
    report_end(result, task, reporter)
    return result


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
        raise TrainingInterrupted(end, signal_number=training.interrupted)


def finetune_linear_head(
    request: FinetuneRequest, split: SplitExamples, body: Model, out: Path, reporter: ProgressReporter,
    quiet: bool,
) -> FinetuneResult:  # fmt: skip
    """Fit a linear head on the sentence vectors of few rows: all of them, once the score is known.

    The vectors of a model that is not too large are tuned on pairs first.
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
    TaskSpecification.of_training(task, examples.columns, labels, options.length).write(model)
    pairs = can_tune(model, batches)
    reporter.report(
        f"model: {request.model} ({model.family.name}) with a linear head on the "
        f"{model.config.classifier_pooling} of its vectors"
    )
    report_few_rows(task, examples, names, len(labels), pairs, reporter)
    groups = split.task.group_rows(examples)
    found = fit_linear_head(
        model, batches, request.seed, pairs=pairs, names=len(names),
        class_weights=split.task.class_weights(examples), groups=np.array(groups),
        announce=None if quiet else partial(report_frozen, task, examples, reporter),
    )  # fmt: skip
    checked = found.validation
    if request.valid:
        scores, rows, folds, method = score_quietly(task, valid, options), len(valid), 0, split.split_method
    else:
        scores, rows, folds = score_held_out(task, examples, checked), len(set(checked.rows)), checked.folds
        scores["rows"] = rows
        method = f"{folds}-fold cross-validation of {rows:,} rows (seed {request.seed})"
    reporter.report(f"validation: {method}")
    if folds:
        if shared := len(groups) - len(set(groups)):
            reporter.report(
                f"note: {shared:,} rows share a text with another row; such rows are held out together"
            )
        reporter.report(
            f"note: the interval is about rows like these {rows:,}; on rows of another source, or with other "
            "shares of the classes, the score may lie outside; --valid FILE measures it on rows that you have"
        )
    settings = {
        "way": "pairs" if found.tuned else "frozen", "penalty": found.penalty, "length": options.length,
        "lora": False, "seed": request.seed,
    }  # fmt: skip
    learning = count_parameters(model, trainable_only=True)
    if found.tuned:
        learning += sum(p.numel() for p in model.blocks.parameters())
    result = FinetuneResult(
        task.command, task.task, request.model, out, scores, split.found, len(examples), rows,
        TrainingResult(seconds=time.perf_counter() - began), labels, settings,
        count_parameters(model), learning, folds,
    )  # fmt: skip
    write_result(model, result, request)
    return result


def report_few_rows(
    task: TrainableTask, examples: Examples, names: Examples, classes: int, pairs: bool,
    reporter: ProgressReporter,
) -> None:  # fmt: skip
    """Say how few rows are learnt, and which names of classes are learnt with them."""
    way = "its blocks learn from pairs, then the head is fitted" if pairs else "the head alone is fitted"
    few = f"{len(examples):,} rows of {classes} {task.label_unit} are few"
    reporter.report(f"training: {few}: {way}; --full or --lora trains the model itself")
    if len(names):
        shown = ", ".join(repr(text) for text, _ in names.items[:3])
        more = " …" if len(names) > 3 else ""
        reporter.report(f"names: the classes' own are texts to learn from, too: {shown}{more}")


def score_held_out(task: TrainableTask, examples: Examples, checked: CrossValidation) -> dict[str, Any]:
    """Return the scores of rows by heads that had not seen them."""
    return task.compare_logits(examples.select(checked.rows), checked.logits, checked.trials)


def report_frozen(
    task: TrainableTask, examples: Examples, reporter: ProgressReporter, frozen: CrossValidation,
    seconds: float,
) -> None:  # fmt: skip
    """Say what a head on the model's own vectors gets, and how many seconds tuning them takes."""
    score = f"{task.metric} {score_held_out(task, examples, frozen)[task.metric]:.4f}"
    how = f"a linear head on the model's own vectors ({frozen.folds}-fold cross-validation)"
    reporter.report(f"without training: {score} by {how}")
    reporter.report(f"time: about {format_clock(seconds)}")


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
