"""Splitting a batch changes nothing, however ragged it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful import TrainConfig, data, fit
from heedful.data import IGNORE, Batch
from heedful.models.base import Model
from heedful.train.objectives import LossModule, Objective, counts, distil
from tests.train import toys


def gradients(model: Model, purpose: Objective, batch: Batch, parts: list[Batch]) -> dict[str, Tensor]:
    model.zero_grad()
    divide: Any = {per: torch.tensor(float(n)) for per, n in counts(batch).items()}
    trained = LossModule(model, purpose)
    for part in parts:
        trained(part, divide)[0].backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


CASES = ["next_token", "masked", "masked_and_next", "translate", "classify", "tag", "span", "distil"]
LINES = dict(packed=False, unit="line")


def ragged(name: str, files: dict[str, Path], model: Model | None = None) -> Batch:
    """Seven rows of different lengths, taken from everywhere: buckets would put like lengths together."""
    if name == "next_token":
        whole = data.next_token(files["text"], toys.LETTERS, length=40, batch=36, **LINES)[0]
    elif name in ("masked", "distil"):
        whole = data.masked(files["text"], toys.WORDS, length=16, batch=36, **LINES)[0]
    else:
        whole = toys.batches_of(name, files, batch=36, model=model)[0]
    batch = whole.rows(torch.arange(7) * len(whole) // 7)
    assert batch.valid is not None
    assert len(batch.valid.sum(1).unique()) > 2
    return batch


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_parts_of_a_ragged_batch_have_the_gradient_of_the_whole(
    name: str, parts: int, files: dict[str, Path]
) -> None:
    model = toys.model_of(name, **toys.still(name)).double()
    batch = ragged(name, files, model)
    purpose = distil(toys.tiny("bert", head="mlm").double()) if name == "distil" else toys.purpose_of(name)
    whole = gradients(model, purpose, batch, [batch])
    # Each part is cut to its own longest row, so that it is padded otherwise than the whole was.
    split = gradients(model, purpose, batch, [part.trim() for part in batch.split(parts)])
    assert whole.keys() == split.keys()
    for n in whole:
        torch.testing.assert_close(split[n], whole[n], rtol=1e-6, atol=1e-9, msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.parametrize("name", ["next_token", "masked_and_next"])
def test_fit_takes_the_same_step_and_shows_the_same_numbers_in_parts(
    name: str, files: dict[str, Path]
) -> None:
    """A part that is divided once more (by the number of parts) would change loss, terms, norm and step."""
    runs = []
    for parts in (1, 3):
        model = toys.model_of(name, **toys.still(name)).double()
        # With eps far above the gradient a step of AdamW is as long as the gradient, not of one length.
        config = TrainConfig(steps=1, lr=1.0, eps=1e3, weight_decay=0.0, clip=None, accumulate=parts)
        (step,) = fit(model, toys.purpose_of(name), [ragged(name, files, model)], config)
        runs.append((step, torch.cat([p.detach().flatten() for p in model.parameters()])))
    (whole, after_whole), (split, after_split) = runs
    start = torch.cat([p.flatten() for p in toys.model_of(name, **toys.still(name)).double().parameters()])
    assert split.loss == pytest.approx(whole.loss, rel=1e-6)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
    assert split.terms == pytest.approx(whole.terms, rel=1e-6)
    torch.testing.assert_close(after_split - start, after_whole - start, rtol=1e-4, atol=1e-12)


def test_a_mean_of_means_would_not_do(files: dict[str, Path]) -> None:
    """The mistake that this guards against: dividing every part by its own count."""
    model = toys.tiny("gpt2").double()
    batch = ragged("next_token", files)
    purpose = toys.purpose_of("next_token")
    whole = gradients(model, purpose, batch, [batch])
    model.zero_grad()
    for part in batch.split(3):
        divide: Any = {per: torch.tensor(float(n)) for per, n in counts(part).items()}
        (LossModule(model, purpose)(part, divide)[0] / 3).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert max(float((grad - whole[n]).abs().max()) for n, grad in grads.items()) > 1e-4


def test_the_end_stays_a_label_where_padding_is_the_same_token(files: dict[str, Path]) -> None:
    batch = ragged("next_token", files)
    assert toys.LETTERS.pad == toys.LETTERS.eos
    assert batch.labels is not None
    assert batch.valid is not None
    last = batch.valid.sum(1) - 1
    assert (batch.labels[torch.arange(7), last] == toys.LETTERS.eos).all()
    assert ((batch.labels == IGNORE) == ~batch.valid).all()
    model = toys.tiny("gpt2")
    model.eval()
    terms = toys.purpose_of("next_token")(model, batch)
    logits = model(batch.tokens, valid=batch.valid).log_softmax(-1)
    by_hand = -sum(logits[b, t, batch.labels[b, t]] for b in range(7) for t in range(int(last[b]) + 1))
    torch.testing.assert_close(terms["next_token"].total, by_hand, rtol=1e-5, atol=1e-4)
