"""Words predicted in a drawn order, and texts read in segments, beside transformers' XLNet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.models.permuted import PermutedLM
from tests.properties.tiny import ids, tiny

LENGTH = 9


def given(seed: int = 0) -> tuple[PermutedLM, Tensor, Tensor]:
    """A tiny model, tokens and an order."""
    model = tiny("xlnet")
    assert isinstance(model, PermutedLM)
    order = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(seed)).argsort(1)
    return model, ids(model, 2, LENGTH), order


def test_both_streams_and_the_memory_equal_the_published_ones(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, tokens, order = given()
    heedful.save(model, tmp_path)
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    types = (torch.arange(LENGTH) > 4).long().expand(2, -1)
    hidden_from = (order[:, None] >= order[:, :, None]).float()  # 1: the row does not see the column
    with torch.no_grad():
        expected = theirs(
            tokens, perm_mask=hidden_from, token_type_ids=types,
            target_mapping=torch.eye(LENGTH).expand(2, -1, -1),
        ).logits  # fmt: skip
        got = model.head.words.out(model.in_order(tokens, order, types=types))
        # The first of the order sees nothing: there a pattern is zero, and theirs is even.
        assert (got - expected)[order > 0].abs().max() <= 1e-5
        first = theirs(tokens, use_mems=True)
        second = theirs(tokens.flip(1), mems=first.mems, use_mems=True).logits
        state = model.new_state(2)
        ours = [model.head.words.out(model.read_on(part, state)) for part in (tokens, tokens.flip(1))]
    assert (ours[0] - first.logits).abs().max() <= 1e-5
    assert (ours[1] - second).abs().max() <= 1e-5


@torch.no_grad()
def test_a_word_is_predicted_from_earlier_ones_of_the_order_alone_wherever_they_stand() -> None:
    model, tokens, order = given()
    plain = model.in_order(tokens, order)
    for t in range(LENGTH):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % model.config.vocab
        moved = (model.in_order(changed, order) - plain).abs().amax(-1) > 1e-6
        assert torch.equal(moved, order > order[:, t : t + 1])


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    model, tokens, order = given()
    pad, none = torch.full((2, 3), 7), torch.zeros(2, 3, dtype=torch.bool)
    valid = torch.cat((none, tokens >= 0), 1)
    padded = model.in_order(torch.cat((pad, tokens), 1), torch.cat((0 * pad, order), 1), valid=valid)
    assert (padded[:, 3:] - model.in_order(tokens, order)).abs().max() <= 1e-5


def test_every_weight_is_read_and_every_layer_watched() -> None:
    model, tokens, order = given()
    watch = Watch("blocks.*.attn.pattern")
    types = tokens % 2
    model.head.words.out(model.in_order(tokens, order, types=types, watch=watch)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    pattern = watch["blocks.1.attn.pattern"]
    assert pattern.shape[-2:] == (2 * LENGTH, 2 * LENGTH)
    assert pattern[..., LENGTH:].abs().max() == 0, "nobody sees a vector that stands for an unknown word"
