"""What a fine-tuning run reports before it trains: how long it will take, and what the base model gives.

Both are measured. A few steps of different sizes and part of an evaluation tell the time; the weights are put
back afterwards. What can be had without training is the score of always giving the most frequent class, and
of a linear head on the vectors that the model gives already.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.models.base import LM, Model
from heedful.tasks.examples import Examples, count_values
from heedful.tasks.finetune.data import SplitExamples
from heedful.tasks.label_kinds import class_weights, kind_of, label_names
from heedful.tasks.model_inputs import ignore_truncated
from heedful.tasks.pipelines.number_tasks import Rerank, SentenceSimilarity, TextRegression
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.tasks.registry import bind_task
from heedful.tasks.task import TrainableTask
from heedful.train.config import TrainConfig
from heedful.train.linear_head import (
    Weights,
    copy_weights,
    fit_head,
    put_linear_head,
    read_vectors,
    set_weights,
)
from heedful.train.recipes.progress import format_clock
from heedful.train.recipes.train import measure_steps

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
        rows = {"batch": self.options.batch, "length": self.options.length}
        return {**often, "lr": c.lr, **rows, "lora": self.adapting, "dtype": c.dtype, "seed": c.seed}


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
        steps = f"{self.steps:,} step{'s' * (self.steps != 1)} of {format_seconds(self.step_seconds)}"
        evaluations = f"{self.evaluations:,} evaluation{'s' * (self.evaluations != 1)} of"
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
    before = copy_weights(learning)
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
                    pairs, options = setup.task.prediction_call(valid, batch=setup.options.batch)
                    cosines = similarity(*pairs, **options)
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
