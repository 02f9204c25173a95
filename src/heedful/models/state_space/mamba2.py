"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060).

From Mamba:  one decay for a whole head, so that chunks are matrix products   heads share B and C
             Δ, B and C are read next to u, and not from it   a norm after the gate
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.family import published_keys
from heedful.models.state_space.mamba import (
    BACKBONE_ROWS,
    GGUF_ROWS,
    MAMBA,
    MIXER,
    STATE_KEYS,
    StateSpaceConfig,
    gguf_limits,
    gguf_state_keys,
    stack_state_spaces,
)
from heedful.nn.attention.multi_head import head_size
from heedful.nn.state_space.ssd import Mamba2
from heedful.weights.names import Row
from heedful.weights.ops import Fused, NegatedExp, Reshape


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(StateSpaceConfig):
    vocab: int = 50288
    heads: int = derived(lambda c: max(c.hidden // 64, 1))
    head_dim: int = derived(lambda c: head_size(c.hidden, c.heads))
    state: int = 128
    groups: int = 1  # of heads that share B and C
    norm_groups: int = 1  # of channels that are normalised apart: as `groups` in GGUF, 1 in transformers
    lowest_step: float = 0.0  # Δ at any time
    highest_step: float = 0.0  # 0: any

    def check(self) -> None:
        super().check()
        if self.heads * self.head_dim != self.hidden:
            message = f"heads={self.heads} of head_dim={self.head_dim} are not hidden={self.hidden}"
            raise ConfigError(message, hint="leave head_dim out")
        check_divides("groups", self.groups, "heads", self.heads)
        check_divides("norm_groups", self.norm_groups, "hidden", self.hidden)


def mamba2(c: Mamba2Config) -> LM:
    return stack_state_spaces(c, lambda: Mamba2(
        c.dim, c.hidden, c.heads, c.state, groups=c.groups, norm_groups=c.norm_groups, width=c.width,
        bias=c.bias, conv_bias=c.conv_bias, eps=c.norm_eps, step=(c.step_min, c.step_max),
        limits=(c.lowest_step, c.highest_step or None),
    ))  # fmt: skip


INTO = tuple(f"blocks.*.ssm.{name}" for name in ("gate", "value", "B", "C", "delta"))
NAMES: list[Row] = [
    *BACKBONE_ROWS,
    (f"{MIXER}.in_proj", INTO, Fused()),
    (f"{MIXER}.{{conv1d,norm,out_proj}}", "blocks.*.ssm.{conv,norm,out}"),
    (f"{MIXER}.{{dt_bias,A_log,D}}", "blocks.*.ssm.{step_bias,A_log,D}"),
]


def mamba2_gguf_names(c: Mamba2Config) -> list[Row]:
    return [
        *GGUF_ROWS,
        ("blk.*.ssm_in", INTO, Fused()),
        ("blk.*.ssm_conv1d.weight", "blocks.*.ssm.conv.weight", Reshape((-1, c.width))),
        ("blk.*.ssm_dt.bias", "blocks.*.ssm.step_bias"),
        ("blk.*.ssm_a", "blocks.*.ssm.A_log", NegatedExp((-1, 1))),
        ("blk.*.ssm_d", "blocks.*.ssm.D", Reshape((-1, 1))),
        ("blk.*.ssm_norm.weight", "blocks.*.ssm.norm.weight", Reshape((c.norm_groups, -1))),
    ]


def read_mamba2(hf_config: dict[str, Any]) -> dict[str, Any]:
    low, high = hf_config.get("time_step_limit", (0.0, math.inf))
    bounded = isinstance(high, int | float) and math.isfinite(high)  # newer files spell infinity as a table
    hidden = hf_config.get("expand", 2) * hf_config["hidden_size"]
    fields = {"hidden": hidden, "lowest_step": low, "highest_step": high if bounded else 0.0}
    return fields | {"norm_groups": hf_config.get("norm_groups", 1)}


def write_mamba2(c: Mamba2Config) -> dict[str, Any]:
    limit = {"time_step_limit": [c.lowest_step, c.highest_step or {"__float__": "Infinity"}]}
    own = {} if c.norm_groups == 1 else {"norm_groups": c.norm_groups, "model_type": "heedful-mamba2"}
    return {"expand": c.hidden // c.dim, **(limit if c.lowest_step or c.highest_step else {}), **own}


MAMBA2 = replace(
    MAMBA, name="mamba2", config=Mamba2Config, build=mamba2, names=NAMES,
    keys=published_keys(
        Mamba2Config, "hidden", num_heads="heads", n_groups="groups", **STATE_KEYS
    ),
    model_types=("mamba2",),
    presets={
        "mamba2-130m": Mamba2Config(),
        "mamba2-370m": Mamba2Config(dim=1024, layers=48),
        "mamba2-780m": Mamba2Config(dim=1536, layers=48),
        "mamba2-1.3b": Mamba2Config(dim=2048, layers=48),
        "mamba2-2.7b": Mamba2Config(dim=2560, layers=64),
        "mamba-codestral-7b": Mamba2Config(vocab=32768, dim=4096, layers=64, groups=8, tied=False),
    },
    tiny=Mamba2Config(vocab=128, dim=32, layers=2, heads=4, state=8, groups=2),
    heads={"lm": "Mamba2ForCausalLM", "none": "Mamba2Model"},
    read=read_mamba2, write=write_mamba2, reads={"expand": "int", "norm_groups": "int"},
    absent={"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "n_groups": 8,
            "tie_word_embeddings": False},
    gguf="mamba2", gguf_names=mamba2_gguf_names,
    gguf_keys=gguf_state_keys("mamba2", time_step_rank="heads", group_count="groups"),
    # llama.cpp normalises each group by itself, as the released code does; transformers all together.
    gguf_read=lambda source: {"norm_groups": source.metadata.get("mamba2.ssm.group_count", 1)},
    gguf_write=lambda c: gguf_limits("mamba2"),
    paper="Dao and Gu 2024, arXiv 2405.21060",
)  # fmt: skip
