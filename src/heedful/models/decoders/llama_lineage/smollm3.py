"""Layers without positions: SmolLM3 (Bakouch et al. 2025) and EXAONE 4 (LG AI Research 2025, 2507.11407).

From LLaMA:            every fourth layer has no rotary positions (Yang et al. 2025, arXiv 2501.18795)
From Qwen3 to EXAONE:  norms after the parts   the layers with positions see a window
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import LLAMA, DecoderConfig, LlamaConfig, published_names
from heedful.models.decoders.llama_lineage.olmo import OLMO2_NAMES
from heedful.models.decoders.llama_lineage.qwen import qwen3
from heedful.models.family import descend, no_token_ids, published_heads
from heedful.models.gguf_config import ROWS
from heedful.models.hf_config import write_layer_types
from heedful.nn.block import SandwichBlock
from heedful.nn.position import Llama3Scaling


@dataclass(frozen=True, kw_only=True)
class SmolLM3Config(LlamaConfig):
    vocab: int = 128256
    dim: int = 2048
    layers: int = 36
    heads: int = 16
    kv_heads: int = 4
    hidden: int = 11008
    context: int = 65536
    rope_base: float = 5000000.0
    tied: bool = True
    unrotated: tuple[int, ...] = derived(lambda c: tuple(range(3, c.layers, 4)))  # no rotary positions


@dataclass(frozen=True, kw_only=True)
class Exaone4Config(DecoderConfig):
    vocab: int = 102400
    dim: int = 5120
    layers: int = 64
    heads: int = 40
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 27392
    context: int = 131072
    rope_base: float = 1e6
    norm_eps: float = 1e-5
    window: int | None = 4096  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(
        lambda c: tuple(i for i in range(c.layers) if (i + 1) % 4 and c.window is not None)
    )
    unrotated: tuple[int, ...] = derived(
        lambda c: tuple(i for i in range(c.layers) if i not in c.local and c.window is not None)
    )


def exaone4(c: Exaone4Config) -> LM:
    return qwen3(c, block=partial(SandwichBlock, nn.Identity))


def read_smollm3(hf_config: dict[str, Any]) -> dict[str, Any]:
    """`no_rope_layers` has a 1 for each layer with rotary positions, a 0 for each without."""
    layers, every = hf_config.get("num_hidden_layers", 36), hf_config.get("no_rope_layer_interval", 4)
    rotated = hf_config.get("no_rope_layers") or [(i + 1) % every for i in range(layers)]
    return {"unrotated": tuple(i for i, turned in enumerate(rotated) if not turned)}


SMOLLM3 = descend(
    LLAMA, "smollm3", SmolLM3Config, presets={"smollm3-3b": {}}, tiny=dict(unrotated=(1,)),
    heads=published_heads("SmolLM3"), read=read_smollm3,
    write=lambda c: {"no_rope_layers": [int(i not in c.unrotated) for i in range(c.layers)]},
    usual=no_token_ids, absent={"max_position_embeddings": 32768, "rope_theta": 2000000.0},
    reads={"no_rope_layers": "tuple[int, ...]", "no_rope_layer_interval": "int", "num_hidden_layers": "int"},
    require={"use_sliding_window": (False,)}, gguf="smollm3", gguf_tensors=LLAMA.gguf_tensors,
    paper="Bakouch et al. 2025, SmolLM3: smol, multilingual, long-context reasoner",
)  # fmt: skip

EXAONE4 = descend(
    LLAMA, "exaone4", Exaone4Config, build=exaone4, names=partial(published_names, rows=OLMO2_NAMES),
    without=("unrotated",),
    presets={
        "exaone-4.0-1.2b": dict(
            dim=2048, layers=30, heads=32, head_dim=64, hidden=4096, context=65536, window=None, tied=True,
            rope_scaling=Llama3Scaling(16.0, 8192),
        ),
        "exaone-4.0-32b": dict(rope_scaling=Llama3Scaling(16.0, 8192)),
    },
    tiny=dict(head_dim=8, window=4, local=(0,)), heads=published_heads("Exaone4"), usual=no_token_ids,
    absent={
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 16384, "max_position_embeddings": 2048,
    },
    # Without a window, the published config cannot do without this list.
    write=lambda c: {} if c.window else {"layer_types": write_layer_types(c.layers, ())},
    gguf="exaone4", gguf_names=ROWS, paper="LG AI Research 2025, arXiv 2507.11407",
)  # fmt: skip
