"""Mixtures: dots.llm1 and GLM-4.5 with Qwen3's attention and DeepSeek-V3's experts, and gpt-oss.

DeepSeek-V3 showed two things at once: latent attention, and many small experts balanced by a bias that no
gradient moves. Others kept the experts alone. A sigmoid scores every expert by itself, the bias decides only
who is chosen, and one or two experts read every token. The first layers have one MLP, because a router there
would choose by the word alone.

dots.llm1 (rednote-hilab 2025, arXiv 2506.05767), GLM-4.5 (GLM Team 2025, arXiv 2508.06471), gpt-oss (OpenAI
2025, arXiv 2508.10925).

From Qwen3 to dots.llm1:    DeepSeek-V3's experts after the first layer
From dots.llm1 to GLM-4.5:  rotary in half of each head   biases on queries, keys and values   few key heads
From Mixtral to gpt-oss:    a sink next to the keys of every head   every other layer sees a window
                            biases everywhere   experts whose gate and up are clipped
"""

from __future__ import annotations

from typing import Any

from heedful.core.checks import check_integer
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
from heedful.models.decoders.llama_lineage.deepseek import MIXTURE_NAMES, OWN_KEYS, drop, moe
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    DecoderConfig,
    PartialRotaryConfig,
    llama,
    llama_attention,
    llama_mlp,
)
from heedful.models.decoders.llama_lineage.qwen import QK_NORMS
from heedful.models.family import descend, no_token_ids, published_heads
from heedful.models.gguf_config import ROWS
from heedful.nn.attention.multi_head import SinkAttention, head_size
from heedful.nn.moe import ClippedExperts, MoE, SigmoidRouter, SoftmaxRouter
from heedful.nn.norm import RMSNorm
from heedful.nn.position import YarnScaling
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import Alternating, Transposed


class GLM4MoEConfig(
    PartialRotaryConfig, vocab=151552, dim=5120, layers=92, heads=96, kv_heads=8, head_dim=128,
    context=131072, rope_base=1000000.0, norm_eps=1e-5,
):  # fmt: skip
    hidden: int = 12288  # of the layers without experts
    bias: bool = True  # of queries, keys and values
    out_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = True
    dense_layers: int = from_zero(3)  # how many first layers have no experts
    experts: int = 160
    active: int = 8
    shared: int = from_zero(1)  # experts that every token visits
    expert_hidden: int = 1536
    groups: int = 1
    groups_kept: int = 1
    route_scale: float = 2.5
    normalise: bool = True
    mtp: int = from_zero(0)  # further layers in the published file that predict later tokens; not built

    def check(self) -> None:
        super().check()
        check_integer("dense_layers", self.dense_layers, 0, self.layers, ConfigError)


def mixture(c: GLM4MoEConfig) -> LM:
    of_head = lambda: RMSNorm(c.head_dim, c.norm_eps) if c.qk_norm else None
    attn = lambda rotary, i: llama_attention(c, rotary, i, q_norm=of_head(), k_norm=of_head())
    ffn = lambda i: llama_mlp(c) if i < c.dense_layers else moe(c, SigmoidRouter)
    return llama(c, attn=attn, ffn=ffn)


SAME_WORDS = ("experts", "active", "shared", "expert_hidden", "route_scale", "normalise")
SMALL: dict[str, Any] = dict(
    experts=8, active=2, expert_hidden=16, dense_layers=1, groups=2, groups_kept=1, head_dim=8
)

GLM4_MOE = descend(
    LLAMA, "glm4-moe", GLM4MoEConfig, build=mixture, names=[QK_NORMS, *MIXTURE_NAMES],
    without=("out_bias", "ffn_bias"),
    keys={
        **{theirs: ours for theirs, ours in OWN_KEYS.items() if ours in SAME_WORDS},
        "first_k_dense_replace": "dense_layers", "n_group": "groups", "topk_group": "groups_kept",
        "num_nextn_predict_layers": "mtp", "use_qk_norm": "qk_norm", "attention_bias": "bias",
    },
    presets={
        "glm-4.5": {},
        "glm-4.5-air": dict(
            dim=4096, layers=46, hidden=10944, dense_layers=1, experts=128, expert_hidden=1408,
            route_scale=1.0, qk_norm=False,
        ),
    },
    tiny=SMALL, heads={"lm": "Glm4MoeForCausalLM", "none": "Glm4MoeModel"},
    absent={
        "hidden_size": 4096, "num_attention_heads": 96, "head_dim": 128, "num_hidden_layers": 46,
        "intermediate_size": 10944, "attention_bias": False,
        "use_qk_norm": False, "first_k_dense_replace": 1, "n_routed_experts": 128,
        "moe_intermediate_size": 1408, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.0, "rope_theta": 10000.0,
    },
    # Layers that predict later tokens are not built, nor written.
    write=lambda c: {"num_nextn_predict_layers": 0}, drop=drop, usual=no_token_ids,
    paper="GLM Team 2025, arXiv 2508.06471",
)  # fmt: skip
DOTS1 = descend(
    GLM4_MOE, "dots1", sizes=dict(
        vocab=152064, dim=4096, layers=62, heads=32, kv_heads=derived(lambda c: c.heads),
        head_dim=derived(lambda c: head_size(c.dim, c.heads)), hidden=10944, context=32768,
        rope_base=10000000.0, rope_dim=derived(lambda c: c.head_dim), bias=False,
        out_bias=derived(lambda c: c.bias), dense_layers=from_zero(1), experts=128, active=6,
        shared=from_zero(2), expert_hidden=1408,
    ),
    without=("out_bias", "ffn_bias", "qk_norm", "mtp"),
    presets={"dots.llm1": {}}, tiny=dict(kv_heads=4),
    heads={"lm": "Dots1ForCausalLM", "none": "Dots1Model"}, require={"sliding_window": (None, 4096)},
    absent={
        "hidden_size": 4608, "num_attention_heads": 32, "max_position_embeddings": 2048,
        "first_k_dense_replace": 0, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    },
    write=None, drop=(), paper="rednote-hilab 2025, arXiv 2506.05767",
)  # fmt: skip


YARN = YarnScaling(32.0, 4096, truncate=False)


class GPTOSSConfig(
    DecoderConfig, vocab=201088, dim=2880, layers=36, heads=64, kv_heads=8, head_dim=64, context=131072,
    rope_base=150000.0, rope_scaling=YARN, norm_eps=1e-5,
):  # fmt: skip
    hidden: int = 2880  # of an expert
    experts: int = 128
    active: int = 4  # experts per token
    clip: float = 7.0  # of an expert's gate and up
    slope: float = 1.702  # of the gate's sigmoid
    window: int = 128  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(lambda c: tuple(range(0, c.layers, 2)))
    bias: bool = True  # of the attention's matrices


def gpt_oss(c: GPTOSSConfig) -> LM:
    attn = lambda rotary, i: llama_attention(c, rotary, i, SinkAttention)
    router = lambda: SoftmaxRouter(c.dim, c.experts, c.active, normalise=True, bias=True)
    experts = lambda: ClippedExperts(c.experts, c.dim, c.hidden, clip=c.clip, slope=c.slope)
    return llama(c, attn=attn, ffn=lambda i: MoE(router(), experts()))


OF_EXPERTS = "blocks.*.ffn.experts."
GPT_OSS_NAMES: list[Row] = [
    ("model.layers.*.self_attn.sinks", "blocks.*.attn.sinks"),
    ("model.layers.*.mlp.router", "blocks.*.ffn.router.score"),
    ("model.layers.*.mlp.experts.gate_up_proj", (OF_EXPERTS + "gate", OF_EXPERTS + "up"), Alternating()),
    (
        "model.layers.*.mlp.experts.gate_up_proj_bias",
        (OF_EXPERTS + "gate_bias", OF_EXPERTS + "up_bias"),
        Alternating(),
    ),
    ("model.layers.*.mlp.experts.down_proj", OF_EXPERTS + "down", Transposed()),
    ("model.layers.*.mlp.experts.down_proj_bias", OF_EXPERTS + "down_bias"),
    *NAMES,
]


GPT_OSS_GGUF_NAMES: list[Row] = [
    ("blk.*.attn_sinks.weight", "blocks.*.attn.sinks"),
    ("blk.*.ffn_gate_inp", "blocks.*.ffn.router.score"),
    ("blk.*.ffn_{gate,up,down}_exps.weight", OF_EXPERTS + "{gate,up,down}"),
    ("blk.*.ffn_{gate,up,down}_exps.bias", OF_EXPERTS + "{gate,up,down}_bias"),
    ("blk.*.post_attention_norm", "blocks.*.ffn_norm"),
    *ROWS,
]


def read_gpt_oss(hf_config: dict[str, Any]) -> dict[str, Any]:
    """A file that is silent about it stretches its positions by YaRN."""
    silent = not {"rope_scaling", "rope_parameters"} & hf_config.keys()
    return {"rope_scaling": YARN, "rope_base": hf_config["rope_theta"]} if silent else {}


def read_gpt_oss_gguf(source: GGUFFile) -> dict[str, Any]:
    """Positions are stretched by YaRN without rounding its bounds, which a GGUF file cannot say."""
    rope, _ = source.rope()
    if rope.get("type", "none") == "none":
        return {"rope_scaling": None}
    return {"rope_scaling": YarnScaling(rope["factor"], rope["original_context_length"], truncate=False)}


GPT_OSS = descend(
    LLAMA, "gpt-oss", GPTOSSConfig, build=gpt_oss, names=GPT_OSS_NAMES, without=("act",),
    keys=dict(
        num_local_experts="experts", num_experts_per_tok="active", swiglu_limit="clip", swiglu_alpha="slope"
    ),
    presets={"gpt-oss-20b": dict(layers=24, experts=32), "gpt-oss-120b": {}},
    tiny=dict(head_dim=12, hidden=16, window=4, experts=4, clip=2.0, rope_scaling=None),
    heads=published_heads("GptOss", "span"), read=read_gpt_oss, absent={"rope_theta": 150000.0},
    reads={"rope_theta": "float"}, require={"hidden_act": ("silu",)},
    gguf="gpt-oss", gguf_names=GPT_OSS_GGUF_NAMES, gguf_read=read_gpt_oss_gguf,
    gguf_write=lambda c: {"gpt-oss.expert_feed_forward_length": c.hidden},
    paper="OpenAI 2025, arXiv 2508.10925",
)  # fmt: skip
