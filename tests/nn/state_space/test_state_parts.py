"""What every part that carries a state promises: state spaces, linear attention, the delta rule."""

from __future__ import annotations

import pytest
import torch

from heedful.nn.context import Context, Mask, Watch
from heedful.nn.state_space.scan import BLOCK
from tests.nn.state_space.state_parts import PARTS, context, make

LENGTH = max(2 * BLOCK + 5, 70)
every_part = pytest.mark.parametrize("kind", PARTS)
parts_with_a_pattern = pytest.mark.parametrize("kind", [kind for kind in PARTS if kind != "conv"])


@every_part
@torch.no_grad()
def test_parallel_reference_and_recurrent_forms_agree(kind: str) -> None:
    part, x = make(kind), torch.randn(2, LENGTH, 16)
    whole = part(x, context(LENGTH))
    assert (whole - part(x, context(LENGTH, backend="reference"))).abs().max() <= 1e-5
    state, past, pieces = part.new_state(2, 0), 0, []
    for piece in x.split([20, 7, 1, 1, 3, *[1] * (LENGTH - 32)], 1):
        pieces.append(part(piece, context(piece.shape[1], past), state))
        past += piece.shape[1]
    assert (whole - torch.cat(pieces, 1)).abs().max() <= 1e-5


@every_part
@torch.no_grad()
def test_a_state_has_the_same_size_however_much_it_has_read(kind: str) -> None:
    part, sizes = make(kind), []
    for length in (3, 50):
        state = part.new_state(1, length)
        part(torch.randn(1, length, 16), context(length), state)
        sizes.append({name: tensor.shape for name, tensor in state.tensors.items()})
    assert sizes[0] == sizes[1]


@every_part
@torch.no_grad()
def test_padding_anywhere_is_skipped_and_leaves_the_state_alone(kind: str) -> None:
    part, x, more = make(kind), torch.randn(1, 9, 16), torch.randn(1, 4, 16)
    one, other = part.new_state(1, 0), part.new_state(1, 0)
    past = 0
    for tokens, mark in ((x, [0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0]), (more, [0, 1, 0, 1, 1, 0, 1])):
        valid = torch.tensor([mark]).bool()
        padded = torch.full((1, len(mark), 16), 7.0)
        padded[valid] = tokens[0]
        pos = (past + valid.int().cumsum(1) - 1).clamp(min=0)
        here = Context(pos, pos, Mask(causal=True, valid=valid), valid_new=valid)
        expected, got = part(tokens, context(tokens.shape[1], past), one), part(padded, here, other)
        assert (got[valid] - expected[0]).abs().max() <= 1e-5
        for name, tensor in one.tensors.items():
            assert (other[name] - tensor).abs().max() <= 1e-5, name
        past += tokens.shape[1]


@every_part
@torch.no_grad()
def test_documents_are_read_alone_also_where_padding_stands_between(kind: str) -> None:
    part, x = make(kind), torch.randn(1, 12, 16)
    fresh = torch.zeros(1, 12, dtype=torch.bool)
    fresh[0, [0, 5]] = True
    valid = torch.ones(1, 12, dtype=torch.bool)
    valid[0, [4, 5, 8]] = False  # the second document begins with padding
    got = part(x, context(12, fresh=fresh, valid_new=valid))
    alone = [part(x[:, i], context(len(i))) for i in ([0, 1, 2, 3], [6, 7, 9, 10, 11])]
    assert (got[:, valid[0]] - torch.cat(alone, 1)).abs().max() <= 1e-5


@parts_with_a_pattern
@torch.no_grad()
def test_the_pattern_weighs_values_into_heads_also_with_padding_and_documents(kind: str) -> None:
    part, x, watch = make(kind), torch.randn(2, 12, 16), Watch("*")
    fresh, valid = torch.zeros(2, 12, dtype=torch.bool), torch.ones(2, 12, dtype=torch.bool)
    fresh[:, [0, 7]], valid[0, :3], valid[1, 9:] = True, False, False
    part(x, context(12, fresh=fresh, valid_new=valid, watch=watch, path="part"))
    pattern, v, heads = (watch[f"part.{name}"] for name in ("pattern", "v", "heads"))
    assert pattern.shape == (2, v.shape[1], 12, 12)
    assert ((pattern @ v - heads).abs().amax((1, 3))[valid]).max() <= 1e-5
    assert pattern[:, :, 7:, :7].abs().max() == 0
    assert pattern[0, :, 3:, :3].abs().max() == 0


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "linear", "gla", "taylor", "delta"])
@torch.no_grad()
def test_half_precision_keeps_its_memory_in_float32(kind: str) -> None:
    part = make(kind).to(torch.bfloat16)
    state = part.new_state(1, 0)
    out = part(torch.randn(1, 9, 16, dtype=torch.bfloat16), context(9), state)
    assert out.dtype == torch.bfloat16
    assert state["h" if kind.startswith("mamba") else "S"].dtype == torch.float32
