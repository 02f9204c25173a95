"""What `fit` takes besides our own batches and objectives: any iterable of batches, any mean loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from heedful import TrainConfig, fit
from heedful.core.errors import InputError
from heedful.data import IGNORE, Batch
from heedful.models.base import Model
from heedful.train.objectives import objective
from tests.train import toys

PLAIN = TrainConfig(steps=5, lr=3e-3, schedule="constant")


def losses(data: Any, purpose: Any = "next_token", config: TrainConfig = PLAIN) -> list[float]:
    return [step.loss for step in fit(toys.tiny("gpt2", dropout=0.0), purpose, data, config)]


def as_dict(batch: Batch) -> dict[str, Tensor]:
    values = {name: getattr(batch, name) for name in ("tokens", "labels", "valid")}
    return {name: value for name, value in values.items() if value is not None}


def mean_next_token(model: Model, batch: Batch) -> Tensor:
    logits = model(batch.tokens, valid=batch.valid)
    assert batch.labels is not None
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE)


def test_a_data_loader_of_batches_or_of_dicts_is_read_again_and_again(files: dict[str, Path]) -> None:
    batches = toys.batches_of("next_token", files)
    three = [batches[step] for step in range(3)]
    expected = losses([three[step % 3] for step in range(5)])
    assert losses(DataLoader(three, batch_size=None)) == expected  # type: ignore[arg-type]
    assert losses(DataLoader([as_dict(batch) for batch in three], batch_size=None)) == expected  # type: ignore[arg-type]


def test_an_epoch_is_one_pass_through_an_iterable(files: dict[str, Path]) -> None:
    batches = toys.batches_of("next_token", files)
    steps = fit(toys.tiny("gpt2"), "next_token", [batches[0], batches[1]], PLAIN)
    assert [step.epoch for step in steps] == [0, 0, 1, 1, 2]


def test_an_iterable_is_evaluated_like_batches(files: dict[str, Path]) -> None:
    batches = toys.batches_of("next_token", files)
    (step,) = fit(toys.tiny("gpt2"), "next_token", batches, TrainConfig(steps=1))
    assert step.evaluate(list(batches.once())) == step.evaluate(batches)


def test_a_run_on_an_iterable_goes_on_with_the_batch_it_had_reached(
    files: dict[str, Path], tmp_path: Path
) -> None:
    batches = toys.batches_of("next_token", files)
    three = [batches[step] for step in range(3)]
    for steps in (2, 5):
        config = TrainConfig(steps=steps, lr=3e-3, schedule="constant", folder=tmp_path, resume=True)
        seen = losses(three, config=config)
    assert seen == losses(three)[2:]


def test_an_iterator_that_ends_before_the_run_says_so(files: dict[str, Path]) -> None:
    batches = toys.batches_of("next_token", files)
    with pytest.raises(InputError, match="2 batches.*steps"):
        losses(iter([batches[0], batches[1]]))
    with pytest.raises(InputError, match="the data has no batch"):
        losses([])


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"input_ids": torch.tensor([[5, 6]]), "labels": torch.tensor([[5, 6]])}, "no 'tokens'.*input_ids"),
        ([torch.tensor([[5, 6]]), torch.tensor([1])], "a list.*Batch"),
        ({"tokens": torch.tensor([[5, 6]]), "labels": ["a"]}, "labels"),
    ],
)
def test_items_that_are_no_batches_are_refused_with_the_names_that_are_meant(item: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        losses([item])


def test_data_that_cannot_be_iterated_says_what_can() -> None:
    with pytest.raises(InputError, match="iterable of batches"):
        losses(5)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("in_a_table", [False, True])
def test_an_objective_may_return_its_mean_loss(
    accumulate: int, in_a_table: bool, files: dict[str, Path]
) -> None:
    """All rows have as many labels here, so the mean over rows is the mean over labels."""
    config = TrainConfig(steps=3, lr=3e-3, schedule="constant", accumulate=accumulate)
    batches = toys.batches_of("next_token", files)
    purpose = (lambda m, b: {"mine": mean_next_token(m, b)}) if in_a_table else mean_next_token
    assert losses(batches, purpose, config) == pytest.approx(losses(batches, config=config), rel=1e-5)


@pytest.mark.parametrize("result", [None, 1.5, torch.zeros(4), {"a": 2.0}, {}])
def test_an_objective_that_returns_something_else_is_told_what_to_return(
    result: Any, files: dict[str, Path]
) -> None:
    with pytest.raises(InputError, match=r"objective.*(mean loss|Term)"):
        losses(toys.batches_of("next_token", files), lambda model, batch: result)


def test_several_processes_need_batches_that_can_be_shared_out(files: dict[str, Path]) -> None:
    from heedful.data.batches import as_batches

    with pytest.raises(InputError, match=r"heedful\.data"):
        as_batches([toys.batches_of("next_token", files)[0]]).shard(0, 2)


def test_an_objective_that_is_a_function_is_used_as_it_is() -> None:
    assert objective(mean_next_token) is mean_next_token
