"""Measurements on disk: each is taken once, so that a comparison that was stopped goes on where it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from heedful.classroom.experiments.report import Report
from heedful.classroom.experiments.systems import SizedSystem, build_system
from heedful.core.errors import HeedfulError
from heedful.core.files import make_folder, write_text
from heedful.interp.inputs import to_plain
from heedful.models.base import Model
from heedful.text import Tokenizer
from heedful.train.checkpoint import of_run
from heedful.train.recipes.prepare import config_entries
from heedful.train.recipes.recipes import Recipe, ResolvedSettings
from heedful.train.recipes.train import TrainingInterrupted, TrainingResult, run_training
from heedful.weights.loading import load
from heedful.weights.saving import save


class MeasurementStore:
    """A folder with one JSON file for each measurement: its settings and what came out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def take(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """Return the value of a measurement: the one on disk if its settings are the same, else a new one."""
        path, plain = self.folder / f"{name}.json", json.loads(json.dumps(to_plain(settings)))
        record = self._load(path)
        if record is None or record["settings"] != plain:
            record = {"settings": plain, "value": to_plain(measure())}
            write_text(path, json.dumps(record, indent=1) + "\n")
            record = json.loads(json.dumps(record))  # a new value has the types of one that was read
        return record["value"]

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # half a file of a process that was killed is measured again
        return record if isinstance(record, dict) and {"settings", "value"} <= record.keys() else None

    def values(self, prefix: str) -> dict[str, Any]:
        """Return all measurements whose name is `prefix-…`, by the rest of their names."""
        records = {
            p.stem.removeprefix(f"{prefix}-"): self._load(p) for p in self.folder.glob(f"{prefix}-*.json")
        }
        return {name: one["value"] for name, one in sorted(records.items()) if one is not None}


# What all comparisons have in common: measured until the end or Ctrl-C, and reported either way.


@dataclass(frozen=True)
class Measurement:
    """Something to measure: its name, what its value depends on, and how it is measured."""

    name: str
    settings: Mapping[str, Any]
    measure: Callable[[], Any]


class Comparison:
    """Systems measured in a folder: each measurement is taken once and kept.

    `common` are settings on which every measurement depends. `measurements` lists what to measure, in order.
    """

    def __init__(
        self, folder: Path, device: torch.device, report: Callable[[str], None], common: Mapping[str, Any]
    ) -> None:
        self.folder, self.device, self.report, self.common = folder, device, report, common
        self.store = MeasurementStore(folder / "measurements")

    def measurements(self) -> Iterator[Measurement]:
        """Yield every measurement; one may depend on the values of those before it."""
        raise NotImplementedError

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was measured so far."""
        raise NotImplementedError

    @property
    def total(self) -> int:
        """The number of all measurements."""
        return sum(1 for _ in self.measurements())

    def measure(self) -> None:
        """Take every measurement that is not there yet."""
        total = self.total
        for number, one in enumerate(self.measurements(), 1):
            self.take(one, f"[{number}/{total}] ")

    def take(self, one: Measurement, number: str = "") -> Any:
        """Return the value of a measurement, which is reported before it is taken."""

        def measure_now() -> Any:
            self.report(f"{number}{one.name.replace('-', ' ')}")
            return one.measure()

        return self.store.take(one.name, {**one.settings, **self.common}, measure_now)

    def train(
        self, competitor: SizedSystem, recipe: Recipe, tokenizer: Tokenizer, files: Sequence[str],
        valid: Sequence[str] = (), **sizes: Any,
    ) -> TrainingResult:  # fmt: skip
        """Train a system in its own folder, from first weights that are kept; a run that stopped goes on."""
        settings = self.run_settings(competitor, recipe, files, valid)
        start = Path(str(settings.recipe.start))
        if not start.is_dir():
            model = build_system(competitor, vocab=len(tokenizer), seed=recipe.train.seed, **sizes)
            model.tokenizer = tokenizer
            if valid:  # a translator writes until its end token
                model.hf_config = config_entries(tokenizer, ())
            save(model, start)
        return run_training(settings, self.folder / settings.name, resume=True, quiet=True)

    def run_settings(
        self, competitor: SizedSystem, recipe: Recipe, files: Sequence[str], valid: Sequence[str] = ()
    ) -> ResolvedSettings:
        """Return the settings of the run of a system."""
        name = competitor.system.family
        recipe = replace(recipe, start=str(self.folder / "start" / name), device=str(self.device))
        return ResolvedSettings(name, recipe, tuple(files), tuple(valid))

    def load_trained(self, competitor: SizedSystem) -> Model:
        """Return a system as it was trained."""
        return load(of_run(self.folder / competitor.system.family), device=self.device)


def finish_experiment(
    experiment: Comparison, folder: Path, command: str, workers: Mapping[str, Sequence[str]] | None = None,
    jobs: int = 1,
) -> Path:  # fmt: skip
    """Measure, write the report and return its page; if interrupted, report what is there and raise.

    `workers` are commands of heed that measure before, `jobs` at a time: the rest is measured here.
    """
    try:
        run_workers(workers or {}, jobs)
        experiment.measure()
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        page = experiment.make_report(command).save(folder)
        interrupted = TrainingInterrupted(
            f"interrupted; what was measured so far is in {page}", hint="the same command continues"
        )
        interrupted.exit_code = getattr(error, "exit_code", interrupted.exit_code)
        raise interrupted from None
    return experiment.make_report(command).save(folder)


# Systems of a comparison measured in processes of their own, several at a time, in one folder.


PAUSE = 0.1  # seconds between two looks at the processes


def run_workers(commands: Mapping[str, Sequence[str]], jobs: int) -> None:
    """Run commands of heed by name, `jobs` at a time; raise an error that names those that failed.

    What one has measured is kept although another fails. Ctrl-C is handed on: all keep what they have.
    """
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    waiting, running = dict(commands), dict[str, subprocess.Popen[bytes]]()
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = next(iter(waiting))
                words = [sys.executable, "-m", "heedful.cli", *waiting.pop(name)]
                # In sessions of their own, so that Ctrl-C reaches them once: from here.
                running[name] = subprocess.Popen(
                    words, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
                )
            for name in [n for n, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode != 0:
                    failed.append(name)
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for process in running.values():
            process.wait()
        raise
    if failed:
        raise HeedfulError(
            f"{', '.join(failed)}: not all measurements were finished",
            hint="run the same command again to measure what is missing",
        )
