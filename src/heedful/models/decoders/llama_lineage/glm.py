"""GLM-4 (GLM Team 2024, arXiv 2406.12793), in the format of transformers: GLM-4-9B and GLM-4-0414.

From LLaMA:      biases on queries, keys and values   rotary in half of each head   few key and value heads
From GLM to 4:   norms after the parts, too
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heedful.models.base import LM
from heedful.models.decoders.llama_lineage.gemma import sandwich
from heedful.models.decoders.llama_lineage.llama import LLAMA, NAMES, PartialRotaryConfig, llama, paired_rows
from heedful.models.decoders.llama_lineage.phi import GATE_UP
from heedful.models.family import descend, no_token_ids, published_heads
from heedful.models.gguf_config import ROWS
from heedful.weights.names import Row
from heedful.weights.ops import Fused


@dataclass(frozen=True, kw_only=True)
class GLMConfig(PartialRotaryConfig):
    vocab: int = 151552
    layers: int = 40
    kv_heads: int = 2
    head_dim: int = 128
    hidden: int = 13696
    context: int = 131072
    norm_eps: float = 1.5625e-7
    bias: bool = True  # of queries, keys and values
    out_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class GLM4Config(GLMConfig):
    context: int = 32768
    norm_eps: float = 1e-5


def glm4(c: GLM4Config) -> LM:
    return llama(c, block=sandwich)


def glm_rows(c: GLMConfig, queries: str, gate_up: str, rows: list[Row]) -> list[Row]:
    """Rotary pairs stand side by side at the beginning of each head."""
    turned = paired_rows(c, queries, rotary=c.rope_dim, first=True)
    return [*turned, (gate_up, GATE_UP, Fused()), *rows]


def glm_names(c: GLMConfig) -> list[Row]:
    own: Row = ("model.layers.*.post_{self_attn,mlp}_layernorm", "blocks.*.{attn,ffn}_post_norm")
    return glm_rows(c, "model.layers.*.self_attn.{}_proj", "model.layers.*.mlp.gate_up_proj", [own, *NAMES])


def glm_gguf_names(c: GLMConfig) -> list[Row]:
    return glm_rows(c, "blk.*.attn_{}", "blk.*.ffn_up", ROWS)


COMMON: dict[str, Any] = dict(
    without=("out_bias",), usual=no_token_ids, gguf_names=glm_gguf_names,
    gguf_tensors={"bias": ("blk.0.attn_q.bias", True, False)},
)  # fmt: skip

GLM = descend(
    LLAMA, "glm", GLMConfig, names=glm_names, presets={"glm-4-9b": {}},
    tiny=dict(head_dim=8, kv_heads=2), heads=published_heads("Glm", "span"),
    absent={"partial_rotary_factor": 0.5, "head_dim": 128}, gguf="chatglm",
    paper="GLM Team 2024, arXiv 2406.12793", **COMMON,
)  # fmt: skip

GLM4 = descend(
    GLM, "glm4", GLM4Config, build=glm4,
    presets={
        "glm-4-9b-0414": {}, "glm-4-32b-0414": dict(dim=6144, layers=61, heads=48, hidden=23040)
    },
    heads=published_heads("Glm4", "span"),
    absent={**GLM.absent, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7},
    gguf="glm4", paper="GLM Team 2025, GLM-4-0414", **COMMON,
)  # fmt: skip
