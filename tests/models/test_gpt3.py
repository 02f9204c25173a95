"""GPT-3's banded layers against a dense mask, and its dense layers against GPT-2."""

from __future__ import annotations

import torch

import heedful
from heedful import Watch
from heedful.models.base import Model

SIZES = {"vocab": 60, "dim": 32, "layers": 4, "heads": 4, "context": 32}


def models() -> tuple[Model, Model]:
    """A banded model and a dense one with the same weights."""
    banded = heedful.build("gpt3", window=5, seed=0, **SIZES).eval()
    dense = heedful.build("gpt2", **SIZES).eval()
    dense.load_state_dict(banded.state_dict())
    return banded, dense


TOKENS = torch.randint(0, 60, (2, 20), generator=torch.Generator().manual_seed(0))
FAR = torch.arange(20)[:, None] - torch.arange(20) >= 5


@torch.no_grad()
def test_every_other_layer_is_the_dense_one_under_a_band() -> None:
    banded, dense = models()

    def keep_the_band(scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(FAR, -torch.inf)

    edit = {f"blocks.{i}.attn.scores": keep_the_band for i in (1, 3)}
    assert (banded(TOKENS) - dense(TOKENS, watch=Watch(edit=edit))).abs().max() <= 1e-6
    assert (banded(TOKENS) - dense(TOKENS)).abs().max() > 1e-4


@torch.no_grad()
def test_banded_layers_see_their_window_and_dense_ones_everything() -> None:
    banded, _ = models()
    watch = Watch("blocks.*.attn.pattern")
    banded(TOKENS, watch=watch)
    for layer in range(4):
        far = watch[f"blocks.{layer}.attn.pattern"][:, :, FAR]
        assert (far.abs().max() == 0) if layer % 2 else (far.abs().max() > 0)


@torch.no_grad()
def test_a_window_as_long_as_the_text_is_no_window() -> None:
    banded = heedful.build("gpt3", window=32, seed=0, **SIZES).eval()
    dense = heedful.build("gpt2", **SIZES).eval()
    dense.load_state_dict(banded.state_dict())
    assert (banded(TOKENS) - dense(TOKENS)).abs().max() <= 1e-6
