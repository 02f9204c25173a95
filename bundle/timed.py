"""Training that is over when its time is: the schedule is planned by the clock, not by a number of steps."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bundle.cards import PACKAGE
from heedful.data.batches import Batches
from heedful.models.base import Model
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import Step, TrainingRun, fit
from heedful.train.objectives import Objective, objective

WARM = 10  # first steps that tell nothing of the others: kernels are chosen, graphs recorded
WINDOW = 200  # steps whose mean is the pace


def learn(
    model: Model, purpose: str | Objective, batches: Batches, config: TrainConfig, until: float | None
) -> Iterator[Step]:
    """config.steps steps; with `until`, a time of perf_counter, as many as there is time for."""
    if until is None:
        return fit(model, purpose, batches, config)
    return timed(model, purpose, batches, config, until)


def timed(
    model: Model, purpose: str | Objective, batches: Batches, config: TrainConfig, until: float
) -> Iterator[Step]:
    """`fit` whose steps are counted anew before each: those done and those that the time left is enough for.

    So the learning rate reaches its end with the time, however fast the machine is and whatever else it does.
    At least one step is taken.
    """
    run = TrainingRun(model, objective(purpose), batches, config, Processes())
    before, spent = None, deque[float](maxlen=WINDOW)
    while before is None or time.perf_counter() < until:
        began = time.perf_counter()
        steps = planned(run.number, until - began, sum(spent) / len(spent) if spent else 0.0, config.steps)
        run.config = replace(config, steps=max(steps, config.warmup, 1))
        step = run.step()
        run.check(before)
        if run.number > WARM:
            spent.append(time.perf_counter() - began)
        yield step
        before = step
    run.check(before)


def planned(done: int, left: float, pace: float, guess: int) -> int:
    """How many steps there will be in all; `guess` until the pace is known."""
    return done + 1 + int(max(left, 0.0) / pace) if pace > 0 else max(guess, done + 1)


def options(parser: argparse.ArgumentParser) -> None:
    """What all scripts here take."""
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--out", type=Path, help="where all that is written goes: NAME/, results/, samples/")
    parser.add_argument("--device", default=usual)
    parser.add_argument("--seconds", type=float, help="train until so long after the start, not by steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)


def parsed(parser: argparse.ArgumentParser, *trials: str) -> argparse.Namespace:
    """What a script was told. Options that are there to try it must not touch the model that comes along."""
    given = parser.parse_args()
    tried = [name for name in trials if getattr(given, name) is not None]
    if tried and given.out is None:
        parser.error(
            f"--{tried[0]} is a trial: say where it goes with --out, so that the bundled model stays"
        )
    if given.threads:
        torch.set_num_threads(given.threads)
    return given


def seeded(given: argparse.Namespace) -> list[str]:
    """The seed as it is typed, unless it is the usual one."""
    return ["--seed", str(given.seed)] if given.seed else []


def places(name: str, out: Path | None, bundled: bool = True) -> tuple[Path, Path, Path]:
    """Folders of the model, of the ledger's rows and of samples; by default those of the checkout."""
    root = Path(__file__).parents[1]
    if out is not None:
        return out / name, out / "results", out / "samples"
    return (PACKAGE if bundled else root / "models") / name, root / "results", root / "models" / "samples"


def write_sample(folder: Path, name: str, write: Callable[[], str]) -> None:
    """What the model makes of a few inputs, to be read. It comes last; if it fails the model stays."""
    try:
        text = write()
    except Exception as error:
        text = f"no sample: {type(error).__name__}: {error}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(text.rstrip() + "\n", encoding="utf-8")
    print(text, flush=True)
