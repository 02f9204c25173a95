"""Mixtral (Jiang et al. 2024, arXiv 2401.04088).

From Mistral:  eight MLPs in each layer, of which two read each token   no window in the released models
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM
from heedful.models.decoders.llama_lineage.llama import MISTRAL, NAMES, MistralConfig, llama, llama_gguf_names
from heedful.models.family import descend, published_heads
from heedful.nn.ffn import activation
from heedful.nn.moe import Experts, MoE, SoftmaxRouter
from heedful.weights.names import Row
from heedful.weights.ops import Stacked


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(MistralConfig):
    kv_heads: int = 8
    hidden: int = 14336
    context: int = 32768
    rope_base: float = 1000000.0
    norm_eps: float = 1e-5
    experts: int = 8
    active: int = 2  # experts per token


def mixtral(c: MixtralConfig) -> LM:
    router = lambda: SoftmaxRouter(c.dim, c.experts, c.active, normalise=True)
    experts = lambda: Experts(c.experts, c.dim, c.hidden, activation(c.act))
    return llama(c, ffn=lambda i: MoE(router(), experts()))


MIXTRAL_NAMES: list[Row] = [
    ("model.layers.*.block_sparse_moe.gate", "blocks.*.ffn.router.score"),
    (
        "model.layers.*.block_sparse_moe.experts.*.{w1,w3,w2}.weight",
        "blocks.*.ffn.experts.{gate,up,down}",
        Stacked(),
    ),
    *NAMES,
]


def mixtral_gguf_names(c: MixtralConfig) -> list[Row]:
    """GGUF files call it a LLaMA that has experts."""
    each = "{gate,up,down}"
    return [
        ("blk.*.ffn_gate_inp", "blocks.*.ffn.router.score"),
        (f"blk.*.ffn_{each}_exps.weight", f"blocks.*.ffn.experts.{each}"),
        *llama_gguf_names(c),
    ]


MIXTRAL = descend(
    MISTRAL, "mixtral", MixtralConfig, build=mixtral, names=MIXTRAL_NAMES,
    keys={"num_local_experts": "experts", "num_experts_per_tok": "active"},
    presets={
        "mixtral-8x7b": {},
        "mixtral-8x22b": dict(dim=6144, layers=56, heads=48, hidden=16384, context=65536),
    },
    tiny=dict(hidden=24, experts=4, window=None), heads=published_heads("Mixtral"),
    gguf="llama", gguf_when="llama.expert_count", gguf_names=mixtral_gguf_names,
    gguf_keys={
        **MISTRAL.gguf_keys, "llama.expert_count": "experts", "llama.expert_used_count": "active",
    },
    absent={"max_position_embeddings": 131072, "rope_theta": 1000000.0},
    paper="Jiang et al. 2024, arXiv 2401.04088",
)  # fmt: skip
