"""Gated DeltaNet (Yang et al. 2025, arXiv 2412.06464) between the layers of OLMo 2, as Olmo-Hybrid-7B has it.

From OLMo 2:  three of four layers remember by the gated delta rule, and have their norms before the parts
              the others attend without positions, which the layers between them know
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import NAMES, llama
from heedful.models.decoders.llama_lineage.olmo import OLMO2, Olmo2Config, olmo2_attention
from heedful.models.family import descend, no_token_ids
from heedful.models.hf_config import read_local_layers, read_rope, write_layer_types, write_rope
from heedful.nn.block import Block, MakeNorm, SandwichBlock
from heedful.nn.context import Part
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.weights.names import Row
from heedful.weights.ops import Concatenation


@dataclass(frozen=True, kw_only=True)
class OlmoHybridConfig(Olmo2Config):
    dim: int = 3840
    heads: int = 30
    context: int = 65536
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
        raise ConfigError(f"act={c.act!r} is not built with a delta rule", hint="set act='silu'")
    wrong = [i for i in c.attend_at if not 0 <= i < c.layers]
    if wrong:
        raise ConfigError(f"attend_at has {wrong[0]}", hint=f"layers are 0 … {c.layers - 1}")
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
    require={"hidden_act": ("silu", "swish")}, copies={**OLMO2.copies, **NORMS},
    paper="Yang et al. 2025, arXiv 2412.06464",
)  # fmt: skip
