"""Every family and every objective trains."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from heedful.data import Batch, Batches
from heedful.models import FAMILIES
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.objectives import OBJECTIVES
from tests.train import toys

Files = dict[str, Path]


class Same:
    """One batch over and over."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.fingerprint = batch, "one batch"

    def __getitem__(self, step: int) -> Batch:
        return self.batch

    def epoch(self, step: int) -> int:
        return step


def losses(model: Any, purpose: Any, batches: Batches | Same, **settings: Any) -> list[float]:
    config = TrainConfig(**{"schedule": "constant", "weight_decay": 0.0, **settings})
    return [step.loss for step in fit(model, purpose, batches, config)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_trains_with_its_own_objective(name: str, files: Files) -> None:
    family = FAMILIES[name]
    model = toys.tiny(name)
    batches = toys.batches_of(family.objective, files, model=model)
    seen = losses(model, family.objective, batches, steps=20, lr=3e-3)
    assert mean(seen[-4:]) < mean(seen[:4])


@pytest.mark.parametrize("name", toys.ALL)
def test_every_objective_trains(name: str, files: Files) -> None:
    model = toys.model_of(name)
    seen = losses(model, toys.purpose_of(name), toys.batches_of(name, files, model=model), steps=20, lr=3e-3)
    assert mean(seen[-4:]) < mean(seen[:4])


# How much of the first loss may be left: smoothed labels and a teacher who is wrong keep some, and an output
# matrix that is divided by √D moves slowly.
LEFT = {"translate": 0.3, "distil": 0.4, "spans": 0.5}


@pytest.mark.parametrize("name", toys.ALL)
def test_one_batch_is_learnt_by_heart(name: str, files: Files) -> None:
    model = toys.model_of(name, **toys.still(name))
    batch = toys.batches_of(name, files, batch=4, model=model)[0]
    seen = losses(model, toys.purpose_of(name), Same(batch), steps=60, lr=1e-2, warmup=10, schedule="cosine")
    assert seen[-1] < LEFT.get(name, 0.05) * seen[0]


def test_every_family_names_an_objective_that_there_is() -> None:
    assert {f.objective for f in FAMILIES.values()} <= set(OBJECTIVES)


def test_an_unknown_objective_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'masked'"):
        next(iter(fit(toys.tiny("gpt2"), "maksed", Same(Batch(torch.ones(1, 1).long())), TrainConfig())))  # type: ignore[arg-type]
