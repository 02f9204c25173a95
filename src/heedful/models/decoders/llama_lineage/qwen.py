"""Qwen2 and 2.5 (Qwen Team 2024, arXiv 2407.10671, 2412.15115), Qwen3 (Qwen Team 2025, arXiv 2505.09388).

From LLaMA:         biases on queries, keys and values   in some layers positions may see only a window
From Qwen2 to 3:    no biases   queries and keys normalised, each head alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from heedful.models.base import LM
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    NAMES,
    DecoderConfig,
    llama,
    llama_attention,
    llama_mlp,
    published_names,
    softmax_moe,
)
from heedful.models.family import descend, published_heads
from heedful.models.gguf_config import EACH, EXPERT_ROWS, ROWS
from heedful.models.hf_config import read_local_layers
from heedful.nn.context import Part
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.moe import GatedExpert
from heedful.nn.norm import RMSNorm
from heedful.weights.names import Row
from heedful.weights.ops import Reshape, Stacked


class Qwen2Config(DecoderConfig, vocab=151936, context=32768, rope_base=1000000.0):
    window: int | None = None  # how far a position sees in the layers that `local` lists; None: everywhere
    local: tuple[int, ...] = ()


class Qwen3Config(Qwen2Config, head_dim=128, context=40960):
    bias: bool = False  # of the attention's matrices, the output's too


def qwen2(c: Qwen2Config, ffn: Callable[[int], Part] | None = None) -> LM:
    bias = vars(c).get("bias", True)  # only some of its descendants may do without
    return llama(c, attn=lambda rotary, i: llama_attention(c, rotary, i, bias=bias, out_bias=False), ffn=ffn)


def qwen3(c: DecoderConfig, **parts: Any) -> LM:
    """Qwen3, and what a descendant does otherwise, as in `llama`."""
    of_head = lambda: RMSNorm(c.head_dim, c.norm_eps)
    attn = lambda rotary, i: llama_attention(c, rotary, i, q_norm=of_head(), k_norm=of_head())
    return llama(c, attn=attn, **parts)


def read_qwen(hf_config: dict[str, Any], default: Callable[[int, int], Iterable[int]]) -> dict[str, Any]:
    """Windows are off unless `use_sliding_window`. Then layers have one by a list, or by `default`.

    `default` takes `max_window_layers` and the number of layers.
    """
    if not hf_config.get("use_sliding_window") or not hf_config.get("sliding_window"):
        return {"window": None, "local": ()}
    layers = default(hf_config.get("max_window_layers", 28), hf_config["num_hidden_layers"])
    return {"window": hf_config["sliding_window"], "local": read_local_layers(hf_config, layers)}


def write_qwen(c: Qwen2Config) -> dict[str, Any]:
    window = {} if c.window is None else {"sliding_window": c.window}
    return {"use_sliding_window": c.window is not None} | window


QWEN_READS = {
    "use_sliding_window": "bool", "sliding_window": "int", "max_window_layers": "int",
    "num_hidden_layers": "int",
}  # fmt: skip
QK_NORMS: Row = ("model.layers.*.self_attn.{q,k}_norm", "blocks.*.attn.{q,k}_norm")

QWEN2 = descend(
    LLAMA, "qwen2", Qwen2Config, build=qwen2, without=("window",),
    presets={
        "qwen2.5-0.5b": dict(dim=896, layers=24, heads=14, kv_heads=2, hidden=4864, tied=True),
        "qwen2.5-1.5b": dict(
            dim=1536, layers=28, heads=12, kv_heads=2, hidden=8960, context=131072, tied=True
        ),
        "qwen2.5-3b": dict(dim=2048, layers=36, heads=16, kv_heads=2, hidden=11008, tied=True),
        "qwen2.5-7b": dict(
            vocab=152064, dim=3584, layers=28, heads=28, kv_heads=4, hidden=18944, context=131072
        ),
        "qwen2.5-72b": dict(
            vocab=152064, dim=8192, layers=80, heads=64, kv_heads=8, hidden=29568, context=131072,
            norm_eps=1e-5,
        ),
    },
    tiny=dict(window=4, local=(1,)), heads=published_heads("Qwen2"),
    read=partial(read_qwen, default=range), write=write_qwen, reads=QWEN_READS,
    absent={"intermediate_size": 22016, "num_hidden_layers": 32},
    gguf="qwen2", gguf_names=ROWS, paper="Qwen Team 2024, arXiv 2407.10671, 2412.15115",
)  # fmt: skip

QWEN3 = descend(
    QWEN2, "qwen3", Qwen3Config, build=qwen3,
    names=partial(published_names, rows=[*NAMES, QK_NORMS]),
    presets={
        "qwen3-0.6b": dict(dim=1024, layers=28, heads=16, kv_heads=8, hidden=3072, tied=True),
        "qwen3-1.7b": dict(dim=2048, layers=28, heads=16, kv_heads=8, hidden=6144, tied=True),
        "qwen3-4b": dict(dim=2560, layers=36, heads=32, kv_heads=8, hidden=9728, tied=True),
        "qwen3-8b": dict(dim=4096, layers=36, heads=32, kv_heads=8, hidden=12288),
        "qwen3-32b": dict(dim=5120, layers=64, heads=64, kv_heads=8, hidden=25600),
    },
    tiny=dict(head_dim=12, window=None, local=()), heads=published_heads("Qwen3"),
    absent={**QWEN2.absent, "max_position_embeddings": 32768},
    gguf="qwen3", paper="Qwen Team 2025, arXiv 2505.09388",
)  # fmt: skip


# Qwen1.5-MoE and Qwen2-MoE (Qwen Team 2024, arXiv 2407.10671), Qwen3-MoE (Qwen Team 2025, arXiv 2505.09388).
#
# From Qwen2:      many small MLPs, of which a few read each token   one more that reads all, behind a gate
# From Qwen3:      the same, without the one that reads all


class Qwen2MoEConfig(Qwen2Config, dim=2048, layers=24, heads=16):
    hidden: int = 5632  # of layers without experts
    bias: bool = True  # of queries, keys and values
    experts: int = 60
    active: int = 4  # experts per token
    expert_hidden: int = 1408
    shared_hidden: int = 5632  # of the expert that every token visits
    normalise: bool = False  # whether the experts' weights sum to 1
    dense: tuple[int, ...] = ()  # layers without experts


class Qwen3MoEConfig(Qwen3Config, dim=2048, layers=48, kv_heads=4, hidden=6144):
    experts: int = 128
    active: int = 8
    expert_hidden: int = 768
    normalise: bool = True
    dense: tuple[int, ...] = ()


def qwen_moe(c: Any, layer: int, shared: Part | None = None) -> Part:
    """The experts of a layer, or its one MLP if it is dense."""
    return llama_mlp(c) if layer in c.dense else softmax_moe(c, shared)


def qwen2_moe(c: Qwen2MoEConfig) -> LM:
    shared = lambda: GatedExpert(c.dim, GatedMLP(c.dim, c.shared_hidden, activation(c.act)))
    return qwen2(c, ffn=lambda i: qwen_moe(c, i, shared()))


MOE_NAMES: list[Row] = [
    QK_NORMS,
    ("model.layers.*.mlp.gate", "blocks.*.ffn.router.score"),
    (f"model.layers.*.mlp.experts.*.{EACH}_proj.weight", f"blocks.*.ffn.experts.{EACH}", Stacked()),
    (f"model.layers.*.mlp.shared_expert.{EACH}_proj", f"blocks.*.ffn.shared.expert.{EACH}"),
    ("model.layers.*.mlp.shared_expert_gate", "blocks.*.ffn.shared.gate"),
    *NAMES,
]
MOE_KEYS = {
    "num_experts": "experts", "num_experts_per_tok": "active", "moe_intermediate_size": "expert_hidden",
    "norm_topk_prob": "normalise",
}  # fmt: skip


MOE_GGUF_NAMES: list[Row] = [
    *EXPERT_ROWS,
    (f"blk.*.ffn_{EACH}_shexp", f"blocks.*.ffn.shared.expert.{EACH}"),
    ("blk.*.ffn_gate_inp_shexp", "blocks.*.ffn.shared.gate", Reshape((-1,))),
    *ROWS,
]


def read_dense(hf_config: dict[str, Any]) -> dict[str, Any]:
    """`mlp_only_layers` have no experts, and of the others only every n-th has some."""
    layers, step = hf_config["num_hidden_layers"], hf_config.get("decoder_sparse_step", 1)
    without = {*hf_config.get("mlp_only_layers", ()), *(i for i in range(layers) if (i + 1) % step)}
    return {"dense": tuple(sorted(without))}


def write_dense(c: Any) -> dict[str, Any]:
    return {"mlp_only_layers": list(c.dense), "decoder_sparse_step": 1}


MOE_READS = {**QWEN_READS, "mlp_only_layers": "tuple[int, ...]", "decoder_sparse_step": "int"}
TINY: dict[str, Any] = dict(experts=4, active=2, expert_hidden=24, window=None, local=())

QWEN2_MOE = descend(
    QWEN2, "qwen2-moe", Qwen2MoEConfig, build=qwen2_moe, names=MOE_NAMES,
    keys={**MOE_KEYS, "shared_expert_intermediate_size": "shared_hidden", "qkv_bias": "bias"},
    presets={
        "qwen1.5-moe-a2.7b": dict(context=8192),
        "qwen2-57b-a14b": dict(
            dim=3584, layers=28, heads=28, kv_heads=4, hidden=18944, experts=64, active=8, expert_hidden=2560,
            shared_hidden=20480, context=131072,
        ),
    },
    tiny=dict(**TINY, shared_hidden=24, dense=(0,)),
    heads=published_heads("Qwen2Moe"), reads=MOE_READS, write=lambda c: write_qwen(c) | write_dense(c),
    read=lambda hf: read_qwen(hf, lambda last, layers: range(0, min(last, layers), 2)) | read_dense(hf),
    absent={"num_hidden_layers": 24},
    gguf="qwen2moe", gguf_names=MOE_GGUF_NAMES, paper="Qwen Team 2024, arXiv 2407.10671",
)  # fmt: skip

QWEN3_MOE = descend(
    QWEN3, "qwen3-moe", Qwen3MoEConfig, build=lambda c: qwen3(c, ffn=lambda i: qwen_moe(c, i)),
    names=partial(published_names, rows=MOE_NAMES),
    keys={**MOE_KEYS, "num_local_experts": "experts"},
    presets={
        "qwen3-30b-a3b": {},
        "qwen3-235b-a22b": dict(dim=4096, layers=94, heads=64, hidden=12288, expert_hidden=1536),
    },
    tiny=TINY, heads=published_heads("Qwen3Moe"),
    read=lambda hf: read_qwen(hf, lambda last, layers: range(layers)) | read_dense(hf),
    write=lambda c: write_qwen(c) | write_dense(c), reads=MOE_READS,
    absent={"num_hidden_layers": 24, "max_position_embeddings": 32768, "norm_topk_prob": False},
    gguf="qwen3moe", gguf_names=MOE_GGUF_NAMES,
)  # fmt: skip
