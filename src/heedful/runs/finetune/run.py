"""A fine-tuning run in order: look at the file, hold some out, train, score, write."""

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
from heedful.runs.evaluate import trained
from heedful.runs.finetune.guessing import check_flags, listed, task_of
from heedful.runs.finetune.inspecting import Source, inspect
from heedful.runs.finetune.labelled import Classify, Similarity
from heedful.runs.finetune.linear_head import fit_linear_head, put_linear_head
from heedful.runs.finetune.located import Answer, Tag
from heedful.runs.finetune.tasks import Examples, Reading, Task, measured, reach
from heedful.runs.finetune.training import MIN_CHOOSING_ROWS, Loop, Trained
from heedful.runs.finetune.writing import Asked, Outcome, out_lock, place, write
from heedful.runs.finetune.written import Complete, Summarize, Translate
from heedful.runs.prepare import check_vocabulary
from heedful.runs.progress import Lines, Progress, Silent, progress
from heedful.runs.train import Interrupted
from heedful.train.config import TrainConfig
from heedful.weights.bases import BASES, bundled

TASKS: dict[str, type[Task]] = {
    kind.name: kind for kind in (Classify, Tag, Answer, Translate, Summarize, Similarity, Complete)
}
LARGE = 100_000_000  # parameters from which on an adapter is trained if nothing is said
RANK = 16
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Looked:
    """A file after a look at it: what it is for, its examples in two parts, and what there is to say."""

    task: Task
    examples: Examples  # of the file, those held out included
    train: Examples
    valid: Examples
    found: dict[str, Any]
    parted: str  # how the two parts came about


@dataclass(frozen=True)
class Ready:
    """All that training needs."""

    model: Model
    how: Reading
    batches: Batches
    valid: Batches
    config: TrainConfig
    adapting: bool
    parameters: int
    begun: bool = False  # whether the model comes with the head that the task needs

    @property
    def learning(self) -> int:
        """Parameters that are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was like, for the card."""
        c, epochs = self.config, round(self.config.steps / len(self.batches), 2)
        told = {"epochs": epochs, "lr": c.lr, "batch": self.how.batch, "length": self.how.length}
        return told | {"lora": self.adapting, "dtype": c.dtype, "seed": c.seed}


def finetune(asked: Asked, *, quiet: bool = False) -> Outcome:
    """Teach a trained model a file. Nothing is written unless it ends well, or is interrupted."""
    out = place(asked)
    with out_lock(out):
        return _finetune(asked, out, quiet)


def _finetune(asked: Asked, out: Path, quiet: bool) -> Outcome:
    say: Progress = Silent() if quiet else Lines()
    seen = look(asked, say)
    model = opened(asked.model, asked.device)
    seen.task.check(model)
    free = asked.lr is None and asked.epochs is None and asked.lora is None  # nobody said how to train
    if free and isinstance(seen.task, Classify) and seen.task.fits_linear_head(seen.examples, model):
        return finetune_linear_head(asked, seen, seen.task, model, out, say)
    say.say(f"validation: {seen.parted}")
    ready = make_ready(asked, seen, model, say)
    shown = progress(ready.config.steps, quiet)
    try:
        ended = Loop(
            seen.task, ready.model, ready.batches, ready.valid, seen.valid, ready.config, shown, ready.begun
        ).run()
    finally:
        shown.close()
    scores = dict(ended.scores)
    if not ended.interrupted:
        scores |= seen.task.final(ready.model, seen.valid, ready.valid, ready.how)
    seen.task.finish(ready.model)
    outcome = outcome_of(asked, seen, ready, ended, scores, out)
    write(ready.model, outcome, asked)
    warn_of_few(outcome, seen.task, say)
    if ended.interrupted:
        measured = "the best weights so far" if ended.chosen else f"the weights of step {ended.best_step}"
        which = "its weights, not measured yet," if ended.best_step is None else measured
        raise Interrupted(f"interrupted at step {ended.steps}; {which} are in {out}: {outcome.use}")
    return outcome


def outcome_of(asked: Asked, seen: Looked, ready: Ready, ended: Trained, scores: Any, out: Any) -> Outcome:
    """Everything that is worth telling of a run."""
    task = seen.task
    return Outcome(
        task.name, task.pipeline, asked.model, out, scores, seen.found, len(seen.train), len(seen.valid),
        ended, ready.batches.labels, ready.settings, ready.parameters, ready.learning,
    )  # fmt: skip


def finetune_linear_head(
    asked: Asked, seen: Looked, task: Classify, body: Model, out: Path, say: Progress
) -> Outcome:
    """Fit a linear head on the sentence vectors of few rows: all of them, once the score is known."""
    began = time.perf_counter()
    examples, valid = seen.examples, seen.valid if asked.valid else seen.examples.some([])
    task.prepare(examples, valid)
    model = put_linear_head(body, task.labels)
    how = reading(replace(seen, train=examples, valid=valid), model, asked, say)
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    vector = f"the {model.config.classifier_pooling} of its vectors"
    say.say(f"model: {asked.model} ({model.family.name}), frozen, with a linear head on {vector}")
    few = f"{len(examples):,} rows of {len(task.labels)} classes are few"
    say.say(f"training: {few}: the head alone is fitted; --full or --lora trains the model itself")
    batches = task.batches(examples, model, how)
    found = fit_linear_head(model, batches, asked.seed)
    if asked.valid:
        scores = task.score(model, valid, task.batches(valid, model, how), None)
        rows, folds, parted = len(valid), 0, seen.parted
    else:
        rows, folds, scores = len(found.truth), found.folds, found.scores()
        parted = f"{folds}-fold cross-validation of {rows:,} rows (seed {asked.seed})"
    say.say(f"validation: {parted}")
    settings = {"penalty": found.penalty, "length": how.length, "lora": False, "seed": asked.seed}
    count, took = sum(p.numel() for p in model.parameters()), time.perf_counter() - began
    outcome = Outcome(
        task.name, task.pipeline, asked.model, out, scores, seen.found, len(examples), rows,
        Trained(0, took, math.nan, None), batches.labels, settings, count, learning, folds,
    )  # fmt: skip
    write(model, outcome, asked)
    return outcome


def warn_of_few(outcome: Outcome, task: Task, say: Progress) -> None:
    """Say how little a score on few rows tells."""
    between = outcome.scores.get(f"{task.metric}_95")
    if between and outcome.valid_rows < MIN_CHOOSING_ROWS:
        low, high = (f"{end:.4g}" for end in between)
        few = f"the score is of {outcome.valid_rows:,} {task.what} only"
        say.say(f"note: {few}: on others {task.metric} may be anywhere between {low} and {high}")


def look(asked: Asked, say: Progress) -> Looked:
    """Read the file, say what was found, and hold out what is to validate."""
    source = inspect(asked.file, encoding=asked.encoding, header=asked.header)
    task = TASKS[task_of(source, asked.task, asked.given)]()
    check_flags(source, asked.given)
    examples = task.read(source, asked.given)
    train, valid, parted = divided(task, examples, asked)
    task.prepare(train, valid)
    facts = task.facts(train, valid if asked.valid is None else valid.some([]))
    for line in described(task, source, examples, facts):
        say.say(line)
    found = {"file": str(source.path), "sha256": source.sha256, "kind": source.kind, "rows": len(examples)}
    columns = {"columns": list(source.columns), "read_as": examples.columns}
    found |= columns | {"left_out": list(examples.notes), **facts}
    return Looked(task, examples, train, valid, found, parted)


def divided(task: Task, examples: Examples, asked: Asked) -> tuple[Examples, Examples, str]:
    """Training and validation examples: of another file, or a part held out."""
    if asked.valid is None:
        train, valid, parted = task.held_out(examples, asked.seed)
        what = "" if "characters" in task.facts(train, valid) else f"{len(valid):,} {task.what} held out, "
        return train, valid, f"{what}{parted} (seed {asked.seed})"
    other = inspect(asked.valid, encoding=asked.encoding, header=asked.header)
    task_of(other, task.name)
    valid = task.read(other, asked.given)
    notes = "".join(f"; {note}" for note in valid.notes)
    return examples, valid, f"{len(valid):,} {task.what} of {asked.valid}{notes}"


def described(task: Task, source: Source, examples: Examples, facts: dict[str, Any]) -> list[str]:
    """What was found, line by line."""
    what = "plain text" if "characters" in facts else f"{len(examples):,} {task.what}"
    lines = [f"file: {source.path}, {what}; task: {task.name}"]
    if source.columns:
        told = ", ".join(f"{role} = {name!r}" for role, name in examples.columns.items())
        lines.append(f"columns: {told} (of {listed(source)})")
    lines += [f"{name}: {listing(value)}" for name, value in facts.items()]
    return lines + [f"note: {note}" for note in examples.notes]


def listing(value: Any, most: int = 12) -> str:
    """positive (520), negative (480) …"""
    if not isinstance(value, dict):
        return f"{value:,}"
    form = lambda name, n: f"{name} ({n:,})" if isinstance(n, int) else f"{name} {n:g}"
    shown = [form(name, n) for name, n in list(value.items())[:most]]
    return ", ".join(shown) + (f" and {len(value) - most} more" if len(value) > most else "")


def make_ready(asked: Asked, seen: Looked, body: Model, say: Progress) -> Ready:
    """The model under its head, perhaps with an adapter; batches; how long it will learn."""
    task = seen.task
    model, head = task.dress(body, asked.seed)
    count = sum(p.numel() for p in model.parameters())
    adapting = count > LARGE if asked.lora is None else asked.lora
    if adapting:
        with torch.random.fork_rng():
            torch.manual_seed(asked.seed)
            lora(model, rank=RANK, train=task.trained_whole())
    how = reading(seen, model, asked, say)
    batches, held = (task.batches(part, model, how) for part in (seen.train, seen.valid))
    config = schedule(task, batches, asked, adapting, model)
    ready = Ready(model, how, batches, held, config, adapting, count, model is body)
    learns = f"a LoRA adapter of {ready.learning:,} learns" if adapting else "all of them learn"
    say.say(f"model: {asked.model} ({model.family.name}) with {head}; {count:,} parameters, {learns}")
    often = ready.settings["epochs"]
    steps = f"{config.steps:,} steps of {how.batch} rows, {often:g} epoch{'s' * (often != 1)}"
    say.say(f"training: at most {steps}; learning rate {config.lr:g}, {model.device}")
    return ready


def opened(name: str, device: str) -> Model:
    """The model to start from, plain and in float32: adapters become part of it."""
    try:
        model = trained(name, device)
    except NotFound:
        if name in presets() or name in FAMILIES:
            what = f"{name!r} is known here by its shape and has no weights to start from"
            way = "give a folder, a model at hand (heed ls) or a hub id"
            raise NotFound(f"{what}; {way}") from None
        if hint := nearest(name, [*BASES, *bundled()]):
            raise NotFound(f"no model is called {name!r}; {hint}") from None
        raise
    if "quantization" in model.hf_config:
        raise InputError(f"{name} was quantised and cannot learn; take the model it was made from")
    check_vocabulary(model, model.tokenizer, name)
    if next(adapted_modules(model), None) is not None:
        merge(model)
    model.float()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def reading(seen: Looked, model: Model, asked: Asked, say: Progress) -> Reading:
    """How long rows are and how many stand in a batch; what is cut is said."""
    task, most = seen.task, reach(model)
    if asked.length is not None and asked.length > most:
        raise ConfigError(f"--length {asked.length} is more than the {most} tokens this model reads")
    length = asked.length or min(task.usual.length, most)
    texts = task.texts(seen.train) + task.texts(seen.valid)
    if texts:
        tokens, huge = measured(texts, model, length)
        longest = f"{'over ' if huge else ''}{int(tokens.max()):,}"
        say.say(f"lengths: {int(np.median(tokens)):,} tokens in the middle, {longest} at the most")
        over = int((tokens + 2 > length).sum())
        if over and task.cuts:
            many = f"1 text of {len(texts):,} is" if over == 1 else f"{over:,} of {len(texts):,} texts are"
            size = f" (the longest has {max(map(len, texts)):,} characters)" if huge else ""
            say.say(f"note: {many} longer than {length} tokens and cut there{size}")
    return Reading(length, asked.batch or fitting(task, len(seen.train)), asked.seed)


def fitting(task: Task, rows: int) -> int:
    """A small file is read in small batches, so that it gives enough steps."""
    most = task.usual.batch
    return most if rows >= 40 * most else max(4, min(most, 16, rows // 4))


def schedule(task: Task, batches: Batches, asked: Asked, adapting: bool, model: Model) -> TrainConfig:
    """Linear decay after a short rise; small files are read more often, large ones not without end."""
    usual, an_epoch = task.usual, len(batches)
    epochs = min(max(usual.epochs, math.ceil(usual.steps / an_epoch)), usual.most_epochs)
    steps = min(epochs * an_epoch, max(MOST_STEPS, an_epoch))
    if asked.epochs is not None:
        steps = max(1, round(asked.epochs * an_epoch))
    lr = asked.lr if asked.lr is not None else usual.lora_lr if adapting else usual.lr
    dtype = asked.dtype or ("bfloat16" if model.device.type == "cuda" else "float32")
    return TrainConfig(
        steps=steps, lr=lr, betas=(0.9, 0.999), weight_decay=0.01, schedule="linear", final=0.0,
        warmup=round(0.06 * steps), dtype=dtype, seed=asked.seed,
    )  # fmt: skip
