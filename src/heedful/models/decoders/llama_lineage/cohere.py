"""Command R and R+ (Cohere 2024), Command R7B and A (Cohere 2025, arXiv 2504.00698).

From StableLM 12B:      norms without shift   rotary in the whole head   logits times a constant
From Command R to R7B:  three of four layers see a window, and the others have no rotary positions
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    DecoderConfig,
    llama,
    llama_attention,
    paired_rows,
)
from heedful.models.family import descend, no_token_ids
from heedful.models.gguf_config import ROWS
from heedful.nn.block import ParallelBlock
from heedful.nn.norm import HeadLayerNorm, LayerNorm
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class CohereConfig(DecoderConfig):
    vocab: int = 256000
    dim: int = 8192
    layers: int = 40
    heads: int = 64
    hidden: int = 22528
    context: int = 131072
    rope_base: float = 8e6
    norm_eps: float = 1e-5
    tied: bool = True
    bias: bool = False
    qk_norm: bool = False
    logit_scale: float = 0.0625


@dataclass(frozen=True, kw_only=True)
class Cohere2Config(CohereConfig):
    dim: int = 4096
    layers: int = 32
    heads: int = 32
    hidden: int = 14336
    context: int = 8192
    rope_base: float = 50000.0
    qk_norm: bool = False
    logit_scale: float = 0.25
    window: int = 4096  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if (i + 1) % 4))
    unrotated: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if i not in c.local))


def cohere(c: CohereConfig) -> LM:
    of_heads = lambda heads: HeadLayerNorm(heads, c.head_dim, c.norm_eps) if c.qk_norm else None
    attn = lambda rotary, i: llama_attention(
        c, rotary, i, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads)
    )
    norm = lambda: LayerNorm(c.dim, c.norm_eps, bias=False)
    return llama(c, attn=attn, norm=norm, block=ParallelBlock, scale=c.logit_scale)


def cohere_names(c: CohereConfig) -> list[Row]:
    rows: list[Row] = [("model.layers.*.input_layernorm", "blocks.*.norm"), *NAMES]
    stem = "model.layers.*.self_attn."
    return [*paired_rows(c, stem + "{}_proj"), *paired_rows(c, stem + "{}_norm", "_norm"), *rows]


def cohere_gguf_names(c: CohereConfig) -> list[Row]:
    return [*paired_rows(c, "blk.*.attn_{}"), *paired_rows(c, "blk.*.attn_{}_norm", "_norm"), *ROWS]


COHERE = descend(
    LLAMA, "cohere", CohereConfig, build=cohere, names=cohere_names,
    keys=dict(layer_norm_eps="norm_eps", use_qk_norm="qk_norm", logit_scale="logit_scale"),
    without=("head_dim",),
    presets={
        "command-r-35b": {},
        "command-r-plus": dict(
            dim=12288, layers=64, heads=96, kv_heads=8, hidden=33792, rope_base=75e6, qk_norm=True,
            logit_scale=0.8333333333333334,
        ),
    },
    tiny=dict(qk_norm=True, logit_scale=0.5, tied=True),
    heads={"lm": "CohereForCausalLM", "none": "CohereModel"}, usual=no_token_ids,
    absent={"max_position_embeddings": 8192, "rope_theta": 500000.0},
    gguf="command-r", gguf_names=cohere_gguf_names,
    gguf_tensors={"qk_norm": ("blk.0.attn_q_norm.weight", True, False)}, paper="Cohere 2024, Command R",
)  # fmt: skip

COHERE2 = descend(
    COHERE, "cohere2", Cohere2Config, build=cohere, without=("head_dim", "qk_norm", "unrotated"),
    presets={
        "command-r7b": dict(kv_heads=8),
        "command-a": dict(
            dim=12288, layers=64, heads=96, kv_heads=8, hidden=36864, context=131072, logit_scale=0.25,
        ),
    },
    tiny=dict(window=4, local=(0,), qk_norm=False),
    heads={"lm": "Cohere2ForCausalLM", "none": "Cohere2Model"},
    absent={
        "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, 
        "intermediate_size": 22528, "logit_scale": 0.0625,
    },
    gguf="cohere2", gguf_tensors={}, paper="Cohere 2025, arXiv 2504.00698",
)  # fmt: skip
