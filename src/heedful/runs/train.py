"""A training run, from settings to a checkpoint. `python -m heedful.runs.train` is `heed train`."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from heedful.data.batches import Batches
from heedful.devices import resolve_device
from heedful.errors import HeedfulError
from heedful.models.base import Model
from heedful.nn.recurrent import Recurrence
from heedful.runs.folder import Files, NoFolder, RunFolder, read_metrics
from heedful.runs.prepare import PreparedRun, can_generate, prepare_run
from heedful.runs.progress import ProgressReporter, make_reporter, peak_memory
from heedful.runs.settings import ResolvedSettings
from heedful.train.checkpoint import newest, read_pointer, read_training
from heedful.train.distributed import Processes, processes
from heedful.train.fit import Step, fit
from heedful.train.stopping import EarlyStopping

SMALL_RECURRENCE = 128  # hidden units up to which threads gain nothing
SHOW_SECONDS = 0.25  # between looks at the loss; each one waits for the GPU


class TrainingInterrupted(HeedfulError):
    """A run that Ctrl-C or SIGTERM ended; the message names the checkpoint that was saved."""

    code = "interrupted"
    exit_code = 130


@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    checkpoint: Path  # the best one if the run was validated, else the last
    steps: int
    tokens: int
    seconds: float
    loss: float
    parameters: int
    valid: dict[str, float] = field(default_factory=dict)  # of the best evaluation
    best_step: int | None = None
    stopped: bool = False  # early, because the validation loss did not improve


@dataclass
class StopRequest:
    """Whether a signal has asked the run to stop."""

    stop: bool = False


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request to stop after the current step; a second one stops at once."""
    request = StopRequest()
    old: dict[int, Any] = {}

    def handle_signal(number: int, frame: Any) -> None:
        request.stop = True
        signal.signal(number, old[number])

    for one in (signal.SIGINT, signal.SIGTERM):
        old[one] = signal.signal(one, handle_signal)
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def limit_threads(model: Model) -> Iterator[None]:
    """Use one thread for a small recurrence, and all threads otherwise.

    A recurrence multiplies one small matrix after another: its threads wait for each other more than they
    work, and on a busy machine each wait lasts until the scheduler returns to them.
    """
    before, units = torch.get_num_threads(), [m.hidden for m in model.modules() if isinstance(m, Recurrence)]
    if units and max(units) <= SMALL_RECURRENCE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluation_batches(settings: ResolvedSettings, valid: Batches | None) -> int | None:
    """Return how many batches an evaluation reads; None for all.

    The held-out part grows with the data. Unless the settings say otherwise, an evaluation reads no more
    batches than were trained on since the last one, so that a short run on a large text stays short.
    """
    evaluation = settings.recipe.evaluate
    if evaluation.batches is not None or settings.valid or valid is None:
        return evaluation.batches
    limit = min(evaluation.every, settings.recipe.train.steps)
    return limit if limit < len(valid) else None


def run_training(
    settings: ResolvedSettings,
    folder: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
) -> TrainResult:
    """Prepare, train, evaluate and save; alone, or with the processes this one was started with."""
    recipe = settings.recipe
    device = resolve_device(recipe.device)
    with processes(recipe.parallel, gpu=device.type == "cuda") as by:
        device = torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
        open_folder = lambda: RunFolder(folder, settings, resume, tensorboard)
        files: Files = by.run_on_first(open_folder) or NoFolder(folder)
        with closing(files):
            # The first process writes the vocabulary and the tokens, which the others then find.
            own = lambda: prepare_run(settings, device, folder)
            prepared = by.run_on_first(own) or own()
            config = replace(recipe.train, folder=folder, resume=resume)
            settled = replace(settings, recipe=replace(recipe, train=config))
            with (
                closing(make_reporter(config.steps, quiet or by.rank > 0)) as reporter,
                limit_threads(prepared.model),
            ):
                return TrainLoop(settled, prepared, files, reporter, by).run()


class TrainLoop:
    """One run: counts every step, and reports, logs, evaluates and saves some of them."""

    def __init__(
        self,
        settings: ResolvedSettings,
        run: PreparedRun,
        files: Files,
        reporter: ProgressReporter,
        by: Processes,
    ) -> None:
        self.settings, self.prepared, self.files = settings, run, files
        self.reporter, self.by = reporter, by
        self.config, self.evaluation = settings.recipe.train, settings.recipe.evaluate
        self.max_eval_batches = evaluation_batches(settings, run.valid)
        self.parameters = sum(p.numel() for p in run.model.parameters())
        self.stopping = EarlyStopping(patience=self.evaluation.patience or sys.maxsize)
        self.began = self.seen = time.perf_counter()
        self.tokens = self.since = 0
        self.speed, self.ema, self.steps_before = 0.0, math.nan, 0
        self.best: dict[str, float] = {}
        self.best_step: int | None = None

    def run(self) -> TrainResult:
        self.introduce()
        last: Step | None = None
        with catch_signals() as request:
            for step in fit(
                self.prepared.model, self.prepared.purpose, self.prepared.batches, self.config, self.by
            ):
                if last is None:
                    self.files.begin()
                last = step
                self.count(step)
                if self.due(step, self.evaluation.every):
                    self.evaluate(step)
                    self.sample(step)
                if self.stopping.stop:
                    step.save()
                    self.report(
                        f"stopped early: {self.stopping.waited} evaluations, "
                        f"none better than step {self.best_step}"
                    )
                    break
                if self.by.any_process(request.stop) and step.number < self.config.steps:
                    raise TrainingInterrupted(
                        f"interrupted at step {step.number}", hint=f"--resume continues from {step.save()}"
                    )
        return self.result(last)

    def introduce(self) -> None:
        """Report the model, the data and where a resumed run continues."""
        c, batches = self.config, self.prepared.batches
        at = newest(self.files.path) if c.resume else None
        if at is not None:
            self.steps_before = read_training(at)["step"]
            self.files.forget_after(self.steps_before)
            self._known_best()
        family, device = self.prepared.model.family.name, self.prepared.model.device
        rows = f"{batches.row_count:,} rows, {len(batches):,} steps an epoch"
        self.report(f"{self.settings.name}: {family} of {self.parameters:,} parameters on {device}; {rows}")
        for note in self.prepared.notes:
            self.report(f"note: {note}")
        if (
            self.max_eval_batches is not None
            and self.evaluation.batches is None
            and self.prepared.valid is not None
        ):
            of = f"the first {self.max_eval_batches} of {len(self.prepared.valid)} batches held out"
            self.report(
                f"note: evaluations read {of}; --set evaluate.batches={len(self.prepared.valid)} for all"
            )
        if at is not None:
            self.report(f"resuming from {at}")

    def _known_best(self) -> None:
        found = read_metrics(self.files.path) if (self.files.path / "metrics.jsonl").is_file() else []
        for line in found:
            if "eval/loss" in line and self.stopping.better(line["eval/loss"]):
                self.best = {n.removeprefix("eval/"): v for n, v in line.items() if n.startswith("eval/")}
                self.best_step = int(line["train/global_step"])

    def report(self, line: str) -> None:
        self.reporter.report(line)
        self.files.log(line)

    def due(self, step: Step, every: int) -> bool:
        return step.number % every == 0 or step.number == self.config.steps

    def count(self, step: Step) -> None:
        """Count a step; show and log it if it is time."""
        self.tokens += step.tokens
        self.since += step.tokens
        now = time.perf_counter()
        logs, shows = self.due(step, self.evaluation.log), now - self.seen >= SHOW_SECONDS
        if not (logs or shows):
            return
        loss = step.loss  # waits for the device, so that the clock counts its work
        now = time.perf_counter()
        self.speed = self.since / max(now - self.seen, 1e-9)
        self.seen, self.since = now, 0
        self.ema = loss if math.isnan(self.ema) else 0.9 * self.ema + 0.1 * loss
        done = step.number - self.steps_before
        left = (now - self.began) / done * (self.config.steps - step.number)
        self.reporter.step({
            "step": step.number, "steps": self.config.steps, "loss": loss, "ema": self.ema,
            "val": self.best.get("loss"),
            "lr": step.lr, "grad": step.grad_norm, "tokens_per_second": self.speed,
            "memory": peak_memory(self.prepared.model.device), "eta": left,
        })  # fmt: skip
        if logs:
            self.files.metrics({
                "train/global_step": step.number, "train/loss": loss, "train/learning_rate": step.lr,
                "train/grad_norm": step.grad_norm,
                "train/epoch": round(step.number / len(self.prepared.batches), 4),
                "train/tokens_per_second": round(self.speed, 1), **self._terms(step),
            })  # fmt: skip

    def _terms(self, step: Step) -> dict[str, float]:
        return {f"train/{n}_loss": v for n, v in step.terms.items()} if len(step.terms) > 1 else {}

    def evaluate(self, step: Step) -> None:
        """Measure the loss on validation data, and save the best checkpoint."""
        if self.prepared.valid is None:
            return
        began = time.perf_counter()
        found = step.evaluate(self.prepared.valid, self.max_eval_batches)
        if self.prepared.batches.labels == () and found["loss"] < 50:
            found["perplexity"] = math.exp(found["loss"])
        better = self.stopping.better(found["loss"])
        if better:
            self.best, self.best_step = found, step.number
            step.save(best=True)
        self.files.metrics({"train/global_step": step.number, **{f"eval/{n}": v for n, v in found.items()}})
        listed = "  ".join(f"{n} {v:.4f}" for n, v in found.items())
        self.report(f"step {step.number}: eval {listed}" + ("  best so far" if better else ""))
        self.seen += time.perf_counter() - began  # the speed is that of training

    def sample(self, step: Step) -> None:
        """Generate a text that shows what the model has learnt."""
        model, kind = self.prepared.model, self.prepared.batches.settings.get("kind")
        if not self.evaluation.sample or kind != "next_token" or not can_generate(model) or self.by.world > 1:
            return
        from heedful.decode.loop import generate

        model.eval()
        first = next((i for i in (model.tokenizer.bos, model.tokenizer.eos) if i is not None), None)
        prompt = [first] if first is not None else self.prepared.batches[0].tokens[0, :1].tolist()
        ids = generate(
            model, prompt, max_tokens=self.evaluation.sample, temperature=0.8, top_k=50, seed=self.config.seed
        )
        model.train()
        self.files.sample(step.number, model.tokenizer.decode(list(ids)))

    def result(self, last: Step | None) -> TrainResult:
        path = self.files.path
        found = read_pointer(path / "best.json") or newest(path)
        assert found is not None
        training = read_training(found)
        steps = self.steps_before if last is None else last.number
        seconds = time.perf_counter() - self.began
        loss = training["loss"] if last is None else last.loss
        return TrainResult(
            found,
            steps,
            self.tokens,
            seconds,
            loss,
            self.parameters,
            self.best,
            self.best_step,
            self.stopping.stop,
        )


if __name__ == "__main__":
    from heedful.cli import main

    main(["train", *sys.argv[1:]])
