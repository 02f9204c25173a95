"""Gated DeltaNet (Yang et al. 2025, arXiv 2412.06464) between the layers of OLMo 2, as Olmo-Hybrid-7B has it.

From OLMo 2:  three of four layers remember by the gated delta rule, and have their norms before the parts
              the others attend without positions, which the layers between them know
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import NAMES, llama
from heedful.models.decoders.llama_lineage.olmo import (
    OLMO2,
    TINY,
    Olmo2Config,
    olmo2_attention,
)
from heedful.models.family import no_token_ids, published_keys
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
        if self.act not in ("silu", "swish"):  # it also follows the convolution, where kernels compute silu
            raise ConfigError(f"act={self.act!r} is not built for olmo-hybrid", hint="set act='silu'")
        wrong = [i for i in self.attend_at if not 0 <= i < self.layers]
        if wrong:
            raise ConfigError(f"attend_at has {wrong[0]}", hint=f"layers are 0 … {self.layers - 1}")
        check_divides("key_heads", self.key_heads, "delta_heads", self.delta_heads)


def olmo_hybrid(c: OlmoHybridConfig) -> LM:
    delta = lambda: GatedDeltaNet(
        c.dim, c.delta_heads, c.key_dim, c.value_dim, key_heads=c.key_heads, width=c.width,
        max_beta=2.0 if c.negative else 1.0,
    )  # fmt: skip

    attend = lambda rotary, i: olmo2_attention(c, rotary if c.rotary else None, i)

    def block(norm: MakeNorm, attn: Part, ffn: Part) -> Block:
        if isinstance(attn, GatedDeltaNet):
            return Block(norm, attn=attn, ffn=ffn)
        return SandwichBlock(nn.Identity, norm, attn=attn, ffn=ffn)

    return llama(c, attn=lambda rotary, i: attend(rotary, i) if i in c.attend_at else delta(), block=block)


def olmo_hybrid_names(c: OlmoHybridConfig) -> list[Row]:
    """Rows of the layers that attend come first: the others have the same names here and others there."""
    delta, keys = "model.layers.*.linear_attn", c.key_heads * c.key_dim
    convolved = tuple(f"{delta}.{x}_conv1d" for x in "qkv")
    attending = [
        row
        for i in c.attend_at
        for row in (
            (f"model.layers.{i}.self_attn.{{q,k,v,o}}_proj", f"blocks.{i}.attn.{{q,k,v,o}}"),
            (f"model.layers.{i}.self_attn.{{q,k}}_norm", f"blocks.{i}.attn.{{q,k}}_norm"),
            (
                f"model.layers.{i}.post_{{attention,feedforward}}_layernorm",
                f"blocks.{i}.{{attn,ffn}}_post_norm",
            ),
        )
    ]
    return [
        *attending,
        (f"{delta}.{{q,k,v,o,a,b,g}}_proj", "blocks.*.attn.{q,k,v,o,decay,beta,gate}"),
        (f"{delta}.{{A_log,dt_bias,o_norm}}", "blocks.*.attn.{A_log,step_bias,norm}"),
        (convolved, "blocks.*.attn.conv", Concatenation((keys, keys, c.delta_heads * c.value_dim))),
        ("model.layers.*.{attention,feedforward}_layer_norm", "blocks.*.{attn,ffn}_norm"),
        *NAMES,
    ]


KEYS = published_keys(
    OlmoHybridConfig, linear_num_value_heads="delta_heads", linear_num_key_heads="key_heads",
    linear_key_head_dim="key_dim", linear_value_head_dim="value_dim", linear_conv_kernel_dim="width",
    linear_allow_neg_eigval="negative",
)  # fmt: skip
REMEMBERS = "linear_attention"


def read_olmo_hybrid(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Released files have null for the base of rotations: their layers attend without positions."""
    count = hf_config.get("num_hidden_layers", 32)
    remember = read_local_layers(hf_config, (i for i in range(count) if i % 4 < 3), REMEMBERS)
    layers = {"attend_at": tuple(i for i in range(count) if i not in remember)}
    if ({"rope_theta": 0} | hf_config | (hf_config.get("rope_parameters") or {}))["rope_theta"] is None:
        return {**layers, "rotary": False, "rope_scaling": None}
    base, scaling = read_rope(hf_config, hf_config.get("max_position_embeddings", 65536))
    return {**layers, "rotary": True, "rope_base": base, "rope_scaling": scaling}


def write_olmo_hybrid(c: OlmoHybridConfig) -> dict[str, Any]:
    rope = write_rope(c.rope_base, c.rope_scaling)
    remember = [i for i in range(c.layers) if i not in c.attend_at]
    kinds = write_layer_types(c.layers, remember, REMEMBERS)
    return {"layer_types": kinds, "rope_parameters": rope if c.rotary else rope | {"rope_theta": None}}


# What transformers saves calls a norm of the layers that attend by the name of one of the others.
NORMS = {
    f"model.layers.{i}.feedforward_layer_norm.weight": f"model.layers.{i}.post_attention_layernorm.weight"
    for i in range(256)
}

OLMO_HYBRID = replace(
    OLMO2, name="olmo-hybrid", config=OlmoHybridConfig, build=olmo_hybrid, names=olmo_hybrid_names, keys=KEYS,
    presets={"olmo-hybrid-7b": OlmoHybridConfig()},
    tiny=OlmoHybridConfig(**TINY, attend_at=(1,), delta_heads=4, key_heads=2, key_dim=4),
    model_types=("olmo_hybrid",), heads={"lm": "OlmoHybridForCausalLM", "none": "OlmoHybridModel"},
    read=read_olmo_hybrid, write=write_olmo_hybrid, usual=no_token_ids, absent={},
    reads={"layer_types": "tuple[str, ...]", "rope_theta": "float | None"},
    require={**OLMO2.require, "hidden_act": ("silu", "swish")},
    copies={**OLMO2.copies, **NORMS}, gguf="", gguf_names=(), gguf_keys={},
    paper="Yang et al. 2025, arXiv 2412.06464",
)  # fmt: skip
