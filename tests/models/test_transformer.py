"""The 2017 Transformer against `torch.nn`, which has its layers, and against the paper's own numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.models.base import Seq2Seq
from heedful.nn.attention.multi_head import Attention, CrossAttention

SIZES = dict(vocab=50, dim=24, layers=2, decoder_layers=3, heads=3, hidden=40)


@pytest.fixture
def model() -> Seq2Seq:
    made = heedful.build("transformer", seed=0, **SIZES).eval()
    assert isinstance(made, Seq2Seq)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def give(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    assert isinstance(ours, (Attention, CrossAttention))
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.q, ours.k, ours.v)]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (ours.q, ours.k, ours.v)]))
    theirs.out_proj.load_state_dict(ours.o.state_dict())


def torch_layers(model: Seq2Seq) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """torch's post-norm stacks with our weights, without the last norms that the paper does not have."""
    size = dict(d_model=24, nhead=3, dim_feedforward=40, batch_first=True)
    reads, writes = nn.TransformerEncoderLayer(**size), nn.TransformerDecoderLayer(**size)
    encoder = nn.TransformerEncoder(reads, 2, enable_nested_tensor=False).eval()
    decoder = nn.TransformerDecoder(writes, 3).eval()
    for stack, ours in ((encoder, model.encoder), (decoder, model.decoder)):
        for i, layer in enumerate(stack.layers):
            block = ours[i]
            give(layer.self_attn, block.get_submodule("attn"))
            norms = ["attn_norm", "ffn_norm"]
            if stack is decoder:
                give(layer.multihead_attn, block.get_submodule("cross"))
                norms.insert(1, "cross_norm")
            layer.linear1.load_state_dict(block.get_submodule("ffn.up").state_dict())
            layer.linear2.load_state_dict(block.get_submodule("ffn.down").state_dict())
            for n, name in enumerate(norms, 1):
                layer.get_submodule(f"norm{n}").load_state_dict(block.get_submodule(name).state_dict())
    return encoder, decoder


def embed(model: Seq2Seq, tokens: Tensor) -> Tensor:
    """√D · table[token] + the sinusoids of section 3.5, entry by entry."""
    out = model.embed.token.weight[tokens] * math.sqrt(24)
    for t in range(tokens.shape[1]):
        for i in range(0, 24, 2):
            angle = t / 10000 ** (i / 24)
            out[:, t, i] += math.sin(angle)
            out[:, t, i + 1] += math.cos(angle)
    return out


@torch.no_grad()
def test_logits_equal_those_of_torch_s_own_layers(model: Seq2Seq) -> None:
    source, target = torch.randint(50, (2, 9)), torch.randint(50, (2, 6))
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, 6:] = False
    encoder, decoder = torch_layers(model)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    memory = encoder(embed(model, source), src_key_padding_mask=~valid)
    hidden = decoder(embed(model, target), memory, tgt_mask=future, memory_key_padding_mask=~valid)
    expected = hidden @ model.embed.token.weight.t()
    assert (model(source, target, valid=valid) - expected).abs().max() <= 1e-4


@torch.no_grad()
def test_patterns_of_encoder_decoder_and_cross_attention_are_watched_apart(model: Seq2Seq) -> None:
    watch = heedful.Watch("*.pattern")
    model(torch.randint(50, (2, 9)), torch.randint(50, (2, 6)), watch=watch)
    assert watch["encoder.1.attn.pattern"].shape == (2, 3, 9, 9)
    assert watch["decoder.2.attn.pattern"].shape == (2, 3, 6, 6)
    assert watch["decoder.2.cross.pattern"].shape == (2, 3, 6, 9)
    assert len(watch) == 2 + 3 + 3


def test_one_table_serves_source_target_and_output(model: Seq2Seq) -> None:
    assert model.decoder_embed is model.embed
    assert model.head.get_submodule("out").weight is model.embed.token.weight


@pytest.mark.parametrize(("size", "count"), [("base", 63_082_496), ("big", 214_245_376)])
def test_sizes_have_the_counts_of_a_shared_vocabulary_of_37000(size: str, count: int) -> None:
    model = heedful.build(f"transformer-{size}", device="meta")
    assert sum(p.numel() for p in model.parameters()) == count
