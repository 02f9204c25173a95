"""Configs as the metadata of GGUF files. A family's `gguf_keys` serves both ways; `hf_config` reads them."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from heedful.core.errors import ConfigError
from heedful.models.base import Family
from heedful.models.family import Config
from heedful.models.hf_config import write_rope
from heedful.nn.position import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Scaling,
    YarnScaling,
    frequencies,
    yarn_gain,
)
from heedful.weights.names import Row
from heedful.weights.ops import Fused

NEVER_WRITTEN = {"dropout", "labels", "head", "pooler", "classifier_pooling"}  # of training and of heads


def write_gguf_rope(architecture: str, config: Config) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata, or the divisors of the frequencies, that `read_gguf_rope` reads back."""
    scaling: Scaling | None = getattr(config, "rope_scaling", None)
    if scaling is None:
        return {}, {}
    out: dict[str, Any]
    key = f"{architecture}.rope.scaling."
    if isinstance(scaling, Llama3Scaling):
        size, base = torch.tensor([[scaling.context]]), getattr(config, "rope_base")  # noqa: B009
        dim = getattr(config, "head_dim")  # noqa: B009
        plain, scaled = (frequencies(dim, base, s, size)[0][0] for s in (None, scaling))
        return {key + "original_context_length": scaling.context}, {"rope_freqs.weight": plain / scaled}
    if isinstance(scaling, LongScaling) and scaling.short == scaling.long and scaling.gain == 1:
        return {}, {"rope_freqs.weight": torch.tensor(scaling.long)}
    if isinstance(scaling, LongScaling):
        out = {key + "original_context_length": scaling.context}
        out |= {} if scaling.attention_factor is None else {key + "attn_factor": scaling.attention_factor}
        lists = {"short": scaling.short, "long": scaling.long}
        return out, {f"rope_factors_{name}.weight": torch.tensor(values) for name, values in lists.items()}
    if isinstance(scaling, LinearScaling | YarnScaling):
        out = {key + "type": write_rope(0.0, scaling)["rope_type"], key + "factor": float(scaling.factor)}
        if isinstance(scaling, YarnScaling):
            out[key + "original_context_length"] = scaling.context
            out |= {} if scaling.fast == 32 else {key + "yarn_beta_fast": float(scaling.fast)}
            out |= {} if scaling.slow == 1 else {key + "yarn_beta_slow": float(scaling.slow)}
            gain = scaling.gain / yarn_gain(scaling.factor)  # by which llama.cpp multiplies the usual one
            out |= {} if math.isclose(gain, 1) else {key + "attn_factor": gain}
        return out, {}
    raise ConfigError(
        f"GGUF cannot express `rope_scaling={scaling}`", hint="it has linear, yarn and Llama 3's rule"
    )


def config_to_gguf(family: Family, config: Config) -> dict[str, Any]:
    """The metadata of a config, from which `config_from_gguf` makes it again."""
    kinds = {f.name: str(f.type) for f in fields(config)}
    out: dict[str, Any] = {"general.architecture": family.gguf}
    for theirs, ours in family.gguf_keys.items():
        value = getattr(config, ours)
        if value is not None:
            listed = list(value) if isinstance(value, tuple) else value
            out[theirs] = float(value) if "float" in kinds[ours] and isinstance(value, int) else listed
    return out | (family.gguf_write(config) if family.gguf_write else {})


def check_same_config(family: Family, config: Config, again: Config) -> None:
    """Raise ConfigError for the first field of a config that a GGUF file could not hold."""
    for f in fields(again):
        if f.name in NEVER_WRITTEN or "dropout" in f.name or f.name not in config.field_names():
            continue
        ours, theirs = getattr(config, f.name), getattr(again, f.name)
        same = ours == theirs
        if isinstance(ours, float) and isinstance(theirs, float):
            same = math.isclose(ours, theirs, rel_tol=1e-6)
        elif isinstance(ours, Scaling) and isinstance(theirs, Scaling):
            same = turns_alike(config, ours, theirs)
        if not same:
            raise ConfigError(
                f"GGUF cannot express `{f.name}={ours!r}` of a {family.name}: it would be read as {theirs!r}",
                hint="save it as a Hugging Face folder: heed export MODEL FOLDER --format hf",
            )


def turns_alike(config: Config, ours: Scaling, theirs: Scaling) -> bool:
    """Whether two scalings give the rotary positions of this config the same frequencies and gain."""
    fields = vars(config)
    size, base = fields.get("rope_dim") or fields["head_dim"], fields["rope_base"]
    lengths = torch.tensor([[1], [fields["context"]], [2**30]])
    (a, gain), (b, other) = (frequencies(size, base, scaling, lengths) for scaling in (ours, theirs))
    return torch.allclose(a, b, rtol=1e-5) and math.isclose(gain, other, rel_tol=1e-6)


# The names of tensors that GGUF files of most decoders share.
# Rows of a family stand before these: the first that fits a tensor counts.
ROWS: list[Row] = [
    ("token_embd", "embed.token"),
    ("blk.*.attn_{q,k,v,output}", "blocks.*.attn.{q,k,v,o}"),
    ("blk.*.attn_{q,k}_norm", "blocks.*.attn.{q,k}_norm"),
    ("blk.*.post_{attention,ffw}_norm", "blocks.*.{attn,ffn}_post_norm"),
    ("blk.*.ffn_{gate,up,down}", "blocks.*.ffn.{gate,up,down}"),
    ("blk.*.{attn,ffn}_norm", "blocks.*.{attn,ffn}_norm"),
    ("blk.*.attn_norm", "blocks.*.norm"),
    ("output_norm", "blocks.norm"),
    ("output", "head.out"),
]
EACH = "{gate,up,down}"
EXPERT_ROWS: list[Row] = [
    ("blk.*.ffn_gate_inp", "blocks.*.ffn.router.score"),
    (f"blk.*.ffn_{EACH}_exps.weight", f"blocks.*.ffn.experts.{EACH}"),
]
QKV = ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v")
FUSED_QKV: Row = ("blk.*.attn_qkv", QKV, Fused())
