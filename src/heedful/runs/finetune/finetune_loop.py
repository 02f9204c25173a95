"""The fine-tuning loop: steps, evaluations, and the best weights, kept in memory until they are saved."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.data.batches import Batches
from heedful.models.base import Model
from heedful.runs.finetune.finetune_task import Examples, FinetuneTask
from heedful.runs.progress import ProgressReporter, peak_memory
from heedful.runs.train import SHOW_SECONDS, catch_signals
from heedful.train.config import TrainConfig
from heedful.train.fit import Step, fit
from heedful.train.objectives import Objective, combine_terms, counts, objective
from heedful.train.stopping import EarlyStopping

PATIENCE = 4  # evaluations without a better one
MAX_STEPS_BETWEEN_EVALUATIONS = 250  # steps between evaluations, at most
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones


@dataclass
class TrainingResult:
    """The outcome of training."""

    steps: int
    seconds: float
    loss: float
    best_step: int | None
    scores: dict[str, Any] = field(default_factory=dict)  # of the best evaluation
    before: float | None = None  # the metric before the first step, of a model that does the task already
    stopped: bool = False  # early, because nothing got better
    chosen: bool = True  # whether the weights are those with the best score, and not the last ones
    interrupted: bool = False
    history: list[dict[str, float]] = field(default_factory=list)


class FinetuneLoop:
    """One run: steps are reporter, an evaluation now and then decides which weights stay.

    With few validation rows it runs to its end, and the last weights stay.
    """

    def __init__(
        self, task: FinetuneTask, model: Model, batches: Batches, valid: Batches, examples: Examples,
        config: TrainConfig, reporter: ProgressReporter, has_head: bool = False,
    ) -> None:  # fmt: skip
        self.task, self.model, self.batches, self.valid = task, model, batches, valid
        self.examples, self.config, self.reporter = examples, config, reporter
        self.has_head = has_head  # whether the model does the task already: then its scores are taken first
        self.every = min(len(batches), MAX_STEPS_BETWEEN_EVALUATIONS)
        self.stopping = EarlyStopping(patience=PATIENCE, highest=task.highest)
        self.kept: dict[str, Tensor] = {}
        # Few rows pick a lucky evaluation, or stop the run before their metric has has_head to move.
        chosen = has_head or task.by_loss or len(examples) >= MIN_CHOOSING_ROWS
        self.done = TrainingResult(0, 0.0, math.nan, None, chosen=chosen)
        self.began = self.seen = time.perf_counter()
        self.since, self.ema = 0, math.nan

    def run(self) -> TrainingResult:
        """Train; afterwards the model has the weights that stay."""
        if self.has_head:
            self.done.before = self.evaluate(0)
        with catch_signals() as signals:
            for step in fit(self.model, self.task.objective, self.batches, self.config):
                self.show(step)
                if step.number % self.every == 0 or step.number == self.config.steps:
                    self.evaluate(step.number)
                self.done.steps = step.number
                if self.stopping.stop and self.done.chosen:
                    self.done.stopped = True
                    self.reporter.report(f"stopped early: nothing better since step {self.done.best_step}")
                    break
                if signals.stop:
                    self.done.interrupted = True
                    break
        self.done.seconds = time.perf_counter() - self.began
        self.restore()
        return self.done

    def show(self, step: Step) -> None:
        """Report a step, a few times a second."""
        self.since += step.tokens
        now = time.perf_counter()
        if now - self.seen < SHOW_SECONDS and step.number < self.config.steps:
            return
        loss = step.loss
        self.done.loss = loss
        self.ema = loss if math.isnan(self.ema) else 0.9 * self.ema + 0.1 * loss
        speed = self.since / max(now - self.seen, 1e-9)
        left = (now - self.began) / step.number * (self.config.steps - step.number)
        self.reporter.step({
            "step": step.number, "steps": self.config.steps, "loss": loss, "ema": self.ema,
            "val": self.stopping.best, "lr": step.lr, "tokens_per_second": speed,
            "memory": peak_memory(self.model.device), "eta": left,
        })  # fmt: skip
        self.seen, self.since = now, 0

    def evaluate(self, number: int) -> float:
        """Score the validation examples; the best weights so far are kept, or with few rows the newest."""
        self.model.eval()
        loss = mean_loss(self.model, self.task.objective, self.valid) if self.task.by_loss else None
        scores = self.task.score(self.model, self.examples, self.valid, loss)
        self.model.train()
        metric = float(scores[self.task.metric])
        better = self.stopping.better(metric)
        if better or not self.done.chosen:
            self.done.best_step, self.done.scores = number, scores
            self.kept = {n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad}
        self.done.history.append({"step": number, self.task.metric: metric})
        mark = "  best so far" if better and number and self.done.chosen else ""
        self.reporter.report(f"step {number}: validation {self.task.metric} {metric:.4f}{mark}")
        self.seen = time.perf_counter()
        return metric

    @torch.no_grad()
    def restore(self) -> None:
        """Put the kept weights back."""
        parameters = dict(self.model.named_parameters())
        for name, value in self.kept.items():
            parameters[name].copy_(value)
        self.model.eval()


@torch.no_grad()
def mean_loss(model: Model, purpose: str | Objective, batches: Batches) -> float:
    """Σ loss · answers / Σ answers, over one pass."""
    learn, total, answers = objective(purpose), 0.0, 0
    for batch in batches.once():
        divide = {per: max(n, 1) for per, n in counts(batch).items()}
        total += float(combine_terms(learn(model, batch.to(model.device)), divide)) * batch.label_count
        answers += batch.label_count
    return total / max(answers, 1)
