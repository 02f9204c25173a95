"""fit: training as a stream of steps. The caller logs, evaluates and stops: no trainer, no callback."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from heedful.core.errors import ConfigError, HeedfulError
from heedful.core.progress import print_above
from heedful.data.batch import Batch
from heedful.data.batches import Data, StepBatches, as_batches
from heedful.models.base import Model, evaluation_mode
from heedful.models.tensor_parallel import gather_dtensor
from heedful.nn.adapt import recompute
from heedful.train import checkpoint as store
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes, shared_like
from heedful.train.float8 import use_float8
from heedful.train.objectives import (
    LossModule,
    MeanLoss,
    Objective,
    attention_kernels,
    autocast,
    counts,
    mean_losses,
    objective,
)
from heedful.train.optim import learning_rate, make_optimisers
from heedful.train.speed import CompiledLayers, GraphedStep, StepFunction, choose_speed
from heedful.train.stopping import WeightAverage
from heedful.weights.formats.tensor_files import is_sharded


class DivergedError(HeedfulError):
    """The loss, its gradient or a weight is not finite; the text names the last good checkpoint."""

    exit_code = 5


class Arriving:
    """Whether values are finite, on its way from the device: asking waits for them, not for later work."""

    def __init__(self, *values: Tensor) -> None:
        finite = torch.stack([torch.isfinite(value) for value in values]).all()
        self.flag = finite.to("cpu", non_blocking=True)
        self.event = torch.cuda.Event() if values[0].is_cuda else None
        if self.event is not None:
            self.event.record()

    def __bool__(self) -> bool:
        if self.event is not None:
            self.event.synchronize()
        return bool(self.flag)


@dataclass
class Step:
    """One step, done: what it cost and what it learned. Numbers leave the device when asked for."""

    number: int  # how many steps the model has taken, this one included
    last: bool  # whether the run ends with it
    lr: float
    tokens: int  # read in this step, by all processes
    tokens_per_second: float
    epoch: int
    run: TrainingRun = field(repr=False)
    _loss: Tensor = field(repr=False)
    _finite: Arriving = field(repr=False)
    _norm: Tensor = field(repr=False)
    _terms: dict[str, Tensor] = field(repr=False)

    @property
    def loss(self) -> float:
        """The mean loss of the whole batch, before the step."""
        return float(self._loss)

    @property
    def grad_norm(self) -> float:
        """The norm of the gradient, before clipping."""
        return float(self._norm)

    @property
    def terms(self) -> dict[str, float]:
        """Each term of the objective, unweighted."""
        return {name: float(value) for name, value in self._terms.items()}

    def save(self, *, best: bool = False) -> Path:
        """Write a checkpoint now; `best` marks it as the one to keep."""
        return self.run.save(self, best=best)

    def evaluate(self, batches: Data, max_batches: int | None = None) -> dict[str, float]:
        """Return the mean loss on other batches, all or the first; each term too if there are several."""
        run = self.run
        with evaluation_mode(run.model):
            return mean_losses(
                run.trained, batches, run.device, dtype=run.config.dtype, max_batches=max_batches,
                processes=run.processes,
            )  # fmt: skip

    def ema_weights(self) -> contextlib.AbstractContextManager[Model]:
        """The model with its averaged weights while a `with` lasts: to evaluate what `ema` keeps."""
        if self.run.ema is None:
            raise ConfigError("this run does not average its weights", hint="set `ema=0.999` in TrainConfig")
        return self.run.ema.in_model()


def fit(
    model: Model,
    purpose: str | Objective | MeanLoss,
    batches: Data,
    config: TrainConfig,
    processes: Processes | None = None,
    report: Callable[[str], object] = print_above,
) -> Iterator[Step]:
    """Train a model in place, and yield one `Step` after the other.

    >>> import heedful, torch
    >>> model = heedful.build("gpt2", vocab=16, dim=16, layers=1, heads=2, context=8, seed=0)
    >>> ids = torch.arange(9).repeat(4, 1)
    >>> batch = {"tokens": ids[:, :-1], "labels": ids[:, 1:]}
    >>> config = heedful.TrainConfig(steps=5, lr=1e-2)
    >>> losses = [step.loss for step in heedful.fit(model, "next_token", [batch], config)]
    >>> losses[-1] < losses[0]
    True

    Leave the loop to stop. `step.evaluate(batches)` and `step.save()` evaluate and save.

    Args:
        model: The model to train.
        purpose: The name of an objective, or a function of the model and a batch. The function returns the
            mean loss over the rows of the batch, or a dict of `Term`, which are sums with the number they
            are divided by.
        batches: What a function of `heedful.data` returns, or any iterable of batches, such as a list or a
            DataLoader. It is read again after its end. A batch is a `heedful.data.Batch` or a dict with
            tokens (B, T) and labels (B, T). `labels[b, t]` is what position t should predict, and -100 means
            no loss. `valid` (B, T) is False on padding. The objective finds other entries in `batch.extra`.
        config: Steps, learning rate, optimizer and so on.
        processes: Train together with other processes, which make the same call with batches of
            `heedful.data`.
        report: Gets one line that says how steps are made fast, if the config leaves that open on a GPU.

    Gradient accumulation splits a batch. It weights a mean loss by the rows of each part, and divides terms
    by the counts of the whole batch, so the result is exact for rows of any length.
    """
    run = TrainingRun(
        model, objective(purpose), as_batches(batches), config, processes or Processes(), report
    )
    with run.locked_folder():
        run.resume()
        before: Step | None = None
        while not run.is_finished():
            step = run.step()
            run.check(before)  # one step late: by now its loss has arrived and nobody waits
            yield step
            if not step.last and run.is_checkpoint_due():
                run.save(step)
            before = step
        run.check(before)
        if config.folder is not None and before is not None:
            run.save(before)


class TrainingRun:
    """A training run: the model, its optimisers, and how far it is."""

    def __init__(
        self, model: Model, purpose: Objective | MeanLoss, batches: StepBatches, config: TrainConfig,
        processes: Processes, report: Callable[[str], object] = print_above,
    ) -> None:  # fmt: skip
        if config.folder is not None and any(map(is_parametrized, model.modules())):
            raise ConfigError(
                "a model whose table is learned by spelling cannot be saved yet",
                hint="use `TrainConfig(folder=None)`, and `heedful.save` after `with spell_embedding(…)`",
            )
        processes.split(model)
        if model.mesh is not None and (config.float8 or config.compile):
            name = "float8" if config.float8 else "compile"
            raise ConfigError(
                f"`{name}=True` does not work on a model that is split", hint=f"set `{name}=False`"
            )
        self.free_to_compile = config.compile is None  # whether the choice may be taken back
        resumed = store.newest(Path(config.folder)) if config.folder is not None and config.resume else None
        config, line = choose_speed(config, model, purpose, batches, processes, resumed)
        self.report = report if processes.is_first else lambda line: None
        if line is not None:
            self.report(line)
        self.model, self.config, self.processes, self.number = model, config, processes, 0
        self.device, self.batches = model.device, processes.share(batches)
        if config.float8:
            use_float8(model)
        if config.checkpointing:
            recompute(model)
        self.trained: Any = processes.wrap(LossModule(model.train(), purpose), self.batches, self.device)
        self.compiled = CompiledLayers(model, self.device) if config.compile else None
        # After wrapping: weights that are shared out are other parameters.
        self.weights = list(model.parameters())
        self.optimisers: list[Optimizer] = make_optimisers(model, config)
        self.ema = WeightAverage(model, config.ema) if config.ema else None
        self.saved: int | None = None  # the step of the checkpoint written last
        self.began = time.perf_counter()
        self.seconds = self.saved_seconds = 0.0  # of this run and those it resumed; at the last checkpoint
        alone = processes.world == 1 and model.mesh is None
        recorded = config.graph and self.device.type == "cuda" and alone
        self.change: StepFunction = GraphedStep(self._change, self._forget) if recorded else self._change

    def step(self) -> Step:
        """Read the next batch and change the weights once."""
        c, k, began = self.config, self.number, time.perf_counter()
        # Step k draws the same noise whether or not the run was interrupted; each process its own.
        mixed = (c.seed * 1_000_003 + k * 7919 + 12345) % (2**63 - 1)
        seed(mixed + self.processes.rank, self.device)
        batch = self.batches[k]
        if self.device.type == "cuda" and len(batch):  # on the CPU the model looks at its input itself
            for name, table in self.model.tables.items():
                self.model.check_ids(getattr(batch, name), table, name)
        clock = round(1000 * (began - self.began))
        counted = self.processes.total({**counts(batch), "read": batch.tokens_read, "clock": clock})
        tokens, world = counted.pop("read"), self.processes.world
        self.seconds = counted.pop("clock") / world / 1000  # the same in all processes
        rate = learning_rate(k, c, self.seconds)
        divide = {per: torch.full((), max(n, 1) / world, device=self.device) for per, n in counted.items()}
        for group in (g for o in self.optimisers for g in o.param_groups):
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        batch = batch.to(self.device)
        try:
            loss, norm, terms = self.change(batch, divide)
        except Exception as error:  # the compiler fails with errors of many kinds
            # The first step of a run alone: others would have to agree, and later the weights are changed.
            compiled = self.free_to_compile and self.compiled is not None and self.processes.world == 1
            if isinstance(error, HeedfulError) or not compiled:
                raise
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.report(f"speed: steps are no longer compiled: the compiler failed ({first_line:.200})")
            self.compiled, self.config = None, replace(c, compile=False)
            self._forget()
            seed(mixed + self.processes.rank, self.device)
            loss, norm, terms = self.change(batch, divide)
        self.free_to_compile = False
        self.number = k + 1
        speed = tokens / (time.perf_counter() - began)
        epoch, finite = self.batches.epoch(k), Arriving(loss, norm)
        return Step(
            self.number, self.is_finished(), rate, tokens, speed, epoch, self, loss, finite, norm, terms
        )

    def is_finished(self) -> bool:
        """Return whether the run has taken all its steps, or used all its minutes."""
        if self.config.minutes is None:
            return self.number >= self.config.steps
        clock = self.processes.total({"clock": round(1000 * (time.perf_counter() - self.began))})["clock"]
        self.seconds = clock / self.processes.world / 1000
        return self.seconds >= 60 * self.config.minutes

    def is_checkpoint_due(self) -> bool:
        """Return whether a checkpoint is due, after `save_every` steps or `save_minutes` minutes."""
        c = self.config
        if c.save_every is not None:
            return self.number % c.save_every == 0
        minutes = (self.seconds - self.saved_seconds) / 60
        return c.folder is not None and c.save_minutes is not None and minutes >= c.save_minutes

    def _change(self, batch: Batch, divide: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Forward, backward, clip, step: loss, norm of the gradient and terms, before the change."""
        c, losses, shown = self.config, [], []
        for part, by in self.processes.parts(batch, divide, c.accumulate):
            # going back too: layers that are recomputed must find the same kernels
            fast = contextlib.nullcontext() if self.compiled is None else self.compiled.in_use()
            with attention_kernels(self.device), fast:
                with autocast(self.device, c.dtype):
                    loss, terms = self.trained(part, by)
                loss.backward()
            losses.append(loss.detach())
            shown.append(terms)
        norm = self.processes.clip(self.weights, math.inf if c.clip is None else c.clip)
        for optimiser in self.optimisers:
            optimiser.step()
        self._forget()
        if self.ema is not None:
            self.ema.update()
        sums = [torch.stack(losses).sum(), *(torch.stack([s[n] for s in shown]).sum() for n in shown[0])]
        loss, *values = self.processes.mean(torch.stack(sums)).unbind()
        return loss, norm, dict(zip(shown[0], values, strict=True))

    def _forget(self) -> None:
        """Free the gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def check(self, step: Step | None) -> None:
        """Raise DivergedError if the loss or the gradient of a step is not finite."""
        if step is None or step._finite:
            return
        bad = f"the norm of the gradient is {step.grad_norm}"
        self.divergence_error(step, bad if math.isfinite(step.loss) else f"the loss is {step.loss}")

    def divergence_error(self, step: Step, quantity: str) -> None:
        """Raise DivergedError with the last good checkpoint as its hint."""
        last = store.newest(Path(self.config.folder)) if self.config.folder is not None else None
        hint = f"the last good checkpoint is {last}" if last else "no checkpoint was written yet"
        raise DivergedError(
            f"{quantity} at step {step.number}", hint=f"{hint}. Try a lower lr, a longer warmup or `clip=1.0`"
        )

    def save(self, step: Step, *, best: bool = False) -> Path:
        """Write a checkpoint of this step, once."""
        if self.config.folder is None:
            raise ConfigError("nothing can be saved: TrainConfig has no folder")
        if step.number != self.number:
            raise HeedfulError(
                f"step {step.number} is over: the weights are now those of step {self.number}",
                hint="save a step before the next one begins",
            )
        folder = Path(self.config.folder)
        path = store.checkpoint_path(folder, step.number)
        if self.saved != step.number:
            self.check(step)
            finite = (gather_dtensor(p.isfinite().all()) for p in self.model.parameters())
            if not all(map(bool, finite)):
                self.divergence_error(step, "a weight is not a number")
            training = {
                "loss": step.loss, "lr": step.lr, "seconds": self.seconds,
                "config": store.config_values(self.config), "data": self.batches.fingerprint,
            }  # fmt: skip
            state = {"optimiser": store.optimiser_tensors(self.model, self.optimisers)}
            if self.ema is not None:
                state["ema"] = self.ema.values
            store.write_checkpoint(folder, step.number, training, self.model, state, self.processes)
            self.saved, self.saved_seconds = step.number, self.seconds
        self.processes.run_on_first(
            lambda: store.tidy_checkpoints(folder, self.config.keep, path if best else None)
        )
        return path

    @contextlib.contextmanager
    def locked_folder(self) -> Iterator[None]:
        """Make the folder of the run, if it has one, and lock it."""
        if self.config.folder is None:
            yield
            return
        folder = Path(self.config.folder)
        self.processes.run_on_first(lambda: store.make_room(folder))
        lock = store.run_lock(folder)
        self.processes.run_on_first(lock.acquire)
        try:
            yield
        finally:
            lock.release()

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one and the config allows it."""
        if self.config.folder is None:
            return
        path = store.newest(Path(self.config.folder))
        if path is None:
            return
        if not self.config.resume:
            raise ConfigError(
                f"{self.config.folder} holds a run already ({path.name})", hint="`resume=True` continues it"
            )
        share = self.processes.rank, self.processes.world
        self.processes.run_on_all(lambda: store.verify_checksums(path, share))
        training = store.read_training(path)
        store.check_resumable(path, training, self.config, self.batches.fingerprint)
        self.config, line = extend_schedule(self.config, training)
        if line is not None:
            self.report(line)
        if self.processes.sharded and is_sharded(path):
            moments, averages = store.load_shared_tensors(
                self.model, path, self.optimisers, ema=self.ema is not None
            )
        else:
            store.copy_weights(self.model, path)
            moments = store.read_tensors(path, "optimiser")
            averages = {} if self.ema is None else store.read_tensors(path, "ema")
        store.restore_optimisers(self.model, self.optimisers, moments)
        if self.ema is not None:
            own = dict(self.model.named_parameters())
            self.ema.values = {n: shared_like(t, own[n]).to(self.device) for n, t in averages.items()}
        self.number = int(training["step"])
        self.began = time.perf_counter() - training["seconds"]
        self.seconds = self.saved_seconds = training["seconds"]


def extend_schedule(config: TrainConfig, training: dict[str, Any]) -> tuple[TrainConfig, str | None]:
    """Return the config of a run that continues from a checkpoint, and a line if it gets another length.

    A rate that does not depend on the length goes on as it was. Any other one begins its schedule again: it
    rises from where it was, and falls until the new end.
    """
    old, step, seconds = training["config"], training["step"], training["seconds"]
    earlier = tuple(old["extended"]) if old.get("extended") else None
    config = replace(config, extended=earlier)
    length = lambda steps, minutes: f"{steps:,} steps" if minutes is None else f"{minutes:g} minutes"
    before, after = length(old["steps"], old.get("minutes")), length(config.steps, config.minutes)
    if before == after:
        return config, None
    if (step > config.steps) if config.minutes is None else (seconds >= 60 * config.minutes):
        done = length(step, None if config.minutes is None else round(seconds / 60, 1))
        raise ConfigError(
            f"the run has already trained for {done} and cannot end after {after}", hint="give more"
        )
    line = f"the run is extended from {before} to {after}"
    by_steps = old.get("minutes") is None and config.minutes is None
    flat = config.schedule == "wsd" and by_steps and all(
        learning_rate(step, replace(config, steps=steps, extended=earlier)) == config.lr
        for steps in (old["steps"], config.steps)
    )  # fmt: skip
    if config.schedule in ("constant", "inverse_sqrt") or flat:
        return config, f"{line}; its learning rate goes on as it was"
    rate = training["lr"]
    line += f"; its learning rate rises from {rate:.2g} to {config.lr:.2g} and falls until the end"
    return replace(config, extended=(step, rate, seconds)), line


def seed(value: int, device: torch.device) -> None:
    """Seed what a step on this device draws from.

    torch.manual_seed seeds all kinds of devices; one not in use yet is noted for later, each time with a
    call stack written out, which a small step on the CPU feels.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(value)
    else:
        torch.manual_seed(value)
