"""Qwen2 and 2.5 (Qwen Team 2024, arXiv 2407.10671, 2412.15115), Qwen3 (Qwen Team 2025, arXiv 2505.09388).

From LLaMA:         biases on queries, keys and values   in some layers positions may see only a window
From Qwen2 to 3:    no biases   queries and keys normalised, each head alone
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heedful.models.base import LM
from heedful.models.decoders.llama import (
    KEYS,
    LLAMA,
    NAMES,
    DecoderConfig,
    build_decoder,
    llama_attention,
    llama_mlp,
    llama_norm,
    llama_rotary,
    published_names,
    read_llama,
    write_llama,
)
from heedful.models.family import published_heads
from heedful.models.gguf_tables import gguf_keys, gguf_names
from heedful.models.hf_config import read_local_layers, write_layer_types
from heedful.nn.attention import Attention
from heedful.nn.block import Block
from heedful.nn.norm import RMSNorm
from heedful.nn.position import Rotary
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(DecoderConfig):
    vocab: int = 151936
    context: int = 32768
    rope_base: float = 1000000.0
    window: int | None = None  # how far a position sees in the layers that `local` lists; None: everywhere
    local: tuple[int, ...] = ()

    def window_of(self, layer: int) -> int | None:
        return self.window if layer in self.local else None


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(Qwen2Config):
    head_dim: int = 128
    context: int = 40960
    bias: bool = False  # of the attention's matrices, the output's too


def qwen2(c: Qwen2Config) -> LM:
    rotary, norm = llama_rotary(c), llama_norm(c)
    attn = lambda i: llama_attention(c, rotary, bias=True, out_bias=False, window=c.window_of(i))
    block = lambda i: Block(norm, attn=attn(i), ffn=llama_mlp(c))
    return build_decoder(c, [block(i) for i in range(c.layers)], norm())


def qwen3(c: Qwen3Config) -> LM:
    rotary, norm = llama_rotary(c), llama_norm(c)
    block = lambda i: Block(norm, attn=qwen3_attention(c, rotary, i), ffn=llama_mlp(c))
    return build_decoder(c, [block(i) for i in range(c.layers)], norm())


def qwen3_attention(c: Qwen3Config, rotary: Rotary, layer: int) -> Attention:
    of_head = lambda: RMSNorm(c.head_dim, c.norm_eps)
    return llama_attention(
        c, rotary, bias=c.bias, q_norm=of_head(), k_norm=of_head(), window=c.window_of(layer)
    )


def read_qwen(hf_config: dict[str, Any], default: Iterable[int]) -> dict[str, Any]:
    """Windows are off unless `use_sliding_window`; then the `default` layers have them where no list says."""
    fields = read_llama(hf_config)
    if not hf_config.get("use_sliding_window") or not hf_config.get("sliding_window"):
        return fields
    return fields | {"window": hf_config["sliding_window"], "local": read_local_layers(hf_config, default)}


def read_qwen2(hf_config: dict[str, Any]) -> dict[str, Any]:
    last = range(hf_config.get("max_window_layers", 28), hf_config.get("num_hidden_layers", 32))
    return read_qwen(hf_config, last)


def write_qwen(c: Qwen2Config) -> dict[str, Any]:
    fields = write_llama(c) | {"use_sliding_window": c.window is not None}
    if c.window is not None:
        fields |= {"sliding_window": c.window, "layer_types": write_layer_types(c.layers, c.local)}
    return fields


QWEN_READS = {
    "use_sliding_window": "bool", "sliding_window": "int", "max_window_layers": "int",
    "num_hidden_layers": "int",
}  # fmt: skip
QK_NORMS: Row = ("model.layers.*.self_attn.{q,k}_norm", "blocks.*.attn.{q,k}_norm")
TINY: dict[str, Any] = dict(vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64)

QWEN2 = replace(
    LLAMA, name="qwen2", config=Qwen2Config, build=qwen2, keys=KEYS,
    presets={
        "qwen2.5-0.5b": Qwen2Config(
            dim=896, layers=24, heads=14, kv_heads=2, hidden=4864, tied=True
        ),
        "qwen2.5-1.5b": Qwen2Config(
            dim=1536, layers=28, heads=12, kv_heads=2, hidden=8960, context=131072, tied=True
        ),
        "qwen2.5-3b": Qwen2Config(dim=2048, layers=36, heads=16, kv_heads=2, hidden=11008, tied=True),
        "qwen2.5-7b": Qwen2Config(
            vocab=152064, dim=3584, layers=28, heads=28, kv_heads=4, hidden=18944, context=131072
        ),
        "qwen2.5-72b": Qwen2Config(
            vocab=152064, dim=8192, layers=80, heads=64, kv_heads=8, hidden=29568, context=131072,
            norm_eps=1e-5,
        ),
    },
    tiny=Qwen2Config(**TINY, window=4, local=(1,)), model_types=("qwen2",), heads=published_heads("Qwen2"),
    read=read_qwen2, write=write_qwen, reads=QWEN_READS, absent={"intermediate_size": 22016},
    gguf="qwen2", gguf_names=gguf_names, gguf_keys=gguf_keys("qwen2", Qwen2Config),
    paper="Qwen Team 2024, arXiv 2407.10671, 2412.15115",
)  # fmt: skip

QWEN3 = replace(
    QWEN2, name="qwen3", config=Qwen3Config, build=qwen3, keys={**KEYS, "attention_bias": "bias"},
    names=partial(published_names, rows=[*NAMES, QK_NORMS]),
    presets={
        "qwen3-0.6b": Qwen3Config(dim=1024, layers=28, heads=16, kv_heads=8, hidden=3072, tied=True),
        "qwen3-1.7b": Qwen3Config(dim=2048, layers=28, heads=16, kv_heads=8, hidden=6144, tied=True),
        "qwen3-4b": Qwen3Config(dim=2560, layers=36, heads=32, kv_heads=8, hidden=9728, tied=True),
        "qwen3-8b": Qwen3Config(dim=4096, layers=36, heads=32, kv_heads=8, hidden=12288),
        "qwen3-32b": Qwen3Config(dim=5120, layers=64, heads=64, kv_heads=8, hidden=25600),
    },
    tiny=Qwen3Config(**TINY, head_dim=12), model_types=("qwen3",), heads=published_heads("Qwen3"),
    absent={**QWEN2.absent, "max_position_embeddings": 32768},
    gguf="qwen3", gguf_keys=gguf_keys("qwen3", Qwen3Config), paper="Qwen Team 2025, arXiv 2505.09388",
)  # fmt: skip
