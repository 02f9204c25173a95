"""What a text is pushed to is worse for the model than what it says; the push has the length asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.core.errors import InputError
from heedful.data.batch import Batch
from heedful.models.base import Model
from heedful.nn.context import Watch
from heedful.train.objectives import adversarial, classify


@pytest.fixture
def model() -> Model:
    made = heedful.build(
        "bert", vocab=40, dim=16, layers=2, heads=2, context=8, head="classify", labels=2, dropout=0.0, seed=0
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return made.train()


@pytest.fixture
def batch() -> Batch:
    tokens = torch.tensor([[1, 5, 9, 2], [1, 7, 2, 0]])
    valid = tokens != 0
    return Batch(tokens, valid=valid, extra={"label": torch.tensor([0, 1])})


def test_the_push_is_the_normed_gradient_at_the_token_vectors(model: Model, batch: Batch) -> None:
    terms = adversarial(0.5)(model, batch)
    plain = classify(model, batch)["classify"].total
    torch.testing.assert_close(terms["classify"].total, plain)

    seen = Watch("embed.token")
    loss = F.cross_entropy(
        model(batch.tokens, valid=batch.valid, watch=seen), batch.extra["label"], reduction="sum"
    )
    (slope,) = torch.autograd.grad(loss, seen["embed.token"])
    pushes = torch.stack([0.5 * row / row.norm() for row in slope])  # one text at a time
    moved = Watch(edit={"embed.token": lambda x: x + pushes})
    wanted = F.cross_entropy(
        model(batch.tokens, valid=batch.valid, watch=moved), batch.extra["label"], reduction="sum"
    )
    torch.testing.assert_close(terms["adversarial"].total, wanted)


def test_a_small_push_hurts(model: Model, batch: Batch) -> None:
    terms = adversarial(0.01)(model, batch)
    assert terms["adversarial"].total > terms["classify"].total


def test_padding_and_a_slope_of_nothing_are_not_pushed(model: Model, batch: Batch) -> None:
    with torch.no_grad():
        model.head.label.weight.zero_()  # type: ignore[union-attr, operator]
    terms = adversarial(1.0)(model, batch)
    torch.testing.assert_close(terms["adversarial"].total, terms["classify"].total)


def test_a_model_that_is_not_training_is_only_asked(model: Model, batch: Batch) -> None:
    with torch.no_grad():
        assert set(adversarial()(model.eval(), batch)) == {"classify"}


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan")])
def test_a_push_of_no_length_is_refused(size: float) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        adversarial(size)


def test_rows_without_labels_are_refused(model: Model, batch: Batch) -> None:
    with pytest.raises(InputError, match="'label' of every row"):
        adversarial()(model, replace(batch, extra={}))
