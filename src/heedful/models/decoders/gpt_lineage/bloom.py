"""BLOOM (BigScience 2022, arXiv 2211.05100) and MPT (MosaicML 2023).

From GPT-2:         ALiBi instead of learned positions   a norm after the embedding
From BLOOM to MPT:  no biases, in norms neither   no norm after the embedding   queries, keys, values clipped

A BLOOM may also begin every sum with what the part reads (`apply_residual_connection_post_layernorm`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config
from heedful.models.decoders.gpt_lineage.gpt import gpt_decoder
from heedful.models.family import declare, published_heads
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, NormedResidualBlock
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, gelu_tanh
from heedful.nn.norm import LayerNorm
from heedful.nn.position import ALiBi
from heedful.weights.ops import Fused, PerHead


class ALiBiConfig(Config, vocab=250880, dim=1024, layers=24):
    heads: int = 16
    context: int = 2048  # trained on; distances have no end
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tied: bool = True


class BloomConfig(ALiBiConfig):
    normed_residual: bool = False  # whether a sum begins with what the part reads, not with its norm's input


class MPTConfig(ALiBiConfig, vocab=50432, dim=4096, layers=32, heads=32):
    clip: float | None = None  # of queries, keys and values
    score_scale: float | None = None  # None: 1/√K


def bloom(c: BloomConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    block = partial(NormedResidualBlock if c.normed_residual else Block, dropout=c.dropout)
    ffn = lambda i: MLP(c.dim, 4 * c.dim, gelu_tanh)
    embed = Embedding(c.vocab, c.dim, norm=norm())
    return gpt_decoder(c, embed, ffn=ffn, norm=norm, block=block, bias=ALiBi(c.heads))


def mpt(c: MPTConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps, bias=False)
    attn = lambda i: Attention(c.dim, c.heads, scale=c.score_scale, clip=c.clip, dropout=c.dropout)
    ffn = lambda i: MLP(c.dim, 4 * c.dim, F.gelu, bias=False)
    embed = Embedding(c.vocab, c.dim)
    return gpt_decoder(c, embed, attn=attn, ffn=ffn, norm=norm, bias=ALiBi(c.heads))


def read_mpt(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of MPT, whose attention has a separate table in config.json."""
    attn = {"alibi": True, "attn_type": "multihead_attention"} | (hf_config.get("attn_config") or {})
    if not attn["alibi"] or attn["attn_type"] != "multihead_attention" or attn.get("qk_ln"):
        raise ConfigError("config.json has another attn_config", hint="MPT is built here with ALiBi alone")
    return {"clip": attn.get("clip_qkv"), "score_scale": attn.get("softmax_scale")}


KEYS = {
    "apply_residual_connection_post_layernorm": "normed_residual",
    "vocab_size": "vocab", "hidden_size": "dim", "n_embed": "dim", "n_layer": "layers",
    "num_hidden_layers": "layers", "n_head": "heads", "num_attention_heads": "heads", "seq_length": "context",
    "layer_norm_epsilon": "norm_eps", "hidden_dropout": "dropout", "attention_dropout": "dropout",
    "tie_word_embeddings": "tied",
}  # fmt: skip


BLOOM = declare(
    "bloom", BloomConfig, bloom, names=lambda c: [
        ("transformer.word_embeddings", "embed.token"),
        ("transformer.word_embeddings_layernorm", "embed.norm"),
        ("transformer.h.*.self_attention.query_key_value", QKV, PerHead(c.heads)),
        ("transformer.h.*.self_attention.dense", "blocks.*.attn.o"),
        ("transformer.h.*.mlp.{dense_h_to_4h,dense_4h_to_h}", "blocks.*.ffn.{up,down}"),
        ("transformer.h.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm"),
        ("transformer.ln_f", "blocks.norm"),
        ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
    ],
    keys=KEYS,
    presets={"bloom-560m": {}, "bloom-176b": dict(dim=14336, layers=70, heads=112)},
    tiny=dict(dim=30, heads=6), prefix="transformer", absent={"hidden_size": 64, "n_layer": 2, "n_head": 8},
    heads=published_heads("Bloom"),
    require={"n_inner": (None,)},
    gguf="bloom", gguf_names=[("token_embd_norm", "embed.norm"), FUSED_QKV, *ROWS],
    gguf_write=lambda c: {"bloom.feed_forward_length": 4 * c.dim},
    paper="BigScience Workshop 2022, arXiv 2211.05100",
)  # fmt: skip

MPT = declare(
    "mpt", MPTConfig, mpt, names=[
        ("transformer.wte", "embed.token"),
        ("transformer.blocks.*.attn.Wqkv", QKV, Fused()),
        ("transformer.blocks.*.attn.out_proj", "blocks.*.attn.o"),
        ("transformer.blocks.*.ffn.{up,down}_proj", "blocks.*.ffn.{up,down}"),
        ("transformer.blocks.*.norm_{1,2}", "blocks.*.{attn,ffn}_norm"),
        ("transformer.norm_f", "blocks.norm"),
        ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
    ],
    keys={
        "vocab_size": "vocab", "d_model": "dim", "n_layers": "layers", "n_heads": "heads",
        "max_seq_len": "context", "layer_norm_epsilon": "norm_eps", "tie_word_embeddings": "tied",
        "emb_pdrop": "dropout", "resid_pdrop": "dropout",
    },
    presets={"mpt-7b": {}, "mpt-30b": dict(dim=7168, layers=48, heads=64, context=8192)},
    tiny=dict(dim=30, heads=6, clip=0.5), prefix="transformer", heads=published_heads("Mpt"), read=read_mpt,
    reads={"attn_config": "dict"}, merges=("attn_config",),
    write=lambda c: {"attn_config": {"clip_qkv": c.clip, "softmax_scale": c.score_scale}},
    require={"no_bias": (True,), "logit_scale": (None,), "expansion_ratio": (4,)},
    absent={"vocab_size": 50368, "d_model": 2048, "n_layers": 24, "n_heads": 16},
    gguf="mpt",
    gguf_names=[FUSED_QKV, *ROWS],
    gguf_write=lambda c: {
        "mpt.feed_forward_length": 4 * c.dim, "mpt.attention.max_alibi_bias": 8.0
    },
    paper="MosaicML 2023, MPT-7B",
)  # fmt: skip
