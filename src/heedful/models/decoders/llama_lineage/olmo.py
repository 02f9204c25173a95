"""OLMo (Groeneveld et al. 2024, arXiv 2402.00838) and OLMo 2 (OLMo Team 2024, arXiv 2501.00656).

From LLaMA:       LayerNorm that learns nothing instead of RMSNorm   queries, keys and values perhaps clipped
From OLMo to 2:   RMSNorm after each part instead of before it   queries and keys normalised over all heads
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from heedful.models.base import LM
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    DecoderConfig,
    llama,
    llama_attention,
)
from heedful.models.family import published_heads, published_keys
from heedful.models.gguf_config import ROWS, gguf_keys
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import SandwichBlock
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.position import Rotary
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class OlmoConfig(DecoderConfig):
    vocab: int = 50304
    hidden: int = 11008
    norm_eps: float = 1e-5
    bias: bool = False  # of the attention's matrices


@dataclass(frozen=True, kw_only=True)
class Olmo1Config(OlmoConfig):
    clip: float | None = None  # of queries, keys and values


@dataclass(frozen=True, kw_only=True)
class Olmo2Config(OlmoConfig):
    vocab: int = 100352
    context: int = 4096
    rope_base: float = 500000.0
    norm_eps: float = 1e-6


def olmo(c: Olmo1Config) -> LM:
    attn = lambda rotary, i: llama_attention(c, rotary, i, clip=c.clip)
    return llama(c, attn=attn, norm=lambda: LayerNorm(c.dim, c.norm_eps, weight=False))


def olmo2_attention(c: Olmo2Config, rotary: Rotary | None, layer: int) -> Attention:
    of_heads = lambda count: RMSNorm(count * c.head_dim, c.norm_eps)
    return llama_attention(c, rotary, layer, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads))


def olmo2(c: Olmo2Config) -> LM:
    return llama(c, attn=partial(olmo2_attention, c), block=partial(SandwichBlock, nn.Identity))


OLMO2_NAMES: list[Row] = [
    ("model.layers.*.post_{attention,feedforward}_layernorm", "blocks.*.{attn,ffn}_post_norm"),
    ("model.layers.*.self_attn.{q,k}_norm", "blocks.*.attn.{q,k}_norm"),
    *NAMES,
]
TINY: dict[str, Any] = dict(vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64)

OLMO = replace(
    LLAMA, name="olmo", config=Olmo1Config, build=olmo, names=NAMES,
    keys=published_keys(Olmo1Config, "norm_eps", clip_qkv="clip"),
    presets={
        "olmo-1b": Olmo1Config(dim=2048, layers=16, heads=16, hidden=8192, tied=True),
        "olmo-7b": Olmo1Config(),
    },
    tiny=Olmo1Config(**TINY, clip=0.5), model_types=("olmo",), heads=published_heads("Olmo", "tag", "span"),
    gguf="olmo", gguf_tensors={}, gguf_keys=gguf_keys("olmo", Olmo1Config),
    paper="Groeneveld et al. 2024, arXiv 2402.00838",
)  # fmt: skip

OLMO2 = replace(
    OLMO, name="olmo2", config=Olmo2Config, build=olmo2, names=OLMO2_NAMES,
    keys=published_keys(Olmo2Config),
    presets={
        "olmo-2-1b": Olmo2Config(dim=2048, layers=16, heads=16, hidden=8192),
        "olmo-2-7b": Olmo2Config(),
        "olmo-2-13b": Olmo2Config(dim=5120, layers=40, heads=40, hidden=13824),
        "olmo-2-32b": Olmo2Config(dim=5120, layers=64, heads=40, kv_heads=8, hidden=27648),
    },
    tiny=Olmo2Config(**TINY | {"hidden": 40}), model_types=("olmo2",),
    heads=published_heads("Olmo2", "tag", "span"),
    absent={"vocab_size": 50304, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    gguf="olmo2", gguf_names=ROWS, gguf_keys=gguf_keys("olmo2", Olmo2Config),
    paper="OLMo Team 2024, arXiv 2501.00656",
)  # fmt: skip
