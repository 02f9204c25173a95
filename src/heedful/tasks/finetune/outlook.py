"""What is said before training begins: what can be had without it, and how long it will take."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heedful.data.batch import Batch
from heedful.data.batches import Indices, Order
from heedful.models.base import LM, Model, evaluation_mode
from heedful.tasks.examples import Examples
from heedful.tasks.feature_extraction import SentenceSimilarity
from heedful.tasks.finetune.file_examples import SplitExamples
from heedful.tasks.finetune.linear_head import fit_head, put_linear_head, read_vectors
from heedful.tasks.finetune.pairs import Weights, copy_weights, set_weights
from heedful.tasks.finetune.training_setup import TrainingSetup, score_quietly
from heedful.tasks.model_inputs import Truncated
from heedful.tasks.pipeline import bind_task
from heedful.tasks.rerank import Rerank
from heedful.tasks.text_classification import TextClassification
from heedful.train.fit import fit
from heedful.train.recipes.progress import format_clock

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


@dataclass(frozen=True)
class PickedSteps:
    """An order whose steps are some of another one's."""

    order: Order
    steps: Sequence[int]

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self, step: int) -> tuple[Indices, Indices]:
        return self.order.rows(self.steps[step])

    def epoch(self, step: int) -> int:
        return self.order.epoch(self.steps[step])

    def once(self) -> Iterator[Indices]:
        return self.order.once()


def batch_tokens(batch: Batch) -> int:
    """Return how many tokens a step works on, padding included."""
    others = (batch.target, *(value for name, value in batch.extra.items() if name.endswith("tokens")))
    return batch.tokens.numel() + sum(t.numel() for t in others if t is not None)


def foretell(setup: TrainingSetup, valid: Examples) -> Outlook:
    """Measure a few steps of different sizes and a part of an evaluation; the weights stay as they were."""
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
    evaluations = math.ceil(steps / setup.steps_between_evaluations) + setup.has_head
    return Outlook(steps, step_seconds, evaluations, time_evaluation(setup, valid))


def time_steps(setup: TrainingSetup, steps: Sequence[int]) -> list[float]:
    """Return the seconds of these steps, fewer if they take long; the model is put back as it was.

    The first one warms up.
    """
    model = setup.task.model
    learning: Weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    kept = copy_weights(learning)
    config = replace(setup.config, steps=len(steps), warmup=0, decay=None, folder=None, resume=False)
    picked = replace(setup.batches, order=PickedSteps(setup.batches.order, steps))
    found, began = [], time.perf_counter()
    for step in fit(model, setup.task.objective, picked, config):
        _ = step.loss  # waits for the device
        found.append(time.perf_counter() - began)
        began = time.perf_counter()
        if sum(found[1:]) > MAX_MEASURED_SECONDS:
            break
    set_weights(learning, [kept])
    return found


def time_evaluation(setup: TrainingSetup, valid: Examples) -> float:
    """Return the seconds of an evaluation, from that of a few examples."""
    task, options = setup.task, setup.options
    some = valid.first(2 * options.batch)
    began = time.perf_counter()
    if task.by_loss:
        task.loss_scores(task.batches(some, options))
    else:
        first, *others = task.inputs(some)
        settings = task.scoring_options(some, batch=options.batch, length=options.length, truncate=True)
        with evaluation_mode(task.model), warnings.catch_warnings():
            warnings.simplefilter("ignore", Truncated)
            list(task(first, *others, **settings))
    return (time.perf_counter() - began) * len(valid) / len(some)


def describe_base(setup: TrainingSetup, split: SplitExamples, body: Model, outlook: Outlook) -> str | None:
    """Return what can be had without training, in words; None if nothing can be said of this task.

    A model that comes with the task's head is scored by the training loop, before its first step.
    """
    task, metric = split.task, split.task.metric
    found = []
    if setup.has_head:
        return None
    if (guess := task.best_guess(split.train)) is not None:
        score = setup.task.compare(split.valid, setup.task.guess_answers(split.valid, guess))[metric]
        found.append(f"{score:.4f} by always saying {guess!r}")
    a_row = outlook.evaluation_seconds / max(len(split.valid), 1)
    seconds = max(BASE_SHARE * outlook.seconds, MIN_BASE_SECONDS)
    rows = min(MAX_BASE_ROWS, int(seconds / max(a_row, 1e-6) / 2))  # as many to learn and to be scored
    valid = split.valid.select(spread(len(split.valid), rows))
    of_some = "" if len(valid) == len(split.valid) else f" on {len(valid):,} of them"
    if isinstance(body, LM):
        classes = len(task.label_order(split.train) or ())
        if issubclass(task, TextClassification) and rows >= MIN_BASE_ROWS * classes:
            some = split.train.select(spread(len(split.train), rows))
            score = score_linear_head(setup, split, body, some, valid)
            found.append(
                f"{score:.4f}{of_some} by a linear head on the model's own vectors ({len(some):,} rows)"
            )
        elif issubclass(task, Rerank):
            queries = list(dict.fromkeys(row[0] for row in split.valid.items))
            chosen = {queries[i] for i in spread(len(queries), rows * len(queries) // len(split.valid))}
            whole = [i for i, row in enumerate(split.valid.items) if row[0] in chosen]
            if whole:
                score = score_cosines(setup, body, split.valid.select(whole))
                of_some = "" if len(chosen) == len(queries) else f" on {len(chosen):,} of the queries"
                found.append(f"{score:.4f}{of_some} by the cosine of the model's own vectors")
    return f"without training: {metric} {', '.join(found)}" if found else None


def spread(count: int, wanted: int) -> list[int]:
    """Return at most so many indices, evenly spread."""
    return list(range(count)) if count <= wanted else [i * count // wanted for i in range(wanted)]


def score_linear_head(
    setup: TrainingSetup, split: SplitExamples, body: Model, train: Examples, valid: Examples
) -> float:
    """Return the metric of a logistic regression on the vectors that the model gives already."""
    labels = split.task.label_order(split.train) or ()
    model = put_linear_head(body, labels)
    model.hf_config |= split.task.head_settings
    task = bind_task(split.task, model)
    vectors, targets = read_vectors(model, task.batches(train, setup.options).once())
    if targets.dim() == 2:
        targets = targets.to(vectors.dtype)
    weights = split.task.class_weights(split.train)
    fit_head(model, vectors, targets, PENALTY, None if weights is None else vectors.new_tensor(weights))
    return float(score_quietly(task, valid, setup.options)[task.metric])


def score_cosines(setup: TrainingSetup, body: Model, valid: Examples) -> float:
    """Return the metric of texts ranked by the cosine of their sentence vectors and the query's."""
    similarity = bind_task(SentenceSimilarity, body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Truncated)
        cosines = similarity(*setup.task.inputs(valid), batch_size=setup.options.batch)
    return float(setup.task.compare(valid, cosines)[setup.task.metric])
