"""Rotary positions that turn a share of each head, as published configs state them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from heedful.core.errors import ConfigError
from heedful.models.base import derived
from heedful.models.decoders.llama_lineage.llama import DecoderConfig
from heedful.models.hf_config import read_rope, write_rope
from heedful.nn.position import Rotary, Scaling

READS = {"partial_rotary_factor": "float", "rotary_pct": "float", "rotary_emb_base": "float"}


class PartialRotaryFields(Protocol):
    """The fields of a config whose heads are turned in part."""

    @property
    def head_dim(self) -> int: ...

    @property
    def rope_dim(self) -> int: ...

    @property
    def rope_base(self) -> float: ...

    @property
    def rope_scaling(self) -> Scaling | None: ...


def check_rope_dim(rope_dim: int, head_dim: int) -> None:
    """Raise ConfigError for a part of a head that holds no rotary pairs."""
    if rope_dim % 2 or not 2 <= rope_dim <= head_dim:
        raise ConfigError(
            f"rope_dim={rope_dim} of a head of {head_dim} entries",
            hint="it holds rotary pairs: an even number from 2 to the size of a head",
        )


@dataclass(frozen=True, kw_only=True)
class PartialRotaryConfig(DecoderConfig):
    """A decoder whose heads are turned in part."""

    rope_dim: int = derived(lambda c: c.head_dim // 2)  # entries of a head that are turned

    def check(self) -> None:
        super().check()
        check_rope_dim(self.rope_dim, self.head_dim)


def partial_rotary(c: PartialRotaryFields) -> Rotary:
    return Rotary(c.rope_dim, c.rope_base, c.rope_scaling)


def read_partial_rope(hf_config: dict[str, Any], default: float) -> dict[str, Any]:
    """The fields of rotary positions; the share of a head stands in `rope_parameters`, or beside it."""
    base = hf_config.get("rotary_emb_base")
    told = {"rope_theta": base, **hf_config} if base is not None else hf_config
    rope_base, scaling = read_rope(told, hf_config["max_position_embeddings"])
    share, rope = default, (hf_config.get("rope_scaling") or {}) | (hf_config.get("rope_parameters") or {})
    for key in ("rotary_pct", "partial_rotary_factor"):
        share = rope.get(key, hf_config.get(key, share))
    size = hf_config.get("head_dim") or hf_config["hidden_size"] // hf_config["num_attention_heads"]
    return {"rope_base": rope_base, "rope_scaling": scaling, "rope_dim": int(size * share)}


def write_partial_rope(c: PartialRotaryFields) -> dict[str, Any]:
    """The `rope_parameters` that `read_partial_rope` reads back."""
    share = c.rope_dim / c.head_dim
    if int(c.head_dim * share) < c.rope_dim:  # a quotient rounded down
        share = math.nextafter(share, 1.0)
    return {"rope_parameters": {**write_rope(c.rope_base, c.rope_scaling), "partial_rotary_factor": share}}
