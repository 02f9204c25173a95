"""Falcon (Almazrouei et al. 2023, arXiv 2311.16867).

From GPT-3:  one key and value head for all, in the larger models for a group of heads   no biases
             rotary positions (ALiBi in the first, 1B)
             attention and feed-forward side by side, from one norm or from two
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import decoder_head
from heedful.models.family import gguf_keys, published_heads, published_keys
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, ParallelBlock, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary, RoundedALiBi, Scaling
from heedful.weights.names import Row
from heedful.weights.ops import PerHead


@dataclass(frozen=True, kw_only=True)
class FalconConfig(Config):
    vocab: int = 65024
    dim: int = 4544
    layers: int = 32
    heads: int = 71
    kv_heads: int = 1
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "gelu"
    parallel: bool = True  # attention and feed-forward side by side
    norms: int = 1  # of parts that stand side by side: one for both, or 2
    alibi: bool = False  # instead of rotary positions
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-5
    bias: bool = False  # of all matrices but the output's
    dropout: float = 0.0
    tied: bool = True

    @property
    def new_architecture(self) -> bool:
        """Whether this is what published configs call the new architecture."""
        return self.norms == 2 or self.kv_heads not in (1, self.heads)

    def check(self) -> None:
        if self.norms > 2:
            raise ConfigError(f"norms={self.norms}: a block has two parts", hint="choose 1 or 2")
        if self.new_architecture and not self.parallel:
            raise ConfigError(
                f"kv_heads={self.kv_heads} and norms={self.norms} are of falcons with parallel=True",
                hint=f"without it kv_heads is 1 or {self.heads}, and norms is 1",
            )


def falcon(c: FalconConfig) -> LM:
    size = head_size(c.dim, c.heads)
    rotary = None if c.alibi else Rotary(size, c.rope_base, c.rope_scaling)
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(c.dim, c.heads, c.kv_heads, bias=c.bias, rotary=rotary, dropout=c.dropout)
    parts = lambda: {"attn": attn(), "ffn": MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)}
    block = lambda: (
        ParallelBlock(norm, c.dropout, separate=c.norms == 2, **parts())
        if c.parallel
        else Block(norm, "pre", c.dropout, **parts())
    )
    head = decoder_head(c, dropout=c.dropout)
    bias = RoundedALiBi(c.heads, size) if c.alibi else None
    return LM(Embedding(c.vocab, c.dim), Stack([block() for _ in range(c.layers)], norm(), bias=bias), head)


def falcon_names(c: FalconConfig) -> list[Row]:
    norms: list[Row] = [("transformer.h.*.input_layernorm", "blocks.*.norm")]
    if not c.parallel:
        norms = [("transformer.h.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm")]
    elif c.norms == 2:
        norms = [("transformer.h.*.{ln_attn,ln_mlp}", "blocks.*.{attn,ffn}_norm")]
    return [
        ("transformer.word_embeddings", "embed.token"),
        ("transformer.h.*.self_attention.query_key_value", QKV, PerHead(c.kv_heads)),
        ("transformer.h.*.self_attention.dense", "blocks.*.attn.o"),
        ("transformer.h.*.mlp.{dense_h_to_4h,dense_4h_to_h}", "blocks.*.ffn.{up,down}"),
        *norms,
        ("transformer.ln_f", "blocks.norm"),
        ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
    ]


def falcon_gguf_names(c: FalconConfig) -> list[Row]:
    """Where there are two norms, attn_norm_2 is the one before attention."""
    norms: Row = ("blk.*.{attn_norm_2,attn_norm}", "blocks.*.{attn,ffn}_norm")
    return [FUSED_QKV, *([norms] if c.norms == 2 else []), *ROWS]


KEYS = published_keys(
    FalconConfig, "kv_heads", ffn_hidden_size="hidden", activation="act", alibi="alibi", bias="bias",
    layer_norm_epsilon="norm_eps", hidden_dropout="dropout", attention_dropout="dropout",
)  # fmt: skip


def read_falcon(hf_config: dict[str, Any]) -> dict[str, Any]:
    """The new architecture has groups of heads; the old one has one key head for all, or one for each."""
    new, heads = hf_config.get("new_decoder_architecture", False), hf_config["num_attention_heads"]
    kv_heads = 1 if hf_config.get("multi_query", True) else heads
    return {
        "kv_heads": hf_config.get("num_kv_heads", heads) if new else kv_heads,
        "parallel": new or hf_config.get("parallel_attn", True),
        "norms": hf_config.get("num_ln_in_parallel_attn", 2 if new else 1),
    }


def write_falcon(c: FalconConfig) -> dict[str, Any]:
    return {
        "new_decoder_architecture": c.new_architecture,
        "num_kv_heads": c.kv_heads if c.new_architecture else c.heads,
        "multi_query": c.kv_heads == 1, "parallel_attn": c.parallel,
        "num_ln_in_parallel_attn": c.norms if c.new_architecture else None,
    }  # fmt: skip


FALCON = Family(
    "falcon", FalconConfig, falcon, falcon_names, KEYS,
    presets={
        "falcon-7b": FalconConfig(),
        "falcon-40b": FalconConfig(dim=8192, layers=60, heads=128, kv_heads=8, norms=2),
        "falcon-180b": FalconConfig(dim=14848, layers=80, heads=232, kv_heads=8, norms=2),
        "falcon2-11b": FalconConfig(
            dim=4096, layers=60, heads=32, kv_heads=8, hidden=16384, context=8192, rope_base=500042.0,
            tied=False,
        ),
        "falcon-rw-1b": FalconConfig(
            vocab=50304, dim=2048, layers=24, heads=32, kv_heads=32, alibi=True, parallel=False, bias=True
        ),
    },
    tiny=FalconConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64), objective="next_token",
    prefix="transformer", model_types=("falcon",),
    heads=published_heads("Falcon"),
    read=read_falcon, write=write_falcon, absent={"num_attention_heads": 71},
    reads={
        "new_decoder_architecture": "bool", "multi_query": "bool", "parallel_attn": "bool",
        "num_kv_heads": "int", "num_ln_in_parallel_attn": "int",
    },
    copies={
        "lm_head.weight": "transformer.word_embeddings.weight", "output.weight": "token_embd.weight"
    },
    gguf="falcon", gguf_names=falcon_gguf_names,  # no file holds ALiBi or parts one after the other
    gguf_tensors={"norms": ("blk.0.attn_norm_2.weight", 2, 1), "bias": ("blk.0.attn_qkv.bias", True, False)},
    gguf_keys=gguf_keys("falcon", FalconConfig),
    paper="Almazrouei et al. 2023, arXiv 2311.16867",
)  # fmt: skip
