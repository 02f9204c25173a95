"""State spaces, from a fixed convolution to one that the token steers.

S4 (Gu et al. 2022, arXiv 2111.00396), with S4D's diagonal matrix (Gu, Gupta et al., arXiv 2206.11893).

From the Transformer to S4:  attention and feed-forward → a long convolution and a gated matrix   no positions
From an RNN to S4:  the recurrence is linear and the same at every step: a whole sequence is one FFT

The preset is a size of ours: the paper's language model has a vocabulary that was never published.

Mamba (Gu and Dao 2023, arXiv 2312.00752) and Falcon Mamba (Zuo et al. 2024, arXiv 2410.05355).

From the Transformer to Mamba:  attention and feed-forward → one gated part over a selective state space
                                no positions
From S4 to Mamba:  Δ, B and C read the token, so that the state can choose what to keep
From Mamba to Falcon:  the numbers that make Δ, B and C are normalised

Mamba-2 (Dao and Gu 2024, arXiv 2405.21060).

From Mamba to Mamba-2:  one decay for a whole head, so that chunks are matrix products   heads share B and C
                        Δ, B and C are read next to u, and not from it   a norm after the gate
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, derived
from heedful.models.family import declare, descend
from heedful.models.shared import decoder_head
from heedful.nn.attention.multi_head import head_size
from heedful.nn.block import Block, Stack
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.norm import LayerNorm
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba, NarrowRMSNorm, NormedMamba, Widen
from heedful.weights.names import Row
from heedful.weights.ops import Fused, NegatedExp, Reshape


def check_steps(step_min: float, step_max: float) -> None:
    """Raise ConfigError unless 0 < step_min < step_max, the bounds of Δ before training."""
    if not 0 < step_min < step_max:
        raise ConfigError(
            f"must lie between 0 and `step_max={step_max}`", argument="step_min", value=step_min
        )


class S4Config(Config, vocab=50257, dim=768, layers=24):
    state: int = 64  # numbers each channel remembers
    step_min: float = 0.001  # Δ before training
    step_max: float = 0.1
    norm_eps: float = 1e-5
    dropout: float = 0.1
    tied: bool = True

    def check(self) -> None:
        if self.state < 2 or self.state % 2:
            raise ConfigError(f"`state={self.state}` is odd, but holds pairs", hint=f"take {self.state + 1}")
        check_steps(self.step_min, self.step_max)


def s4(c: S4Config) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    ssm = lambda: S4(c.dim, c.state, step=(c.step_min, c.step_max), dropout=c.dropout)
    blocks = [Block(norm, "pre", c.dropout, ssm=ssm()) for _ in range(c.layers)]
    return LM(Embedding(c.vocab, c.dim, dropout=c.dropout), Stack(blocks, norm()), decoder_head(c))


S4_LM = declare(
    "s4", S4Config, s4, presets={"s4-69m": {}}, tiny=dict(state=8), heads={"lm": "S4LM", "none": "S4Model"},
    paper="Gu et al. 2022, arXiv 2111.00396",
)  # fmt: skip


class StateSpaceConfig(Config, vocab=50280, dim=768, layers=24):
    """What Mamba and Mamba-2 share."""

    hidden: int = derived(lambda c: 2 * c.dim)  # channels of the state space
    state: int = 16  # numbers each channel remembers
    width: int = 4  # tokens the short convolution sees
    bias: bool = False  # of the matrices in and out
    conv_bias: bool = True
    step_min: float = 0.001  # Δ before training
    step_max: float = 0.1
    wide: bool = True  # whether the sum over the layers is kept in float32
    norm_eps: float = 1e-5
    tied: bool = True

    def check(self) -> None:
        if self.hidden % self.dim:
            raise ConfigError(
                f"`hidden={self.hidden}` is not a multiple of `dim={self.dim}`", hint=f"take {2 * self.dim}"
            )
        check_steps(self.step_min, self.step_max)


class MambaConfig(StateSpaceConfig):
    rank: int = derived(lambda c: -(-c.dim // 16))  # of the matrix that makes Δ


def stack_state_spaces(c: StateSpaceConfig, ssm: Callable[[], Part]) -> LM:
    """The embedding, a norm and a state space in each layer, a last norm, and the head."""
    norm = lambda: NarrowRMSNorm(c.dim, c.norm_eps)
    embed = Embedding(c.vocab, c.dim, project=Widen() if c.wide else None)
    return LM(embed, Stack([Block(norm, ssm=ssm()) for _ in range(c.layers)], norm()), decoder_head(c))


class FalconMambaConfig(MambaConfig, vocab=65024, dim=4096, layers=64, tied=False):
    select_eps: float = 1e-6  # of the norms of Δ, B and C


def mamba(c: MambaConfig, part: Callable[..., Mamba] = Mamba) -> LM:
    return stack_state_spaces(c, lambda: part(
        c.dim, c.hidden, c.state, c.rank, width=c.width, bias=c.bias, conv_bias=c.conv_bias,
        step=(c.step_min, c.step_max),
    ))  # fmt: skip


MIXER = "backbone.layers.*.mixer"

# The rows that Mamba and Mamba-2 share.
BACKBONE_ROWS: list[Row] = [
    ("backbone.embeddings", "embed.token"),
    ("backbone.layers.*.norm", "blocks.*.ssm_norm"),
    ("backbone.norm_f", "blocks.norm"),
    ("lm_head", "head.out"),
]

STATE_KEYS = {
    "state_size": "state", "conv_kernel": "width", "use_bias": "bias", "use_conv_bias": "conv_bias",
    "time_step_min": "step_min", "time_step_max": "step_max", "residual_in_fp32": "wide",
    "layer_norm_epsilon": "norm_eps",
}  # fmt: skip


GGUF_ROWS: list[Row] = [
    ("token_embd", "embed.token"),
    ("blk.*.attn_norm", "blocks.*.ssm_norm"),
    ("blk.*.ssm_conv1d.bias", "blocks.*.ssm.conv.bias"),
    ("blk.*.ssm_out", "blocks.*.ssm.out"),
    ("output_norm", "blocks.norm"),
    ("output", "head.out"),
]


def gguf_state_keys(architecture: str, **more: str) -> dict[str, str]:
    """The numbers of a state space in a GGUF file; `more` are those that only one of them has."""
    keys = {
        "embedding_length": "dim", "block_count": "layers", "attention.layer_norm_rms_epsilon": "norm_eps",
        "ssm.conv_kernel": "width", "ssm.inner_size": "hidden", "ssm.state_size": "state",
        "vocab_size": "vocab",
    }  # fmt: skip
    return {f"{architecture}.{theirs}": ours for theirs, ours in keys.items()} | {
        f"{architecture}.ssm.{theirs}": ours for theirs, ours in more.items()
    }


def gguf_limits(architecture: str) -> dict[str, Any]:
    """What llama.cpp asks of every model: a state space has no such limits."""
    sizes = {"context_length": 2**20, "feed_forward_length": 0, "attention.head_count": 0}
    return {f"{architecture}.{name}": value for name, value in sizes.items()}


def read_mamba(hf_config: dict[str, Any]) -> dict[str, Any]:
    hidden = int(hf_config.get("expand", 2) * hf_config.get("hidden_size", 768))
    return {"hidden": hidden} | ({"rank": None} if hf_config.get("time_step_rank") == "auto" else {})


MAMBA = declare(
    "mamba", MambaConfig, mamba, names=[
        *BACKBONE_ROWS,
        (f"{MIXER}.in_proj", ("blocks.*.ssm.value", "blocks.*.ssm.gate"), Fused()),
        (f"{MIXER}.conv1d", "blocks.*.ssm.conv"),
        (f"{MIXER}.x_proj", ("blocks.*.ssm.low", "blocks.*.ssm.B", "blocks.*.ssm.C"), Fused()),
        (f"{MIXER}.dt_proj", "blocks.*.ssm.delta"),
        (f"{MIXER}.{{A_log,D}}", "blocks.*.ssm.{A_log,D}"),
        (f"{MIXER}.out_proj", "blocks.*.ssm.out"),
    ],
    keys={"time_step_rank": "rank", **STATE_KEYS}, without=("hidden",),
    presets={
        "mamba-130m": {},
        "mamba-370m": dict(dim=1024, layers=48),
        "mamba-790m": dict(dim=1536, layers=48),
        "mamba-1.4b": dict(dim=2048, layers=48),
        "mamba-2.8b": dict(dim=2560, layers=64),
    },
    tiny=dict(state=8), prefix="backbone", heads={"lm": "MambaForCausalLM", "none": "MambaModel"},
    require={"hidden_act": ("silu", "swish")}, read=read_mamba,
    write=lambda c: {"expand": c.hidden // c.dim, "intermediate_size": c.hidden, "hidden_act": "silu"},
    absent={"num_hidden_layers": 32}, reads={"expand": "int", "time_step_rank": "int | str"},
    paper="Gu and Dao 2023, arXiv 2312.00752",
    gguf="mamba", gguf_names=lambda c: [
        # GGUF keeps the decays themselves, and a convolution as a matrix.
        *GGUF_ROWS,
        ("blk.*.ssm_in", ("blocks.*.ssm.value", "blocks.*.ssm.gate"), Fused()),
        ("blk.*.ssm_conv1d.weight", "blocks.*.ssm.conv.weight", Reshape((-1, c.width))),
        ("blk.*.ssm_x", ("blocks.*.ssm.low", "blocks.*.ssm.B", "blocks.*.ssm.C"), Fused()),
        ("blk.*.ssm_{dt,d}", "blocks.*.ssm.{delta,D}"),
        ("blk.*.ssm_a", "blocks.*.ssm.A_log", NegatedExp()),
    ],
    gguf_keys=gguf_state_keys("mamba", time_step_rank="rank"),
    gguf_write=lambda c: gguf_limits("mamba"),
)  # fmt: skip

FALCON_MAMBA = descend(
    MAMBA, "falcon-mamba", FalconMambaConfig, keys={"mixer_rms_eps": "select_eps"},
    build=lambda c: mamba(c, partial(NormedMamba, eps=c.select_eps)),
    presets={"falcon-mamba-7b": {}}, heads={"lm": "FalconMambaForCausalLM", "none": "FalconMambaModel"},
    absent={
        "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "tie_word_embeddings": True
    },
    paper="Zuo et al. 2024, arXiv 2410.05355",
)  # fmt: skip


class Mamba2Config(StateSpaceConfig, vocab=50288, state=128):
    heads: int = derived(lambda c: max(c.hidden // 64, 1))
    head_dim: int = derived(lambda c: head_size(c.hidden, c.heads))
    groups: int = 1  # of heads that share B and C
    norm_groups: int = 1  # of channels that are normalised apart: as `groups` in GGUF, 1 in transformers
    lowest_step: float = 0.0  # Δ at any time
    highest_step: float = 0.0  # 0: any

    def check(self) -> None:
        super().check()
        if self.heads * self.head_dim != self.hidden:
            message = f"`heads={self.heads}` times `head_dim={self.head_dim}` is not `hidden={self.hidden}`"
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


def read_mamba2(hf_config: dict[str, Any]) -> dict[str, Any]:
    low, high = hf_config.get("time_step_limit", (0.0, math.inf))
    bounded = isinstance(high, int | float) and math.isfinite(high)  # newer files spell infinity as a table
    hidden = hf_config.get("expand", 2) * hf_config["hidden_size"]
    fields = {"hidden": hidden, "lowest_step": low, "highest_step": high if bounded else 0.0}
    return fields | {"norm_groups": hf_config.get("norm_groups", 1)}


def write_mamba2(c: Mamba2Config) -> dict[str, Any]:
    limit = {"time_step_limit": [c.lowest_step, c.highest_step or {"__float__": "Infinity"}]}
    own = {} if c.norm_groups == 1 else {"norm_groups": c.norm_groups, "model_type": "heedful-mamba2"}
    own |= limit if c.lowest_step or c.highest_step else {}
    return {"expand": c.hidden // c.dim, "hidden_act": "silu", **own}


MAMBA2 = descend(
    MAMBA, "mamba2", Mamba2Config, build=mamba2, names=[
        *BACKBONE_ROWS,
        (f"{MIXER}.in_proj", INTO, Fused()),
        (f"{MIXER}.{{conv1d,norm,out_proj}}", "blocks.*.ssm.{conv,norm,out}"),
        (f"{MIXER}.{{dt_bias,A_log,D}}", "blocks.*.ssm.{step_bias,A_log,D}"),
    ],
    keys={"num_heads": "heads", "n_groups": "groups"}, without=("hidden",),
    presets={
        "mamba2-130m": {},
        "mamba2-370m": dict(dim=1024, layers=48),
        "mamba2-780m": dict(dim=1536, layers=48),
        "mamba2-1.3b": dict(dim=2048, layers=48),
        "mamba2-2.7b": dict(dim=2560, layers=64),
        "mamba-codestral-7b": dict(vocab=32768, dim=4096, layers=64, groups=8, tied=False),
    },
    tiny=dict(heads=4, groups=2),
    heads={"lm": "Mamba2ForCausalLM", "none": "Mamba2Model"},
    read=read_mamba2, write=write_mamba2, reads={"expand": "int", "norm_groups": "int"},
    absent={"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "n_groups": 8,
            "tie_word_embeddings": False},
    gguf="mamba2", gguf_names=lambda c: [
        *GGUF_ROWS,
        ("blk.*.ssm_in", INTO, Fused()),
        ("blk.*.ssm_conv1d.weight", "blocks.*.ssm.conv.weight", Reshape((-1, c.width))),
        ("blk.*.ssm_dt.bias", "blocks.*.ssm.step_bias"),
        ("blk.*.ssm_a", "blocks.*.ssm.A_log", NegatedExp((-1, 1))),
        ("blk.*.ssm_d", "blocks.*.ssm.D", Reshape((-1, 1))),
        ("blk.*.ssm_norm.weight", "blocks.*.ssm.norm.weight", Reshape((c.norm_groups, -1))),
    ],
    gguf_keys=gguf_state_keys("mamba2", time_step_rank="heads", group_count="groups"),
    # llama.cpp normalises each group by itself, as the released code does; transformers all together.
    gguf_read=lambda source: {"norm_groups": source.metadata.get("mamba2.ssm.group_count", 1)},
    gguf_write=lambda c: gguf_limits("mamba2"),
    paper="Dao and Gu 2024, arXiv 2405.21060",
)  # fmt: skip
