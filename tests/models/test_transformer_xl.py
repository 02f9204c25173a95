"""Transformer-XL beside the implementation that `transformers` had until version 4.

tests/scripts/transformer_xl_fixture.py made the file of weights and answers, and says how.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

import heedful
from heedful.models.base import LM

STORED = load_file(Path(__file__).with_name("transformer_xl.safetensors"))
OURS = {
    "dec_attn.o_net": "attn.o", "dec_attn.r_net": "attn.distance", "dec_attn.r_w_bias": "attn.content_bias",
    "dec_attn.r_r_bias": "attn.distance_bias", "dec_attn.layer_norm": "attn_norm",
    "pos_ff.CoreNet.0": "ffn.up", "pos_ff.CoreNet.3": "ffn.down", "pos_ff.layer_norm": "ffn_norm",
    "transformer.word_emb.emb_layers.0": "embed.token", "transformer.layers": "blocks",
}  # fmt: skip


def published() -> LM:
    """The model of the stored weights."""
    model = heedful.build(
        "transformer-xl", vocab=20, dim=8, layers=2, heads=2, head_dim=4, hidden=12, window=6
    ).eval()
    weights = {}
    for name, tensor in STORED.items():
        for theirs, ours in OURS.items():
            name = name.replace(theirs, ours)
        if name.endswith("qkv_net.weight"):
            stem = name.removesuffix("dec_attn.qkv_net.weight")
            weights |= {f"{stem}attn.{x}.weight": rows for x, rows in zip("qkv", tensor.chunk(3))}
        elif name.endswith((".weight", "bias")):
            weights[name] = tensor
    left_out = model.load_state_dict(weights, strict=False)
    assert left_out.missing_keys == ["head.out.weight"]  # the tied one
    assert not left_out.unexpected_keys
    assert isinstance(model, LM)
    return model


@torch.no_grad()
def test_two_segments_equal_the_published_implementation() -> None:
    model = published()
    state = model.new_state(2)
    for segment in ("first", "second"):
        logits = model.step(STORED[segment], state)
        assert (logits.log_softmax(-1) - STORED[f"{segment}.answer"]).abs().max() <= 1e-5, segment


@torch.no_grad()
def test_the_second_segment_remembers_the_first() -> None:
    model = published()
    alone = model(STORED["second"]).log_softmax(-1)
    assert (alone - STORED["second.answer"]).abs().max() > 1e-2
    whole = model(torch.cat((STORED["first"], STORED["second"]), 1)).log_softmax(-1)
    assert (whole[:, 8:] - STORED["second.answer"]).abs().max() <= 1e-5
