"""DeepSeek-V2 (DeepSeek-AI 2024, arXiv 2405.04434) and V3 (DeepSeek-AI 2024, arXiv 2412.19437).

From LLaMA:   keys and values in one latent per position   after the first layers, experts instead of one MLP
From V2 to V3:  softmax router → sigmoid router, balanced by a bias instead of a loss

DeepSeek-V3 showed two things at once: latent attention, and many small experts balanced by a bias that no
gradient moves. Others kept the experts alone. A sigmoid scores every expert by itself, the bias decides only
who is chosen, and one or two experts read every token. The first layers have one MLP, because a router there
would choose by the word alone.

dots.llm1 (rednote-hilab 2025, arXiv 2506.05767) and GLM-4.5 (GLM Team 2025, arXiv 2508.06471), gpt-oss
(OpenAI 2025, arXiv 2508.10925), which has experts of its own.

From Qwen3 to dots.llm1:    DeepSeek-V3's experts after the first layer
From dots.llm1 to GLM-4.5:  rotary in half of each head   biases on queries, keys and values   few key heads
From Mixtral to gpt-oss:    a sink next to the keys of every head   every other layer sees a window
                            biases everywhere   experts whose gate and up are clipped
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from heedful.core.checks import check_integer
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
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
from heedful.models.family import PlainConfig, declare, descend, no_token_ids, published_heads
from heedful.models.gguf_config import EACH, EXPERT_ROWS, ROWS
from heedful.nn.attention.latent import LatentAttention
from heedful.nn.attention.multi_head import SinkAttention, head_size
from heedful.nn.context import Part
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.moe import ClippedExperts, Experts, MoE, Router, SigmoidRouter, SoftmaxRouter
from heedful.nn.norm import RMSNorm
from heedful.nn.position import Scaling, YarnScaling, yarn_gain
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import SAME, Alternating, Pairs, Stacked, Transposed


class LatentConfig(
    PlainConfig, vocab=102400, dim=5120, layers=60, heads=128, act="silu", norm_eps=1e-6, tied=False,
):  # fmt: skip
    """What decoders share whose keys and values are one latent."""

    rank: int = 512  # of the latent that holds keys and values
    q_rank: int = from_zero(1536)  # of the queries' latent; 0: straight from x
    head_dim: int = 128  # of a query or key, without its rotary part
    rope_dim: int = 64  # the rotary part
    value_dim: int = 128
    hidden: int = 12288  # of the dense layers
    context: int = 163840
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    interleaved: bool = True  # how published rotary pairs are stored; ours stand half a head apart
    bias: bool = False  # of the attention's down projections and its output
    dropout: float = 0.0  # of the attention's weights

    def check(self) -> None:
        if self.rope_dim < 2 or self.rope_dim % 2:
            raise ConfigError(
                f"`rope_dim={self.rope_dim}` must be even and at least 2: it holds rotary pairs"
            )

    @property
    def scale(self) -> float:
        """1/√(K + Kr), times YaRN's gain squared where the checkpoint gives one for all entries of a head."""
        yarn, gain = self.rope_scaling, 1.0
        if isinstance(yarn, YarnScaling) and yarn.mscale_all_dim:
            gain = yarn_gain(yarn.factor, yarn.mscale_all_dim)
        return float((self.head_dim + self.rope_dim) ** -0.5 * gain**2)


class DeepSeekV2Config(LatentConfig):
    dense: int = from_zero(1)  # how many first layers have no experts
    experts: int = 160
    active: int = 6  # experts per token
    shared: int = 2  # experts that every token visits
    expert_hidden: int = 1536
    groups: int = 8  # of experts
    groups_kept: int = 3  # how many of them a token may visit
    route_scale: float = 16.0  # of the experts' weights
    normalise: bool = False  # whether the experts' weights sum to 1
    ffn_bias: bool = False
    mtp: int = from_zero(0)  # further layers in the published file that predict later tokens; not built

    def check(self) -> None:
        super().check()
        check_integer("dense", self.dense, 0, self.layers, ConfigError)


def deepseek_mlp(c: DeepSeekV2Config, hidden: int) -> GatedMLP:
    return GatedMLP(c.dim, hidden, activation(c.act), bias=c.ffn_bias)


def latent_decoder(c: LatentConfig, ffn: Callable[[int], Part] | None = None) -> LM:
    """LLaMA with latent attention, and the feed-forward part `ffn(i)` in layer i."""
    attn = lambda rotary, i: LatentAttention(
        c.dim, c.heads, rank=c.rank, q_rank=c.q_rank, head_dim=c.head_dim, rope_dim=c.rope_dim,
        value_dim=c.value_dim, rotary=rotary, bias=c.bias, scale=c.scale, dropout=c.dropout,
    )  # fmt: skip
    return llama(c, attn=attn, ffn=ffn)


def moe(c: Any, router: type[Router]) -> MoE:
    return MoE(
        router(
            c.dim, c.experts, c.active, groups=c.groups, groups_kept=c.groups_kept, scale=c.route_scale,
            normalise=c.normalise,
        ),
        Experts(c.experts, c.dim, c.expert_hidden, activation(c.act)),
        deepseek_mlp(c, c.shared * c.expert_hidden) if c.shared else None,
    )  # fmt: skip


def deepseek(c: DeepSeekV2Config, router: type[Router]) -> LM:
    return latent_decoder(c, lambda i: deepseek_mlp(c, c.hidden) if i < c.dense else moe(c, router))


MIXTURE_NAMES: list[Row] = [
    ("model.layers.*.mlp.gate.weight", "blocks.*.ffn.router.score.weight"),
    ("model.layers.*.mlp.gate.e_score_correction_bias", "blocks.*.ffn.router.bias"),
    (f"model.layers.*.mlp.experts.*.{EACH}_proj.weight", f"blocks.*.ffn.experts.{EACH}", Stacked()),
    (f"model.layers.*.mlp.shared_experts.{EACH}_proj", f"blocks.*.ffn.shared.{EACH}"),
    *NAMES,
]


def deepseek_names(c: LatentConfig) -> list[Row]:
    """The rotary entries come last in every query head and in the shared key."""
    queries = Pairs(c.heads, c.rope_dim) if c.interleaved else SAME
    key = Pairs(1, c.rope_dim) if c.interleaved else SAME
    theirs, ours = "model.layers.*.self_attn", "blocks.*.attn"
    return [
        (theirs + ".{q,q_b}_proj", ours + ".{q,q_up}", queries),
        (theirs + ".kv_a_proj_with_mqa", ours + ".kv_down", key),
        (theirs + ".{q_a,kv_b}_proj", ours + ".{q_down,kv_up}"),
        (theirs + ".{q,kv}_a_layernorm", ours + ".{q,kv}_norm"),
        *MIXTURE_NAMES,
    ]


OWN_KEYS = {
    "kv_lora_rank": "rank", "qk_nope_head_dim": "head_dim", "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim", "first_k_dense_replace": "dense", "n_routed_experts": "experts",
    "num_experts_per_tok": "active", "n_shared_experts": "shared", "moe_intermediate_size": "expert_hidden",
    "routed_scaling_factor": "route_scale", "norm_topk_prob": "normalise",
}  # fmt: skip


def read_deepseek(hf_config: dict[str, Any]) -> dict[str, Any]:
    heads, kv_heads = hf_config.get("num_attention_heads"), hf_config.get("num_key_value_heads")
    if kv_heads is not None and kv_heads != heads:
        raise ConfigError(
            f'config.json has "num_key_value_heads": {kv_heads} and "num_attention_heads": {heads}',
            hint="latent attention has no groups of heads, so they must be equal",
        )
    return {"q_rank": hf_config.get("q_lora_rank", 1536) or 0}


def read_deepseek_v2(hf_config: dict[str, Any]) -> dict[str, Any]:
    limited = hf_config.get("topk_method") == "group_limited_greedy"
    groups, groups_kept = ((hf_config.get(key) or 1) if limited else 1 for key in ("n_group", "topk_group"))
    return {**read_deepseek(hf_config), "groups": groups, "groups_kept": groups_kept}


def write_deepseek(c: LatentConfig) -> dict[str, Any]:
    return {"q_lora_rank": c.q_rank or None, "num_key_value_heads": c.heads}


def write_deepseek_v2(c: DeepSeekV2Config) -> dict[str, Any]:
    method = "group_limited_greedy" if c.groups > 1 else "greedy"
    return {**write_deepseek(c), "topk_method": method, "n_group": c.groups, "topk_group": c.groups_kept}


def drop(c: DeepSeekV2Config) -> list[str]:
    """Layers after the last one, which predict later tokens (V3 §2.2)."""
    return [f"model.layers.{c.layers + i}.*" for i in range(c.mtp)]


YARN_V2 = YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)
YARN_V3 = YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)

DEEPSEEK_V2 = declare(
    "deepseek-v2", DeepSeekV2Config, partial(deepseek, router=SoftmaxRouter), names=deepseek_names,
    keys=OWN_KEYS, without=("q_rank", "groups", "groups_kept"),
    presets={
        "deepseek-v2": dict(rope_scaling=YARN_V2),
        "deepseek-v2-lite": dict(
            dim=2048, layers=27, heads=16, q_rank=0, hidden=10944, experts=64, expert_hidden=1408, groups=1,
            groups_kept=1, route_scale=1.0, rope_scaling=YARN_V2
        ),
    },
    tiny=dict(
        rank=12, q_rank=0, head_dim=8, rope_dim=4, value_dim=6, hidden=48, experts=8, active=2, shared=1,
        expert_hidden=16, dense=1, groups=4, groups_kept=2,
    ),
    prefix="model", heads=published_heads("DeepseekV2", "tag", "span"),
    require={
        "scoring_func": ("softmax",), "topk_method": ("greedy", "group_limited_greedy"),
        "moe_layer_freq": (1,),
    },
    read=read_deepseek_v2, write=write_deepseek_v2, drop=drop,
    absent={
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
        "first_k_dense_replace": 0, "n_routed_experts": 64, "moe_intermediate_size": 1407,
        "routed_scaling_factor": 1.0, "max_position_embeddings": 2048,
    },
    reads={"q_lora_rank": "int | None", "num_key_value_heads": "int", "n_group": "int", "topk_group": "int"},
    paper="DeepSeek-AI 2024, arXiv 2405.04434",
)  # fmt: skip

DEEPSEEK_V3 = descend(
    DEEPSEEK_V2, "deepseek-v3", build=partial(deepseek, router=SigmoidRouter),
    sizes=dict(
        vocab=129280, dim=7168, layers=61, hidden=18432, dense=from_zero(3), experts=256, active=8, shared=1,
        expert_hidden=2048, groups_kept=4, route_scale=2.5, normalise=True,
    ),
    without=("ffn_bias",),
    keys=dict(
        n_group="groups", topk_group="groups_kept", rope_interleave="interleaved",
        num_nextn_predict_layers="mtp",
    ),
    presets={
        "deepseek-v3": dict(rope_scaling=YARN_V3),
        "kimi-k2": dict(
            vocab=163840, heads=64, dense=1, experts=384, groups=1, groups_kept=1, route_scale=2.827,
            context=131072, rope_base=50000.0,
            rope_scaling=YarnScaling(32.0, 4096, fast=1.0, mscale=1.0, mscale_all_dim=1.0),
        ),
    },
    model_types=("deepseek_v3", "kimi_k2"),  # Kimi K2 differs by its sizes (Kimi Team 2025, arXiv 2507.20534)
    tiny=dict(q_rank=16, dense=1), heads=published_heads("DeepseekV3", "span"),
    require={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)},
    absent={"max_position_embeddings": 4096, "num_attention_heads": 128, "num_nextn_predict_layers": 1},
    # Layers that predict later tokens are not built, nor written.
    read=read_deepseek, write=lambda c: write_deepseek(c) | {"num_nextn_predict_layers": 0},
    paper="DeepSeek-AI 2024, arXiv 2412.19437",
)  # fmt: skip

YOUTU = descend(
    DEEPSEEK_V3, "youtu", LatentConfig, build=latent_decoder, presets={"youtu-llm-2b": {}},
    sizes=dict(vocab=128256, dim=2048, layers=32, heads=16, hidden=6144, context=131072, tied=True),
    without=("q_rank",), heads={"lm": "YoutuForCausalLM", "none": "YoutuModel"}, require={},
    write=write_deepseek, drop=(), usual=no_token_ids, absent={"num_attention_heads": 16},
    paper="Tencent Youtu Lab 2025, arXiv 2512.24618",
)  # fmt: skip


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
    LLAMA, "gpt-oss", GPTOSSConfig, build=gpt_oss, names=[
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
    ],
    without=("act",),
    keys=dict(
        num_local_experts="experts", num_experts_per_tok="active", swiglu_limit="clip", swiglu_alpha="slope"
    ),
    presets={"gpt-oss-20b": dict(layers=24, experts=32), "gpt-oss-120b": {}},
    tiny=dict(head_dim=12, hidden=16, window=4, experts=4, clip=2.0, rope_scaling=None),
    heads=published_heads("GptOss", "span"), read=read_gpt_oss, absent={"rope_theta": 150000.0},
    reads={"rope_theta": "float"}, require={"hidden_act": ("silu",)},
    gguf="gpt-oss", gguf_names=[
        ("blk.*.attn_sinks.weight", "blocks.*.attn.sinks"),
        (f"blk.*.ffn_{EACH}_exps.bias", f"{OF_EXPERTS}{EACH}_bias"),
        ("blk.*.post_attention_norm", "blocks.*.ffn_norm"),
        *EXPERT_ROWS,
        *ROWS,
    ],
    gguf_read=read_gpt_oss_gguf,
    gguf_write=lambda c: {"gpt-oss.expert_feed_forward_length": c.hidden},
    paper="OpenAI 2025, arXiv 2508.10925",
)  # fmt: skip
