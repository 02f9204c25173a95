"""Writing on a GPU gives the tokens that the CPU gives.

    pytest tests/train/test_gpu.py tests/decode/engines/test_gpu.py

HEED_TEST_DEVICE=cpu rehearses on the CPU what does not need the device.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import heedful
from heedful.decode.stepper import EagerStepper
from heedful.models.base import Model, Seq2Seq
from tests.properties.tiny import ids, tiny

DEVICE = os.environ.get("HEED_TEST_DEVICE", "cuda")

# Libraries of the device warn of what they like; only results count here.
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore"),
]

FAMILIES = (
    *("gpt2", "llama", "mistral", "bloom", "lstm", "rnn", "mamba", "mamba2", "s4", "olmo-hybrid"),
    *("deepseek-v2", "t5", "luong"),
)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"beams": 3},
    "penalty": {"repetition": 1.3, "no_repeat": 3},
}


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """cuDNN's recurrent layers round factors to TF32 unless told not to."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def both(family: str) -> tuple[Model, Model]:
    model = tiny(family)
    return model, copy.deepcopy(model).to(DEVICE)


def prompts(model: Model) -> list[list[int]]:
    """Of different lengths, so that rows are padded."""
    rows: list[list[int]] = (ids(model, 3, 9) % 90).tolist()
    return [rows[0], rows[1][:5], rows[2][:7]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_are_those_of_the_cpu(family: str, way: str) -> None:
    here, there = both(family)
    given = prompts(here)
    settings = {"max_tokens": 12, "eos": [], **WAYS[way]}
    assert heedful.generate(there, given, **settings) == heedful.generate(here, given, **settings)


@pytest.mark.parametrize("family", ["gpt2", "llama", "lstm", "mamba"])
def test_one_row_on_the_quick_path_gives_the_plain_tokens(family: str) -> None:
    here, there = both(family)
    prompt = prompts(here)[0]
    quick = heedful.generate(there, prompt, max_tokens=20, eos=[])
    assert quick == heedful.generate(EagerStepper(there), prompt, max_tokens=20, eos=[])
    assert quick == heedful.generate(here, prompt, max_tokens=20, eos=[])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_cpu(family: str) -> None:
    here, there = both(family)
    tokens = ids(here, 2, 9) % 90  # a source may have fewer words than a target
    more = (tokens[:, :5],) if isinstance(here, Seq2Seq) else ()
    with torch.no_grad():
        wanted = here(tokens, *more)
        got = there(tokens.to(DEVICE), *(t.to(DEVICE) for t in more)).cpu()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_drawing_twice_with_one_seed_gives_one_text() -> None:
    _, there = both("llama")
    draw = lambda: heedful.generate(
        there, prompts(there), temperature=1.0, top_p=0.9, seed=3, max_tokens=12, eos=[]
    )
    assert draw() == draw()
