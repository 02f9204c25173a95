"""A fine-tuning run in order: read the file, split it, train, score, save."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.adapters import lora, merge
from heedful.data.batches import Batches
from heedful.errors import ConfigError, InputError, NotFound, nearest
from heedful.models import FAMILIES, presets
from heedful.models.base import Model
from heedful.nn.adapt import adapted_modules
from heedful.runs.evaluate import load_trained
from heedful.runs.finetune.column_roles import check_flags, infer_file_task, list_columns
from heedful.runs.finetune.finetune_loop import MIN_CHOOSING_ROWS, finetune_model
from heedful.runs.finetune.finetune_result import (
    FinetuneResult,
    out_lock,
    output_folder,
    write_result,
)
from heedful.runs.finetune.finetune_task import (
    BatchSettings,
    Examples,
    FinetuneTask,
    count_tokens,
    max_input_length,
)
from heedful.runs.finetune.generation_tasks import Complete, Summarize, Translate
from heedful.runs.finetune.input_files import InputFile, inspect
from heedful.runs.finetune.linear_head import fit_linear_head, put_linear_head
from heedful.runs.finetune.sequence_tasks import Classify, Similarity
from heedful.runs.finetune.token_tasks import Answer, Tag
from heedful.runs.prepare import check_vocabulary
from heedful.runs.progress import LineReporter, ProgressReporter, SilentReporter, make_reporter
from heedful.runs.requests import FinetuneRequest
from heedful.runs.training_loop import TrainingInterrupted, TrainingResult
from heedful.train.config import TrainConfig
from heedful.weights.bases import BASES, bundled_models

FINETUNE_TASKS: dict[str, type[FinetuneTask]] = {
    kind.name: kind for kind in (Classify, Tag, Answer, Translate, Summarize, Similarity, Complete)
}
LORA_PARAMETERS = 100_000_000  # parameters from which on an adapter is trained if nothing is said
DEFAULT_RANK = 16
MAX_STEPS = 20_000


@dataclass(frozen=True)
class SplitExamples:
    """The examples of a file in two parts, their task, and facts about the file."""

    task: FinetuneTask
    examples: Examples  # of the file, those held out included
    train: Examples
    valid: Examples
    found: dict[str, Any]
    split_method: str  # how the two parts came about


@dataclass(frozen=True)
class TrainingSetup:
    """The model, batches and settings of a training."""

    model: Model
    batching: BatchSettings
    batches: Batches
    valid: Batches
    config: TrainConfig
    adapting: bool
    parameters: int
    has_head: bool = False  # whether the model comes with the head that the task needs

    @property
    def learning(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, for the card."""
        c, epochs = self.config, round(self.config.steps / len(self.batches), 2)
        settings = {
            "epochs": epochs,
            "lr": c.lr,
            "batch": self.batching.batch,
            "length": self.batching.length,
        }
        return settings | {"lora": self.adapting, "dtype": c.dtype, "seed": c.seed}


def finetune(request: FinetuneRequest, *, quiet: bool = False) -> FinetuneResult:
    """Fine-tune a trained model on a file. Nothing is saved unless it ends well, or is interrupted."""
    out = output_folder(request)
    with out_lock(out):
        return _finetune(request, out, quiet)


def _finetune(request: FinetuneRequest, out: Path, quiet: bool) -> FinetuneResult:
    reporter: ProgressReporter = SilentReporter() if quiet else LineReporter()
    split = read_examples(request, reporter)
    model = load_base(request.model, request.device)
    split.task.check(model)
    free = request.lr is None and request.epochs is None and request.lora is None  # nobody said how to train
    if free and isinstance(split.task, Classify) and split.task.fits_linear_head(split.examples, model):
        return finetune_linear_head(request, split, split.task, model, out, reporter)
    reporter.report(f"validation: {split.split_method}")
    setup = prepare_training(request, split, model, reporter)
    bar = make_reporter(setup.config.steps, quiet)
    try:
        training = finetune_model(
            split.task,
            setup.model,
            setup.batches,
            setup.valid,
            split.valid,
            setup.config,
            bar,
            setup.has_head,
        )
    finally:
        bar.close()
    scores = dict(training.scores)
    if not training.interrupted:
        scores |= split.task.final_scores(setup.model, split.valid, setup.valid, setup.batching)
    split.task.finish(setup.model)
    result = make_result(request, split, setup, training, scores, out)
    write_result(setup.model, result, request)
    report_uncertainty(result, split.task, reporter)
    if training.interrupted:
        measured = (
            "the best weights so far" if training.chosen else f"the weights of step {training.best_step}"
        )
        which = "its weights, not measured yet," if training.best_step is None else measured
        raise TrainingInterrupted(f"interrupted at step {training.steps}; {which} are in {out}: {result.use}")
    return result


def make_result(
    request: FinetuneRequest,
    split: SplitExamples,
    setup: TrainingSetup,
    training: TrainingResult,
    scores: Any,
    out: Any,
) -> FinetuneResult:
    """Return the result of a run."""
    task = split.task
    return FinetuneResult(
        task.name, task.pipeline, request.model, out, scores, split.found, len(split.train), len(split.valid),
        training, setup.batches.labels, setup.settings, setup.parameters, setup.learning,
    )  # fmt: skip


def finetune_linear_head(
    request: FinetuneRequest,
    split: SplitExamples,
    task: Classify,
    body: Model,
    out: Path,
    reporter: ProgressReporter,
) -> FinetuneResult:
    """Fit a linear head on the sentence vectors of few rows: all of them, once the score is known."""
    began = time.perf_counter()
    examples, valid = split.examples, split.valid if request.valid else split.examples.select([])
    task.prepare(examples, valid)
    model = put_linear_head(body, task.labels)
    batching = batch_settings(replace(split, train=examples, valid=valid), model, request, reporter)
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    vector = f"the {model.config.classifier_pooling} of its vectors"
    reporter.report(f"model: {request.model} ({model.family.name}), frozen, with a linear head on {vector}")
    few = f"{len(examples):,} rows of {len(task.labels)} classes are few"
    reporter.report(f"training: {few}: the head alone is fitted; --full or --lora trains the model itself")
    batches = task.batches(examples, model, batching)
    found = fit_linear_head(model, batches, request.seed)
    if request.valid:
        scores = task.score(model, valid, task.batches(valid, model, batching), None)
        rows, folds, split_method = len(valid), 0, split.split_method
    else:
        rows, folds, scores = found.rows, found.folds, found.scores()
        split_method = f"{folds}-fold cross-validation of {rows:,} rows (seed {request.seed})"
    reporter.report(f"validation: {split_method}")
    settings = {"penalty": found.penalty, "length": batching.length, "lora": False, "seed": request.seed}
    count, took = sum(p.numel() for p in model.parameters()), time.perf_counter() - began
    result = FinetuneResult(
        task.name, task.pipeline, request.model, out, scores, split.found, len(examples), rows,
        TrainingResult(seconds=took), batches.labels, settings, count, learning, folds,
    )  # fmt: skip
    write_result(model, result, request)
    return result


def report_uncertainty(result: FinetuneResult, task: FinetuneTask, reporter: ProgressReporter) -> None:
    """Report the interval of a score on few rows."""
    between = result.scores.get(f"{task.metric}_95")
    if between and result.valid_rows < MIN_CHOOSING_ROWS:
        low, high = (f"{end:.4g}" for end in between)
        few = f"the score is of {result.valid_rows:,} {task.what} only"
        reporter.report(f"note: {few}: on others {task.metric} may be anywhere between {low} and {high}")


def read_examples(request: FinetuneRequest, reporter: ProgressReporter) -> SplitExamples:
    """Read the file, report what was found, and split off validation examples."""
    source = inspect(request.file, encoding=request.encoding, header=request.header)
    task = FINETUNE_TASKS[infer_file_task(source, request.task, request.column_flags)]()
    check_flags(source, request.column_flags)
    examples = task.read(source, request.column_flags)
    train, valid, split_method = split_examples(task, examples, request)
    task.prepare(train, valid)
    facts = task.facts(train, valid if request.valid is None else valid.select([]))
    for line in describe_file(task, source, examples, facts):
        reporter.report(line)
    found = {"file": str(source.path), "sha256": source.sha256, "kind": source.kind, "rows": len(examples)}
    columns = {"columns": list(source.columns), "read_as": examples.columns}
    found |= columns | {"left_out": list(examples.notes), **facts}
    return SplitExamples(task, examples, train, valid, found, split_method)


def split_examples(
    task: FinetuneTask, examples: Examples, request: FinetuneRequest
) -> tuple[Examples, Examples, str]:
    """Return training and validation examples: those of --valid, or a part of the file."""
    if request.valid is None:
        train, valid, split_method = task.split_validation(examples, request.seed)
        what = "" if "characters" in task.facts(train, valid) else f"{len(valid):,} {task.what} held out, "
        return train, valid, f"{what}{split_method} (seed {request.seed})"
    other = inspect(request.valid, encoding=request.encoding, header=request.header)
    infer_file_task(other, task.name)
    valid = task.read(other, request.column_flags)
    notes = "".join(f"; {note}" for note in valid.notes)
    return examples, valid, f"{len(valid):,} {task.what} of {request.valid}{notes}"


def describe_file(
    task: FinetuneTask, source: InputFile, examples: Examples, facts: dict[str, Any]
) -> list[str]:
    """Return what was found in a file, line by line."""
    what = "plain text" if "characters" in facts else f"{len(examples):,} {task.what}"
    lines = [f"file: {source.path}, {what}; task: {task.name}"]
    if source.columns:
        told = ", ".join(f"{role} = {name!r}" for role, name in examples.columns.items())
        lines.append(f"columns: {told} (of {list_columns(source)})")
    lines += [f"{name}: {format_counts(value)}" for name, value in facts.items()]
    return lines + [f"note: {note}" for note in examples.notes]


def format_counts(value: Any, limit: int = 12) -> str:
    """positive (520), negative (480) …"""
    if not isinstance(value, dict):
        return f"{value:,}"
    form = lambda name, n: f"{name} ({n:,})" if isinstance(n, int) else f"{name} {n:g}"
    shown = [form(name, n) for name, n in list(value.items())[:limit]]
    return ", ".join(shown) + (f" and {len(value) - limit} more" if len(value) > limit else "")


def prepare_training(
    request: FinetuneRequest, split: SplitExamples, body: Model, reporter: ProgressReporter
) -> TrainingSetup:
    """Return the model with its head and perhaps an adapter, the batches, and the schedule."""
    task = split.task
    model, head = task.attach_head(body, request.seed)
    count = sum(p.numel() for p in model.parameters())
    adapting = count > LORA_PARAMETERS if request.lora is None else request.lora
    if adapting:
        with torch.random.fork_rng():
            torch.manual_seed(request.seed)
            lora(model, rank=DEFAULT_RANK, train=task.trained_whole())
    batching = batch_settings(split, model, request, reporter)
    batches, held = (task.batches(part, model, batching) for part in (split.train, split.valid))
    config = schedule(task, batches, request, adapting, model)
    setup = TrainingSetup(model, batching, batches, held, config, adapting, count, model is body)
    learns = f"a LoRA adapter of {setup.learning:,} learns" if adapting else "all of them learn"
    reporter.report(
        f"model: {request.model} ({model.family.name}) with {head}; {count:,} parameters, {learns}"
    )
    often = setup.settings["epochs"]
    steps = f"{config.steps:,} steps of {batching.batch} rows, {often:g} epoch{'s' * (often != 1)}"
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
        if hint := nearest(name, [*BASES, *bundled_models()]):
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


def batch_settings(
    split: SplitExamples, model: Model, request: FinetuneRequest, reporter: ProgressReporter
) -> BatchSettings:
    """Return the length of rows and the batch size; report how many texts are cut."""
    task, most = split.task, max_input_length(model)
    if request.length is not None and request.length > most:
        raise ConfigError(f"--length {request.length} is more than the {most} tokens this model reads")
    length = request.length or min(task.defaults.length, most)
    texts = task.texts(split.train) + task.texts(split.valid)
    if texts:
        tokens, huge = count_tokens(texts, model, length)
        longest = f"{'over ' if huge else ''}{int(tokens.max()):,}"
        reporter.report(f"lengths: {int(np.median(tokens)):,} tokens in the middle, {longest} at the most")
        over = int((tokens + 2 > length).sum())
        if over and task.cuts:
            many = f"1 text of {len(texts):,} is" if over == 1 else f"{over:,} of {len(texts):,} texts are"
            size = f" (the longest has {max(map(len, texts)):,} characters)" if huge else ""
            reporter.report(f"note: {many} longer than {length} tokens and cut there{size}")
    return BatchSettings(length, request.batch or default_batch_size(task, len(split.train)), request.seed)


def default_batch_size(task: FinetuneTask, rows: int) -> int:
    """Return the batch size of a task: small for a small file, so that it gives enough steps."""
    most = task.defaults.batch
    return most if rows >= 40 * most else max(4, min(most, 16, rows // 4))


def schedule(
    task: FinetuneTask, batches: Batches, request: FinetuneRequest, adapting: bool, model: Model
) -> TrainConfig:
    """Return a schedule of linear decay after warm-up; small files get more epochs, large ones a limit."""
    usual, an_epoch = task.defaults, len(batches)
    epochs = min(max(usual.epochs, math.ceil(usual.steps / an_epoch)), usual.most_epochs)
    steps = min(epochs * an_epoch, max(MAX_STEPS, an_epoch))
    if request.epochs is not None:
        steps = max(1, round(request.epochs * an_epoch))
    lr = request.lr if request.lr is not None else usual.lora_lr if adapting else usual.lr
    dtype = request.dtype or ("bfloat16" if model.device.type == "cuda" else "float32")
    return TrainConfig(
        steps=steps, lr=lr, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=round(0.06 * steps), dtype=dtype, seed=request.seed,
    )  # fmt: skip
