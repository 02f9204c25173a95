"""StableLM 3B, and StableLM 2 (Bellagente et al. 2024, arXiv 2402.17834).

From LLaMA:  RMSNorm → LayerNorm   rotary in a quarter of each head
In 1.6B:     biases on queries, keys and values
In 12B:      attention and feed-forward side by side   queries and keys normalised, each head by its own norm
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    KEYS,
    LLAMA,
    NAMES,
    build_decoder,
    llama_attention,
    llama_mlp,
)
from heedful.models.decoders.llama_lineage.partial_rotary import (
    READS,
    PartialRotaryConfig,
    partial_rotary,
    read_partial_rope,
    write_partial_rope,
)
from heedful.models.family import published_heads, rename_keys
from heedful.models.gguf_config import gguf_keys, gguf_names
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.norm import HeadLayerNorm, LayerNorm
from heedful.nn.position import Rotary
from heedful.weights.formats.gguf import GGUFFile
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
    rotary, norm = partial_rotary(c), lambda: LayerNorm(c.dim, c.norm_eps)
    attn, ffn = lambda: stablelm_attention(c, rotary), lambda: llama_mlp(c)
    block = lambda: (
        ParallelBlock(norm, c.dropout, attn=attn(), ffn=ffn())
        if c.parallel
        else Block(norm, "pre", c.dropout, attn=attn(), ffn=ffn())
    )
    return build_decoder(c, [block() for _ in range(c.layers)], norm())


def stablelm_attention(c: StableLMConfig, rotary: Rotary) -> Attention:
    of_heads = lambda heads: HeadLayerNorm(heads, c.head_dim, c.norm_eps) if c.qk_norm else None
    return llama_attention(
        c, rotary, bias=c.bias, out_bias=False, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads)
    )


def stablelm_names(c: StableLMConfig) -> list[Row]:
    theirs = "model.layers.*.self_attn.{q,k}_layernorm.norms.*.weight"
    return [
        (theirs, "blocks.*.attn.{q,k}_norm.weight", Stacked()),
        ("model.layers.*.input_layernorm", "blocks.*.norm"),
        *NAMES,
    ]


def read_gguf(source: GGUFFile) -> dict[str, Any]:
    return {
        "bias": "blk.0.attn_q.bias" in source.entries,
        "qk_norm": "blk.0.attn_q_norm.weight" in source.entries,
        "parallel": "blk.0.ffn_norm.weight" not in source.entries,
    }


STABLELM = replace(
    LLAMA, name="stablelm", config=StableLMConfig, build=stablelm, names=stablelm_names,
    keys={
        **rename_keys(KEYS, rms_norm_eps="layer_norm_eps", head_dim=""), "use_qkv_bias": "bias",
        "qk_layernorm": "qk_norm", "use_parallel_residual": "parallel", "hidden_dropout": "dropout",
    },
    presets={
        "stablelm-3b": StableLMConfig(),
        "stablelm-2-1.6b": StableLMConfig(vocab=100352, dim=2048, layers=24, hidden=5632, bias=True),
        "stablelm-2-12b": StableLMConfig(
            vocab=100352, dim=5120, layers=40, kv_heads=8, hidden=13824, qk_norm=True, parallel=True
        ),
    },
    tiny=StableLMConfig(
        vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64, qk_norm=True, parallel=True
    ),
    model_types=("stablelm",), heads=published_heads("StableLm", "span"),
    reads=READS, read=partial(read_partial_rope, default=0.25), write=write_partial_rope,
    absent={"max_position_embeddings": 4096, "hidden_size": 2560, "num_attention_heads": 32},
    gguf="stablelm", gguf_names=gguf_names, gguf_read=read_gguf,
    gguf_keys=gguf_keys("stablelm", StableLMConfig), paper="Bellagente et al. 2024, arXiv 2402.17834",
)  # fmt: skip
