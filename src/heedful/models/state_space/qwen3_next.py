"""Qwen3-Next (Qwen Team 2025) and the text models of Qwen3.5 (Qwen Team 2026).

From Qwen3:          three of four layers remember by the gated delta rule   the others gate what they read
                     norms multiply by 1 + γ   rotary in a quarter of each head
From Qwen3.5 to Next:  512 experts instead of one MLP, and one that reads all
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    PartialRotaryConfig,
    llama,
    llama_attention,
)
from heedful.models.decoders.llama_lineage.qwen import (
    MOE_KEYS,
    MOE_NAMES,
    QK_NORMS,
    published_names,
    qwen_moe,
    read_dense,
    write_dense,
)
from heedful.models.family import descend, published_heads
from heedful.models.state_space.deltanet import (
    DELTA_KEYS,
    check_delta,
    delta_part,
    read_attending,
    rows_at,
    write_attending,
)
from heedful.nn.attention.multi_head import GatedAttention
from heedful.nn.context import Part
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.moe import GatedExpert
from heedful.nn.norm import OffsetRMSNorm
from heedful.weights.names import Row
from heedful.weights.ops import Fused, PerHead


@dataclass(frozen=True, kw_only=True)
class Qwen35Config(PartialRotaryConfig):
    vocab: int = 248320
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 256
    hidden: int = 12288
    context: int = 262144
    rope_dim: int = derived(lambda c: c.head_dim // 4)
    rope_base: float = 1e7
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


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(Qwen35Config):
    vocab: int = 151936
    dim: int = 2048
    layers: int = 48
    kv_heads: int = 2
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


def qwen3_5_names(c: Qwen35Config) -> list[Row]:
    own: Row = ("model.layers.*.linear_attn.in_proj_{z,b,a}", "blocks.*.attn.{gate,beta,decay}")
    return hybrid_rows(c, [delta_rows("in_proj_qkv", "q k v", Fused()), own], NAMES)


def qwen3_next_names(c: Qwen3NextConfig) -> list[Row]:
    groups = PerHead(c.key_heads)
    own = [delta_rows("in_proj_qkvz", "q k v gate", groups), delta_rows("in_proj_ba", "beta decay", groups)]
    return published_names(c, hybrid_rows(c, own, MOE_NAMES[1:]))


QWEN3_5 = descend(
    LLAMA, "qwen35", Qwen35Config, build=qwen3_5, names=qwen3_5_names, keys=DELTA_KEYS,
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
    drop=("*.rotary_emb.inv_freq", "mtp.*"), paper="Qwen Team 2026, Qwen3.5",
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
