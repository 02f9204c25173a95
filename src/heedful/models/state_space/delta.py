"""Gated DeltaNet (Yang et al. 2025, arXiv 2412.06464) between the layers of OLMo 2, as Olmo-Hybrid-7B has it.

From OLMo 2:  three of four layers remember by the gated delta rule, and have their norms before the parts
              the others attend without positions, which the layers between them know

Qwen3-Next (Qwen Team 2025) and the text models of Qwen3.5 (Qwen Team 2026).

From Qwen3:          three of four layers remember by the gated delta rule   the others gate what they read
                     norms multiply by 1 + γ   rotary in a quarter of each head
From Qwen3.5 to Next:  512 experts instead of one MLP, and one that reads all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    PartialRotaryConfig,
    llama,
    llama_attention,
)
from heedful.models.decoders.llama_lineage.olmo import OLMO2, Olmo2Config, olmo2_attention
from heedful.models.decoders.llama_lineage.qwen import (
    MOE_KEYS,
    MOE_NAMES,
    QK_NORMS,
    published_names,
    qwen_moe,
    read_dense,
    write_dense,
)
from heedful.models.family import check_layers, descend, no_token_ids, published_heads
from heedful.models.hf_config import read_local_layers, read_rope, write_layer_types, write_rope
from heedful.nn.attention.multi_head import GatedAttention
from heedful.nn.block import Block, MakeNorm, SandwichBlock
from heedful.nn.context import Part
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.moe import GatedExpert
from heedful.nn.norm import OffsetRMSNorm
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.weights.names import Row
from heedful.weights.ops import Concatenation, Fused, PerHead


class OlmoHybridConfig(Olmo2Config, dim=3840, heads=30, context=65536):
    attend_at: tuple[int, ...] = derived(lambda c: tuple(range(3, c.layers, 4)) or (c.layers - 1,))
    delta_heads: int = derived(lambda c: c.heads)  # of the layers that remember
    key_heads: int = derived(lambda c: c.delta_heads)  # which groups of them share
    key_dim: int = derived(lambda c: max(3 * c.dim // (4 * c.key_heads), 1))  # of one head
    value_dim: int = derived(lambda c: 2 * c.key_dim)
    width: int = 4  # tokens the short convolution sees
    negative: bool = True  # β up to 2: what is remembered may change its sign
    rotary: bool = False

    def check(self) -> None:
        super().check()
        check_delta(self)


def check_delta(c: Any) -> None:
    """Raise ConfigError for values of layers that remember that do not go together."""
    if c.act not in ("silu", "swish"):  # it also follows the convolution, where kernels compute silu
        raise ConfigError(f"`act={c.act!r}` is not built with a delta rule", hint="set `act='silu'`")
    check_layers(c, "attend_at")
    check_divides("key_heads", c.key_heads, "delta_heads", c.delta_heads)


def delta_part(c: Any, **more: Any) -> GatedDeltaNet:
    """The part of a layer that remembers."""
    sizes = (c.dim, c.delta_heads, c.key_dim, c.value_dim)
    return GatedDeltaNet(*sizes, key_heads=c.key_heads, width=c.width, **more)


def olmo_hybrid(c: OlmoHybridConfig) -> LM:
    delta = lambda: delta_part(c, max_beta=2.0 if c.negative else 1.0)

    attend = lambda rotary, i: olmo2_attention(c, rotary if c.rotary else None, i)

    def block(norm: MakeNorm, attn: Part, ffn: Part) -> Block:
        if isinstance(attn, GatedDeltaNet):
            return Block(norm, attn=attn, ffn=ffn)
        return SandwichBlock(nn.Identity, norm, attn=attn, ffn=ffn)

    return llama(c, attn=lambda rotary, i: attend(rotary, i) if i in c.attend_at else delta(), block=block)


def rows_at(layers: Sequence[int], rows: Sequence[Row]) -> list[Row]:
    """Rows of some layers alone, which stand before those of all."""

    def at(i: int, pattern: str | tuple[str, ...]) -> Any:
        if isinstance(pattern, tuple):
            return tuple(at(i, each) for each in pattern)
        return pattern.replace("*", str(i), 1)

    return [(at(i, row[0]), at(i, row[1]), *row[2:]) for i in layers for row in rows]


def olmo_hybrid_names(c: OlmoHybridConfig) -> list[Row]:
    """Rows of the layers that attend come first: the others have the same names here and others there."""
    delta, keys = "model.layers.*.linear_attn", c.key_heads * c.key_dim
    convolved = tuple(f"{delta}.{x}_conv1d" for x in "qkv")
    attending: list[Row] = [
        ("model.layers.*.self_attn.{q,k,v,o}_proj", "blocks.*.attn.{q,k,v,o}"),
        ("model.layers.*.self_attn.{q,k}_norm", "blocks.*.attn.{q,k}_norm"),
        ("model.layers.*.post_{attention,feedforward}_layernorm", "blocks.*.{attn,ffn}_post_norm"),
    ]
    return [
        *rows_at(c.attend_at, attending),
        (f"{delta}.{{q,k,v,o,a,b,g}}_proj", "blocks.*.attn.{q,k,v,o,decay,beta,gate}"),
        (f"{delta}.{{A_log,dt_bias,o_norm}}", "blocks.*.attn.{A_log,step_bias,norm}"),
        (convolved, "blocks.*.attn.conv", Concatenation((keys, keys, c.delta_heads * c.value_dim))),
        ("model.layers.*.{attention,feedforward}_layer_norm", "blocks.*.{attn,ffn}_norm"),
        *NAMES,
    ]


DELTA_KEYS = {
    "linear_num_value_heads": "delta_heads", "linear_num_key_heads": "key_heads",
    "linear_key_head_dim": "key_dim", "linear_value_head_dim": "value_dim", "linear_conv_kernel_dim": "width",
}  # fmt: skip
REMEMBERS = "linear_attention"


def read_attending(hf_config: dict[str, Any]) -> dict[str, Any]:
    """The layers that attend: by a list, or every fourth."""
    count, every = hf_config.get("num_hidden_layers", 32), hf_config.get("full_attention_interval", 4)
    remember = read_local_layers(hf_config, (i for i in range(count) if (i + 1) % every), REMEMBERS)
    return {"attend_at": tuple(i for i in range(count) if i not in remember)}


def write_attending(c: Any) -> dict[str, Any]:
    remember = [i for i in range(c.layers) if i not in c.attend_at]
    return {"layer_types": write_layer_types(c.layers, remember, REMEMBERS)}


def read_olmo_hybrid(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Released files have null for the base of rotations: their layers attend without positions."""
    layers = read_attending(hf_config)
    if ({"rope_theta": 0} | hf_config | (hf_config.get("rope_parameters") or {}))["rope_theta"] is None:
        return {**layers, "rotary": False, "rope_scaling": None}
    base, scaling = read_rope(hf_config, hf_config.get("max_position_embeddings", 65536))
    return {**layers, "rotary": True, "rope_base": base, "rope_scaling": scaling}


def write_olmo_hybrid(c: OlmoHybridConfig) -> dict[str, Any]:
    rope = write_rope(c.rope_base, c.rope_scaling)
    return write_attending(c) | {"rope_parameters": rope if c.rotary else rope | {"rope_theta": None}}


# What transformers saves calls a norm of the layers that attend by the name of one of the others.
NORMS = {
    f"model.layers.{i}.feedforward_layer_norm.weight": f"model.layers.{i}.post_attention_layernorm.weight"
    for i in range(256)
}

OLMO_HYBRID = descend(
    OLMO2, "olmo-hybrid", OlmoHybridConfig, build=olmo_hybrid, names=olmo_hybrid_names,
    keys=DELTA_KEYS | {"linear_allow_neg_eigval": "negative"}, presets={"olmo-hybrid-7b": {}},
    tiny=dict(hidden=48, attend_at=(1,), delta_heads=4, key_heads=2, key_dim=4),
    heads={"lm": "OlmoHybridForCausalLM", "none": "OlmoHybridModel"},
    read=read_olmo_hybrid, write=write_olmo_hybrid, usual=no_token_ids,
    reads={"layer_types": "tuple[str, ...]", "rope_theta": "float | None"},
    require={"hidden_act": ("silu", "swish")}, copies=NORMS, paper="Yang et al. 2025, arXiv 2412.06464",
)  # fmt: skip


class Qwen35Config(
    PartialRotaryConfig, vocab=248320, heads=16, kv_heads=4, head_dim=256, hidden=12288, context=262144,
    rope_dim=derived(lambda c: c.head_dim // 4), rope_base=1e7,
):  # fmt: skip
    bias: bool = False
    attend_at: tuple[int, ...] = derived(lambda c: tuple(range(3, c.layers, 4)) or (c.layers - 1,))
    delta_heads: int = 32  # of the layers that remember
    key_heads: int = 16  # which groups of them share
    key_dim: int = 128  # of one head
    value_dim: int = 128
    width: int = 4  # tokens the short convolution sees

    def check(self) -> None:
        super().check()
        check_delta(self)


class Qwen3NextConfig(Qwen35Config, vocab=151936, dim=2048, layers=48, kv_heads=2):
    hidden: int = 5632  # of layers without experts
    experts: int = 512
    active: int = 10  # experts per token
    expert_hidden: int = 512
    shared_hidden: int = 512  # of the expert that every token visits
    normalise: bool = True
    dense: tuple[int, ...] = ()  # layers without experts


def qwen3_5(c: Qwen35Config, ffn: Callable[[int], Part] | None = None) -> LM:
    norm = lambda size=c.dim: OffsetRMSNorm(size, c.norm_eps)
    attend = lambda rotary, i: llama_attention(
        c, rotary, i, GatedAttention, q_norm=norm(c.head_dim), k_norm=norm(c.head_dim)
    )
    attn = lambda rotary, i: attend(rotary, i) if i in c.attend_at else delta_part(c, eps=c.norm_eps)
    return llama(c, attn=attn, ffn=ffn, norm=norm)


def qwen3_next(c: Qwen3NextConfig) -> LM:
    shared = lambda: GatedExpert(c.dim, GatedMLP(c.dim, c.shared_hidden, activation(c.act)))
    return qwen3_5(c, lambda i: qwen_moe(c, i, shared()))


def hybrid_rows(c: Qwen35Config, projections: list[Row], rows: list[Row]) -> list[Row]:
    """Rows of the layers that attend, then those of the layers that remember, then those of all."""
    delta, ours = "model.layers.*.linear_attn", "blocks.*.attn"
    queries = PerHead(c.heads)
    attending: list[Row] = [
        ("model.layers.*.self_attn.q_proj", (f"{ours}.q", f"{ours}.gate"), queries),
        ("model.layers.*.self_attn.{k,v,o}_proj", f"{ours}.{{k,v,o}}"),
        QK_NORMS,
    ]
    return [
        *rows_at(c.attend_at, attending), *projections, (f"{delta}.conv1d", f"{ours}.conv"),
        (f"{delta}.{{A_log,dt_bias,norm,out_proj}}", f"{ours}.{{A_log,step_bias,norm,o}}"), *rows,
    ]  # fmt: skip


def delta_rows(theirs: str, ours: str, op: PerHead | Fused) -> Row:
    return f"model.layers.*.linear_attn.{theirs}", tuple(f"blocks.*.attn.{x}" for x in ours.split()), op


def qwen3_next_names(c: Qwen3NextConfig) -> list[Row]:
    groups = PerHead(c.key_heads)
    own = [delta_rows("in_proj_qkvz", "q k v gate", groups), delta_rows("in_proj_ba", "beta decay", groups)]
    return published_names(c, hybrid_rows(c, own, MOE_NAMES[1:]))


QWEN3_5 = descend(
    LLAMA, "qwen35", Qwen35Config, build=qwen3_5, keys=DELTA_KEYS,
    names=lambda c: hybrid_rows(c, [
        delta_rows("in_proj_qkv", "q k v", Fused()),
        ("model.layers.*.linear_attn.in_proj_{z,b,a}", "blocks.*.attn.{gate,beta,decay}"),
    ], NAMES),
    without=("attend_at",),
    presets={}, tiny=dict(
        head_dim=8, kv_heads=2, attend_at=(1,), delta_heads=4, key_heads=2, key_dim=4, value_dim=6
    ),
    model_types=("qwen3_5_text",),
    heads={"lm": "Qwen3_5ForCausalLM", "none": "Qwen3_5TextModel"},
    read=read_attending, write=write_attending,
    reads={"full_attention_interval": "int"}, require={"hidden_act": ("silu", "swish")},
    absent={
        "partial_rotary_factor": 0.25, "max_position_embeddings": 32768, "head_dim": 256,
        "num_attention_heads": 16, "hidden_size": 4096,
    },
    drop=("mtp.*",), paper="Qwen Team 2026, Qwen3.5",
)  # fmt: skip

QWEN3_NEXT = descend(
    QWEN3_5, "qwen3next", Qwen3NextConfig, build=qwen3_next, names=qwen3_next_names,
    keys={**MOE_KEYS, "shared_expert_intermediate_size": "shared_hidden"}, without=("attend_at", "dense"),
    presets={"qwen3-next-80b-a3b": {}}, model_types=("qwen3_next",),
    tiny=dict(experts=4, active=2, expert_hidden=24, shared_hidden=24, dense=(0,)),
    heads=published_heads("Qwen3Next"),
    read=lambda hf: read_attending({"num_hidden_layers": 48, **hf}) | read_dense(hf),
    write=lambda c: write_attending(c) | write_dense(c),
    reads={**QWEN3_5.reads, "mlp_only_layers": "tuple[int, ...]", "decoder_sparse_step": "int"},
    absent={**QWEN3_5.absent, "num_hidden_layers": 48, "hidden_size": 2048},
    paper="Qwen Team 2025, Qwen3-Next",
)  # fmt: skip
