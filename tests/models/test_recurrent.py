"""Recurrent language models: sizes, heads, tying, and equality with the same model written in torch.nn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heedful
from heedful.core.errors import ConfigError
from heedful.models.base import LM

PEERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
TORCH = {"x.weight": "weight_ih", "h.weight": "weight_hh", "x.bias": "bias_ih", "h.bias": "bias_hh"}


def tiny(family: str, **changes: object) -> LM:
    values = {"vocab": 50, "dim": 16, "layers": 2, "dropout": 0.0} | changes
    model = heedful.build(family, seed=0, **values)
    assert isinstance(model, LM)
    return model.eval()


@pytest.mark.parametrize("family", PEERS)
@torch.no_grad()
def test_the_language_model_is_torchs_stack_between_two_tables(family: str) -> None:
    model, peer = tiny(family, table_dim=12), PEERS[family](12, 16, 2, batch_first=True)
    for i in range(2):
        for ours, theirs in TORCH.items():
            peer.get_parameter(f"{theirs}_l{i}").copy_(model.get_parameter(f"blocks.{i}.{ours}"))
    tokens = torch.randint(0, 50, (2, 9))
    expected = model.head.get_submodule("out")(peer(model.embed.token(tokens))[0])
    assert (model(tokens) - expected).abs().max() <= 1e-6


def test_the_wikitext_model_has_the_sizes_of_its_recipe() -> None:
    model = heedful.build("lstm-wikitext2", device="meta")
    layer = 4 * 650 * (650 + 650 + 2)
    assert sum(p.numel() for p in model.parameters()) == 33278 * 650 + 33278 + 2 * layer


def test_tied_tables_are_one_and_need_one_size() -> None:
    model = tiny("lstm", tied=True)
    assert model.head.get_submodule("out").weight is model.embed.token.weight
    with pytest.raises(ConfigError, match="table_dim=8"):
        tiny("lstm", tied=True, table_dim=8)


@pytest.mark.parametrize(("head", "shape"), [("classify", (2, 3)), ("tag", (2, 9, 3)), ("lm", (2, 9, 50))])
@torch.no_grad()
def test_every_head_gives_its_shape(head: str, shape: tuple[int, ...], tmp_path: object) -> None:
    model = tiny("gru", head=head, labels=3)
    tokens = torch.randint(0, 50, (2, 9))
    assert model(tokens).shape == shape
    again = heedful.load(heedful.save(model, str(tmp_path)))
    assert torch.equal(again(tokens), model(tokens))


@torch.no_grad()
def test_the_gates_of_every_layer_can_be_watched() -> None:
    model, watch = tiny("lstm"), heedful.Watch("blocks.*.?")
    model(torch.randint(0, 50, (2, 9)), watch=watch)
    assert {name.split(".")[-1] for name in watch} == set("ifgoch")
    assert all(watch[f"blocks.{i}.{gate}"].shape == (2, 9, 16) for i in range(2) for gate in "ifgoch")


def test_a_state_goes_on_from_one_piece_of_text_to_the_next() -> None:
    model, tokens = tiny("lstm").train(), torch.randint(0, 50, (2, 12))
    whole = model(tokens)
    state = model.new_state(2)
    pieces = torch.cat([model.step(piece, state) for piece in tokens.split(4, 1)], 1)
    assert (pieces - whole).abs().max() <= 1e-6
    assert pieces.requires_grad
