"""Models that no memory holds: refused before anything is allocated, with what to do instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import OutOfMemory, is_out_of_memory
from heedful.models import FAMILIES, find_config
from heedful.models.counting import available_bytes
from heedful.train.recipes.recipes import resolve_settings
from tests.tasks.finetune.conftest import Heed


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a gigabyte free."""
    monkeypatch.setattr("heedful.models.counting.available_bytes", lambda device: 10**9)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_trained_in_its_smallest_size(name: str) -> None:
    """Also one whose name is that of a published size: gpt3, deepseek-v2, deepseek-v3."""
    recipe = resolve_settings(name).recipe
    if recipe.what != f"{name} in its smallest size":
        return  # a recipe of that name
    tiny = FAMILIES[name].tiny
    sizes = {n: tuple(v) if isinstance(v, list) else v for n, v in recipe.model.items()}
    made = find_config(recipe.family)[1].change(**sizes, vocab=tiny.vocab)
    differing = {n for n in tiny.field_names() if getattr(made, n) != getattr(tiny, n)}
    assert differing <= {"source_vocab", "labels"}


@pytest.mark.parametrize("name", ["gpt3", "deepseek-v2", "deepseek-v3"])
def test_the_name_of_a_family_and_of_a_published_size_means_the_family(name: str) -> None:
    assert resolve_settings(name).recipe.model["layers"] < 10


def test_a_model_too_large_to_build_is_refused_before_it_is_made(
    little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr("heedful.weights.loading.initialise", made.append)
    with pytest.raises(OutOfMemory, match=r"'gpt2-xl' has 1,557,611,200 parameters.* 6\.23 GB, .* 1 GB free"):
        heedful.build("gpt2-xl")
    assert made == []
    assert heedful.build("gpt2-xl", device="meta").config.layers == 48  # the shapes alone take nothing
    assert heedful.build("gpt2-xl", layers=1, dim=16, heads=2, vocab=99).config.layers == 1


@pytest.mark.parametrize(
    "name", ["gpt3", "llama-65b", "palm-540b", "bloom-176b", "deepseek-v2", "deepseek-v3"]
)
def test_the_smaller_model_that_is_proposed_can_be_built(name: str, little_memory: None) -> None:
    with pytest.raises(OutOfMemory) as refused:
        heedful.build(name)
    proposed = re.search(r"build\((.*?)\)", str(refused.value))
    assert proposed is not None
    _, *sizes = proposed[1].split(", ")
    heedful.build(name, vocab=64, **{n: int(v) for n, v in (size.split("=") for size in sizes)})


def test_the_estimate_is_of_the_numbers_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = heedful.build("gpt2", dim=16, layers=1, heads=2, vocab=64, context=8)
    size = 4 * sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("heedful.models.counting.available_bytes", lambda device: size)
    heedful.build("gpt2", dim=16, layers=1, heads=2, vocab=64, context=8)
    monkeypatch.setattr("heedful.models.counting.available_bytes", lambda device: size - 1)
    with pytest.raises(OutOfMemory):
        heedful.build("gpt2", dim=16, layers=1, heads=2, vocab=64, context=8)


def test_a_run_too_large_is_one_line_and_exit_4(
    little_memory: None, heed: Heed, files: dict[str, Path]
) -> None:
    code, out, err = heed("train", "gpt2-medium", files["text"], "--length", 16, "--device", "cpu")
    assert (code, out) == (4, "")
    error, hint = err.splitlines()
    assert error.startswith("error: training gpt2-medium (3")
    assert "needs " in error
    assert "free" in error
    assert "--set model.layers=" in hint
    assert "--device" in hint
    assert "heed train gpt2 " in hint  # the family's recipe is the small one


def test_torch_out_of_memory_on_a_cpu_is_exit_4(heed: Heed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.weights.loading.skeleton", lambda name: torch.empty(1 << 58))
    code, _, err = heed("show", "gpt2")
    assert code == 4
    assert err.startswith("error: out of memory")


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_what_lack_of_memory_looks_like(error: Exception, lacking: bool) -> None:
    assert is_out_of_memory(error) is lacking


def test_free_memory_is_below_all_memory() -> None:
    found = available_bytes(torch.device("cpu"))
    assert found is None or 2**20 < found < 2**50
