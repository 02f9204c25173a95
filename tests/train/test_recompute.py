"""Layers that keep only their input and compute the rest again going back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.adapt import recompute
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from tests.train import toys

Files = dict[str, Path]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_recomputed_layers_give_the_same_gradients(name: str, files: Files) -> None:
    purpose = FAMILIES[name].objective
    found = []
    for again in (False, True):
        model = toys.tiny(name)
        names = [n for n, _ in model.named_parameters()]
        if again:
            assert recompute(model) >= 1
        torch.manual_seed(3)  # dropout must be the same the second time
        batch = toys.batches_of(purpose, files, batch=4, model=model)[0]
        sum(term.total for term in toys.purpose_of(purpose)(model, batch).values()).backward()
        assert [n for n, _ in model.named_parameters()] == names
        found.append({n: p.grad for n, p in model.named_parameters()})
    for n, gradient in found[0].items():
        torch.testing.assert_close(found[1][n], gradient, rtol=1e-5, atol=1e-6)


def test_recomputed_layers_keep_less(files: Files) -> None:
    def kept(model: Model) -> int:
        sizes: list[int] = []
        pack = lambda t: (sizes.append(t.numel()), t)[1]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(torch.ones(2, 32, dtype=torch.long)).sum()
        return sum(sizes)

    plain, again = toys.tiny("gpt2", layers=4), toys.tiny("gpt2", layers=4)
    recompute(again)
    assert kept(again) < 0.3 * kept(plain)


def test_recomputed_layers_are_traced_in_one_piece() -> None:
    torch._dynamo.reset()  # a rotary base that it saw with several values becomes a symbol, which breaks it
    model, tokens = toys.tiny("llama"), torch.arange(8)[None] + 5
    wanted = model(tokens)
    recompute(model)
    traced = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(tokens), wanted, rtol=1e-5, atol=1e-5)


def test_fit_recomputes_when_asked(files: Files) -> None:
    seen = []
    for again in (False, True):
        config = TrainConfig(steps=3, checkpointing=again)
        seen.append(
            [
                s.loss
                for s in fit(toys.tiny("gpt2"), "next_token", toys.batches_of("next_token", files), config)
            ]
        )
    assert seen[0] == pytest.approx(seen[1], rel=1e-5)
