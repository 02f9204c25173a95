"""A window's state holds the window, however long the text, and says what one that holds all says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.models.base import LM, State
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.context import Context, Mask, PartState, Watch
from heedful.nn.norm import LayerNorm
from heedful.nn.position import ALiBi, NTKScaling, Rotary
from heedful.nn.state import KV, SlidingKV, StateGroup
from tests.properties.tiny import ids, tiny
from tests.refusal import refused

FAMILIES = ["mistral", "gpt3", "based"]
LENGTH = 48  # eight to twelve windows


def lm(family: str) -> LM:
    model = tiny(family)
    assert isinstance(model, LM)
    return model


def rolling(state: PartState | None) -> list[SlidingKV]:
    if isinstance(state, StateGroup):
        return [found for part in state.parts.values() for found in rolling(part)]
    return [state] if isinstance(state, SlidingKV) else []


def growing(state: PartState | None) -> PartState | None:
    """The same, with states that hold all keys and values."""
    if isinstance(state, StateGroup):
        return StateGroup({name: growing(part) for name, part in state.parts.items()})
    return KV() if isinstance(state, SlidingKV) else state


def both(model: LM, rows: int) -> tuple[State, State]:
    state, whole = model.new_state(rows), model.new_state(rows)
    whole.parts = growing(whole.parts)
    assert rolling(state.parts)
    assert not rolling(whole.parts)
    return state, whole


def same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 2e-5)


@pytest.mark.parametrize("pieces", [[48], [1] * 48, [20, 1, 7, 1, 1, 12, 6], [2, 30, 16]])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_window_kept_alone_gives_the_logits_of_all_keys_kept(family: str, pieces: list[int]) -> None:
    model = lm(family)
    tokens = ids(model, 2, LENGTH)
    state, whole = both(model, 2)
    for piece in tokens.split(pieces, 1):
        assert same(model.step(piece, state), model.step(piece, whole))
    assert same(model.step(tokens[:, :1], state), model(torch.cat((tokens, tokens[:, :1]), 1))[:, -1:])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_memory_stays_constant_while_four_windows_are_written(family: str) -> None:
    model = lm(family)
    state = model.start(ids(model, 1, 14))
    sizes = []
    for token in ids(model, 1, 4 * 6 + 8).unbind(1):
        model.step(token[:, None], state)
        sizes.append([(kv.k.shape, kv.v.shape) for kv in rolling(state.parts) if kv.k is not None])  # type: ignore[union-attr]
    assert sizes[0] == sizes[-1]
    assert all(k[2] <= 2 * kv.window for kv, (k, _) in zip(rolling(state.parts), sizes[-1], strict=True))


def test_no_more_is_allocated_than_the_text_needs() -> None:
    model = lm("mistral")
    assert [kv.k.shape[2] for kv in rolling(model.start(ids(model, 1, 3), length=5).parts)] == [5, 5]  # type: ignore[union-attr]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_anywhere_takes_no_slot(family: str) -> None:
    model = lm(family)
    tokens, known = ids(model, 3, LENGTH), torch.ones(3, LENGTH, dtype=torch.bool)
    known[0, :11], known[1, 9:22] = False, False  # on the left; on the right of a first piece
    known[2, ::3] = False
    state, whole = both(model, 3)
    for piece, valid in zip(
        tokens.split([20, 3, 1, 14, 10], 1), known.split([20, 3, 1, 14, 10], 1), strict=True
    ):
        one, other = model.step(piece, state, valid=valid), model.step(piece, whole, valid=valid)
        assert same(one[valid], other[valid])
    for row in range(3):
        alone = model(tokens[row : row + 1, known[row]])
        assert same(one[row, -1], alone[0, -1])


@torch.no_grad()
def test_rows_are_reordered_after_the_window_has_rolled() -> None:
    model = lm("mistral")
    tokens, order = ids(model, 3, 30), torch.tensor([2, 0, 0, 1])
    state, whole = both(model, 3)
    for s in (state, whole):
        model.step(tokens, s)
        s.reorder(order)
    for token in ids(model, 4, 9, seed=4).split(1, 1):
        assert same(model.step(token, state), model.step(token, whole))


@pytest.mark.parametrize("read", [5, 9, 13, 30])
@torch.no_grad()
def test_tokens_taken_back_leave_no_trace(read: int) -> None:
    model = lm("mistral")
    tokens, guesses = ids(model, 2, LENGTH), ids(model, 2, 6, seed=7)
    state, whole = both(model, 2)
    model.step(tokens[:, :read], state)
    model.step(tokens[:, :read], whole)
    for count in (6, 4, 1, 5):
        model.step(guesses[:, :count], state)
        state.crop(read)
        assert same(
            model.step(tokens[:, read : read + 2], state), model.step(tokens[:, read : read + 2], whole)
        )
        read += 2
    assert same(model.step(tokens[:, read : read + 9], state), model.step(tokens[:, read : read + 9], whole))


@torch.no_grad()
def test_going_back_behind_what_was_overwritten_is_an_error_and_before_that_none() -> None:
    model = lm("mistral")
    state = model.start(ids(model, 1, 12))
    state.crop(2)  # twelve fit: nothing was overwritten
    model.step(ids(model, 1, 20), state)
    state.crop(16)
    with refused(InputError, "22 positions", 15, "at most 6"):
        state.crop(15)


@torch.no_grad()
def test_a_watched_step_shows_the_kept_keys_and_a_pattern_over_them() -> None:
    model, tokens = lm("mistral"), ids(lm("mistral"), 2, 31)
    state = model.start(tokens[:, :30])
    step, text = Watch("blocks.0.attn.*"), Watch("blocks.0.attn.*")
    model.step(tokens[:, 30:], state, watch=step)
    model(tokens, watch=text)
    pattern, slots = step["blocks.0.attn.pattern"], rolling(state.parts)[0].slots
    assert pattern.shape == (2, 4, 1, slots)
    assert step["blocks.0.attn.k"].shape[2] == slots
    at = [p % slots for p in range(25, 31)]  # position p stands in slot p mod S
    assert same(pattern[..., at], text["blocks.0.attn.pattern"][:, :, 30:, 25:])
    assert same(step["blocks.0.attn.k"][:, :, at], text["blocks.0.attn.k"][:, :, 25:])
    assert torch.allclose(pattern.sum(-1), torch.ones(2, 4, 1))


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_bias_of_the_scores_and_angles_by_length_follow_the_keys(padded: bool) -> None:
    late = Rotary(8, scaling=NTKScaling(2.0, 8))
    assert late.by_length
    attention = Attention(16, 2, window=4, rotary=late)
    stack = Stack([Block(lambda: LayerNorm(16), attn=attention)], bias=ALiBi(2)).eval()
    x, known = torch.randn(2, 24, 16), torch.ones(2, 24, dtype=torch.bool)
    known[1, 5:12] = not padded
    state, past = stack.new_state(2, 24), 0
    other = growing(state)
    for piece in x.split([14, 1, 1, 3, 5], 1):
        end = past + piece.shape[1]
        valid = known[:, :end] if padded else None
        pos = torch.arange(end)[None] if valid is None else (valid.long().cumsum(1) - 1).clamp(min=0)
        new = None if valid is None else valid[:, past:]
        ctx = Context(pos[:, past:], pos, Mask(causal=True, valid=valid), past=past, valid_new=new)
        one, two = stack(piece, ctx, state), stack(piece, ctx, other)
        assert same(one[known[:, past:end]], two[known[:, past:end]])
        past = end


@torch.no_grad()
def test_a_t5_can_crop_its_state_to_try_another_continuation() -> None:
    model = tiny("t5")
    state = model.start(torch.arange(5, 11)[None])
    first = model.step(torch.tensor([[7, 8]]), state)
    state.crop(1)
    assert (model.step(torch.tensor([[7, 8]]), state) - first).abs().max() <= 1e-6
