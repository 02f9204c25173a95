"""The loop around `fit`: progress, metrics, evaluations, the weights that stay, early stopping, signals.

`heed train` and `heed finetune` run it. They differ by their `Validation`: how weights are scored, which
score decides, and where good weights are kept (a checkpoint, or memory).
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heedful.core.devices import one_thread
from heedful.core.errors import HeedfulError
from heedful.core.progress import print_above
from heedful.data.batches import Batches
from heedful.models.base import Model
from heedful.nn.recurrent import Recurrence
from heedful.train.checkpoint import newest, read_training
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import Step, fit
from heedful.train.objectives import Objective
from heedful.train.recipes.folder import Files, read_metrics
from heedful.train.stopping import EarlyStopping

SMALL_RECURRENCE = 128  # hidden units up to which threads gain nothing
MAX_SHOWN_SCORES = 8  # of an evaluation in a line; a tagger has one for each kind of entity
SHOW_SECONDS = 0.25  # between looks at the loss; each one waits for the GPU


class TrainingInterrupted(HeedfulError):
    """A run that Ctrl-C or SIGTERM ended; the message names the checkpoint that was saved.

    The exit code is the shell's for a program that the signal ended: 130 for SIGINT, 143 for SIGTERM.
    """

    code = "interrupted"

    def __init__(self, message: str, hint: str | None = None, *, signal_number: int = signal.SIGINT) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signal_number


@dataclass(frozen=True)
class Validation:
    """How a run is evaluated, and which of its weights stay."""

    score: Callable[[Step | None], dict[str, Any]]  # of the present weights; None before the first step
    keep: Callable[[Step | None], object]  # keeps the present weights
    every: int  # steps between evaluations; the last step has one too
    metric: str = "loss"  # the score that decides
    highest: bool = False  # whether a high score is good
    patience: int | None = None  # evaluations without a better one before the run stops; None: never
    choose: bool = True  # whether the weights of the best evaluation stay, not those of the last
    untrained: bool = False  # whether the weights before the first step are scored and may stay
    checkpoint: Callable[[Step], object] | None = (
        None  # called after an evaluation, to write one if it is time
    )


@dataclass
class TrainingResult:
    """The outcome of training."""

    steps: int = 0  # of the model, those of the runs that this one resumed included
    tokens: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    scores: dict[str, Any] = field(default_factory=dict)  # of the weights that stay
    best_step: int | None = None
    before: float | None = None  # the metric before the first step, if it was measured
    stopped: bool = False  # early, because nothing got better
    interrupted: int | None = None  # the number of the signal that ended the run
    chosen: bool = True  # whether the weights are those with the best score, and not the last ones
    saved: Path | None = None  # the checkpoint of a run that ended early
    history: list[dict[str, float]] = field(default_factory=list)


class TrainingLoop:
    """One run: counts every step, and reports, logs, evaluates and keeps some of them."""

    def __init__(
        self, model: Model, purpose: str | Objective, batches: Batches, config: TrainConfig,
        validation: Validation, reporter: ProgressReporter, files: Files | None = None,
        processes: Processes | None = None, log_every: int = sys.maxsize,
    ) -> None:  # fmt: skip
        self.model, self.purpose, self.batches, self.config = model, purpose, batches, config
        self.validation, self.reporter, self.log_every = validation, reporter, log_every
        self.files, self.processes = files or Files(), processes or Processes()
        patience = validation.patience or sys.maxsize
        self.stopping = EarlyStopping(patience=patience, highest=validation.highest)
        self.result = TrainingResult(chosen=validation.choose)
        self.began = self.seen = time.perf_counter()
        self.steps_before = self.tokens_since = self.tokens_before = 0
        self.spent = 0.0  # seconds of training, those of the runs that this one resumed included
        self.ema = math.nan

    def run(self) -> TrainingResult:
        """Train until the last step, the end of patience or a signal."""
        result, last = self.result, None
        if self.config.resume:
            self.restore()
        if self.validation.untrained and not self.steps_before:
            self.evaluate(None)
        with catch_signals() as request, limit_threads(self.model):
            for step in fit(self.model, self.purpose, self.batches, self.config, self.processes):
                if last is None:
                    self.files.begin()
                last = step
                self.count(step)
                if self.due(step, self.validation.every):
                    self.evaluate(step)
                result.steps = step.number
                result.stopped = self.stopping.stop and self.validation.choose
                signalled = self.processes.any_process(request.signal_number is not None)
                if signalled and not result.stopped and step.number < self.config.steps:
                    result.interrupted = request.signal_number or signal.SIGINT  # or another process got it
                if result.stopped or result.interrupted:
                    result.saved = None if self.config.folder is None else step.save()
                    break
        if result.stopped:
            waited = f"{self.stopping.waited} evaluations, none better than step {result.best_step}"
            self.report(f"stopped early: {waited}")
        result.loss = result.loss if last is None else last.loss
        result.seconds = time.perf_counter() - self.began
        return result

    def restore(self) -> None:
        """Take up the steps, the loss and the best evaluation of the run in the folder, if there is one."""
        at = newest(self.files.path)
        if at is None or self.steps_before:
            return
        training = read_training(at)
        self.steps_before = self.result.steps = training["step"]
        self.result.loss = training["loss"]
        self.files.forget_after(self.steps_before)
        found = read_metrics(self.files.path) if (self.files.path / "metrics.jsonl").is_file() else []
        for line in found:
            scores = {n.removeprefix("eval/"): v for n, v in line.items() if n.startswith("eval/")}
            if self.validation.metric in scores:
                number = int(line["train/global_step"])
                self.compare(scores, number)
                self.note_score(scores, number)
            self.tokens_before = int(line.get("train/tokens", self.tokens_before))
            self.spent = line.get("train/seconds", self.spent)

    def compare(self, scores: dict[str, Any], number: int) -> bool:
        """Note the scores of a step; return whether its weights are the best so far."""
        better = self.stopping.better(float(scores[self.validation.metric]))
        if better or not self.validation.choose:
            self.result.scores, self.result.best_step = scores, number
        return better

    def report(self, line: str) -> None:
        """Show a line, and keep it in the log of the run."""
        self.reporter.report(line)
        self.files.log(line)

    def due(self, step: Step, every: int) -> bool:
        """Return whether something that is done every few steps, and at the last one, is to be done now."""
        return step.number % every == 0 or step.number == self.config.steps

    def count(self, step: Step) -> None:
        """Count a step; show and log it if it is time."""
        self.result.tokens += step.tokens
        self.tokens_since += step.tokens
        logs = self.due(step, self.log_every)
        if not logs and time.perf_counter() - self.seen < SHOW_SECONDS:
            return
        loss = step.loss  # waits for the device, so that the clock counts its work
        now = time.perf_counter()
        speed = self.tokens_since / max(now - self.seen, 1e-9)
        self.spent += now - self.seen
        self.seen, self.tokens_since = now, 0
        self.ema = loss if math.isnan(self.ema) else 0.9 * self.ema + 0.1 * loss
        pace = (now - self.began) / (step.number - self.steps_before)
        self.reporter.step({
            "step": step.number, "steps": self.config.steps, "loss": loss, "ema": self.ema,
            "val": self.stopping.best, "lr": step.lr, "grad": step.grad_norm, "tokens_per_second": speed,
            "memory": peak_memory(self.model.device), "eta": pace * (self.config.steps - step.number),
        })  # fmt: skip
        if logs:
            terms = step.terms if len(step.terms) > 1 else {}
            self.files.metrics({
                "train/global_step": step.number, "train/loss": loss, "train/learning_rate": step.lr,
                "train/grad_norm": step.grad_norm, "train/epoch": round(step.number / len(self.batches), 4),
                "train/tokens_per_second": round(speed, 1), "train/seconds": round(self.spent, 3),
                "train/tokens": self.tokens_before + self.result.tokens,
                **{f"train/{name}_loss": value for name, value in terms.items()},
            })  # fmt: skip

    def evaluate(self, step: Step | None) -> None:
        """Score the present weights, and keep them if they are the best so far; without choice, always."""
        began, number = time.perf_counter(), 0 if step is None else step.number
        scores = self.validation.score(step)
        if scores:
            better = self.compare(scores, number)
            if better or not self.validation.choose:
                self.validation.keep(step)
            shown = {name: value for name, value in scores.items() if isinstance(value, float)}
            self.files.metrics({
                "train/global_step": number, **{f"eval/{name}": value for name, value in shown.items()}
            })  # fmt: skip
            self.note_score(scores, number)
            listed = "  ".join(
                f"{name} {value:.4f}" for name, value in list(shown.items())[:MAX_SHOWN_SCORES]
            )
            mark = "  best so far" if better and step is not None and self.validation.choose else ""
            when = "without training:" if step is None else f"step {number}: validation"
            self.report(f"{when} {listed}{mark}")
            if step is not None and self.validation.checkpoint is not None:
                self.validation.checkpoint(step)
        self.seen += time.perf_counter() - began  # the speed is that of training

    def note_score(self, scores: dict[str, Any], number: int) -> None:
        """Put the metric of a step into the history; that of step 0 is the one before training."""
        value = float(scores[self.validation.metric])
        self.result.history.append({"step": number, self.validation.metric: value})
        if number == 0:
            self.result.before = value


@dataclass
class StopRequest:
    """The signal that has asked the run to stop, if there was one."""

    signal_number: int | None = None


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request to stop after the current step; a second one stops at once."""
    request = StopRequest()
    old: dict[int, Any] = {}

    def handle_signal(number: int, frame: Any) -> None:
        request.signal_number = number
        signal.signal(number, old[number])

    for one in (signal.SIGINT, signal.SIGTERM):
        old[one] = signal.signal(one, handle_signal)
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def limit_threads(model: Model) -> AbstractContextManager[None]:
    """Use one thread for a small recurrence, and all threads otherwise.

    A recurrence multiplies one small matrix after another: its threads wait for each other more than they
    work, and on a busy machine each wait lasts until the scheduler returns to them.
    """
    units = [m.hidden for m in model.modules() if isinstance(m, Recurrence)]
    return one_thread() if units and max(units) <= SMALL_RECURRENCE else nullcontext()


# Progress of a run on stderr: a bar on a terminal, else a line of key=value every 10 s.


LINE_SECONDS = 10.0  # seconds between lines where there is no terminal


class ProgressReporter:
    """Where a run reports how far it is. This one shows nothing: for -q, and for all processes but one."""

    def step(self, values: Mapping[str, Any]) -> None: ...

    def report(self, line: str) -> None: ...

    def close(self) -> None: ...


class LineReporter(ProgressReporter):
    """Print a line now and then, for logs and pipes."""

    def __init__(self) -> None:
        self.last = 0.0

    def step(self, values: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last >= LINE_SECONDS or values["step"] == values["steps"]:
            self.last = now
            known = {name: value for name, value in values.items() if value is not None}
            self.report(" ".join(f"{name}={format_value(name, value)}" for name, value in known.items()))

    def report(self, line: str) -> None:
        print_above(line)


class BarReporter(ProgressReporter):
    """Show a progress bar in a terminal, with other lines scrolling above it."""

    def __init__(self, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        fixed = lambda text: TextColumn(text, table_column=Column(no_wrap=True, min_width=4))
        columns = (fixed("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=12))
        texts = (fixed("{task.percentage:>3.0f}%"), TextColumn("{task.fields[shown]}"))
        self.rich = Rich(
            *columns, *texts, console=Console(stderr=True, highlight=False), refresh_per_second=4
        )
        self.task = self.rich.add_task("", total=steps, shown="")
        # beside the step, the bar and the percentage
        self.free_width = self.rich.console.width - 2 * len(str(steps)) - 26
        self.rich.start()

    def step(self, values: Mapping[str, Any]) -> None:
        shown = {n: v for n, v in values.items() if n not in ("step", "steps") and v is not None}
        parts = {n: self.part(n, v) for n, v in shown.items()}
        for name in ("grad", "memory", "lr", "ema", "val"):  # left out in this order in a narrow terminal
            if len("  ".join(parts.values())) > self.free_width:
                parts.pop(name, None)
        self.rich.update(self.task, completed=values["step"], shown="  ".join(parts.values()))

    def part(self, name: str, value: Any) -> str:
        """Return one value with its name or its unit."""
        text = format_value(name, value)
        return {"tokens_per_second": f"{text} tok/s", "memory": text, "ema": f"(ema {text})"}.get(
            name, f"{name} {text}"
        )

    def report(self, line: str) -> None:
        self.rich.console.print(line, markup=False)

    def close(self) -> None:
        self.rich.stop()


def make_reporter(steps: int, quiet: bool = False) -> ProgressReporter:
    """Return the reporter that suits stderr: a bar in a terminal, lines elsewhere."""
    if quiet:
        return ProgressReporter()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return BarReporter(steps)
    return LineReporter()


def format_value(name: str, value: Any) -> str:
    """Return a number as people read it."""
    if name in ("step", "steps"):
        return str(value)
    if name == "lr":
        return f"{value:.2e}"
    if name == "tokens_per_second":
        return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"
    if name == "memory":
        return f"{value / 1e9:.2f}GB"
    if name == "eta":
        return format_clock(value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def format_clock(seconds: float) -> str:
    """90 → 01:30; an hour and more → 1:01:30."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes:02d}:{whole % 60:02d}"


def peak_memory(device: torch.device) -> int:
    """Return the most bytes in use so far: on the GPU, or by this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
