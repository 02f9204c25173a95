"""What all comparisons share: measured until the end or Ctrl-C, and reported either way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from heedful.experiments.report import Report
from heedful.runs.training_loop import TrainingInterrupted


class Experiment(Protocol):
    """A comparison that can be continued."""

    def measure(self) -> None:
        """Take every measurement that is not there yet."""

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was measured so far."""


def finish_experiment(
    experiment: Experiment, folder: Path, command: str, workers: Callable[[], None] = lambda: None
) -> Path:
    """Measure, write the report and return its page; if interrupted, report what is there and raise.

    `workers` may measure before, in processes of their own: what they leave is measured here.
    """
    try:
        workers()
        experiment.measure()
    except (KeyboardInterrupt, TrainingInterrupted):
        page = experiment.make_report(command).save(folder)
        raise TrainingInterrupted(
            f"interrupted; what was measured so far is in {page}", hint="the same command continues"
        ) from None
    return experiment.make_report(command).save(folder)
