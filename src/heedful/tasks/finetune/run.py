"""A fine-tuning run in order: read the file, split it, attach a head, train, score, save.

Before training, a run says what can be had without it and how long it will take: both are measured. With few
rows of classes it fits a linear head instead (train/linear_head.py). A long run leaves what the next one
needs if it is killed (result.py).
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.core.devices import resolve_device
from heedful.core.errors import ConfigError, InputError, NotFound, count_of, nearest
from heedful.core.progress import print_above, show_progress
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.decode.request import context_length
from heedful.models import all_families, presets
from heedful.models.base import LM, Model
from heedful.nn.adapt import adapted_modules
from heedful.tasks.examples import Examples, count_values, limit_characters
from heedful.tasks.finetune.data import Report, SplitExamples, read_and_split
from heedful.tasks.finetune.request import FinetuneRequest
from heedful.tasks.finetune.result import (
    MAX_WHOLE,
    FinetuneResult,
    KeptWeights,
    keep_checkpoints,
    out_lock,
    output_folder,
    remove_checkpoints,
    write_result,
)
from heedful.tasks.label_kinds import class_weights, kind_of, label_names
from heedful.tasks.model_inputs import ignore_truncated, smallest_limit
from heedful.tasks.pipelines.number_tasks import Rerank, SentenceSimilarity, TextRegression
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.tasks.registry import bind_task
from heedful.tasks.task import TrainableTask, TrainingDefaults, load_trained
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.config import TrainConfig
from heedful.train.fit import DivergedError, Step
from heedful.train.linear_head import (
    CrossValidation,
    Weights,
    clone_weights,
    fit_head,
    fit_linear_head,
    put_linear_head,
    read_vectors,
    set_weights,
)
from heedful.train.recipes.folder import RunFiles
from heedful.train.recipes.prepare import check_vocabulary
from heedful.train.recipes.progress import ProgressReporter, format_clock, make_reporter
from heedful.train.recipes.train import (
    TrainingInterrupted,
    TrainingLoop,
    TrainingResult,
    Validation,
    measure_steps,
)
from heedful.weights.adapters import lora, merge
from heedful.weights.hub import BASES, bundled_models

LORA_PARAMETERS = 100_000_000  # parameters from which on an adapter is trained if nothing is said
DEFAULT_RANK = 16
MAX_STEPS = 20_000
MANY_LABELS = 10  # from which on learning is faster and longer
MAX_SCORED_ROWS = 200  # validation rows for which the finished model writes
PATIENCE = 4  # evaluations without a better one
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones
MAX_STEPS_BETWEEN_EVALUATIONS = 250
MAX_SIZED_STEPS = 64  # steps whose batches are made, to know how large they are
ACCELERATOR_TURNS = 4  # a GPU's first steps of a shape choose and record kernels; the fastest turn counts
FEW_STEPS = 20  # of so few, one is measured: more would cost as much as they tell
MAX_MEASURED_SECONDS = 5.0  # after which fewer steps will do
BASE_SHARE = 0.05  # of the training time that measuring the base may take
MIN_BASE_SECONDS = 2.0  # that it may take in any case
MAX_BASE_ROWS = 500
MIN_BASE_ROWS = 4  # for each class
PENALTY = 1.0  # of the linear head that measures the base


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
        often = {"epochs": epochs} if c.minutes is None else {"minutes": c.minutes}
        rows = {"batch": self.options.batch}
        rows |= {"length": self.options.length} if self.task.has_length else {}
        return {**often, "lr": c.lr, **rows, "lora": self.adapting, "dtype": c.dtype, "seed": c.seed}


def finetune(request: FinetuneRequest, *, quiet: bool = False) -> FinetuneResult:
    """Fine-tune a trained model on a file. Nothing is saved unless it ends well, or is interrupted."""
    out = output_folder(request)
    report: Report = (lambda line: None) if quiet else print_above
    with out_lock(out):
        with show_progress(f"reading {request.file}", quiet=quiet):
            split = read_and_split(request, report)
        with show_progress(f"loading {request.model}", quiet=quiet):
            model = load_base(request)
        split.task.check_model(model)
        # Few rows get a linear head, unless an option says how to train.
        free = request.lr is request.epochs is request.minutes is request.lora is None
        classes = issubclass(split.task, TextClassification)
        if free and classes and TextClassification.prefers_linear_head(model, split.examples):
            with show_progress("learning from few rows", quiet=quiet):
                return finetune_linear_head(request, split, model, out, report, quiet)
        return finetune_weights(request, split, model, out, report, quiet)


def finetune_weights(
    request: FinetuneRequest, split: SplitExamples, body: Model, out: Path, report: Report,
    quiet: bool,
) -> FinetuneResult:  # fmt: skip
    """Train all weights of a model, or an adapter, under the head of the task; save the best weights."""
    report(f"validation: {split.split_method}")
    with show_progress("preparing the batches", quiet=quiet):
        setup = prepare_training(request, split, body, report)
    with show_progress("measuring the base and the time of a step", quiet=quiet):
        outlook = predict_duration(setup, split.valid)
        base = None if quiet else describe_base(setup, split, body, outlook)
    for line in filter(None, (base, outlook.line)):
        report(line)
    sha256 = split.facts["sha256"]
    config = keep_checkpoints(setup.config, request, out, sha256, outlook.seconds, report)
    setup = replace(setup, config=config)
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
        with ignore_truncated(), show_progress("measuring the result", quiet=quiet):
            scores |= score_written(task, split.valid, setup.options)
    first = [name for name in (f"{task.metric}_95", task.metric) if name in scores]
    result = FinetuneResult(
        task.command, task.task, request.model, task.model, out,
        {name: scores[name] for name in [*first, *scores]}, split.facts, len(split.train), len(split.valid),
        training, setup.batches.labels, setup.settings, setup.parameters,
        count_parameters(task.model, trainable_only=True),
    )  # fmt: skip
    task.finish_training()
    write_result(task.model, result, request)
    remove_checkpoints(out)
    interval = scores.get(f"{task.metric}_95")
    if interval and len(split.valid) < MIN_CHOOSING_ROWS:
        few = f"the score is of {count_of(len(split.valid), split.task.unit)} only"
        low, high = (f"{end:.4g}" for end in interval)
        report(f"note: {few}: on others {task.metric} may be anywhere between {low} and {high}")
    if training.interrupted:
        best = "the best weights so far" if training.chosen else f"the weights of step {training.best_step}"
        which = "its weights, not measured yet," if training.best_step is None else best
        end = f"interrupted at step {training.steps}; {which} are in {out}: {result.use}"
        raise TrainingInterrupted(end, signal_number=training.interrupted)
    return result


def finetune_linear_head(
    request: FinetuneRequest, split: SplitExamples, body: Model, out: Path, report: Report,
    quiet: bool,
) -> FinetuneResult:  # fmt: skip
    """Fit a linear head on the sentence vectors of few rows: all of them, once the score is known.

    The vectors of a model that is not too large are tuned on pairs first.
    """
    began = time.perf_counter()
    examples, valid = split.examples, split.valid if request.valid else split.examples.select([])
    split.task.check_examples(examples, valid)
    labels, kind = label_names(examples), kind_of(examples)
    model = put_linear_head(body, labels)
    model.hf_config |= kind.head_settings
    task = split.bind(model)
    assert isinstance(task, TextClassification)
    options = batch_options(replace(split, train=examples, valid=valid), model, request, report)
    names = task.name_examples(examples)
    learnt = replace(
        examples, items=[*examples.items, *names.items], locations=[*examples.locations, *names.locations]
    )
    batches = task.batches(learnt, options)
    TaskSpecification.of_training(task, examples.columns, batches.labels, options.length).write(model)
    # Rows of which several labels may hold have no pairs; of a large model the head is kept alone.
    pairs = not kind.several and count_parameters(model) <= MAX_WHOLE
    report(
        f"model: {request.model} ({model.family.name}) with a linear head on the "
        f"{model.config.classifier_pooling} of its vectors"
    )
    way = "its blocks learn from pairs, then the head is fitted" if pairs else "the head alone is fitted"
    few = f"{len(examples):,} rows of {len(labels)} {kind.unit} are few"
    report(f"training: {few}: {way}; --full or --lora trains the model itself")
    if len(names):
        shown = ", ".join(repr(text) for text, _ in names.items[:3])
        more = " …" if len(names) > 3 else ""
        report(f"names: the classes' own are also texts to learn from: {shown}{more}")
    groups = task.group_rows(examples)

    def score_held_out(validation: CrossValidation) -> dict[str, Any]:
        """Return the scores of rows by heads that had not seen them."""
        return task.compare_logits(examples.select(validation.rows), validation.logits, validation.trials)

    def report_frozen(frozen: CrossValidation, seconds: float) -> None:
        """Say what a head on the model's own vectors gets, and how many seconds tuning them takes."""
        score = f"{task.metric} {score_held_out(frozen)[task.metric]:.4f}"
        how = f"a linear head on the model's own vectors ({frozen.folds}-fold cross-validation)"
        report(f"without training: {score} by {how}")
        report(f"time: about {format_clock(seconds)}")

    validation, penalty = fit_linear_head(
        model, batches, request.seed, pairs=pairs, names=len(names),
        class_weights=class_weights(examples), groups=np.array(groups),
        announce=None if quiet else report_frozen,
    )  # fmt: skip
    if request.valid:
        scores, rows, folds, method = score_quietly(task, valid, options), len(valid), 0, split.split_method
    else:
        scores, rows, folds = score_held_out(validation), len(set(validation.rows)), validation.folds
        scores["rows"] = rows
        method = f"{folds}-fold cross-validation of {rows:,} rows (seed {request.seed})"
    report(f"validation: {method}")
    if folds:
        if shared := len(groups) - len(set(groups)):
            report(f"note: {shared:,} rows share a text with another row; such rows are held out together")
        report(
            f"note: the interval is about rows like these {rows:,}; on rows of another source, or with other "
            "shares of the classes, the score may lie outside; --valid FILE measures it on rows that you have"
        )
    learning = count_parameters(model, trainable_only=True)
    learning += sum(p.numel() for p in model.blocks.parameters()) if pairs else 0
    result = FinetuneResult(
        task.command, task.task, request.model, model, out, scores, split.facts, len(examples), rows,
        TrainingResult(seconds=time.perf_counter() - began), labels,
        {"way": "pairs" if pairs else "frozen", "penalty": penalty, "length": options.length, "lora": False,
         "seed": request.seed},
        count_parameters(model), learning, folds,
    )  # fmt: skip
    write_result(model, result, request)
    return result


def load_base(request: FinetuneRequest) -> Model:
    """Return the model to start from, in float32: loaded, or a copy of one in memory. Adapters are merged."""
    name = request.model
    try:
        if request.base is None:
            model = load_trained(name, request.device)
        else:  # the caller's stays as it is
            model = copy.deepcopy(request.base).to(resolve_device(request.device))
    except NotFound:
        if name in presets() or name in all_families():
            what = f"{name!r} is known here by its shape and has no weights to start from"
            way = "give a folder, an installed model (heed ls) or a hub id"
            raise NotFound(what, hint=way) from None
        known = [*BASES, *bundled_models()]
        if name not in known and (hint := nearest(name, known)):
            raise NotFound(f"no model is called {name!r}", hint=hint) from None
        raise
    if "quantization" in model.hf_config:
        raise InputError(f"{name} was quantised and cannot learn", hint="take the model it was made from")
    if model.tokenizer is not None:
        check_vocabulary(model, model.tokenizer, name)
    if next(adapted_modules(model), None) is not None:
        merge(model)
    model.float()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def prepare_training(
    request: FinetuneRequest, split: SplitExamples, body: Model, report: Report
) -> TrainingSetup:
    """Return the task bound to the model with its head and perhaps an adapter, the batches, the schedule."""
    model, head = split.task.attach_head(body, split.train, request.seed)
    count = count_parameters(model)
    adapting = count > LORA_PARAMETERS if request.lora is None else request.lora
    if adapting:
        with torch.random.fork_rng():
            torch.manual_seed(request.seed)
            lora(model, rank=DEFAULT_RANK, train=split.task.trained_whole)
    task, options = split.bind(model), batch_options(split, model, request, report)
    batches = task.batches(split.train, options)
    TaskSpecification.of_training(task, split.examples.columns, batches.labels, options.length).write(model)
    defaults = split.task.training
    classes = {row[-1] for row in split.train.items} if issubclass(split.task, TextClassification) else ()
    if defaults.many_labels_lr is not None and len(classes) >= MANY_LABELS:
        least = max(defaults.steps, 3 * len(classes))
        defaults = replace(defaults, lr=defaults.many_labels_lr, steps=least)
    config = schedule(defaults, len(batches), request, adapting, model)
    setup = TrainingSetup(task, options, batches, config, adapting, count, model is body)
    adapter = f"a LoRA adapter of {count_parameters(model, trainable_only=True):,} learns"
    learns = adapter if adapting else "all of them learn"
    report(f"model: {request.model} ({model.family.name}) with {head}; {count:,} parameters, {learns}")
    often = round(config.steps / len(batches), 2)
    size = min(options.batch, batches.row_count)
    epochs = f"{often:g} epoch{'s' * (often != 1)}"  # often a fraction
    steps = f"{count_of(config.steps, 'steps')} of {count_of(size, 'rows')}, {epochs}"
    if config.minutes is not None:
        steps = f"{config.minutes:g} minutes, in steps of {size} rows"
    report(f"training: at most {steps}; learning rate {config.lr:g}, {model.device}")
    for note in () if task.cuts_texts else batches.notes:  # of others `batch_options` has told
        report(f"note: {note}")
    return setup


def batch_options(
    split: SplitExamples, model: Model, request: FinetuneRequest, report: Report
) -> BatchOptions:
    """Return the length of rows and the batch size; report how many texts are cut."""
    task, pooled = split.task, None if model.pooling is None else model.pooling.length
    limit = smallest_limit(context_length(model, source=True), pooled) or sys.maxsize
    if request.length is not None and not task.has_length:
        raise ConfigError(f"`length={request.length}`: an image is read whole", hint="leave it out")
    if request.length is not None and request.length > limit:
        raise ConfigError(f"`length={request.length}` is more than the {limit} tokens this model reads")
    length = request.length or min(task.training.length, limit)
    if texts := task.texts(split.train) + task.texts(split.valid):
        cut = limit_characters(texts, length)
        tokens = np.array([len(ids) for ids in model.tokenizer.encode_all(cut, special=False)])
        huge = any(len(a) != len(b) for a, b in zip(texts, cut, strict=True))
        longest = f"{'over ' if huge else ''}{int(tokens.max()):,}"
        report(f"lengths: {int(np.median(tokens)):,} tokens in the middle, {longest} at the most")
        over = int((tokens + 2 > length).sum())
        if over and task.cuts_texts:
            many = count_of(over, "texts", "are", len(texts))
            size = f" (the longest has {max(map(len, texts)):,} characters)" if huge else ""
            report(f"note: {many} longer than {length} tokens and cut there{size}")
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
        raise ConfigError("`epochs=0` trains nothing", hint="give 1, or a fraction such as 0.5")
    if request.epochs is not None and request.minutes is not None:
        raise ConfigError("`epochs=` and `minutes=` both say how long to train", hint="give one of them")
    if request.epochs is not None:
        steps = max(1, round(request.epochs * an_epoch))
    lr = request.lr if request.lr is not None else defaults.lora_lr if adapting else defaults.lr
    dtype = request.dtype or ("bfloat16" if model.device.type == "cuda" else "float32")
    return TrainConfig(
        steps=steps, lr=lr, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=round(0.06 * steps), dtype=dtype, seed=request.seed, minutes=request.minutes,
    )  # fmt: skip


def count_parameters(model: Model, *, trainable_only: bool = False) -> int:
    """Return how many parameters a model has, or how many of them are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def score_written(task: TrainableTask, examples: Examples, options: BatchOptions) -> dict[str, Any]:
    """Return the scores of what the finished model writes, which would cost too much during training.

    It may write as much as in `heed eval`, where nobody knows how long the right answers are.
    """
    if task.metric != "loss":
        return {}
    scores = task.score(examples.first(MAX_SCORED_ROWS), batch=options.batch)
    return {name: value for name, value in scores.items() if name != "first"}


# What a run reports before it trains: the time, by a few steps of different sizes and part of an evaluation,
# after which the weights are put back; and what can be had without training.


def score_quietly(task: TrainableTask, examples: Examples, options: BatchOptions) -> dict[str, Any]:
    """Return the scores of examples, of which `batch_options` has told how many are cut."""
    with ignore_truncated():
        return task.score(examples, batch=options.batch, length=options.length, truncate=True)


@dataclass(frozen=True)
class Outlook:
    """How long a training run takes."""

    steps: int
    step_seconds: float
    evaluations: int
    evaluation_seconds: float

    @property
    def seconds(self) -> float:
        """All of it, if training does not stop early."""
        return self.steps * self.step_seconds + self.evaluations * self.evaluation_seconds

    @property
    def line(self) -> str:
        """The same in words."""
        steps = f"{count_of(self.steps, 'steps')} of {format_seconds(self.step_seconds)}"
        evaluations = f"{count_of(self.evaluations, 'evaluations')} of"
        parts = f"{steps}, {evaluations} {format_seconds(self.evaluation_seconds)}"
        return f"time: about {format_clock(self.seconds)} ({parts})"


def format_seconds(seconds: float) -> str:
    """0.004 → 4 ms, 0.61 → 0.61 s, 75 → 75 s"""
    if seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def predict_duration(setup: TrainingSetup, valid: Examples) -> Outlook:
    """Measure a few steps of different sizes and a part of an evaluation; the weights stay as they were."""

    def batch_tokens(batch: Batch) -> int:
        """Return how many tokens a step works on, padding included."""
        others = (batch.target, *(value for name, value in batch.extra.items() if name.endswith("tokens")))
        return batch.tokens.numel() + sum(t.numel() for t in others if t is not None)

    steps, batches = setup.config.steps, setup.batches
    last = min(steps, len(batches)) - 1
    sized = sorted({round(k) for k in np.linspace(0, last, MAX_SIZED_STEPS)})
    sizes = {k: batch_tokens(batches[k]) for k in sized}
    by_size = sorted(sized, key=lambda k: sizes[k])
    middle = len(by_size) // 2
    picks = [by_size[i] for i in (middle, middle, len(by_size) // 4, 3 * len(by_size) // 4)]
    measured = picks[1:] if steps >= FEW_STEPS else picks[1:2]
    if setup.task.model.device.type != "cpu":
        measured = measured * ACCELERATOR_TURNS
    fastest: dict[int, float] = {}
    for k, seconds in zip(measured, time_steps(setup, [picks[0], *measured])[1:], strict=False):
        fastest[k] = min(seconds, fastest.get(k, math.inf))
    pace = sum(fastest.values()) / max(sum(sizes[k] for k in fastest), 1)
    step_seconds = pace * float(np.mean(list(sizes.values())))
    evaluation_seconds, every = time_evaluation(setup, valid), setup.steps_between_evaluations
    if setup.config.minutes is not None:  # evaluations take their share of the time
        steps = max(1, round(60 * setup.config.minutes / (step_seconds + evaluation_seconds / every)))
    evaluations = math.ceil(steps / every) + setup.has_head
    return Outlook(steps, step_seconds, evaluations, evaluation_seconds)


def time_steps(setup: TrainingSetup, steps: Sequence[int]) -> list[float]:
    """Return the seconds of these steps, fewer if they take long; the model is put back as it was.

    The first one warms up.
    """
    model = setup.task.model
    learning: Weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = clone_weights(learning)
    batches = (setup.batches[k] for k in steps)
    seconds = measure_steps(
        model, setup.task.objective, batches, setup.config, len(steps), MAX_MEASURED_SECONDS
    )
    set_weights(learning, [before])
    return seconds


def time_evaluation(setup: TrainingSetup, valid: Examples) -> float:
    """Return the seconds of an evaluation, from that of a few examples."""
    task, options = setup.task, setup.options
    some = valid.first(2 * options.batch)
    began = time.perf_counter()
    if task.by_loss:
        task.loss_scores(task.batches(some, options))
    else:
        with ignore_truncated():
            task.answer_examples(some, batch=options.batch, length=options.length, truncate=True)
    return (time.perf_counter() - began) * len(valid) / len(some)


def describe_base(setup: TrainingSetup, split: SplitExamples, body: Model, outlook: Outlook) -> str | None:
    """Return what can be had without training, in words; None if this task has no such score.

    A model that comes with the task's head is scored by the training loop, before its first step.
    """
    task, metric = split.task, setup.task.metric
    scores = []
    if setup.has_head:
        return None
    classes = issubclass(task, TextClassification)
    if classes and not kind_of(split.train).several:
        guess = next(iter(count_values([row[-1] for row in split.train.items])))
        score = setup.task.compare(split.valid, [{"label": guess}] * len(split.valid))[metric]
        scores.append(f"{score:.4f} by always saying {guess!r}")
    if issubclass(task, TextRegression):
        mean = float(np.mean([float(row[-1]) for row in split.train.items]))
        score = setup.task.compare(split.valid, [{"score": mean}] * len(split.valid))[metric]
        scores.append(f"{score:.4g} by always giving the mean")
    a_row = outlook.evaluation_seconds / max(len(split.valid), 1)
    seconds = max(BASE_SHARE * outlook.seconds, MIN_BASE_SECONDS)
    rows = min(MAX_BASE_ROWS, int(seconds / max(a_row, 1e-6) / 2))  # as many to learn and to be scored
    valid = split.valid.select(spread_indices(len(split.valid), rows))
    of_some = "" if len(valid) == len(split.valid) else f" on {len(valid):,} of them"
    if isinstance(body, LM):
        if classes and rows >= MIN_BASE_ROWS * len(label_names(split.train)):
            some = split.train.select(spread_indices(len(split.train), rows))
            score = score_linear_head(setup, split, body, some, valid)
            scores.append(
                f"{score:.4f}{of_some} by a linear head on the model's own vectors ({len(some):,} rows)"
            )
        elif issubclass(task, Rerank):
            queries = list(dict.fromkeys(row[0] for row in split.valid.items))
            chosen = {
                queries[i] for i in spread_indices(len(queries), rows * len(queries) // len(split.valid))
            }
            whole = [i for i, row in enumerate(split.valid.items) if row[0] in chosen]
            if whole:
                valid = split.valid.select(whole)
                with ignore_truncated():
                    similarity = bind_task(SentenceSimilarity, body)
                    pairs = split.task.call_inputs(split.task.input_rows(valid))
                    cosines = similarity(*pairs, batch_size=setup.options.batch)
                score = float(setup.task.compare(valid, cosines)[metric])
                of_some = "" if len(chosen) == len(queries) else f" on {len(chosen):,} of the queries"
                scores.append(f"{score:.4f}{of_some} by the cosine of the model's own vectors")
    return f"without training: {metric} {', '.join(scores)}" if scores else None


def spread_indices(count: int, limit: int) -> list[int]:
    """Return at most `limit` indices below `count`, evenly spread."""
    return list(range(count)) if count <= limit else [i * count // limit for i in range(limit)]


def score_linear_head(
    setup: TrainingSetup, split: SplitExamples, body: Model, train: Examples, valid: Examples
) -> float:
    """Return the metric of a logistic regression on the vectors that the model gives already."""
    model = put_linear_head(body, label_names(split.train))
    model.hf_config |= kind_of(split.train).head_settings
    task = split.bind(model)
    vectors, targets = read_vectors(model, task.batches(train, setup.options).once())
    if targets.dim() == 2:
        targets = targets.to(vectors.dtype)
    weights = class_weights(split.train)
    fit_head(model, vectors, targets, PENALTY, None if weights is None else vectors.new_tensor(weights))
    return float(score_quietly(task, valid, setup.options)[task.metric])


# The training itself.


def finetune_model(setup: TrainingSetup, valid: Examples, reporter: ProgressReporter) -> TrainingResult:
    """Train, and leave the model with the weights that score best on the validation examples.

    With few examples the last weights stay. A model that comes with the task's head is scored first, and its
    own weights may stay.
    """
    task, options = setup.task, setup.options
    kept = KeptWeights(task.model, setup.config.folder)
    valid_batches = task.batches(valid, options) if task.by_loss else None

    def score(step: Step | None) -> dict[str, Any]:
        if valid_batches is not None:
            return task.loss_scores(valid_batches)
        return score_quietly(task, valid, options)

    validation = Validation(
        score, kept.keep, setup.steps_between_evaluations, task.metric, task.highest, PATIENCE,
        # Few rows pick a lucky evaluation, or stop the run before their metric has begun to move.
        choose=setup.has_head or task.by_loss or len(valid) >= MIN_CHOOSING_ROWS,
        untrained=setup.has_head,
        checkpoint=kept.checkpoint,
    )  # fmt: skip
    folder = setup.config.folder
    files = RunFiles(Path(folder or ""), writes=folder is not None)
    loop = TrainingLoop(task.model, task.objective, setup.batches, setup.config, validation, reporter, files)
    if setup.config.resume:
        loop.restore()
        kept.restore(loop.result.best_step)
    resumed_at = loop.steps_before
    result = loop.run()
    kept.put_back()
    if result.best_step is not None and resumed_at > 0 and result.best_step <= resumed_at:
        result.scores = score(None)  # the file of scores has no intervals
    return result
