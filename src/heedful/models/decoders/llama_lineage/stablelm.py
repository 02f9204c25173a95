"""StableLM 3B, and StableLM 2 (Bellagente et al. 2024, arXiv 2402.17834).

From LLaMA:  RMSNorm → LayerNorm   rotary in a quarter of each head
In 1.6B:     biases on queries, keys and values
In 12B:      attention and feed-forward side by side   queries and keys normalised, each head by its own norm
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    PartialRotaryConfig,
    llama,
    llama_attention,
)
from heedful.models.family import descend, published_heads
from heedful.models.gguf_config import ROWS
from heedful.nn.attention.multi_head import head_size
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.norm import HeadLayerNorm, LayerNorm
from heedful.weights.names import Row
from heedful.weights.ops import Stacked


@dataclass(frozen=True, kw_only=True)
class StableLMConfig(PartialRotaryConfig):
    vocab: int = 50304
    dim: int = 2560
    hidden: int = 6912
    context: int = 4096
    rope_dim: int = derived(lambda c: c.head_dim // 4)
    norm_eps: float = 1e-5
    bias: bool = False  # of queries, keys and values
    qk_norm: bool = False
    parallel: bool = False  # attention and feed-forward side by side

    def check(self) -> None:
        if self.head_dim != head_size(self.dim, self.heads):
            raise ConfigError(f"head_dim={self.head_dim} is dim / heads in a stablelm", hint="leave it out")
        super().check()


def stablelm(c: StableLMConfig) -> LM:
    of_heads = lambda heads: HeadLayerNorm(heads, c.head_dim, c.norm_eps) if c.qk_norm else None
    attn = lambda rotary, i: llama_attention(
        c, rotary, i, out_bias=False, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads)
    )
    block = partial(ParallelBlock if c.parallel else Block, dropout=c.dropout)
    return llama(c, attn=attn, norm=lambda: LayerNorm(c.dim, c.norm_eps), block=block)


OWN_NAMES: list[Row] = [
    (
        "model.layers.*.self_attn.{q,k}_layernorm.norms.*.weight",
        "blocks.*.attn.{q,k}_norm.weight",
        Stacked(),
    ),
    ("model.layers.*.input_layernorm", "blocks.*.norm"),
    *NAMES,
]


STABLELM = descend(
    LLAMA, "stablelm", StableLMConfig, build=stablelm, names=OWN_NAMES,
    without=("head_dim",), keys=dict(
        layer_norm_eps="norm_eps", use_qkv_bias="bias", qk_layernorm="qk_norm",
        use_parallel_residual="parallel", attention_dropout="dropout", hidden_dropout="dropout",
    ),
    presets={
        "stablelm-3b": {},
        "stablelm-2-1.6b": dict(vocab=100352, dim=2048, layers=24, hidden=5632, bias=True),
        "stablelm-2-12b": dict(
            vocab=100352, dim=5120, layers=40, kv_heads=8, hidden=13824, qk_norm=True, parallel=True
        ),
    },
    tiny=dict(qk_norm=True, parallel=True), heads=published_heads("StableLm", "span"),
    absent={
        "max_position_embeddings": 4096, "hidden_size": 2560, "num_attention_heads": 32, "rotary_pct": 0.25,
    },
    gguf="stablelm", gguf_names=ROWS,
    gguf_tensors={
        "bias": ("blk.0.attn_q.bias", True, False), "qk_norm": ("blk.0.attn_q_norm.weight", True, False),
        "parallel": ("blk.0.ffn_norm.weight", False, True),
    },
    paper="Bellagente et al. 2024, arXiv 2402.17834",
)  # fmt: skip
