"""gpt-oss (OpenAI 2025, arXiv 2508.10925).

From Mixtral:  a sink next to the keys of every head   every other layer sees a window   biases everywhere
               experts whose gate and up are clipped
"""

from __future__ import annotations

from typing import Any

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import LLAMA, NAMES, DecoderConfig, llama, llama_attention
from heedful.models.family import descend, published_heads
from heedful.models.gguf_config import ROWS
from heedful.nn.attention.multi_head import SinkAttention
from heedful.nn.moe import ClippedExperts, MoE, SoftmaxRouter
from heedful.nn.position import YarnScaling
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import Alternating, Transposed

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
OWN_NAMES: list[Row] = [
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


GGUF_NAMES: list[Row] = [
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
    LLAMA, "gpt-oss", GPTOSSConfig, build=gpt_oss, names=OWN_NAMES, without=("act",),
    keys=dict(
        num_local_experts="experts", num_experts_per_tok="active", swiglu_limit="clip", swiglu_alpha="slope"
    ),
    presets={"gpt-oss-20b": dict(layers=24, experts=32), "gpt-oss-120b": {}},
    tiny=dict(head_dim=12, hidden=16, window=4, experts=4, clip=2.0, rope_scaling=None),
    heads=published_heads("GptOss", "span"), read=read_gpt_oss, absent={"rope_theta": 150000.0},
    reads={"rope_theta": "float"}, require={"hidden_act": ("silu",)},
    gguf="gpt-oss", gguf_names=GGUF_NAMES, gguf_read=read_gpt_oss_gguf,
    gguf_write=lambda c: {"gpt-oss.expert_feed_forward_length": c.hidden},
    paper="OpenAI 2025, arXiv 2508.10925",
)  # fmt: skip
