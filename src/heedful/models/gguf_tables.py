"""What GGUF files of most decoders share: the names of tensors, and those of the numbers of a config."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.models.family import Config
from heedful.weights.names import Row
from heedful.weights.ops import Fused

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
FUSED_QKV: Row = ("blk.*.attn_qkv", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused())
KEYS = {
    "embedding_length": "dim", "block_count": "layers", "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads", "feed_forward_length": "hidden", "context_length": "context",
    "rope.dimension_count": "rope_dim", "rope.freq_base": "rope_base",
    "attention.layer_norm_epsilon": "norm_eps", "attention.layer_norm_rms_epsilon": "norm_eps",
    "use_parallel_residual": "parallel", "vocab_size": "vocab", "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.sliding_window": "window", "attention.clamp_kqv": "clip", "attn_logit_softcapping": "softcap",
    "final_logit_softcapping": "logit_softcap", "rope.freq_base_swa": "local_rope_base",
    "expert_count": "experts", "expert_used_count": "active", "expert_feed_forward_length": "expert_hidden",
    "expert_shared_feed_forward_length": "shared_hidden",
}  # fmt: skip


def gguf_names(c: Config, own: Sequence[Row] = ()) -> list[Row]:
    """The rows of a family: its own, then those that all share. The first that fits a tensor counts."""
    return [*own, *ROWS]


def gguf_keys(architecture: str, config: type[Config]) -> dict[str, str]:
    """The numbers that a GGUF file states, by the fields of `config` that they are."""
    return {f"{architecture}.{theirs}": ours for theirs, ours in KEYS.items() if ours in config.known()}
