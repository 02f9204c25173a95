"""The loop around `fit`: which weights stay, when it stops, and what a signal does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from heedful.train.config import TrainConfig
from heedful.train.fit import Step
from heedful.train.recipes.progress import ProgressReporter
from heedful.train.recipes.train import TrainingLoop, TrainingResult, Validation
from tests.train import toys


class Run:
    """Six steps of a tiny model, every one evaluated, with scores that are written down beforehand."""

    def __init__(self, files: dict[str, Path], scores: list[float], **rules: Any) -> None:
        self.scores, self.kept = list(scores), list[int]()
        number = lambda step: 0 if step is None else step.number
        validation = Validation(
            lambda step: self.score(step), lambda step: self.kept.append(number(step)), every=1, **rules
        )
        self.loop = TrainingLoop(
            toys.tiny("gpt2"), "next_token", toys.batches_of("next_token", files), TrainConfig(steps=6),
            validation, ProgressReporter(),
        )  # fmt: skip

    def score(self, step: Step | None) -> dict[str, Any]:
        return {"loss": self.scores.pop(0)}

    def run(self) -> TrainingResult:
        return self.loop.run()


def test_the_best_weights_are_kept_and_their_scores_reported(files: dict[str, Path]) -> None:
    run = Run(files, [5, 3, 4, 2, 6, 7])
    result = run.run()
    assert run.kept == [1, 2, 4]
    assert (result.best_step, result.scores, result.steps) == (4, {"loss": 2}, 6)
    assert [entry["loss"] for entry in result.history] == [5, 3, 4, 2, 6, 7]


def test_patience_ends_the_run(files: dict[str, Path]) -> None:
    result = Run(files, [5, 3, 4, 4, 0, 0], patience=2).run()
    assert (result.stopped, result.steps, result.best_step) == (True, 4, 2)


def test_without_choice_the_last_weights_stay_and_patience_does_not_count(files: dict[str, Path]) -> None:
    run = Run(files, [5, 3, 4, 4, 6, 7], patience=2, choose=False)
    result = run.run()
    assert run.kept == [1, 2, 3, 4, 5, 6]
    assert (result.stopped, result.best_step, result.scores, result.chosen) == (False, 6, {"loss": 7}, False)


def test_the_weights_before_the_first_step_may_stay(files: dict[str, Path]) -> None:
    run = Run(files, [0.9, 0.5, 0.8, 0.7, 0.6, 0.5, 0.4], highest=True, untrained=True)
    result = run.run()
    assert run.kept == [0]
    assert (result.before, result.best_step) == (0.9, 0)


def test_a_signal_ends_the_run_after_its_step(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = TrainingLoop.count

    def interrupt(loop: TrainingLoop, step: Step) -> None:
        count(loop, step)
        if step.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingLoop, "count", interrupt)
    result = Run(files, [5, 3, 4, 4, 6, 7]).run()
    assert (result.interrupted, result.steps, result.saved) == (signal.SIGINT, 2, None)


def test_a_signal_at_the_last_step_changes_nothing(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TrainingLoop.evaluate

    def interrupt(loop: TrainingLoop, step: Step | None) -> None:
        whole(loop, step)
        if step is not None and step.number == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingLoop, "evaluate", interrupt)
    result = Run(files, [5, 3, 4, 4, 6, 7]).run()
    assert (result.interrupted, result.steps) == (None, 6)
