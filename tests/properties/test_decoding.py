"""What must hold while a model writes: steps equal one pass, the future stays unseen."""

from __future__ import annotations

import pytest
import torch

from heedful.models.base import Seq2Seq
from tests.properties.tiny import DECODERS, GENERATORS, SEQ2SEQS, ids, run, source_ids, tiny

LENGTH = 12


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_cached_steps_equal_one_pass(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, LENGTH)
    whole = run(model, tokens)
    if isinstance(model, Seq2Seq):
        tokens[:, 0] = model.start_token
        whole = run(model, tokens)
        state = model.start(source_ids(model, 2, 6), length=LENGTH)
        first = 1
    else:
        state = model.start(tokens[:, :5], length=LENGTH)
        first = 5
    assert state.logits is not None
    assert (state.logits - whole[:, first - 1]).abs().max() <= 1e-4
    for t in range(first, LENGTH):
        step = model.step(tokens[:, t : t + 1], state)[:, -1]
        assert (step - whole[:, t]).abs().max() <= 1e-4, t


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_a_prompt_read_in_chunks_equals_one_read_at_once(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, LENGTH)
    state = model.start(tokens, chunk=5)
    assert (state.logits - run(model, tokens)[:, -1]).abs().max() <= 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_ragged_prompts_continue_as_each_alone(family: str, side: str) -> None:
    model = tiny(family)
    long, short, more = ids(model, 1, 7), ids(model, 1, 4, seed=5), ids(model, 2, 3, seed=6)
    pad = torch.full((1, 3), 9)
    row = torch.cat((pad, short) if side == "left" else (short, pad), 1)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, :3] = side != "left"
    valid[1, 4:] = side == "left" if side == "right" else True
    state = model.start(torch.cat((long, row)), valid=valid)
    alone = [model.start(long), model.start(short)]
    for r, single in enumerate(alone):
        assert (state.logits[r] - single.logits[0]).abs().max() <= 1e-4
    for t in range(3):
        step = model.step(more[:, t : t + 1], state)
        for r, single in enumerate(alone):
            assert (step[r] - model.step(more[r : r + 1, t : t + 1], single)[0]).abs().max() <= 1e-4, (r, t)


@pytest.mark.parametrize("family", SEQ2SEQS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_ragged_sources_are_translated_as_each_alone(family: str, side: str) -> None:
    model = tiny(family)
    long, short, more = source_ids(model, 1, 7), source_ids(model, 1, 4, seed=5), ids(model, 2, 3, seed=6)
    pad = torch.full((1, 3), 9)
    row = torch.cat((pad, short) if side == "left" else (short, pad), 1)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1] = torch.arange(7) >= 3 if side == "left" else torch.arange(7) < 4
    state = model.start(torch.cat((long, row)), valid=valid)
    alone = [model.start(long), model.start(short)]
    for t in range(3):
        step = model.step(more[:, t : t + 1], state)
        for r, single in enumerate(alone):
            assert (step[r] - model.step(more[r : r + 1, t : t + 1], single)[0]).abs().max() <= 1e-4, (r, t)


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_reordered_states_continue_the_chosen_rows(family: str) -> None:
    model = tiny(family)
    prompt, more = (
        source_ids(model, 3, 5) if isinstance(model, Seq2Seq) else ids(model, 3, 5),
        ids(model, 3, 2),
    )
    state, order = model.start(prompt), torch.tensor([2, 0, 0])
    model.step(more[:, :1], state)
    state.reorder(order)
    got = model.step(more[:, 1:], state)
    expected = model.start(prompt[order])
    model.step(more[order, :1], expected)
    assert (got - model.step(more[:, 1:], expected)).abs().max() <= 1e-5


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_changing_the_future_does_not_change_the_past(family: str) -> None:
    model = tiny(family)
    before = ids(model, 2, LENGTH)
    after = before.clone()
    after[:, 7:] = ids(model, 2, LENGTH - 7, seed=9)
    a, b = run(model, before), run(model, after)
    assert (a[:, 7:] != b[:, 7:]).any()
    # A convolution by FFT mixes all positions in its rounding; every other form is exact.
    limit = 1e-5 if any("FFT" in (type(m).__doc__ or "") for m in model.modules()) else 0.0
    assert (a[:, :7] - b[:, :7]).abs().max() <= limit
