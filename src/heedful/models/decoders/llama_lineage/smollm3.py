"""SmolLM3 (Bakouch et al. 2025).

From LLaMA:  every fourth layer has no rotary positions (Yang et al. 2025, arXiv 2501.18795)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from heedful.models.base import derived
from heedful.models.decoders.llama_lineage.llama import LLAMA, LlamaConfig
from heedful.models.family import no_token_ids, published_heads
from heedful.models.gguf_config import gguf_keys


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
    unrotated: tuple[int, ...] = derived(
        lambda c: tuple(range(3, c.layers, 4))
    )  # layers without rotary positions


def read_smollm3(hf_config: dict[str, Any]) -> dict[str, Any]:
    """`no_rope_layers` has a 1 for each layer with rotary positions, a 0 for each without."""
    layers, every = hf_config.get("num_hidden_layers", 36), hf_config.get("no_rope_layer_interval", 4)
    rotated = hf_config.get("no_rope_layers") or [(i + 1) % every for i in range(layers)]
    return {"unrotated": tuple(i for i, turned in enumerate(rotated) if not turned)}


SMOLLM3 = replace(
    LLAMA, name="smollm3", config=SmolLM3Config,
    presets={"smollm3-3b": SmolLM3Config()},
    tiny=SmolLM3Config(
        vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64, unrotated=(1,)
    ),
    model_types=("smollm3",), heads=published_heads("SmolLM3"), read=read_smollm3,
    write=lambda c: {"no_rope_layers": [int(i not in c.unrotated) for i in range(c.layers)]},
    usual=no_token_ids, absent={"max_position_embeddings": 32768, "rope_theta": 2000000.0},
    reads={"no_rope_layers": "tuple[int, ...]", "no_rope_layer_interval": "int", "num_hidden_layers": "int"},
    require={"use_sliding_window": (False,)}, gguf="smollm3", gguf_keys=gguf_keys("smollm3", SmolLM3Config),
    paper="Bakouch et al. 2025, SmolLM3: smol, multilingual, long-context reasoner",
)  # fmt: skip
