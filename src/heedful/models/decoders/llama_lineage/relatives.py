"""Descendants of LLaMA that need no part of their own.

Arcee:      SwiGLU → an MLP with squared ReLU
Ministral:  three of four layers have Mistral's window
Seed-OSS:   biases on queries, keys and values
Granite:    embeddings, scores, what a part adds and logits are each multiplied by a constant
Nemotron:   RMSNorm → LayerNorm that multiplies by 1 + γ   an MLP with squared ReLU   half of each head turned
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    MISTRAL,
    DecoderConfig,
    LlamaConfig,
    MistralConfig,
    PartialRotaryConfig,
    llama,
    llama_attention,
)
from heedful.models.family import descend, gguf_keys, no_token_ids, published_heads
from heedful.models.gguf_config import ROWS
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import OffsetLayerNorm, RMSNorm
from heedful.weights.ops import MinusOne


@dataclass(frozen=True, kw_only=True)
class ArceeConfig(LlamaConfig):
    dim: int = 2560
    layers: int = 36
    heads: int = 20
    hidden: int = 18432
    vocab: int = 128004
    context: int = 65536
    act: str = "relu2"
    norm_eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class MinistralConfig(MistralConfig):
    local: tuple[int, ...] = derived(lambda c: tuple(range(c.layers)))  # layers with the window


@dataclass(frozen=True, kw_only=True)
class SeedOSSConfig(LlamaConfig):
    vocab: int = 155136
    dim: int = 5120
    layers: int = 64
    heads: int = 80
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 27648
    context: int = 524288
    rope_base: float = 1e7
    bias: bool = True  # of queries, keys and values
    out_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class GraniteConfig(LlamaConfig):
    vocab: int = 49155
    context: int = 4096
    norm_eps: float = 1e-5
    tied: bool = True
    embed_scale: float = 12.0
    score_scale: float = 0.0078125
    residual_scale: float = 0.22  # of what a part adds
    logit_divisor: float = 16.0


@dataclass(frozen=True, kw_only=True)
class NemotronConfig(PartialRotaryConfig):
    vocab: int = 256000
    dim: int = 3072
    heads: int = 24
    hidden: int = 9216
    context: int = 4096
    act: str = "relu2"
    norm_eps: float = 1e-5
    bias: bool = False
    ffn_bias: bool = False


def ungated_mlp(c: DecoderConfig) -> MLP:
    return MLP(c.dim, c.hidden, activation(c.act), bias=vars(c)["ffn_bias"])


def arcee(c: ArceeConfig) -> LM:
    return llama(c, ffn=lambda i: ungated_mlp(c))


def nemotron(c: NemotronConfig) -> LM:
    return llama(c, ffn=lambda i: ungated_mlp(c), norm=lambda: OffsetLayerNorm(c.dim, c.norm_eps))


def granite(c: GraniteConfig) -> LM:
    """Divide the residual stream by r: then parts add what they give, as norm(x, ε) = norm(x / r, ε / r²)."""
    r = c.residual_scale
    attn = lambda rotary, i: llama_attention(c, rotary, i, scale=c.score_scale)
    norm = lambda: RMSNorm(c.dim, c.norm_eps / r**2)
    return llama(c, attn=attn, norm=norm, embed_scale=c.embed_scale / r, scale=1 / c.logit_divisor)


ARCEE = descend(
    LLAMA, "arcee", ArceeConfig, build=arcee, presets={"afm-4.5b": dict(kv_heads=4)},
    heads=published_heads("Arcee"),
    absent={
        "vocab_size": 32000, "num_hidden_layers": 32, "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    },
    gguf="arcee", gguf_tensors=LLAMA.gguf_tensors, paper="Arcee AI 2025, AFM-4.5B",
)  # fmt: skip

MINISTRAL = descend(
    MISTRAL, "ministral", MinistralConfig,
    presets={"ministral-8b": dict(
        vocab=131072, layers=36, kv_heads=8, head_dim=128, hidden=12288, context=32768, rope_base=1e8,
        norm_eps=1e-5, window=32768, local=tuple(i for i in range(36) if i % 4),
    )},
    tiny=dict(local=(1,)), heads=published_heads("Ministral"), absent=MISTRAL.absent,
    names=LLAMA.names, paper="Mistral AI 2024, Ministral 8B",
)  # fmt: skip

SEED_OSS = descend(
    LLAMA, "seedoss", SeedOSSConfig, presets={"seed-oss-36b": {}},
    tiny=dict(head_dim=12), heads=published_heads("SeedOss"), model_types=("seed_oss",),
    keys=dict(attention_out_bias="out_bias", attention_dropout="dropout", residual_dropout="dropout"),
    absent={
        "hidden_size": 4096, "rope_theta": 10000.0, "attention_dropout": 0.1, "residual_dropout": 0.1,
    }, usual=no_token_ids,
    gguf="seed_oss", gguf_names=[("blk.*.post_attention_norm", "blocks.*.ffn_norm"), *ROWS],
    gguf_tensors={**LLAMA.gguf_tensors, "out_bias": ("blk.0.attn_output.bias", True, False)},
    paper="ByteDance Seed Team 2025, Seed-OSS",
)  # fmt: skip

GRANITE = descend(
    LLAMA, "granite", GraniteConfig, build=granite, names=LLAMA.names,
    keys=dict(
        embedding_multiplier="embed_scale", attention_multiplier="score_scale",
        residual_multiplier="residual_scale", logits_scaling="logit_divisor",
    ),
    presets={
        "granite-3.0-2b": dict(
            dim=2048, layers=40, kv_heads=8, hidden=8192, score_scale=0.015625, logit_divisor=8.0
        ),
        "granite-3.0-8b": dict(layers=40, kv_heads=8, hidden=12800),
    },
    tiny=dict(embed_scale=3.0, score_scale=0.5, residual_scale=0.25, logit_divisor=2.0),
    heads={"lm": "GraniteForCausalLM", "none": "GraniteModel"},
    absent={
        "vocab_size": 32000, "intermediate_size": 11008,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    gguf="granite", gguf_keys={**gguf_keys("granite", GraniteConfig), "granite.logit_scale": "logit_divisor"},
    gguf_tensors=LLAMA.gguf_tensors, paper="Granite Team, IBM 2024, Granite 3.0",
)  # fmt: skip

NEMOTRON = descend(
    LLAMA, "nemotron", NemotronConfig, build=nemotron, keys=dict(norm_eps="norm_eps"),
    presets={
        "minitron-4b": dict(kv_heads=8),
        "minitron-8b": dict(dim=4096, heads=48, kv_heads=8, head_dim=128, hidden=16384),
    },
    heads=published_heads("Nemotron"),
    absent={
        "hidden_size": 6144, "num_attention_heads": 48, 
        "intermediate_size": 24576, "partial_rotary_factor": 0.5,
    },
    gguf="nemotron", gguf_names=[(*row, MinusOne()) if "norm.weight" in row[1] else row for row in ROWS],
    gguf_tensors=LLAMA.gguf_tensors, paper="Muralidharan et al. 2024, arXiv 2407.14679",
)  # fmt: skip
