"""OLMo 1 (Groeneveld et al. 2024, 2402.00838), 2 (2024, 2501.00656), 3 (2025, 2512.13961), MoE (2409.02060).

From LLaMA:       LayerNorm that learns nothing instead of RMSNorm   queries, keys and values perhaps clipped
From OLMo to 2:   RMSNorm after each part instead of before it   queries and keys normalised over all heads
From OLMo 2 to 3:  three of four layers see a window, and only the others stretch their rotary positions
OLMoE:             64 experts instead of one MLP   norms before the parts, and as in 2 of queries and keys

SmolLM3 (Bakouch et al. 2025) and EXAONE 4 (LG AI Research 2025, 2507.11407) have layers without positions.

From LLaMA to SmolLM3:  every fourth layer has no rotary positions (Yang et al. 2025, arXiv 2501.18795)
From Qwen3 to EXAONE:   norms after the parts   the layers with positions see a window
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    DecoderConfig,
    LlamaConfig,
    llama,
    llama_attention,
    published_names,
    softmax_moe,
)
from heedful.models.decoders.llama_lineage.qwen import MOE_GGUF_NAMES, MOE_KEYS, MOE_NAMES, qwen3
from heedful.models.family import descend, gguf_keys, no_token_ids, published_heads
from heedful.models.gguf_config import ROWS
from heedful.models.hf_config import write_layer_types
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import SandwichBlock
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.position import Llama3Scaling, Rotary, YarnScaling
from heedful.weights.names import Row

YARN = YarnScaling(8.0, 8192)


class OlmoConfig(DecoderConfig, vocab=50304, hidden=11008, norm_eps=1e-5):
    bias: bool = False  # of the attention's matrices


class Olmo1Config(OlmoConfig):
    clip: float | None = None  # of queries, keys and values


class Olmo2Config(OlmoConfig, vocab=100352, context=4096, rope_base=500000.0, norm_eps=1e-6):
    """The sizes of OLMo 2 7B."""


class Olmo3Config(Olmo2Config, vocab=100278, context=65536):
    window: int = 4096  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if (i + 1) % 4))
    local_rope_base: float = derived(lambda c: c.rope_base)


class OlmoeConfig(OlmoConfig, dim=2048, layers=16, heads=16, hidden=1024, context=4096):
    experts: int = 64
    active: int = 8  # experts per token
    normalise: bool = False  # whether the experts' weights sum to 1


def olmo(c: Olmo1Config) -> LM:
    attn = lambda rotary, i: llama_attention(c, rotary, i, clip=c.clip)
    return llama(c, attn=attn, norm=lambda: LayerNorm(c.dim, c.norm_eps, weight=False))


def olmo2_attention(c: OlmoConfig, rotary: Rotary | None, layer: int) -> Attention:
    of_heads = lambda count: RMSNorm(count * c.head_dim, c.norm_eps)
    return llama_attention(c, rotary, layer, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads))


def olmo3(c: Olmo3Config) -> LM:
    near = Rotary(c.head_dim, c.local_rope_base)
    attn = lambda far, i: olmo2_attention(c, near if i in c.local else far, i)
    return llama(c, attn=attn, block=partial(SandwichBlock, nn.Identity))


OLMO2_NAMES: list[Row] = [
    ("model.layers.*.post_{attention,feedforward}_layernorm", "blocks.*.{attn,ffn}_post_norm"),
    ("model.layers.*.self_attn.{q,k}_norm", "blocks.*.attn.{q,k}_norm"),
    *NAMES,
]

OLMO = descend(
    LLAMA, "olmo", Olmo1Config, build=olmo, names=NAMES, without=("norm_eps",), keys=dict(clip_qkv="clip"),
    presets={"olmo-1b": dict(dim=2048, layers=16, heads=16, hidden=8192, tied=True), "olmo-7b": {}},
    tiny=dict(clip=0.5), heads=published_heads("Olmo", "tag", "span"), gguf="olmo",
    paper="Groeneveld et al. 2024, arXiv 2402.00838",
)  # fmt: skip

OLMO2 = descend(
    OLMO, "olmo2", Olmo2Config, names=OLMO2_NAMES, keys=dict(rms_norm_eps="norm_eps"),
    build=lambda c: llama(
        c, attn=partial(olmo2_attention, c), block=partial(SandwichBlock, nn.Identity)
    ),
    presets={
        "olmo-2-1b": dict(dim=2048, layers=16, heads=16, hidden=8192),
        "olmo-2-7b": {},
        "olmo-2-13b": dict(dim=5120, layers=40, heads=40, hidden=13824),
        "olmo-2-32b": dict(dim=5120, layers=64, heads=40, kv_heads=8, hidden=27648),
    },
    tiny=dict(hidden=40),
    heads=published_heads("Olmo2", "tag", "span"),
    absent={"vocab_size": 50304, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    gguf="olmo2", gguf_names=ROWS,
    paper="OLMo Team 2024, arXiv 2501.00656",
)  # fmt: skip

OLMO3 = descend(
    OLMO2, "olmo3", Olmo3Config, build=olmo3,
    presets={
        "olmo-3-7b": dict(rope_scaling=YARN), "olmo-3-32b": dict(
            dim=5120, layers=64, heads=40, kv_heads=8, hidden=27648, rope_scaling=YARN
        ),
    },
    tiny=dict(window=4, local=(0,)), heads={"lm": "Olmo3ForCausalLM", "none": "Olmo3Model"},
    absent={"vocab_size": 50304, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    gguf="olmo2", gguf_when="olmo2.attention.sliding_window",
    gguf_keys=gguf_keys("olmo2", Olmo3Config, "local_rope_base"), paper="OLMo Team 2025, arXiv 2512.13961",
)  # fmt: skip

OLMOE = descend(
    OLMO2, "olmoe", OlmoeConfig, names=MOE_NAMES,
    build=lambda c: llama(c, attn=partial(olmo2_attention, c), ffn=lambda i: softmax_moe(c)),
    keys={k: v for k, v in MOE_KEYS.items() if v != "expert_hidden"}, presets={"olmoe-1b-7b": {}},
    tiny=dict(hidden=24, experts=4, active=2), heads={"lm": "OlmoeForCausalLM", "none": "OlmoeModel"},
    absent={"intermediate_size": 2048}, require={"clip_qkv": (None,)},
    gguf="olmoe", gguf_names=MOE_GGUF_NAMES, paper="Muennighoff et al. 2024, arXiv 2409.02060",
)  # fmt: skip


class SmolLM3Config(
    LlamaConfig, vocab=128256, dim=2048, layers=36, heads=16, kv_heads=4, hidden=11008, context=65536,
    rope_base=5000000.0, tied=True,
):  # fmt: skip
    unrotated: tuple[int, ...] = derived(lambda c: tuple(range(3, c.layers, 4)))  # no rotary positions


class Exaone4Config(
    DecoderConfig, vocab=102400, dim=5120, layers=64, heads=40, kv_heads=8, head_dim=128, hidden=27392,
    context=131072, rope_base=1e6, norm_eps=1e-5,
):  # fmt: skip
    window: int | None = 4096  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(
        lambda c: tuple(i for i in range(c.layers) if (i + 1) % 4 and c.window is not None)
    )
    unrotated: tuple[int, ...] = derived(
        lambda c: tuple(i for i in range(c.layers) if i not in c.local and c.window is not None)
    )


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
    LLAMA, "exaone4", Exaone4Config, build=lambda c: qwen3(c, block=partial(SandwichBlock, nn.Identity)),
    names=partial(published_names, rows=OLMO2_NAMES),
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
