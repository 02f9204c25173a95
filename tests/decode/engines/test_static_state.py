"""Steps over static state give what the model's own steps give: every family that writes, padded, reordered,
and in slots that texts join and leave at different positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heedful.core.errors import InputError
from heedful.decode.engines.static_state import StaticState
from heedful.decode.engines.step_fusion import FusedOperators
from heedful.decode.engines.step_operators import Definitions
from heedful.decode.engines.step_parts import STEP_PARTS, compute_by_operators, stepping_copy
from heedful.interp.intervene.ablation import prune
from heedful.models.base import LM, Model, Seq2Seq, State
from heedful.nn.attention.multi_head import Attention
from heedful.nn.norm import RMSNorm
from heedful.nn.position import NTKScaling, Rotary
from heedful.weights.adapters import lora
from tests.properties.tiny import GENERATORS, ids, source_ids, tiny

STEPS = 5


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def writer(family: str) -> LM | Seq2Seq:
    model = tiny(family)
    assert isinstance(model, LM | Seq2Seq)
    return model


def prompts(model: Model, rows: int, length: int) -> Tensor:
    return (source_ids if isinstance(model, Seq2Seq) else ids)(model, rows, length)


def near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-4)


def same_steps(model: LM | Seq2Seq, state: State, static: StaticState, *, fused: bool = False) -> None:
    """Take the likeliest tokens; both give the same logits."""
    operators = FusedOperators(Definitions())
    assert state.logits is not None
    tokens = state.logits.argmax(-1)[:, None]
    for _ in range(STEPS):
        logits = model.step(tokens, state)
        step = lambda parts: static.step(parts, tokens)  # noqa: B023
        got = compute_by_operators(model, operators, step) if fused else step(model)
        assert near(got, logits)
        tokens = logits[:, -1:].argmax(-1)


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_static_steps_equal_the_models_own(family: str) -> None:
    model = writer(family)
    state = model.start(prompts(model, 2, 9))
    static = StaticState(state, 2, 32)
    static.write(state)
    same_steps(model, state, static)
    order = torch.tensor([1, 1])
    state.reorder(order)
    static.reorder(order)
    tokens = ids(model, 2, 2)
    again, after = static.to_state(), model.step(tokens, state)  # several at once
    assert near(model.step(tokens, again), after)
    assert again.past == state.past


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_a_steps_operators_are_what_the_parts_compute(family: str, rows: int) -> None:
    model = writer(family)
    valid = torch.arange(8) >= torch.tensor([[3], [0], [6]])[:rows]
    state = model.start(prompts(model, rows, 8), valid=valid)
    static = StaticState(state, rows, 16, memory_capacity=16)
    static.write(state)
    same_steps(model, state, static, fused=True)


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "mamba", "mamba2", "gla", "olmo-hybrid", "lstm"])
@torch.no_grad()
def test_a_steps_operators_are_what_changed_parts_compute(family: str) -> None:
    """Adapted layers, a matrix stored the other way round, and one that is no plain tensor."""
    model = writer(family)
    lora(model, rank=2)
    layers = [m for m in model.modules() if type(m) is nn.Linear]
    for number, layer in enumerate(layers):
        if number % 3 == 1:
            layer.weight.data = layer.weight.data.t().contiguous().t()
        elif number % 3 == 2:
            parametrize.register_parametrization(layer, "weight", Twice(), unsafe=True)
    state = model.start(prompts(model, 1, 8))
    static = StaticState(state, 1, 16)
    static.write(state)
    same_steps(model, state, static, fused=True)


def test_the_copy_that_is_stepped_has_the_models_tensors_and_the_steps_of_its_parts() -> None:
    model = writer("llama")
    copy = stepping_copy(model, FusedOperators(Definitions()))
    assert all(a is b for a, b in zip(model.parameters(), copy.parameters(), strict=True))
    kinds = {type(part) for part in model.modules()}
    assert {STEP_PARTS.get(kind, kind) for kind in kinds} == {type(part) for part in copy.modules()}
    assert Attention in kinds
    assert RMSNorm in kinds


@torch.no_grad()
def test_heads_that_are_left_of_a_pruned_layer_take_their_slopes_along() -> None:
    model = prune(tiny("bloom"), {"blocks.0.attn": [0, 2], "blocks.1.attn": [1]})
    assert isinstance(model, LM)
    state = model.start(prompts(model, 2, 8))
    static = StaticState(state, 2, 16)
    static.write(state)
    same_steps(model, state, static, fused=True)


@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_heads_that_share_how_they_read_step_as_channels_do(rows: int) -> None:
    """A state space with one decay for a head takes the operator of one with a decay for each channel."""
    model = tiny("mamba2", groups=1)
    assert isinstance(model, LM)
    state = model.start(prompts(model, rows, 8))
    static = StaticState(state, rows, 16)
    static.write(state)
    same_steps(model, state, static, fused=True)


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_padding_is_left_out_of_static_rows(family: str) -> None:
    model = writer(family)
    valid = torch.arange(8) >= torch.tensor([[3], [0], [6]])
    state = model.start(prompts(model, 3, 8), valid=valid)
    static = StaticState(state, 3, 16, memory_capacity=16)
    static.write(state)
    if isinstance(model, LM):
        assert static.past.tolist() == [5, 8, 2]
    same_steps(model, state, static)


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_texts_join_and_leave_slots_at_different_positions(family: str) -> None:
    model = writer(family)
    first, second, third = (model.start(prompts(model, 1, n)) for n in (7, 4, 9))
    slots = StaticState(first, 2, 32, memory_capacity=16)
    slots.write_row(1, first)
    tokens = ids(model, 2, 1)
    want = model.step(tokens[1:], first)
    assert near(slots.step(model, tokens)[1:], want)
    slots.write_row(0, second)
    for _ in range(3):
        got = slots.step(model, tokens)
        assert near(got, torch.cat((model.step(tokens[:1], second), model.step(tokens[1:], first))))
        tokens = got.argmax(-1)
    slots.release(1)
    slots.write_row(1, third)
    for _ in range(3):
        got = slots.step(model, tokens)
        assert near(got, torch.cat((model.step(tokens[:1], second), model.step(tokens[1:], third))))


@pytest.mark.parametrize("family", ["llama", "deepseek-v3", "bloom"])
@torch.no_grad()
def test_several_tokens_of_static_rows_see_what_stands_before_them(family: str) -> None:
    model = writer(family)
    valid = torch.arange(6) >= torch.tensor([[0], [2]])
    state = model.start(ids(model, 2, 6), valid=valid)
    static = StaticState(state, 2, 16)
    static.write(state)
    tokens = ids(model, 2, 3)
    assert near(static.step(model, tokens), model.step(tokens, state))
    assert static.past.tolist() == [9, 7]


@torch.no_grad()
def test_windows_roll_in_static_state_longer_than_the_window() -> None:
    model = writer("mistral")
    state = model.start(ids(model, 2, 30))
    static = StaticState(state, 2, 64)
    static.write(state)
    same_steps(model, state, static)


@torch.no_grad()
def test_angles_that_follow_the_length_follow_each_rows_own() -> None:
    model = writer("llama")
    for part in model.modules():
        if isinstance(part, Rotary):
            part.scaling = NTKScaling(2.0, context=4)
    alone = [model.start(ids(model, 1, n)) for n in (9, 5)]
    static = StaticState(alone[0], 2, 16)
    for slot, state in enumerate(alone):
        static.write_row(slot, state)
    tokens = ids(model, 2, 1)
    want = [model.step(tokens[i : i + 1], state) for i, state in enumerate(alone)]
    assert near(static.step(model, tokens), torch.cat(want))


@torch.no_grad()
def test_a_state_that_does_not_fit_is_said() -> None:
    model = writer("gpt2")
    state = model.start(ids(model, 1, 9))
    with pytest.raises(InputError, match="9 positions do not fit into 8"):
        StaticState(state, 1, 8).write(state)
