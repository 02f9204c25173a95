"""A training run, from settings to a checkpoint. `python -m heedful.train.recipes.train` is `heed train`.

`TrainingLoop` is the one loop around `fit`: it counts, reports, logs, evaluates, keeps the weights that score
best, stops early and ends on a signal. `heed train` and `heed finetune` both run it. They differ by their
`Validation`: how weights are scored, which score decides, and where good weights are kept (a checkpoint, or
memory). `rehearse` measures a run without writing anything.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.core.devices import one_thread, resolve_device
from heedful.core.errors import HeedfulError
from heedful.core.progress import show_progress
from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches, Data
from heedful.models.base import Model, evaluation_mode
from heedful.nn.recurrent import Recurrence
from heedful.train.checkpoint import newest, of_run, read_training
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes, processes
from heedful.train.fit import Step, fit
from heedful.train.objectives import Objective
from heedful.train.recipes.folder import RunFiles, read_metrics
from heedful.train.recipes.prepare import MOMENTS, PreparedRun, numbers_per_weight, prepare_run
from heedful.train.recipes.progress import ProgressReporter, format_clock, make_reporter
from heedful.train.recipes.recipes import ResolvedSettings
from heedful.train.stopping import EarlyStopping

SMALL_RECURRENCE = 128  # hidden units up to which threads gain nothing
MAX_SHOWN_SCORES = 8  # of an evaluation in a line; a tagger has one for each kind of entity
SHOW_SECONDS = 0.25  # between looks at the loss; each one waits for the GPU
MAX_PERPLEXITY_LOSS = 50  # beyond, e to its power says nothing
SAMPLED_TEXTS, SHOWN_TEXTS = 64, 4  # held-out texts that a translator translates and writes down


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
    checkpoint: Callable[[Step], object] | None = None  # called after an evaluation, to write one if due


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
    checkpoint: Path = Path()  # of `heed train`: the best one if the run was validated, else the last
    parameters: int = 0  # of the model, likewise
    history: list[dict[str, float]] = field(default_factory=list)


class TrainingLoop:
    """One run: counts every step, and reports, logs, evaluates and keeps some of them."""

    def __init__(
        self, model: Model, purpose: str | Objective, batches: Batches, config: TrainConfig,
        validation: Validation, reporter: ProgressReporter, files: RunFiles | None = None,
        processes: Processes | None = None, log_every: int = sys.maxsize,
    ) -> None:  # fmt: skip
        self.model, self.purpose, self.batches, self.config = model, purpose, batches, config
        self.validation, self.reporter, self.log_every = validation, reporter, log_every
        self.files, self.processes = files or RunFiles(writes=False), processes or Processes()
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
        with catch_signals() as signals, limit_threads(self.model):
            steps = fit(self.model, self.purpose, self.batches, self.config, self.processes, self.report)
            for step in steps:
                if last is None:
                    self.files.begin()
                last = step
                self.count(step)
                if self.due(step, self.validation.every):
                    self.evaluate(step)
                result.steps = step.number
                result.stopped = self.stopping.stop and self.validation.choose
                signalled = self.processes.any_process(bool(signals))
                if signalled and not result.stopped and not step.last:
                    result.interrupted = (
                        signals[-1] if signals else signal.SIGINT
                    )  # or another process got it
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
        if at is None or self.steps_before:  # or it was done before
            return
        training = read_training(at)
        self.steps_before = self.result.steps = training["step"]
        self.result.loss = training["loss"]
        self.files.forget_after(self.steps_before)
        lines = read_metrics(self.files.path) if (self.files.path / "metrics.jsonl").is_file() else []
        for line in lines:
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
        return step.number % every == 0 or step.last

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
        steps = self.config.steps
        if self.config.minutes is not None:  # so many will fit into the time
            steps = step.number + round(max(0.0, 60 * self.config.minutes - step.run.seconds) / pace)
        self.reporter.step({
            "step": step.number, "steps": step.number if step.last else steps, "loss": loss, "ema": self.ema,
            "val": self.stopping.best, "lr": step.lr, "grad": step.grad_norm, "tokens_per_second": speed,
            "memory": peak_memory(self.model.device), "eta": pace * (steps - step.number),
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
            first = list(shown.items())[:MAX_SHOWN_SCORES]
            listed = "  ".join(f"{name} {value:.4f}" for name, value in first)
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


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Yield the signals (SIGINT, SIGTERM) that ask the run to stop after a step; a second one ends it."""
    received: list[int] = []
    old: dict[int, Any] = {}

    def handle_signal(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, old[number])

    for one in (signal.SIGINT, signal.SIGTERM):
        old[one] = signal.signal(one, handle_signal)
    try:
        yield received
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


def peak_memory(device: torch.device) -> int:
    """Return the most bytes in use so far: on the GPU, or by this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_training(
    settings: ResolvedSettings,
    folder: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
) -> TrainingResult:
    """Prepare, train, evaluate and save; alone, or with the processes this one was started with."""
    recipe = settings.recipe
    device = resolve_device(recipe.device)
    with processes(recipe.parallel, device.type == "cuda", recipe.tensor) as by:
        device = torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
        open_files = lambda: RunFiles.open(folder, settings, resume, tensorboard)
        files = by.run_on_first(open_files) or RunFiles(folder, writes=False)
        with closing(files):
            # The first process writes the vocabulary and the tokens, which the others then find.
            own = lambda: prepare_run(settings, device, folder)
            with show_progress("reading the files", quiet=quiet or not by.is_first):
                run = by.run_on_first(own) or own()
            config = replace(recipe.train, folder=folder, resume=resume)
            with closing(make_reporter(config.steps, quiet or not by.is_first)) as reporter:
                loop = TrainingLoop(
                    run.model, run.purpose, run.batches, config,
                    make_validation(settings, run, files, by), reporter, files, by, recipe.evaluate.log,
                )  # fmt: skip
                return train_and_report(settings, run, loop)


def train_and_report(settings: ResolvedSettings, run: PreparedRun, loop: TrainingLoop) -> TrainingResult:
    """Report the model and the data, run the loop, and find its best checkpoint."""
    model, batches, folder = run.model, run.batches, loop.files.path
    parameters = sum(p.numel() for p in model.parameters())
    rows = f"{batches.row_count:,} rows, {len(batches):,} steps an epoch"
    size = f"{model.family.name} of {parameters:,} parameters on {model.device}"
    loop.report(f"{settings.name}: {size}; {rows}")
    for note in run.notes:
        loop.report(f"note: {note}")
    batch_limit = evaluation_batches(settings, run.valid)
    if run.valid is not None and batch_limit is not None and settings.recipe.evaluate.batches is None:
        of = f"the first {batch_limit} of {len(run.valid)} batches held out"
        loop.report(f"note: evaluations read {of}; --set evaluate.batches={len(run.valid)} for all")
    if run.batches.settings.get("kind") == "parallel" and find_spec("sacrebleu") is None:
        loop.report("note: BLEU is not counted without the package sacrebleu: pip install sacrebleu")
    if loop.config.resume and (at := newest(folder)) is not None:
        loop.report(f"resuming from {at}")
    result = loop.run()
    if result.interrupted:
        hint = f"--resume continues from {result.saved}"
        message = f"interrupted at step {result.steps}"
        raise TrainingInterrupted(message, hint, signal_number=result.interrupted)
    result.checkpoint, result.parameters = Path(of_run(folder)), parameters
    return result


def make_validation(
    settings: ResolvedSettings, run: PreparedRun, files: RunFiles, by: Processes
) -> Validation:
    """Return how a run is evaluated: by the loss on validation data; the best checkpoint stays."""
    evaluation, valid = settings.recipe.evaluate, run.valid

    def score(step: Step | None) -> dict[str, float]:
        assert step is not None
        limit = evaluation_batches(settings, valid, step.number)
        scores = {} if valid is None else step.evaluate(valid, limit)
        if scores and run.batches.labels == () and scores["loss"] < MAX_PERPLEXITY_LOSS:
            scores["perplexity"] = math.exp(scores["loss"])
        kind = run.batches.settings.get("kind") if run.model.config.head == "lm" else None
        if evaluation.sample and by.world == 1:
            if kind == "next_token":
                seed = settings.recipe.train.seed
                files.sample(step.number, sample_text(run, evaluation.sample, seed))
            elif kind == "parallel" and valid is not None:
                bleu, lines = translate_sample(run.model, valid)
                scores |= bleu
                for line in lines:
                    files.sample(step.number, line)
        return scores

    def keep(step: Step | None) -> None:
        assert step is not None
        step.save(best=True)

    return Validation(score, keep, evaluation.every, patience=evaluation.patience)


def evaluation_batches(
    settings: ResolvedSettings, valid: Batches | None, steps: int | None = None
) -> int | None:
    """Return how many batches an evaluation reads; None for all.

    The held-out part grows with the data. Unless the settings say otherwise, an evaluation reads no more
    batches than were trained on since the last one, so that a short run on a large text stays short. `steps`
    are those taken, where a run of minutes ends before its first regular evaluation.
    """
    evaluation = settings.recipe.evaluate
    if evaluation.batches is not None or settings.valid or valid is None:
        return evaluation.batches
    train = settings.recipe.train
    steps = train.steps if train.minutes is None else steps or evaluation.every
    limit = min(evaluation.every, steps)
    return limit if limit < len(valid) else None


def sample_text(run: PreparedRun, tokens: int, seed: int) -> str:
    """Generate a text as a sample of the model."""
    from heedful.decode.loop import generate

    model = run.model
    first = next((i for i in (model.tokenizer.bos, model.tokenizer.eos) if i is not None), None)
    prompt = [first] if first is not None else run.batches[0].tokens[0, :1].tolist()
    with evaluation_mode(model):
        ids = generate(model, prompt, max_tokens=tokens, temperature=0.8, top_k=50, seed=seed)
    text: str = model.tokenizer.decode(list(ids))
    return text


def translate_sample(model: Model, valid: Batches) -> tuple[dict[str, float], list[str]]:
    """Translate some held-out texts greedily; return their BLEU, and the first few as lines to read.

    BLEU needs the package sacrebleu.
    """
    from heedful.decode.loop import generate
    from heedful.tasks.metrics.generated import bleu

    sources, truths, tokenizer = [], [], model.tokenizer
    for batch in valid.once():
        assert batch.labels is not None
        read = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.valid is None else batch.valid
        for tokens, keep, labels in zip(batch.tokens, read, batch.labels, strict=True):
            sources.append(tokens[keep].tolist())
            truths.append(tokenizer.decode([i for i in labels.tolist() if i not in (IGNORE, tokenizer.eos)]))
        if len(sources) >= SAMPLED_TEXTS:
            break
    sources, truths = sources[:SAMPLED_TEXTS], truths[:SAMPLED_TEXTS]
    with evaluation_mode(model):
        most = 2 * max(map(len, sources)) + 8  # tokens of a translation that does not end by itself
        written = generate(model, sources, max_tokens=most, eos=(tokenizer.eos,))
    texts = [tokenizer.decode([i for i in ids if i != tokenizer.eos]) for ids in written]
    shown = zip(sources[:SHOWN_TEXTS], texts, truths, strict=False)
    lines = [f"{tokenizer.decode(ids)} → {text} (reference: {truth})" for ids, text, truth in shown]
    return ({"bleu": bleu(truths, texts)["bleu"]} if find_spec("sacrebleu") else {}), lines


def rehearse(settings: ResolvedSettings) -> dict[str, Any]:
    """Return sizes, memory and time of a run, from one row's activations and two steps of training."""
    device = resolve_device(settings.recipe.device)
    run = prepare_run(settings, device)
    config, batches, model = settings.recipe.train, run.batches, run.model
    batch = batches[0]
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    saved = activations(run, batch) // config.accumulate
    seconds = measure_steps(model, run.purpose, batches, config, 2)[-1]
    steps = config.steps if config.minutes is None else max(1, round(60 * config.minutes / seconds))
    return {
        "recipe": settings.name, "family": model.family.name, "device": str(device), "parameters": parameters,
        "vocabulary": len(model.tokenizer), "rows": batches.row_count,
        "valid_rows": run.valid.row_count if run.valid else 0,
        "batch": list(batch.tokens.shape), "tokens_per_step": batch.tokens_read, "steps": steps,
        "epochs": round(steps / len(batches), 2), "weights_bytes": weights, "gradients_bytes": weights,
        "moments_bytes": MOMENTS[config.optimiser] * weights,
        **({} if config.ema is None else {"average_bytes": weights}), "activations_bytes": saved,
        "memory_bytes": numbers_per_weight(config) * weights + saved, "process_bytes": peak_memory(device),
        "seconds_per_step": round(seconds, 4), "eta": format_clock(seconds * steps),
    }  # fmt: skip


def activations(run: PreparedRun, batch: Batch) -> int:
    """Return the bytes that a step's forward pass keeps for the backward pass: one row's, times the rows."""
    weights = {p.untyped_storage().data_ptr() for p in run.model.parameters()}
    seen: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        place = t.untyped_storage()
        if place.data_ptr() not in weights:
            seen[place.data_ptr()] = place.nbytes()
        return t

    outputs: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        outputs.append(run.purpose(run.model.train(), batch.rows(slice(0, 1)).to(run.model.device)))
    return sum(seen.values()) * len(batch)


def measure_steps(
    model: Model, purpose: str | Objective, batches: Data, config: TrainConfig, steps: int,
    limit: float = math.inf,
) -> list[float]:  # fmt: skip
    """Return the seconds of each of the first steps; of fewer if they take more than `limit` seconds.

    The first step also warms up. The model learns them, at the full learning rate, neither compiled nor
    recorded.
    """
    alone = replace(
        config, steps=steps, minutes=None, warmup=0, decay=None, folder=None, resume=False, compile=False,
        graph=False,
    )  # fmt: skip
    seconds: list[float] = []
    began = time.perf_counter()
    for step in fit(model, purpose, batches, alone):
        _ = step.loss  # waits for the device
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        if sum(seconds[1:]) > limit:
            break
    return seconds


if __name__ == "__main__":
    from heedful.cli import main

    main(["train", *sys.argv[1:]])
