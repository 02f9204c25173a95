"""The encoders without attention that stand beside BERT."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError


@pytest.mark.parametrize("family", ["bilstm", "cnn"])
@pytest.mark.parametrize(("head", "shape"), [("mlm", (2, 9, 50)), ("classify", (2, 3)), ("tag", (2, 9, 3))])
@torch.no_grad()
def test_every_head_gives_its_shape_and_sees_no_padding(
    family: str, head: str, shape: tuple[int, ...]
) -> None:
    model = heedful.build(family, seed=0, vocab=50, dim=16, layers=2, head=head, labels=3).eval()
    tokens, valid = torch.randint(0, 50, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    valid[1, 6:] = False
    logits = model(tokens, valid=valid)
    assert logits.shape == shape
    alone = model(tokens[1:, :6])[0]
    assert (logits[1][: len(alone)] - alone).abs().max() <= 1e-6


@pytest.mark.parametrize(("family", "near", "distant"), [("bilstm", True, True), ("cnn", True, False)])
@torch.no_grad()
def test_how_far_a_word_is_seen(family: str, near: bool, distant: bool) -> None:
    model = heedful.build(family, seed=0, vocab=50, dim=16, layers=1).eval()
    tokens = torch.randint(0, 49, (1, 9))
    before = model.encode(tokens)
    tokens[0, 5] = 49
    moved = (model.encode(tokens) - before).abs().amax(-1)[0] > 0
    assert bool(moved[4]) is near
    assert bool(moved[6]) is near
    assert bool(moved[0]) is distant


def test_an_odd_size_has_no_half() -> None:
    with pytest.raises(ConfigError, match="dim=15"):
        heedful.build("bilstm", dim=15)
