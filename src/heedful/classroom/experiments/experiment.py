"""What all comparisons share: measured until the end or Ctrl-C, and reported either way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from heedful.classroom.experiments.report import Report
from heedful.classroom.experiments.worker_processes import run_workers
from heedful.train.recipes.training_loop import TrainingInterrupted


class Experiment(Protocol):
    """A comparison that can be continued."""

    def measure(self) -> None:
        """Take every measurement that is not there yet."""

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was measured so far."""


def finish_experiment(
    experiment: Experiment, folder: Path, command: str, workers: Mapping[str, Sequence[str]] | None = None,
    jobs: int = 1,
) -> Path:  # fmt: skip
    """Measure, write the report and return its page; if interrupted, report what is there and raise.

    `workers` are commands of heed that measure before, `jobs` at a time: what they leave is measured here.
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
