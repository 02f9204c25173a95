"""T5 (Raffel et al. 2020, arXiv 1910.10683), its version 1.1, Flan-T5 (2210.11416), mT5 (2010.11934),
UMT5 (2304.09151), Switch Transformers (Fedus et al. 2022, arXiv 2101.03961).

From the Transformer:  norm before each part, RMS and without shift   no biases   scores not divided by √K
                       relative positions as a bias on the scores, shared by the layers of a stack
From T5 to 1.1, Flan:  gated GELU instead of ReLU   a separate output matrix, not scaled
From mT5 to UMT5:      every layer has its own bias
From T5 to Switch:     every other layer has many feed-forward networks, of which one reads each token

A mixture of experts had sent each token to at least two of them, so that the router could compare. Switch
Transformers showed that one is enough: the router learns from the weight that it puts on the expert's output.
A token then costs as much as in T5, while the number of parameters grows with the number of experts. To give
every expert an equal share of a machine, an expert takes at most `capacity` tokens of a text, and what comes
later passes by on the residual. Here the encoder does so. A decoder that writes one token at a time has no
later ones, so that its experts take all, as in the published code when it generates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Model, Seq2Seq, derived, from_zero
from heedful.models.family import PlainConfig, declare, descend
from heedful.models.shared import plain_stack
from heedful.nn.attention.multi_head import Attention, BiasedAttention, CrossAttention, head_size
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP, activation
from heedful.nn.head import LMHead, choose_head
from heedful.nn.moe import MoE, TopOneRouter, UngatedExperts
from heedful.nn.norm import RMSNorm
from heedful.nn.position import BucketBias
from heedful.weights.names import Row
from heedful.weights.ops import Stacked


class T5Config(PlainConfig, vocab=32128, dim=512, heads=8, act="relu", norm_eps=1e-6):
    layers: int = 6  # of the encoder
    decoder_layers: int = derived(lambda c: c.layers)
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    buckets: int = 32  # of distances
    far: int = 128  # distances from here on share the last bucket
    gated: bool = False
    scale_logits: bool = derived(lambda c: c.tied)  # by 1/√D
    start_token: int = from_zero(0)  # what the decoder reads first

    def check(self) -> None:
        if self.gated and self.act == "gelu":
            raise ConfigError(
                "`act='gelu'` with `gated=True` has no published name", hint="use `act='gelu_new'`"
            )
        if self.buckets < 4 or self.far in (self.buckets // 2, self.buckets // 4):
            raise ConfigError(
                f"`buckets={self.buckets}` for distances up to `far={self.far}`: at least 4 are needed, and "
                f"far beyond the {self.buckets // 2} exact ones"
            )


class SwitchConfig(T5Config, dim=768, layers=12, heads=12, head_dim=64):
    experts: int = 8
    capacity: int = 64  # tokens of a text that an expert of the encoder takes
    sparse: int = from_zero(6)  # layers of the encoder that have experts
    decoder_sparse: int = derived(lambda c: c.sparse, minimum=0)
    router_bias: bool = False

    def check(self) -> None:
        super().check()
        if self.gated or not (self.tied and self.scale_logits):
            raise ConfigError("a switch has no gates, and its logits are tied and scaled")

    def has_experts(self, layer: int, causal: bool) -> bool:
        """Whether a layer has experts: every n-th, from the second on; with none asked for, the second."""
        layers, sparse = (self.decoder_layers, self.decoder_sparse) if causal else (self.layers, self.sparse)
        step = layers // sparse if sparse else layers
        return step == 1 or (step > 1 and layer % step == 1)


def t5(c: T5Config, own_bias: bool = False, ffn: Callable[[int, bool], Part] | None = None) -> Model:
    """T5; with `own_bias` every layer has its own bias, else it is shared by the layers of a stack.

    `ffn(i, causal)` makes the feed-forward part of layer i of the encoder or, causal, of the decoder.
    """
    norm = lambda: RMSNorm(c.dim, c.norm_eps)
    options: dict[str, Any] = dict(head_dim=c.head_dim, scale=1.0, dropout=c.dropout)
    bias = lambda causal: BucketBias(c.heads, c.buckets, c.far, causal=causal)
    own = lambda causal: BiasedAttention(c.dim, c.heads, position_bias=bias(causal), **options)
    attn = lambda causal: own(causal) if own_bias else Attention(c.dim, c.heads, **options)
    cross = lambda: CrossAttention(c.dim, c.heads, **options)
    mlp = GatedMLP if c.gated else MLP
    ffn = ffn or (lambda i, causal: mlp(c.dim, c.hidden, activation(c.act), bias=False, dropout=c.dropout))
    stack = lambda causal, **more: plain_stack(
        c, norm=norm, attn=lambda i: attn(causal), ffn=lambda i: ffn(i, causal),
        bias=None if own_bias else bias(causal), **more,
    )  # fmt: skip
    embed, encoder = Embedding(c.vocab, c.dim, dropout=c.dropout), stack(False)
    if c.head == "none":
        return LM(embed, encoder, causal=False)
    decoder = stack(True, cross=lambda i: cross(), layers=c.decoder_layers)
    scale = c.dim**-0.5 if c.scale_logits else 1.0
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied, scale=scale))
    return Seq2Seq(embed, encoder, decoder, head, start_token=c.start_token)


def switch(c: SwitchConfig) -> Model:
    act = activation(c.act)
    router = lambda causal: TopOneRouter(
        c.dim, c.experts, capacity=None if causal else c.capacity, bias=c.router_bias
    )
    sparse = lambda causal: MoE(router(causal), UngatedExperts(c.experts, c.dim, c.hidden, act))
    dense = lambda: MLP(c.dim, c.hidden, act, bias=False, dropout=c.dropout)
    return t5(c, ffn=lambda i, causal: sparse(causal) if c.has_experts(i, causal) else dense())


def t5_names(c: T5Config) -> list[Row]:
    """The encoder alone stands where an LM has its blocks."""
    ours = "blocks" if c.head == "none" else "encoder"
    return [
        ("{shared,encoder.embed_tokens,decoder.embed_tokens}", "embed.token"),
        *stack_names(c, "encoder", ours, 1),
        *stack_names(c, "decoder", "decoder", 2),
        ("decoder.block.*.layer.1.EncDecAttention.{q,k,v,o}", "decoder.*.cross.{q,k,v,o}"),
        ("decoder.block.*.layer.1.layer_norm", "decoder.*.cross_norm"),
        ("lm_head", "head.out"),
    ]


def stack_names(c: T5Config, theirs: str, ours: str, ffn: int) -> list[Row]:
    """A stack whose blocks have their feed-forward part in place `ffn`."""
    matrices = ("{wi_0,wi_1,wo}", "{gate,up,down}") if c.gated else ("{wi,wo}", "{up,down}")
    bias = "SelfAttention.relative_attention_bias"
    return [
        (f"{theirs}.block.*.layer.0.{bias}", f"{ours}.*.attn.position_bias.table"),
        (f"{theirs}.block.0.layer.0.{bias}", f"{ours}.bias.table"),
        (f"{theirs}.block.*.layer.0.SelfAttention.{{q,k,v,o}}", f"{ours}.*.attn.{{q,k,v,o}}"),
        (f"{theirs}.block.*.layer.0.layer_norm", f"{ours}.*.attn_norm"),
        (f"{theirs}.block.*.layer.{ffn}.DenseReluDense.{matrices[0]}", f"{ours}.*.ffn.{matrices[1]}"),
        (f"{theirs}.block.*.layer.{ffn}.layer_norm", f"{ours}.*.ffn_norm"),
        (f"{theirs}.final_layer_norm", f"{ours}.norm"),
    ]


KEYS = {
    "vocab_size": "vocab", "d_model": "dim", "num_layers": "layers", "num_decoder_layers": "decoder_layers",
    "num_heads": "heads", "d_kv": "head_dim", "d_ff": "hidden", "relative_attention_num_buckets": "buckets",
    "relative_attention_max_distance": "far", "layer_norm_epsilon": "norm_eps", "dropout_rate": "dropout",
    "decoder_start_token_id": "start_token",
}  # fmt: skip


def read_t5(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Version 1.0 ties its matrices and scales; 1.1 says tie_word_embeddings=false and does neither.

    Newer writers state the scale, and claim to tie even if they do not: then the tensors tell (see infer).
    `feed_forward_proj` names gate and activation in one word. Where a file also states `dense_act_fn` or
    `is_gated_act`, these decide, as they do in transformers.
    """
    gate, _, act = hf_config.get("feed_forward_proj", "relu").rpartition("-")
    tied = hf_config.get("tie_word_embeddings") is not False and hf_config.get("model_type") != "mt5"
    scaled = hf_config.get("scale_decoder_outputs", tied)
    if gate == "gated" and act == "gelu":
        act = "gelu_new"
    return {
        "act": hf_config.get("dense_act_fn", act),
        "gated": hf_config.get("is_gated_act", gate == "gated"),
        "scale_logits": scaled,
        "tied": tied and scaled,
    }


def write_t5(c: T5Config) -> dict[str, Any]:
    act = "gelu" if c.gated and c.act == "gelu_new" else c.act
    return {
        "feed_forward_proj": f"gated-{act}" if c.gated else act,
        "dense_act_fn": c.act,
        "is_gated_act": c.gated,
        "tie_word_embeddings": c.tied,
        "scale_decoder_outputs": c.scale_logits,
        "is_encoder_decoder": c.head != "none",
    }


SMALL_1_1: dict[str, Any] = dict(
    layers=8, heads=6, head_dim=64, hidden=1024, gated=True, act="gelu_new", tied=False
)

T5 = declare(
    "t5", T5Config, t5, names=t5_names, keys=KEYS, without=("act", "tied"),
    presets={
        "t5-small": {},
        "t5-base": dict(dim=768, layers=12, heads=12),
        "t5-large": dict(dim=1024, layers=24, heads=16),
        "t5-v1.1-small": SMALL_1_1,
        "flan-t5-small": SMALL_1_1,
    },
    tiny=dict(hidden=48, buckets=8, far=16), objective="spans",
    heads={"lm": "T5ForConditionalGeneration", "none": "T5EncoderModel"}, read=read_t5, write=write_t5,
    infer=lambda names, values: {} if "lm_head.weight" in names else {"tied": True},
    reads={
        "feed_forward_proj": "str", "dense_act_fn": "str", "is_gated_act": "bool",
        "tie_word_embeddings": "bool", "scale_decoder_outputs": "bool",
    },
    drop=("*.EncDecAttention.relative_attention_bias.weight",), paper="Raffel et al. 2020, arXiv 1910.10683",
)  # fmt: skip

MT5 = descend(
    T5, "mt5", presets={"mt5-small": {}}, tiny=dict(decoder_layers=1, heads=3, head_dim=8),
    sizes=dict(
        vocab=250112, layers=8, heads=6, head_dim=64, hidden=1024, act="gelu_new", gated=True, tied=False,
        scale_logits=False,
    ),
    absent={"feed_forward_proj": "gated-gelu"}, paper="Xue et al. 2021, arXiv 2010.11934",
    heads={"lm": "MT5ForConditionalGeneration", "none": "MT5EncoderModel"},
)  # fmt: skip

UMT5 = descend(
    MT5, "umt5", build=partial(t5, own_bias=True), presets={"umt5-small": dict(vocab=256384)},
    absent=MT5.absent, paper="Chung et al. 2023, arXiv 2304.09151",
    heads={"lm": "UMT5ForConditionalGeneration", "none": "UMT5EncoderModel"},
)  # fmt: skip


def switch_names(c: SwitchConfig) -> list[Row]:
    rows: list[Row] = []
    encoder = "blocks" if c.head == "none" else "encoder"
    for theirs, ours, place in (("encoder", encoder, 1), ("decoder", "decoder", 2)):
        mlp, ffn = f"{theirs}.block.*.layer.{place}.mlp", f"{ours}.*.ffn"
        rows += [
            (f"{mlp}.{{wi,wo}}", f"{ffn}.{{up,down}}"), (f"{mlp}.router.classifier", f"{ffn}.router.score"),
            (f"{mlp}.experts.expert_*.{{wi,wo}}.weight", f"{ffn}.experts.{{up,down}}", Stacked()),
        ]  # fmt: skip
    return [*rows, *t5_names(c)]


SWITCH = descend(
    T5, "switch-transformers", SwitchConfig, build=switch, names=switch_names,
    without=("gated", "tied", "scale_logits"),
    keys={
        "num_experts": "experts", "expert_capacity": "capacity", "num_sparse_encoder_layers": "sparse",
        "num_sparse_decoder_layers": "decoder_sparse", "router_bias": "router_bias",
        "dense_act_fn": "act",
    },
    presets={"switch-base-8": {}, "switch-base-16": dict(experts=16), "switch-base-32": dict(experts=32)},
    tiny=dict(vocab=128, heads=4, head_dim=8, hidden=48, sparse=1, experts=4),
    heads={"lm": "SwitchTransformersForConditionalGeneration", "none": "SwitchTransformersEncoderModel"},
    absent={"num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3, "d_ff": 2048},
    read=None, write=lambda c: {"is_encoder_decoder": c.head != "none"}, reads={}, infer=None,
    require={"tie_word_embeddings": (True,)},
    paper="Fedus et al. 2022, arXiv 2101.03961",
)  # fmt: skip
