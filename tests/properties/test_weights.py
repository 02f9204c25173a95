"""Saving, loading, training: the weights of every family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from heedful.core.errors import MissingTensor
from heedful.models import FAMILIES
from heedful.models.base import Seq2Seq
from tests.properties.tiny import ALL, TRANSFORMERS, by_kinds, ids, loss, run, source_ids, tiny


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_save_then_load_is_the_same_model(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    heedful.save(model, tmp_path)
    again = heedful.load(tmp_path)
    assert again.config == model.config
    assert again.family is FAMILIES[family]
    tokens = ids(model, 2, 7)
    assert torch.equal(run(again, tokens), run(model, tokens))


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_model_kept_by_torch_save_comes_back(family: str, tmp_path: Path) -> None:
    """So whatever a model or its family holds has a name in a module: a lambda cannot be kept."""
    model = tiny(family)
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    tokens = ids(model, 2, 7)
    assert torch.equal(run(again, tokens), run(model, tokens))


@pytest.mark.parametrize("family", ALL)
def test_a_missing_tensor_is_an_error_that_names_it(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    heedful.save(tiny(family), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    lost = sorted(tensors)[len(tensors) // 2]
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(MissingTensor, match=lost.replace(".", r"\.")):
        heedful.load(tmp_path)


@pytest.mark.parametrize("family", by_kinds(ALL))
def test_one_batch_can_be_overfitted(family: str) -> None:
    model = (
        tiny(family, std=0.05, dropout=0.0)
        if "dropout" in FAMILIES[family].config.field_names()
        else tiny(family, std=0.05)
    )
    model.train()
    tokens = ids(model, 2, 8)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = loss(model, tokens).item()
    for _ in range(60):
        optimiser.zero_grad()
        value = loss(model, tokens)
        if value.item() < 0.15 * first:
            return
        value.backward()
        optimiser.step()
    pytest.fail(f"the loss went from {first} to {value.item()} only")


# The value with which a family reads matrices that its tiny config leaves unread.
ALL_READ: dict[str, dict[str, int]] = {"longformer": {"first": 1}, "led": {"first": 1}}
# Weights that only other passes read: with sentences, or in a drawn order (tests/models/test_permuted.py).
OTHER_PASSES = {"xlnet": ("unknown", "sentence_bias", "sentences")}


@pytest.mark.parametrize("family", ALL)
def test_every_weight_gets_a_gradient(family: str) -> None:
    model = tiny(family, **ALL_READ.get(family, {}))
    loss(model, ids(model, 2, 8)).backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None and not n.startswith("head.")]
    assert not [name for name in silent if not name.endswith(OTHER_PASSES.get(family, ()))]


# Parts that could stop the compiler: attention, windows with experts, a scan, two stacks.
TRACED = ("bert", "gpt-oss", "mamba2", "t5")


@pytest.mark.parametrize(
    "family", [f if f in TRACED else pytest.param(f, marks=pytest.mark.slow) for f in TRANSFORMERS]
)
def test_the_compiler_traces_the_whole_model(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, 7)
    inputs = (source_ids(model, 2, 6), tokens) if isinstance(model, Seq2Seq) else (tokens,)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert (compiled(*inputs) - model(*inputs)).abs().max() <= 1e-5
