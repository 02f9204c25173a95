"""ModernBERT (Warner et al. 2024, arXiv 2412.13663).

From BERT:  learned positions → rotary   post-norm → pre-norm, none before the first attention   GELU → GeGLU
            two of three layers see a window, and turn faster   no biases   one segment
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived
from heedful.models.family import gguf_keys, no_token_ids, published_heads, published_keys
from heedful.models.gguf_config import FUSED_QKV, ROWS
from heedful.models.hf_config import read_local_layers
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.head import Head, MLMHead, Pooler, Transform, choose_head, encoder_heads
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary, Scaling
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import Fused


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(Config):
    vocab: int = 50368
    dim: int = 768
    layers: int = 22
    heads: int = 12
    hidden: int = derived(lambda c: 3 * c.dim // 2)
    context: int = 8192
    window: int = 128  # tokens that a local layer sees, half of them on each side
    local: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if i % 3))
    act: str = "gelu"
    rope_base: float = 160000.0
    rope_scaling: Scaling | None = None
    local_rope_base: float = 10000.0
    local_rope_scaling: Scaling | None = None
    norm_eps: float = 1e-5
    norm_bias: bool = False
    bias: bool = False  # of the attention's matrices
    ffn_bias: bool = False
    head_bias: bool = False  # of the matrix that a head begins with
    head_act: str = "gelu"
    out_bias: bool = True  # of the words
    pooling: str = "first"  # which vector is classified: of the first token, or the mean
    dropout: float = 0.0
    tied: bool = True
    head: str = "mlm"

    def check(self) -> None:
        wrong = [i for i in self.local if not 0 <= i < self.layers]
        if wrong:
            raise ConfigError(f"local has {wrong[0]}", hint=f"layers are 0 … {self.layers - 1}")
        check_choice("pooling", self.pooling, ("first", "mean"), ConfigError)


def modernbert(c: ModernBertConfig) -> LM:
    size = head_size(c.dim, c.heads)
    norm = lambda: LayerNorm(c.dim, c.norm_eps, bias=c.norm_bias)
    turns = Rotary(size, c.rope_base, c.rope_scaling)
    local_turns = Rotary(size, c.local_rope_base, c.local_rope_scaling)

    def block(i: int) -> Block:
        local = i in c.local
        attn = Attention(
            c.dim, c.heads, bias=c.bias, rotary=local_turns if local else turns,
            window=c.window // 2 + 1 if local else None, dropout=c.dropout,
        )  # fmt: skip
        ffn = GatedMLP(c.dim, c.hidden, activation(c.act), bias=c.ffn_bias, dropout=c.dropout)
        return Block(norm, attn=attn, ffn=ffn)

    blocks = [block(i) for i in range(c.layers)]
    blocks[0].attn_norm = nn.Identity()  # the embedding's norm stands just before it
    embed = Embedding(c.vocab, c.dim, norm=norm(), dropout=c.dropout)
    return LM(embed, Stack(blocks, norm()), modernbert_head(c), causal=False)


def modernbert_head(c: ModernBertConfig) -> Head:
    """Every head begins with norm(act(dense x)), of all tokens or of the one vector that it classifies."""
    norm, act = lambda: LayerNorm(c.dim, c.norm_eps, bias=c.norm_bias), activation(c.head_act)
    mlm: dict[str, Any] = dict(eps=c.norm_eps, tied=c.tied, norm_bias=c.norm_bias, out_bias=c.out_bias)
    return choose_head(
        c.head,
        mlm=lambda: MLMHead(c.dim, c.vocab, act, bias=c.head_bias, **mlm),
        **encoder_heads(
            c.dim, c.labels, lambda: Pooler(c.dim, act, token=c.pooling, bias=c.head_bias, norm=norm()),
            c.dropout, lambda: Transform(c.dim, act, norm(), bias=c.head_bias),
        ),
    )  # fmt: skip


NAMES: list[Row] = [
    ("model.embeddings.{tok_embeddings,norm}", "embed.{token,norm}"),
    ("model.layers.*.attn.Wqkv", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused()),
    ("model.layers.*.attn.Wo", "blocks.*.attn.o"),
    ("model.layers.*.mlp.Wi", ("blocks.*.ffn.gate", "blocks.*.ffn.up"), Fused()),
    ("model.layers.*.mlp.Wo", "blocks.*.ffn.down"),
    ("model.layers.*.{attn,mlp}_norm", "blocks.*.{attn,ffn}_norm"),
    ("model.final_norm", "blocks.norm"),
    *(("head.{dense,norm}", f"head.{where}{{dense,norm}}") for where in ("", "pool.", "transform.")),
    ("decoder", "head.out"),
    *(("classifier", f"head.{kind}") for kind in ("label", "tag", "span")),
]

KEYS = published_keys(
    ModernBertConfig, local_attention="window", hidden_activation="act", norm_eps="norm_eps",
    norm_bias="norm_bias", classifier_bias="head_bias", classifier_activation="head_act",
    decoder_bias="out_bias", attention_dropout="dropout", mlp_dropout="dropout", embedding_dropout="dropout",
)  # fmt: skip
POOLING = {"cls": "first", "mean": "mean"}


def read_modernbert(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Newer files list the kind of every layer; older ones say which layers are global."""
    layers, apart = hf_config.get("num_hidden_layers", 22), hf_config.get("global_attn_every_n_layers", 3)
    # A head of sentence vectors, which is ours, uses the same key.
    own = str(hf_config.get("model_type")).startswith("heedful-")
    pooling = "cls" if own else hf_config.get("classifier_pooling", "cls")
    local = read_local_layers(hf_config, (i for i in range(layers) if i % apart))
    return {"local": local, "pooling": POOLING.get(pooling, pooling)}


def write_modernbert(c: ModernBertConfig) -> dict[str, Any]:
    return {"classifier_pooling": next(theirs for theirs, ours in POOLING.items() if ours == c.pooling)}


GGUF_NAMES: list[Row] = [
    ("token_{embd,embd_norm}", "embed.{token,norm}"),
    FUSED_QKV,
    ("blk.*.ffn_up", ("blocks.*.ffn.gate", "blocks.*.ffn.up"), Fused()),
    *ROWS,
]
APART = "modern-bert.attention.sliding_window_pattern"  # how many layers the global ones are apart


def read_modernbert_gguf(source: GGUFFile) -> dict[str, Any]:
    layers, apart = source.metadata.get("modern-bert.block_count", 22), source.metadata.get(APART, 3)
    return {"local": tuple(i for i in range(layers) if i % max(apart, 1))}


def write_modernbert_gguf(c: ModernBertConfig) -> dict[str, Any]:
    apart = next((i for i in range(1, c.layers) if i not in c.local), c.layers)
    return {APART: apart, "modern-bert.attention.causal": False}


MODERNBERT = Family(
    "modernbert", ModernBertConfig, modernbert, NAMES, KEYS,
    presets={
        "modernbert-base": ModernBertConfig(),
        "modernbert-large": ModernBertConfig(dim=1024, layers=28, heads=16, hidden=2624),
    },
    tiny=ModernBertConfig(vocab=128, dim=32, layers=3, heads=4, hidden=48, context=64, window=4),
    objective="masked", prefix="model", model_types=("modernbert",),
    heads=published_heads("ModernBert", words="mlm"),
    read=read_modernbert, write=write_modernbert, usual=no_token_ids,
    reads={
        "layer_types": "tuple[str, ...]", "global_attn_every_n_layers": "int", "rope_parameters": "dict",
        "global_rope_theta": "float", "local_rope_theta": "float",
    },
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    gguf="modern-bert", gguf_names=GGUF_NAMES, gguf_head="none", gguf_read=read_modernbert_gguf,
    gguf_write=write_modernbert_gguf, gguf_keys=gguf_keys("modern-bert", ModernBertConfig),
    paper="Warner et al. 2024, arXiv 2412.13663",
)  # fmt: skip
