"""Every family and every objective trains."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from heedful.core.errors import ConfigError, InputError
from heedful.data import Batch, Batches
from heedful.decode.quantize import quantize
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


@pytest.mark.slow  # the next test asks more of each objective, the one before it streams of batches
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


def test_the_loss_of_a_quantised_model_is_that_of_what_it_says(files: Files) -> None:
    model = toys.tiny("gpt2").eval()
    batch = toys.batches_of("next_token", files)[0]
    loss = lambda m: OBJECTIVES["next_token"](m, batch)["next_token"].total.item()
    plain, rounded = loss(model), loss(quantize(model, "int8"))
    assert rounded == pytest.approx(plain, rel=1e-3)


def test_a_model_that_reads_both_ways_does_not_learn_the_next_word(files: Files) -> None:
    with pytest.raises(InputError, match="bert reads both ways"):
        losses(toys.tiny("bert"), "next_token", toys.batches_of("next_token", files), steps=1)


@pytest.mark.parametrize("name", ["replaced", "classify", "regress", "span", "contrast"])
def test_batches_of_another_objective_are_refused(name: str, files: Files) -> None:
    with pytest.raises(InputError, match="of every row and the batch has none"):
        losses(toys.tiny("gpt2"), name, toys.batches_of("next_token", files), steps=1)


def test_a_model_none_of_whose_weights_may_learn_is_refused(files: Files) -> None:
    with pytest.raises(ConfigError, match="no weight of this model is trainable"):
        losses(toys.tiny("gpt2").requires_grad_(False), "next_token", toys.batches_of("next_token", files))


def test_muon_may_have_all_there_is_to_train(files: Files) -> None:
    model = toys.tiny("gpt2").requires_grad_(False)
    model.blocks[0].attn.q.weight.requires_grad_(True)
    batches = toys.batches_of("next_token", files)
    assert len(losses(model, "next_token", batches, steps=2, optimiser="muon")) == 2
