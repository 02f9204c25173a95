"""Mamba (Gu and Dao 2023, arXiv 2312.00752) and Falcon Mamba (Zuo et al. 2024, arXiv 2410.05355).

From the Transformer:  attention and feed-forward → one gated part over a selective state space   no positions
From S4:               Δ, B and C read the token, so that the state can choose what to keep
From Mamba to Falcon:  the numbers that make Δ, B and C are normalised
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived
from heedful.models.family import descend, published_keys
from heedful.nn.block import Block, Stack
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.head import LMHead, NoHead, choose_head
from heedful.nn.state_space.ssm import Mamba, NarrowRMSNorm, NormedMamba, Widen
from heedful.weights.names import Row
from heedful.weights.ops import Fused, NegatedExp, Reshape


def check_steps(step_min: float, step_max: float) -> None:
    """Raise ConfigError unless 0 < step_min < step_max, the bounds of Δ before training."""
    if not 0 < step_min < step_max:
        raise ConfigError(f"must lie between 0 and step_max={step_max}", argument="step_min", value=step_min)


@dataclass(frozen=True, kw_only=True)
class StateSpaceConfig(Config):
    """What Mamba and Mamba-2 share."""

    vocab: int = 50280
    dim: int = 768
    layers: int = 24
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
                f"hidden={self.hidden} is not a multiple of dim={self.dim}", hint=f"take {2 * self.dim}"
            )
        check_steps(self.step_min, self.step_max)


@dataclass(frozen=True, kw_only=True)
class MambaConfig(StateSpaceConfig):
    rank: int = derived(lambda c: -(-c.dim // 16))  # of the matrix that makes Δ


def stack_state_spaces(c: StateSpaceConfig, ssm: Callable[[], Part]) -> LM:
    """The embedding, a norm and a state space in each layer, a last norm, and the head."""
    norm = lambda: NarrowRMSNorm(c.dim, c.norm_eps)
    embed = Embedding(c.vocab, c.dim, project=Widen() if c.wide else None)
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied), none=NoHead)
    return LM(embed, Stack([Block(norm, ssm=ssm()) for _ in range(c.layers)], norm()), head)


@dataclass(frozen=True, kw_only=True)
class FalconMambaConfig(MambaConfig):
    vocab: int = 65024
    dim: int = 4096
    layers: int = 64
    select_eps: float = 1e-6  # of the norms of Δ, B and C
    tied: bool = False


def mamba(c: MambaConfig, part: Callable[..., Mamba] = Mamba) -> LM:
    return stack_state_spaces(c, lambda: part(
        c.dim, c.hidden, c.state, c.rank, width=c.width, bias=c.bias, conv_bias=c.conv_bias,
        step=(c.step_min, c.step_max),
    ))  # fmt: skip


def falcon_mamba(c: FalconMambaConfig) -> LM:
    return mamba(c, partial(NormedMamba, eps=c.select_eps))


MIXER = "backbone.layers.*.mixer"

# The rows that Mamba and Mamba-2 share.
BACKBONE_ROWS: list[Row] = [
    ("backbone.embeddings", "embed.token"),
    ("backbone.layers.*.norm", "blocks.*.ssm_norm"),
    ("backbone.norm_f", "blocks.norm"),
    ("lm_head", "head.out"),
]
NAMES: list[Row] = [
    *BACKBONE_ROWS,
    (f"{MIXER}.in_proj", ("blocks.*.ssm.value", "blocks.*.ssm.gate"), Fused()),
    (f"{MIXER}.conv1d", "blocks.*.ssm.conv"),
    (f"{MIXER}.x_proj", ("blocks.*.ssm.low", "blocks.*.ssm.B", "blocks.*.ssm.C"), Fused()),
    (f"{MIXER}.dt_proj", "blocks.*.ssm.delta"),
    (f"{MIXER}.{{A_log,D}}", "blocks.*.ssm.{A_log,D}"),
    (f"{MIXER}.out_proj", "blocks.*.ssm.out"),
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


def mamba_gguf_names(c: MambaConfig) -> list[Row]:
    """GGUF keeps the decays themselves, and a convolution as a matrix."""
    return [
        *GGUF_ROWS,
        ("blk.*.ssm_in", ("blocks.*.ssm.value", "blocks.*.ssm.gate"), Fused()),
        ("blk.*.ssm_conv1d.weight", "blocks.*.ssm.conv.weight", Reshape((-1, c.width))),
        ("blk.*.ssm_x", ("blocks.*.ssm.low", "blocks.*.ssm.B", "blocks.*.ssm.C"), Fused()),
        ("blk.*.ssm_{dt,d}", "blocks.*.ssm.{delta,D}"),
        ("blk.*.ssm_a", "blocks.*.ssm.A_log", NegatedExp()),
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


MAMBA = Family(
    "mamba", MambaConfig, mamba, NAMES,
    published_keys(MambaConfig, "hidden", time_step_rank="rank", **STATE_KEYS),
    presets={
        "mamba-130m": MambaConfig(),
        "mamba-370m": MambaConfig(dim=1024, layers=48),
        "mamba-790m": MambaConfig(dim=1536, layers=48),
        "mamba-1.4b": MambaConfig(dim=2048, layers=48),
        "mamba-2.8b": MambaConfig(dim=2560, layers=64),
    },
    tiny=MambaConfig(vocab=128, dim=32, layers=2, state=8),
    objective="next_token", prefix="backbone", model_types=("mamba",),
    heads={"lm": "MambaForCausalLM", "none": "MambaModel"},
    require={"hidden_act": ("silu", "swish")}, fixed={"hidden_act": "silu"},
    read=read_mamba, write=lambda c: {"expand": c.hidden // c.dim, "intermediate_size": c.hidden},
    absent={"num_hidden_layers": 32},
    reads={"expand": "int", "time_step_rank": "int | str"},
    copies={"lm_head.weight": "backbone.embeddings.weight"}, paper="Gu and Dao 2023, arXiv 2312.00752",
    gguf="mamba", gguf_names=mamba_gguf_names, gguf_keys=gguf_state_keys("mamba", time_step_rank="rank"),
    gguf_write=lambda c: gguf_limits("mamba"),
)  # fmt: skip

FALCON_MAMBA = descend(
    MAMBA, "falcon-mamba", FalconMambaConfig, build=falcon_mamba, keys={"mixer_rms_eps": "select_eps"},
    presets={"falcon-mamba-7b": {}}, heads={"lm": "FalconMambaForCausalLM", "none": "FalconMambaModel"},
    absent={
        "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "tie_word_embeddings": True
    },
    paper="Zuo et al. 2024, arXiv 2410.05355",
)  # fmt: skip
