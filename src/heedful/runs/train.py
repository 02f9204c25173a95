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

SMALL = 128  # hidden units up to which a recurrence gains nothing from threads
SHOW = 0.25  # seconds between looks at the loss: on a GPU each one waits for it


class TrainingInterrupted(HeedfulError):
    """Ctrl-C or SIGTERM; the text names the checkpoint that was saved."""

    exit_code = 130


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    checkpoint: Path  # the best one if the run was validated, else the last
    steps: int
    tokens: int
    seconds: float
    loss: float
    parameters: int
    valid: dict[str, float] = field(default_factory=dict)  # of the best evaluation
    best_step: int | None = None
    stopped: bool = False  # early, because nothing got better


@dataclass
class StopRequest:
    """Whether somebody asked the run to stop."""

    stop: bool = False


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask the run to stop after its step; a second one stops it at once."""
    asked = StopRequest()
    old: dict[int, Any] = {}

    def ask(number: int, frame: Any) -> None:
        asked.stop = True
        signal.signal(number, old[number])

    for one in (signal.SIGINT, signal.SIGTERM):
        old[one] = signal.signal(one, ask)
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def limit_threads(model: Model) -> Iterator[None]:
    """As many threads as a step on a CPU has a use for.

    A recurrence multiplies one small matrix after another, word by word: its threads wait for each other more
    than they work, and on a busy machine each wait takes until the scheduler comes round.
    """
    before, units = torch.get_num_threads(), [m.hidden for m in model.modules() if isinstance(m, Recurrence)]
    if units and max(units) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluation_batches(chosen: ResolvedSettings, valid: Batches | None) -> int | None:
    """How many batches an evaluation reads; None: all.

    What is held out grows with the data. Unless somebody chose, an evaluation reads no more of it than was
    trained on since the last, so that a short run on a large text does not spend its time on judging itself.
    """
    how = chosen.recipe.evaluate
    if how.batches is not None or chosen.valid or valid is None:
        return how.batches
    most = min(how.every, chosen.recipe.train.steps)
    return most if most < len(valid) else None


def run_training(
    chosen: ResolvedSettings, folder: Path, *, resume: bool = False, quiet: bool = False, tensorboard: bool = False
) -> TrainResult:
    """Run it all: prepare, train, evaluate, save; alone or with the processes this one was started with."""
    recipe = chosen.recipe
    device = resolve_device(recipe.device)
    with processes(recipe.parallel, gpu=device.type == "cuda") as by:
        device = torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
        files: Files = by.run_on_first(lambda: RunFolder(folder, chosen, resume, tensorboard)) or NoFolder(folder)
        with closing(files):
            # The first process writes the vocabulary and the tokens, which the others then find.
            own = lambda: prepare_run(chosen, device, folder)
            ready = by.run_on_first(own) or own()
            config = replace(recipe.train, folder=folder, resume=resume)
            settled = replace(chosen, recipe=replace(recipe, train=config))
            with closing(make_reporter(config.steps, quiet or by.rank > 0)) as shown, limit_threads(ready.model):
                return TrainLoop(settled, ready, files, shown, by).run()


class TrainLoop:
    """One run: every step is counted, some are shown, logged, evaluated, saved."""

    def __init__(self, chosen: ResolvedSettings, ready: PreparedRun, files: Files, shown: ProgressReporter, by: Processes) -> None:
        self.chosen, self.ready, self.files, self.shown, self.by = chosen, ready, files, shown, by
        self.config, self.how = chosen.recipe.train, chosen.recipe.evaluate
        self.most = evaluation_batches(chosen, ready.valid)
        self.parameters = sum(p.numel() for p in ready.model.parameters())
        self.stopping = EarlyStopping(patience=self.how.patience or sys.maxsize)
        self.began = self.seen = time.perf_counter()
        self.tokens = self.since = 0
        self.speed, self.ema, self.steps_before = 0.0, math.nan, 0
        self.best: dict[str, float] = {}
        self.best_step: int | None = None

    def run(self) -> TrainResult:
        self.introduce()
        last: Step | None = None
        with catch_signals() as asked:
            for step in fit(self.ready.model, self.ready.purpose, self.ready.batches, self.config, self.by):
                if last is None:
                    self.files.begin()
                last = step
                self.count(step)
                if self.due(step, self.how.every):
                    self.evaluate(step)
                    self.sample(step)
                if self.stopping.stop:
                    step.save()
                    self.report(
                        f"stopped early: {self.stopping.waited} evaluations, "
                        f"none better than step {self.best_step}"
                    )
                    break
                if self.by.any_process(asked.stop) and step.number < self.config.steps:
                    raise TrainingInterrupted(
                        f"interrupted at step {step.number}", hint=f"saved {step.save()}: --resume goes on"
                    )
        return self.result(last)

    def introduce(self) -> None:
        """Say what is about to happen, and where a resumed run goes on."""
        c, batches = self.config, self.ready.batches
        at = newest(self.files.path) if c.resume else None
        if at is not None:
            self.steps_before = read_training(at)["step"]
            self.files.forget_after(self.steps_before)
            self._known_best()
        family, device = self.ready.model.family.name, self.ready.model.device
        rows = f"{batches.row_count:,} rows, {len(batches):,} steps an epoch"
        self.report(f"{self.chosen.name}: {family} of {self.parameters:,} parameters on {device}; {rows}")
        for note in self.ready.notes:
            self.report(f"note: {note}")
        if self.most is not None and self.how.batches is None and self.ready.valid is not None:
            of = f"the first {self.most} of {len(self.ready.valid)} batches held out"
            self.report(f"note: evaluations read {of}; --set evaluate.batches={len(self.ready.valid)} for all")
        if at is not None:
            self.report(f"going on from {at}")

    def _known_best(self) -> None:
        found = read_metrics(self.files.path) if (self.files.path / "metrics.jsonl").is_file() else []
        for line in found:
            if "eval/loss" in line and self.stopping.better(line["eval/loss"]):
                self.best = {n.removeprefix("eval/"): v for n, v in line.items() if n.startswith("eval/")}
                self.best_step = int(line["train/global_step"])

    def report(self, line: str) -> None:
        self.shown.report(line)
        self.files.log(line)

    def due(self, step: Step, every: int) -> bool:
        return step.number % every == 0 or step.number == self.config.steps

    def count(self, step: Step) -> None:
        """Add a step up; show and log it if it is time."""
        self.tokens += step.tokens
        self.since += step.tokens
        now = time.perf_counter()
        logs, shows = self.due(step, self.how.log), now - self.seen >= SHOW
        if not (logs or shows):
            return
        loss = step.loss  # waits for the device, so that the clock counts its work
        now = time.perf_counter()
        self.speed = self.since / max(now - self.seen, 1e-9)
        self.seen, self.since = now, 0
        self.ema = loss if math.isnan(self.ema) else 0.9 * self.ema + 0.1 * loss
        done = step.number - self.steps_before
        left = (now - self.began) / done * (self.config.steps - step.number)
        self.shown.step({
            "step": step.number, "steps": self.config.steps, "loss": loss, "ema": self.ema,
            "val": self.best.get("loss"),
            "lr": step.lr, "grad": step.grad_norm, "tokens_per_second": self.speed,
            "memory": peak_memory(self.ready.model.device), "eta": left,
        })  # fmt: skip
        if logs:
            self.files.metrics({
                "train/global_step": step.number, "train/loss": loss, "train/learning_rate": step.lr,
                "train/grad_norm": step.grad_norm,
                "train/epoch": round(step.number / len(self.ready.batches), 4),
                "train/tokens_per_second": round(self.speed, 1), **self._terms(step),
            })  # fmt: skip

    def _terms(self, step: Step) -> dict[str, float]:
        return {f"train/{n}_loss": v for n, v in step.terms.items()} if len(step.terms) > 1 else {}

    def evaluate(self, step: Step) -> None:
        """The loss on validation data; the best checkpoint is kept."""
        if self.ready.valid is None:
            return
        began = time.perf_counter()
        found = step.evaluate(self.ready.valid, self.most)
        if self.ready.batches.labels == () and found["loss"] < 50:
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
        """A text, to see what the model has learnt."""
        model, kind = self.ready.model, self.ready.batches.settings.get("kind")
        if not self.how.sample or kind != "next_token" or not can_generate(model) or self.by.world > 1:
            return
        from heedful.decode.loop import generate

        model.eval()
        first = next((i for i in (model.tokenizer.bos, model.tokenizer.eos) if i is not None), None)
        prompt = [first] if first is not None else self.ready.batches[0].tokens[0, :1].tolist()
        ids = generate(
            model, prompt, max_tokens=self.how.sample, temperature=0.8, top_k=50, seed=self.config.seed
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
