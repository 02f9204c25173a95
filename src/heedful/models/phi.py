"""Phi-1, 1.5 and 2 (Gunasekar et al. 2023, arXiv 2306.11644; Li et al. 2023, arXiv 2309.05463) and Phi-3, 4
(Abdin et al. 2024, arXiv 2404.14219, 2412.08905).

From GPT-J:           rotary in half of each head (0.4 in Phi-2)   biases everywhere
From LLaMA to Phi-3:  each rotary pair has factors of its own, one for short and one for long texts
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from heedful.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived
from heedful.models.gguf_tables import FUSED_QKV, gguf_keys, gguf_names
from heedful.models.partial_rotary import READS, check_rope_dim, read_partial_rope, write_partial_rope
from heedful.nn.attention import Attention, head_size
from heedful.nn.block import Block, ParallelBlock, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP, activation
from heedful.nn.head import LMHead, choose_head, decoder_heads
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.position import Rotary
from heedful.nn.rope import LongScaling, Scaling
from heedful.weights.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import Fused


@dataclass(frozen=True, kw_only=True)
class PhiConfig(Config):
    vocab: int = 51200
    dim: int = 2048
    layers: int = 24
    heads: int = 32
    kv_heads: int = derived(lambda c: c.heads)
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "gelu_new"
    rope_dim: int = derived(lambda c: head_size(c.dim, c.heads) // 2)  # entries of a head that are turned
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tied: bool = False

    @property
    def head_dim(self) -> int:
        return head_size(self.dim, self.heads)

    def check(self) -> None:
        check_rope_dim(self.rope_dim, self.head_dim)


@dataclass(frozen=True, kw_only=True)
class Phi3Config(Config):
    vocab: int = 32064
    dim: int = 3072
    layers: int = 32
    heads: int = 32
    kv_heads: int = derived(lambda c: c.heads)
    hidden: int = 8192
    context: int = 4096
    window: int | None = None  # how far a position sees; None: everything before it
    act: str = "silu"
    rope_dim: int = derived(lambda c: head_size(c.dim, c.heads))  # entries of a head that are turned
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tied: bool = False

    @property
    def head_dim(self) -> int:
        return head_size(self.dim, self.heads)

    def check(self) -> None:
        check_rope_dim(self.rope_dim, self.head_dim)
        scaling = self.rope_scaling
        if isinstance(scaling, LongScaling) and {len(scaling.short), len(scaling.long)} != {
            self.rope_dim // 2
        }:
            raise ConfigError(
                f"long rope has {len(scaling.short)} short and {len(scaling.long)} long factors",
                hint=f"one for each of the {self.rope_dim // 2} rotary pairs",
            )


def phi(c: PhiConfig) -> LM:
    rotary = Rotary(c.rope_dim, c.rope_base, c.rope_scaling)
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(c.dim, c.heads, c.kv_heads, bias=True, rotary=rotary, dropout=c.dropout)
    ffn = lambda: MLP(c.dim, c.hidden, activation(c.act))
    block = lambda: ParallelBlock(norm, c.dropout, attn=attn(), ffn=ffn())
    words = lambda: LMHead(c.dim, c.vocab, tied=c.tied, bias=True)
    embed, blocks = Embedding(c.vocab, c.dim, dropout=c.dropout), [block() for _ in range(c.layers)]
    head = choose_head(c.head, lm=words, **decoder_heads(c.dim, c.labels))
    return LM(embed, Stack(blocks, norm()), head)


def phi3(c: Phi3Config) -> LM:
    rotary = Rotary(c.rope_dim, c.rope_base, c.rope_scaling)
    norm = lambda: RMSNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(c.dim, c.heads, c.kv_heads, rotary=rotary, window=c.window, dropout=c.dropout)
    ffn = lambda: GatedMLP(c.dim, c.hidden, activation(c.act))
    block = lambda: Block(norm, "pre", c.dropout, attn=attn(), ffn=ffn())
    words = lambda: LMHead(c.dim, c.vocab, tied=c.tied)
    embed, blocks = Embedding(c.vocab, c.dim, dropout=c.dropout), [block() for _ in range(c.layers)]
    head = choose_head(c.head, lm=words, **decoder_heads(c.dim, c.labels))
    return LM(embed, Stack(blocks, norm()), head)


QKV = ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v")
GATE_UP = ("blocks.*.ffn.gate", "blocks.*.ffn.up")
PHI_NAMES: list[Row] = [
    ("model.embed_tokens", "embed.token"),
    ("model.layers.*.self_attn.{q_proj,k_proj,v_proj,dense}", "blocks.*.attn.{q,k,v,o}"),
    ("model.layers.*.mlp.{fc1,fc2}", "blocks.*.ffn.{up,down}"),
    ("model.layers.*.input_layernorm", "blocks.*.norm"),
    ("model.final_layernorm", "blocks.norm"),
    ("{lm_head,score,score}", "head.{out,label,tag}"),
]
PHI3_NAMES: list[Row] = [
    ("model.embed_tokens", "embed.token"),
    ("model.layers.*.self_attn.qkv_proj", QKV, Fused()),
    ("model.layers.*.self_attn.o_proj", "blocks.*.attn.o"),
    ("model.layers.*.mlp.gate_up_proj", GATE_UP, Fused()),
    ("model.layers.*.mlp.down_proj", "blocks.*.ffn.down"),
    ("model.layers.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm"),
    ("model.norm", "blocks.norm"),
    ("{lm_head,score,score}", "head.{out,label,tag}"),
]


def read_phi3_gguf(source: GGUFFile) -> dict[str, Any]:
    """A window of 0 is none; the factors of long rope are tensors."""
    window = source.metadata.get("phi3.attention.sliding_window") or None
    if "rope_factors_long.weight" not in source.entries:
        return {"window": window}
    short, long = (tuple(source.read(f"rope_factors_{w}.weight").tolist()) for w in ("short", "long"))
    trained = source.metadata["phi3.rope.scaling.original_context_length"]
    stretch = source.metadata["phi3.context_length"] / trained
    gain = source.metadata.get("phi3.rope.scaling.attn_factor")
    return {"window": window, "rope_scaling": LongScaling(stretch, trained, short, long, gain)}


def write_phi3_gguf(c: Phi3Config) -> dict[str, Any]:
    return {"phi3.attention.sliding_window": c.window or 0}


def write_phi3(c: Phi3Config) -> dict[str, Any]:
    """Where long rope was trained on stands beside `rope_parameters`, too."""
    trained = c.rope_scaling.context if isinstance(c.rope_scaling, LongScaling) else c.context
    return {**write_partial_rope(c), "original_max_position_embeddings": trained}


KEYS = {
    "vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers",
    "num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "intermediate_size": "hidden",
    "max_position_embeddings": "context", "hidden_act": "act", "resid_pdrop": "dropout",
    "embd_pdrop": "dropout", "attention_dropout": "dropout", "tie_word_embeddings": "tied",
}  # fmt: skip
TINY: dict[str, Any] = dict(vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64)
COPIES = {"lm_head.weight": "model.embed_tokens.weight", "output.weight": "token_embd.weight"}

PHI = Family(
    "phi", PhiConfig, phi, PHI_NAMES, {**KEYS, "layer_norm_eps": "norm_eps"},
    presets={
        "phi-1": PhiConfig(), "phi-1.5": PhiConfig(),
        "phi-2": PhiConfig(dim=2560, layers=32, rope_dim=32),
    },
    tiny=PhiConfig(**TINY), objective="next_token", prefix="model", model_types=("phi",),
    heads={
        "lm": "PhiForCausalLM", "classify": "PhiForSequenceClassification",
        "tag": "PhiForTokenClassification", "none": "PhiModel",
    },
    require={"qk_layernorm": (False,)}, reads=READS, write=write_partial_rope,
    read=partial(read_partial_rope, usual=0.5), copies=COPIES,
    drop=("*.rotary_emb.inv_freq",), gguf="phi2", gguf_names=gguf_names,
    gguf_keys=gguf_keys("phi2", PhiConfig), paper="Li et al. 2023, arXiv 2309.05463",
)  # fmt: skip

PHI3 = Family(
    "phi3", Phi3Config, phi3, PHI3_NAMES, {**KEYS, "rms_norm_eps": "norm_eps", "sliding_window": "window"},
    presets={
        "phi-3-mini": Phi3Config(window=2047),
        "phi-3-medium": Phi3Config(dim=5120, layers=40, heads=40, kv_heads=10, hidden=17920, window=2047),
        "phi-4": Phi3Config(
            vocab=100352, dim=5120, layers=40, heads=40, kv_heads=10, hidden=17920, context=16384,
            rope_base=250000.0,
        ),
    },
    tiny=Phi3Config(**TINY), objective="next_token", prefix="model", model_types=("phi3",),
    heads={kind: name.replace("Phi", "Phi3") for kind, name in PHI.heads.items()},
    reads={**READS, "original_max_position_embeddings": "int"}, write=write_phi3,
    read=partial(read_partial_rope, usual=1.0), copies=COPIES,
    drop=("*.rotary_emb.inv_freq", "rope_factors_*.weight"), gguf="phi3",
    gguf_names=partial(gguf_names, own=[FUSED_QKV, ("blk.*.ffn_up", GATE_UP, Fused())]),
    gguf_keys=gguf_keys("phi3", Phi3Config), gguf_read=read_phi3_gguf,
    gguf_write=write_phi3_gguf,
    paper="Abdin et al. 2024, arXiv 2404.14219",
)  # fmt: skip
