"""BLOOM (BigScience 2022, arXiv 2211.05100).

From GPT-2:  ALiBi instead of learned positions   a norm after the embedding
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM, Config, Family
from heedful.models.family import published_heads
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, gelu_tanh
from heedful.nn.head import LMHead, SpanHead, choose_head, decoder_heads
from heedful.nn.norm import LayerNorm
from heedful.nn.position import ALiBi
from heedful.weights.names import Row
from heedful.weights.ops import Fused, PerHead


@dataclass(frozen=True, kw_only=True)
class BloomConfig(Config):
    vocab: int = 250880
    dim: int = 1024
    layers: int = 24
    heads: int = 16
    context: int = 2048  # trained on; distances have no end
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tied: bool = True


def bloom(c: BloomConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(c.dim, c.heads, bias=True, dropout=c.dropout)
    block = lambda: Block(norm, "pre", c.dropout, attn=attn(), ffn=MLP(c.dim, 4 * c.dim, gelu_tanh))
    head = choose_head(
        c.head,
        lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied),
        span=lambda: SpanHead(c.dim),
        **decoder_heads(c.dim, c.labels, c.dropout),
    )
    blocks = Stack([block() for _ in range(c.layers)], norm(), bias=ALiBi(c.heads))
    return LM(Embedding(c.vocab, c.dim, norm=norm()), blocks, head)


Q_K_V = ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v")

GGUF_NAMES: list[Row] = [
    ("token_embd", "embed.token"),
    ("token_embd_norm", "embed.norm"),
    ("blk.*.attn_qkv", Q_K_V, Fused()),
    ("blk.*.attn_output", "blocks.*.attn.o"),
    ("blk.*.ffn_{up,down}", "blocks.*.ffn.{up,down}"),
    ("blk.*.{attn,ffn}_norm", "blocks.*.{attn,ffn}_norm"),
    ("output_norm", "blocks.norm"),
    ("output", "head.out"),
]


def bloom_names(c: BloomConfig) -> list[Row]:
    return [
        ("transformer.word_embeddings", "embed.token"),
        ("transformer.word_embeddings_layernorm", "embed.norm"),
        ("transformer.h.*.self_attention.query_key_value", Q_K_V, PerHead(c.heads)),
        ("transformer.h.*.self_attention.dense", "blocks.*.attn.o"),
        ("transformer.h.*.mlp.{dense_h_to_4h,dense_4h_to_h}", "blocks.*.ffn.{up,down}"),
        ("transformer.h.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm"),
        ("transformer.ln_f", "blocks.norm"),
        ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
    ]


KEYS = {
    "vocab_size": "vocab", "hidden_size": "dim", "n_embed": "dim", "n_layer": "layers",
    "num_hidden_layers": "layers", "n_head": "heads", "num_attention_heads": "heads", "seq_length": "context",
    "layer_norm_epsilon": "norm_eps", "hidden_dropout": "dropout", "attention_dropout": "dropout",
    "tie_word_embeddings": "tied",
}  # fmt: skip


BLOOM = Family(
    "bloom", BloomConfig, bloom, bloom_names, KEYS,
    presets={"bloom-560m": BloomConfig(), "bloom-176b": BloomConfig(dim=14336, layers=70, heads=112)},
    tiny=BloomConfig(vocab=128, dim=30, layers=2, heads=6, context=64), objective="next_token",
    prefix="transformer", model_types=("bloom",), absent={"hidden_size": 64, "n_layer": 2, "n_head": 8},
    heads=published_heads("Bloom"),
    require={"apply_residual_connection_post_layernorm": (False,), "n_inner": (None,)},
    copies={
        "lm_head.weight": "transformer.word_embeddings.weight", "output.weight": "token_embd.weight",
    },
    gguf="bloom", gguf_names=GGUF_NAMES, gguf_write=lambda c: {"bloom.feed_forward_length": 4 * c.dim},
    gguf_keys={
        "bloom.context_length": "context", "bloom.embedding_length": "dim", "bloom.block_count": "layers",
        "bloom.attention.head_count": "heads", "bloom.attention.layer_norm_epsilon": "norm_eps",
    },
    paper="BigScience Workshop 2022, arXiv 2211.05100",
)  # fmt: skip
