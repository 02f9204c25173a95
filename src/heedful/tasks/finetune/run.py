"""A fine-tuning run in order: read the file, split it, attach a head, train, score, save.

Before training, a run says what can be had without it and how long it will take: both are measured. With few
rows of classes it fits a linear head instead (train/linear_head.py). A long run leaves what the next one
needs if it is killed:

OUT.training/            next to the folder to be, while a long run lasts
  command.txt            the command, which must be the same
  metrics.jsonl          scores of the evaluations so far
  best-000120.safetensors   the best weights so far, those that learn
  checkpoints/           the newest state, as `fit` writes it
"""

from __future__ import annotations

import copy
import math
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from heedful.core.devices import resolve_device
from heedful.core.errors import ConfigError, CorruptFile, HeedfulError, InputError, NotFound, nearest
from heedful.core.files import make_folder, write_text
from heedful.core.progress import show_progress
from heedful.data.batch_options import BatchOptions
from heedful.decode.request import context_length
from heedful.models import all_families, presets
from heedful.models.base import Model
from heedful.nn.adapt import adapted_modules
from heedful.tasks.examples import Examples, limit_characters
from heedful.tasks.finetune.data import SplitExamples, count_units, read_and_split
from heedful.tasks.finetune.outlook import TrainingSetup, describe_base, predict_duration, score_quietly
from heedful.tasks.finetune.request import FinetuneRequest
from heedful.tasks.finetune.result import (
    MAX_WHOLE,
    FinetuneResult,
    out_lock,
    output_folder,
    repeat_command,
    write_result,
)
from heedful.tasks.label_kinds import class_weights, kind_of, label_names
from heedful.tasks.model_inputs import ignore_truncated, smallest_limit
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.tasks.task import TrainableTask, TrainingDefaults, load_trained
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.checkpoint import newest
from heedful.train.config import TrainConfig
from heedful.train.fit import DivergedError, Step
from heedful.train.linear_head import (
    CrossValidation,
    fit_linear_head,
    put_linear_head,
)
from heedful.train.recipes.folder import RunFiles
from heedful.train.recipes.prepare import check_vocabulary
from heedful.train.recipes.progress import LineReporter, ProgressReporter, format_clock, make_reporter
from heedful.train.recipes.train import (
    TrainingInterrupted,
    TrainingLoop,
    TrainingResult,
    Validation,
)
from heedful.weights.adapters import lora, merge
from heedful.weights.formats.tensor_files import save_tensors
from heedful.weights.hub import BASES, bundled_models

LORA_PARAMETERS = 100_000_000  # parameters from which on an adapter is trained if nothing is said
DEFAULT_RANK = 16
MAX_STEPS = 20_000
MANY_LABELS = 10  # from which on learning is faster and longer
MAX_SCORED_ROWS = 200  # validation rows for which the finished model writes
PATIENCE = 4  # evaluations without a better one
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones
COMMAND = "command.txt"  # the file that tells a folder of checkpoints from somebody's own
CHECKPOINT_SECONDS = 120.0  # between checkpoints; a run that takes less writes none


def finetune(request: FinetuneRequest, *, quiet: bool = False) -> FinetuneResult:
    """Fine-tune a trained model on a file. Nothing is saved unless it ends well, or is interrupted."""
    out = output_folder(request)
    reporter: ProgressReporter = ProgressReporter() if quiet else LineReporter()
    with out_lock(out):
        with show_progress(f"reading {request.file}", quiet=quiet):
            split = read_and_split(request, reporter)
        with show_progress(f"loading {request.model}", quiet=quiet):
            model = load_base(request)
        split.task.check_model(model)
        # Few rows get a linear head, unless an option says how to train.
        free = request.lr is request.epochs is request.minutes is request.lora is None
        classes = issubclass(split.task, TextClassification)
        if free and classes and TextClassification.prefers_linear_head(model, split.examples):
            with show_progress("learning from few rows", quiet=quiet):
                return finetune_linear_head(request, split, model, out, reporter, quiet)
        return finetune_weights(request, split, model, out, reporter, quiet)


def finetune_weights(
    request: FinetuneRequest, split: SplitExamples, body: Model, out: Path, reporter: ProgressReporter,
    quiet: bool,
) -> FinetuneResult:  # fmt: skip
    """Train all weights of a model, or an adapter, under the head of the task; save the best weights."""
    reporter.report(f"validation: {split.split_method}")
    with show_progress("preparing the batches", quiet=quiet):
        setup = prepare_training(request, split, body, reporter)
    with show_progress("measuring the base and the time of a step", quiet=quiet):
        outlook = predict_duration(setup, split.valid)
        base = None if quiet else describe_base(setup, split, body, outlook)
    for line in filter(None, (base, outlook.line)):
        reporter.report(line)
    setup = keep_checkpoints(setup, request, out, split.facts["sha256"], outlook.seconds, reporter)
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
        few = f"the score is of {count_units(split.task, len(split.valid))} only"
        low, high = (f"{end:.4g}" for end in interval)
        reporter.report(f"note: {few}: on others {task.metric} may be anywhere between {low} and {high}")
    if training.interrupted:
        best = "the best weights so far" if training.chosen else f"the weights of step {training.best_step}"
        which = "its weights, not measured yet," if training.best_step is None else best
        end = f"interrupted at step {training.steps}; {which} are in {out}: {result.use}"
        raise TrainingInterrupted(end, signal_number=training.interrupted)
    return result


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
    labels, kind = label_names(examples), kind_of(examples)
    model = put_linear_head(body, labels)
    model.hf_config |= kind.head_settings
    task = split.bind(model)
    assert isinstance(task, TextClassification)
    options = batch_options(replace(split, train=examples, valid=valid), model, request, reporter)
    names = task.name_examples(examples)
    learnt = replace(
        examples, items=[*examples.items, *names.items], locations=[*examples.locations, *names.locations]
    )
    batches = task.batches(learnt, options)
    TaskSpecification.of_training(task, examples.columns, batches.labels, options.length).write(model)
    # Rows of which several labels may hold have no pairs; of a large model the head is kept alone.
    pairs = not kind.several and count_parameters(model) <= MAX_WHOLE
    reporter.report(
        f"model: {request.model} ({model.family.name}) with a linear head on the "
        f"{model.config.classifier_pooling} of its vectors"
    )
    way = "its blocks learn from pairs, then the head is fitted" if pairs else "the head alone is fitted"
    few = f"{len(examples):,} rows of {len(labels)} {kind.unit} are few"
    reporter.report(f"training: {few}: {way}; --full or --lora trains the model itself")
    if len(names):
        shown = ", ".join(repr(text) for text, _ in names.items[:3])
        more = " …" if len(names) > 3 else ""
        reporter.report(f"names: the classes' own are also texts to learn from: {shown}{more}")
    groups = task.group_rows(examples)

    def score_held_out(validation: CrossValidation) -> dict[str, Any]:
        """Return the scores of rows by heads that had not seen them."""
        return task.compare_logits(examples.select(validation.rows), validation.logits, validation.trials)

    def report_frozen(frozen: CrossValidation, seconds: float) -> None:
        """Say what a head on the model's own vectors gets, and how many seconds tuning them takes."""
        score = f"{task.metric} {score_held_out(frozen)[task.metric]:.4f}"
        how = f"a linear head on the model's own vectors ({frozen.folds}-fold cross-validation)"
        reporter.report(f"without training: {score} by {how}")
        reporter.report(f"time: about {format_clock(seconds)}")

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
    check_vocabulary(model, model.tokenizer, name)
    if next(adapted_modules(model), None) is not None:
        merge(model)
    model.float()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


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
    task, options = split.bind(model), batch_options(split, model, request, reporter)
    batches = task.batches(split.train, options)
    TaskSpecification.of_training(task, split.examples.columns, batches.labels, options.length).write(model)
    defaults = split.task.training
    classes = {row[-1] for row in split.train.items} if issubclass(split.task, TextClassification) else ()
    if defaults.many_labels_lr is not None and len(classes) >= MANY_LABELS:
        steps = max(defaults.steps, 3 * len(classes))
        defaults = replace(defaults, lr=defaults.many_labels_lr, steps=steps)
    config = schedule(defaults, len(batches), request, adapting, model)
    setup = TrainingSetup(task, options, batches, config, adapting, count, model is body)
    adapter = f"a LoRA adapter of {count_parameters(model, trainable_only=True):,} learns"
    learns = adapter if adapting else "all of them learn"
    reporter.report(
        f"model: {request.model} ({model.family.name}) with {head}; {count:,} parameters, {learns}"
    )
    often = round(config.steps / len(batches), 2)
    size, s = min(options.batch, batches.row_count), "s" * (config.steps != 1)
    steps = f"{config.steps:,} step{s} of {size} rows, {often:g} epoch{'s' * (often != 1)}"
    if config.minutes is not None:
        steps = f"{config.minutes:g} minutes, in steps of {size} rows"
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
        raise ConfigError(f"length={request.length} is more than the {limit} tokens this model reads")
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
        raise ConfigError("epochs=0 trains nothing", hint="give 1, or a fraction such as 0.5")
    if request.epochs is not None and request.minutes is not None:
        raise ConfigError("--epochs and --minutes both say how long to train", hint="give one of them")
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
    """Return the scores of what the finished model writes, which would cost too much during training."""
    if task.metric != "loss":
        return {}
    some = examples.first(MAX_SCORED_ROWS)
    longest = max(map(len, task.tokenizer.encode_all([row[1] for row in some.items], special=False)))
    scores = task.score(some, batch=options.batch, length=min(longest + 8, options.length))
    return {name: value for name, value in scores.items() if name != "first"}


# Training, and the checkpoints of a long run.


def checkpoint_folder(out: Path) -> Path:
    """Return where a run that will write `out` keeps its checkpoints."""
    return out.with_name(f"{out.name}.training")


def remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of a run, if it wrote any."""
    folder = checkpoint_folder(out)
    if (folder / COMMAND).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def keep_checkpoints(
    setup: TrainingSetup, request: FinetuneRequest, out: Path, sha256: str, seconds: float,
    reporter: ProgressReporter,
) -> TrainingSetup:  # fmt: skip
    """Return the setup of a run that writes checkpoints, if it takes long, or goes on from those of another.

    `seconds` is how long it will take.
    """
    folder, command = checkpoint_folder(out), f"{repeat_command(request)}\n{request.file}: SHA-256 {sha256}\n"
    at = newest(folder) if (folder / COMMAND).is_file() else None
    if at is None and seconds < CHECKPOINT_SECONDS:
        return setup
    if at is None:
        remove_checkpoints(out)  # of a run that was killed before its first one
        if folder.exists():
            hint = "move it away, or take another out="
            raise ConfigError(f"{folder} is in the way: checkpoints go there while a run lasts", hint=hint)
        make_folder(folder)
        write_text(folder / COMMAND, command)
    elif (folder / COMMAND).read_text(encoding="utf-8") != command:
        written = (folder / COMMAND).read_text(encoding="utf-8").splitlines()[0]
        raise ConfigError(
            f"{folder} holds a run that was killed, of another command or file: {written}",
            hint="repeat that one to continue it, delete the folder, or choose another out=",
        )
    else:
        reporter.report(f"resuming: a run that was killed is in {folder}; this one goes on from {at.name}")
    return replace(setup, config=replace(setup.config, folder=folder, keep=1, resume=True, save_minutes=None))


class KeptWeights:
    """The best weights so far: a copy in memory, and for a long run one next to its checkpoints."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.model, self.folder = setup.task.model, setup.config.folder
        self.values: dict[str, Tensor] = {}
        self.step, self.written = 0, time.monotonic()

    def keep(self, step: Step | None) -> None:
        """Copy the present weights."""
        learning = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
        self.values = {name: p.detach().clone() for name, p in learning}
        self.step = 0 if step is None else step.number

    def checkpoint(self, step: Step) -> None:
        """Write the best weights and the state of training, if it is time."""
        if self.folder is None or time.monotonic() - self.written < CHECKPOINT_SECONDS:
            return
        best = Path(self.folder) / f"best-{self.step:06d}.safetensors"
        part = best.with_suffix(".part")
        try:
            if not best.is_file():
                save_tensors({name: value.contiguous() for name, value in self.values.items()}, part)
                part.rename(best)
            step.save()
        except (OSError, SafetensorError) as error:
            raise HeedfulError(f"could not write {best}: {error}") from None
        for other in set(Path(self.folder).glob("best-*")) - {best}:
            other.unlink()
        self.written = time.monotonic()

    def restore(self, step: int | None) -> None:
        """Read the best weights of a run that is resumed."""
        if self.folder is None or step is None or newest(Path(self.folder)) is None:
            return
        path = Path(self.folder) / f"best-{step:06d}.safetensors"
        try:
            self.values, self.step = load_file(path, device=str(self.model.device)), step
        except (OSError, SafetensorError):
            hint = f"delete {self.folder} to start again"
            raise CorruptFile(f"{path} is not there or damaged", hint=hint) from None

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the model the weights that were kept, if any were."""
        for name, parameter in self.model.named_parameters():
            if name in self.values:
                parameter.copy_(self.values[name])
        self.model.eval()


def finetune_model(setup: TrainingSetup, valid: Examples, reporter: ProgressReporter) -> TrainingResult:
    """Train, and leave the model with the weights that score best on the validation examples.

    With few examples the last weights stay. A model that comes with the task's head is scored first, and its
    own weights may stay.
    """
    task, options, kept = setup.task, setup.options, KeptWeights(setup)
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
