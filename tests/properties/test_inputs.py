"""Shapes, padding, packing, permutation: what a model makes of its input."""

from __future__ import annotations

import pytest
import torch

from heedful.models.base import LM, Seq2Seq
from tests.properties.tiny import ALL, DECODERS, SEQ2SEQS, hidden, ids, run, source_ids, tiny


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_shapes_are_batch_time_and_vocabulary(family: str) -> None:
    model = tiny(family)
    logits = run(model, ids(model, 2, 7))
    assert logits.shape[:2] == (2, 7)
    if model.config.head in ("lm", "mlm", "pretrain"):
        assert logits.shape == (2, 7, model.config.vocab)
    assert hidden(model, source_ids(model, 2, 7)).shape[:2] == (2, 7)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(family: str, side: str) -> None:
    model = tiny(family)
    tokens, pad = source_ids(model, 1, 8), torch.full((1, 3), 9)
    long = source_ids(model, 1, 11, seed=4)
    row = torch.cat((pad, tokens) if side == "left" else (tokens, pad), 1)
    inside = slice(3, 11) if side == "left" else slice(0, 8)
    valid = torch.ones(2, 11, dtype=torch.bool)
    valid[0] = False
    valid[0, inside] = True
    got = hidden(model, torch.cat((row, long)), valid=valid)
    assert (got[0, inside] - hidden(model, tokens)[0]).abs().max() <= 1e-5
    assert (got[1] - hidden(model, long)[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("family", SEQ2SEQS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_of_source_and_target_changes_no_logits(family: str, side: str) -> None:
    model = tiny(family)
    source, target = source_ids(model, 1, 6), ids(model, 1, 5)
    pad = torch.full((1, 2), 9)
    join = lambda x: torch.cat((pad, x) if side == "left" else (x, pad), 1)
    mark = lambda x: join(torch.ones_like(x)) == 1
    valid, target_valid = mark(source), mark(target)
    got = model(join(source), join(target), valid=valid, target_valid=target_valid)
    got = got[:, 2:] if side == "left" else got[:, :5]
    assert (got - model(source, target)).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_row_of_nothing_but_padding_is_finite_and_disturbs_nobody(family: str) -> None:
    model = tiny(family)
    tokens = source_ids(model, 2, 6)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0] = False
    got = hidden(model, tokens, valid=valid)
    assert torch.isfinite(got).all()
    assert (got[1] - hidden(model, tokens[1:])[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("family", [f for f in ALL if f not in SEQ2SEQS])
@torch.no_grad()
def test_packed_documents_are_read_as_if_alone(family: str) -> None:
    model = tiny(family)
    assert isinstance(model, LM)
    parts = [ids(model, 1, n, seed=n) for n in (5, 3, 4)]
    documents = torch.tensor([[0] * 5 + [1] * 3 + [2] * 4])
    packed = model.encode(torch.cat(parts, 1), documents=documents)
    alone = torch.cat([model.encode(p) for p in parts], 1)
    assert (packed - alone).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_batch_is_its_rows(family: str) -> None:
    model = tiny(family)
    tokens = source_ids(model, 3, 6)
    together = hidden(model, tokens)
    assert (together - torch.cat([hidden(model, row[None]) for row in tokens])).abs().max() <= 1e-5


@pytest.mark.parametrize("family", DECODERS)
def test_generating_needs_no_gradient_and_training_does(family: str) -> None:
    model = tiny(family)
    assert not model.start(ids(model, 1, 4)).logits.requires_grad
    assert run(model, ids(model, 1, 4)).requires_grad


def test_an_encoder_decoder_is_one_of_the_kinds() -> None:
    assert all(isinstance(tiny(f), Seq2Seq) for f in SEQ2SEQS)
