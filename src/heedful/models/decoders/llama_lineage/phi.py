"""Phi-1, 1.5 and 2 (Gunasekar et al. 2023, arXiv 2306.11644; Li et al. 2023, arXiv 2309.05463) and Phi-3, 4
(Abdin et al. 2024, arXiv 2404.14219, 2412.08905); Phi-3.5-MoE.

From GPT-J:             rotary in half of each head (0.4 in Phi-2)   biases everywhere
From LLaMA to Phi-3:    each rotary pair has its own factors, one for short and one for long texts
From Mixtral to Phi-3.5-MoE:  16 smaller experts, chosen one after the other   LayerNorm   biases in attention

A router that takes the best two of 16 experts by their scores gets no exact gradient, because the choice is
a step. SparseMixer (Liu et al. 2024, arXiv 2409.12136) treats the choice as a sample: each of the two experts
is drawn by its own softmax over the scores that come near the best. That is why a weight here compares an
expert with its near rivals alone, and why the second weight does not shrink because the first is large.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    MIXTRAL,
    NAMES,
    MixtralConfig,
    PartialRotaryConfig,
    llama,
    llama_attention,
)
from heedful.models.family import descend, gguf_keys, no_token_ids, published_heads
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.models.hf_config import write_rope
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.ffn import MLP, activation
from heedful.nn.moe import Experts, MoE, SparseMixerRouter
from heedful.nn.norm import LayerNorm
from heedful.nn.position import LongScaling
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.ops import Fused


class Phi3Config(
    PartialRotaryConfig, vocab=32064, dim=3072, hidden=8192, context=4096,
    rope_dim=derived(lambda c: c.head_dim), norm_eps=1e-5,
):  # fmt: skip
    window: int | None = None  # how far a position sees; None: everything before it

    def check(self) -> None:
        super().check()
        scaling, pairs = self.rope_scaling, self.rope_dim // 2
        if isinstance(scaling, LongScaling) and {len(scaling.short), len(scaling.long)} != {pairs}:
            raise ConfigError(
                f"long rope has {len(scaling.short)} short and {len(scaling.long)} long factors",
                hint=f"one for each of the {pairs} rotary pairs",
            )


def phi(c: PartialRotaryConfig) -> LM:
    attn = lambda rotary, i: llama_attention(c, rotary, i, bias=True)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act))
    norm, block = lambda: LayerNorm(c.dim, c.norm_eps), partial(ParallelBlock, dropout=c.dropout)
    return llama(c, attn=attn, ffn=ffn, norm=norm, block=block, bias=True)


GATE_UP = ("blocks.*.ffn.gate", "blocks.*.ffn.up")


def write_phi3(c: Phi3Config) -> dict[str, Any]:
    """The original context is also written next to `rope_parameters`."""
    trained = c.rope_scaling.context if isinstance(c.rope_scaling, LongScaling) else c.context
    return {"original_max_position_embeddings": trained}


def read_phi3_gguf(source: GGUFFile) -> dict[str, Any]:
    """A window of 0 is none; the factors of long rope are tensors."""
    window = source.metadata.get("phi3.attention.sliding_window") or None
    if "rope_factors_long.weight" not in source.entries:
        return {"window": window}
    short, long = (tuple(source.read(f"rope_factors_{w}.weight").tolist()) for w in ("short", "long"))
    trained = source.metadata["phi3.rope.scaling.original_context_length"]
    stretch = source.metadata["phi3.context_length"] / trained
    gain = source.metadata.get("phi3.rope.scaling.attn_factor")
    return {"window": window, "rope_scaling": LongScaling(stretch, trained, short, long, gain)}


DROPOUT = {"attention_dropout": "dropout", "resid_pdrop": "dropout"}

PHI = descend(
    LLAMA, "phi", PartialRotaryConfig, sizes=dict(
        vocab=51200, dim=2048, layers=24, hidden=derived(lambda c: 4 * c.dim), act="gelu_new", norm_eps=1e-5
    ),
    build=phi,
    own_names=[
        ("model.layers.*.self_attn.dense", "blocks.*.attn.o"),
        ("model.layers.*.mlp.{fc1,fc2}", "blocks.*.ffn.{up,down}"),
        ("model.layers.*.input_layernorm", "blocks.*.norm"), ("model.final_layernorm", "blocks.norm"),
    ],
    keys=dict(layer_norm_eps="norm_eps", **DROPOUT),
    presets={"phi-1": {}, "phi-1.5": {}, "phi-2": dict(dim=2560, layers=32, rope_dim=32)},
    heads=published_heads("Phi", "span"), require={"qk_layernorm": (False,)},
    absent={
        "max_position_embeddings": 2048, "hidden_size": 2048, "num_attention_heads": 32, "rotary_pct": 0.5,
    },
    gguf="phi2", gguf_names=ROWS, paper="Li et al. 2023, arXiv 2309.05463",
)  # fmt: skip

PHI3 = descend(
    PHI, "phi3", Phi3Config, names=[
        ("model.layers.*.self_attn.qkv_proj", QKV, Fused()),
        ("model.layers.*.mlp.gate_up_proj", GATE_UP, Fused()),
        *NAMES,
    ],
    keys=dict(rms_norm_eps="norm_eps"),
    build=lambda c: llama(c, block=partial(Block, dropout=c.dropout)),
    presets={
        "phi-3-mini": dict(window=2047),
        "phi-3-medium": dict(dim=5120, layers=40, heads=40, kv_heads=10, hidden=17920, window=2047),
        "phi-4": dict(
            vocab=100352, dim=5120, layers=40, heads=40, kv_heads=10, hidden=17920, context=16384,
            rope_base=250000.0,
        ),
    },
    heads=published_heads("Phi3", "span"), require={},
    usual=no_token_ids, reads={"original_max_position_embeddings": "int"}, write=write_phi3,
    absent={"max_position_embeddings": 4096, "hidden_size": 3072, "num_attention_heads": 32},
    gguf="phi3", gguf_names=[FUSED_QKV, ("blk.*.ffn_up", GATE_UP, Fused()), *ROWS],
    gguf_keys=gguf_keys("phi3", Phi3Config, "window"), gguf_read=read_phi3_gguf,
    gguf_write=lambda c: {"phi3.attention.sliding_window": c.window or 0},
    paper="Abdin et al. 2024, arXiv 2404.14219",
)  # fmt: skip


class PhiMoEConfig(MixtralConfig, vocab=32064, hidden=6400, context=131072, rope_base=10000.0, experts=16):
    jitter: float = 0.01  # how far from the best score an expert is still a rival, halved
    bias: bool = False  # of the attention's matrices
    out_bias: bool = derived(lambda c: c.bias)
    logit_bias: bool = False

    def check(self) -> None:
        super().check()
        if self.active != 2 or self.out_bias != self.bias:
            raise ConfigError(
                "a phimoe needs `active=2`, and a bias in all four matrices of attention or in none",
                hint="set out_bias like bias",
            )


def phimoe(c: PhiMoEConfig) -> LM:
    experts = lambda: Experts(c.experts, c.dim, c.hidden, activation(c.act))
    ffn = lambda i: MoE(SparseMixerRouter(c.dim, c.experts, jitter=c.jitter), experts())
    return llama(c, ffn=ffn, norm=lambda: LayerNorm(c.dim, c.norm_eps), bias=c.logit_bias)


def write_phimoe(c: PhiMoEConfig) -> dict[str, Any]:
    """What is stated of stretched positions: the gain for short and for long texts, and where they part."""
    rope, scaling = write_rope(c.rope_base, c.rope_scaling), c.rope_scaling
    if isinstance(scaling, LongScaling):
        gains = dict.fromkeys(("short_mscale", "long_mscale"), scaling.gain)
        rope |= gains | {"original_max_position_embeddings": scaling.context}
    return {"rope_parameters": rope}


PHIMOE = descend(
    MIXTRAL, "phimoe", PhiMoEConfig, build=phimoe, without=("out_bias",),
    keys={"router_jitter_noise": "jitter", "lm_head_bias": "logit_bias"},
    presets={"phi-3.5-moe": dict(window=131072, bias=True, logit_bias=True)}, tiny=dict(bias=True),
    heads=published_heads("Phimoe", "tag", "span"), usual=no_token_ids, write=write_phimoe,
    absent={"rope_theta": 1000000.0}, paper="Abdin et al. 2024, arXiv 2404.14219; Liu et al. 2024",
)  # fmt: skip
