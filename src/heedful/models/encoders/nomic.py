"""NomicBERT (Nussbaum et al. 2024, arXiv 2402.01613).

From BERT:  learned positions → rotary, which reach longer texts than those trained on   GELU → SwiGLU
            no biases in attention and feed-forward
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heedful.models.base import LM, Config, Family, derived, from_zero
from heedful.models.encoders.bert import out_names
from heedful.models.family import gguf_keys, published_heads, published_keys
from heedful.models.gguf_config import FUSED_QKV
from heedful.models.hf_config import read_rope
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.head import MLMHead, Pooler, choose_head, encoder_heads
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary, Scaling
from heedful.weights.names import Row
from heedful.weights.ops import Fused


@dataclass(frozen=True, kw_only=True)
class NomicBertConfig(Config):
    vocab: int = 30528
    dim: int = 768
    layers: int = 12
    heads: int = 12
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    types: int = from_zero(2)
    act: str = "silu"
    rope_base: float = 1000.0
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-12
    dropout: float = 0.0
    tied: bool = True
    head: str = "mlm"


def nomic_bert(c: NomicBertConfig) -> LM:
    norm, rotary = lambda: LayerNorm(c.dim, c.norm_eps), Rotary(c.head_dim, c.rope_base, c.rope_scaling)
    embed = Embedding(c.vocab, c.dim, types=c.types, norm=norm(), dropout=c.dropout)
    attn = lambda: Attention(c.dim, c.heads, head_dim=c.head_dim, rotary=rotary, dropout=c.dropout)
    ffn = lambda: GatedMLP(c.dim, c.hidden, activation(c.act))
    blocks = [Block(norm, "post", c.dropout, attn=attn(), ffn=ffn()) for _ in range(c.layers)]
    head = choose_head(
        c.head,
        mlm=lambda: MLMHead(c.dim, c.vocab, activation(c.act), eps=c.norm_eps, tied=c.tied, spare=not c.tied),
        **encoder_heads(c.dim, c.labels, lambda: Pooler(c.dim), c.dropout),
    )
    return LM(embed, Stack(blocks), head, causal=False)


LAYER = "nomic_bert.encoder.layers.*"


def nomic_bert_names(c: NomicBertConfig) -> list[Row]:
    return [
        ("nomic_bert.embeddings.{word,token_type}_embeddings", "embed.{token,types}"),
        ("nomic_bert.emb_ln", "embed.norm"),
        (f"{LAYER}.attn.Wqkv", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused()),
        (f"{LAYER}.attn.out_proj", "blocks.*.attn.o"),
        (f"{LAYER}.mlp.{{fc11,fc12,fc2}}", "blocks.*.ffn.{up,gate,down}"),
        (f"{LAYER}.{{norm1,norm2}}", "blocks.*.{attn,ffn}_norm"),
        ("cls.predictions.transform.{dense,layer_norm}", "head.{dense,norm}"),
        *out_names("cls.predictions", "head", c.tied),
        ("nomic_bert.pooler.dense", "head.pool.dense"),
        ("classifier", "head.label"),
        ("classifier", "head.tag"),
        ("qa_outputs", "head.span"),
    ]


KEYS = published_keys(
    NomicBertConfig, layer_norm_eps="norm_eps", hidden_dropout_prob="dropout",
    attention_probs_dropout_prob="dropout",
)  # fmt: skip

# The first files are configured in GPT-2's words.
OLDER = {
    "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_inner": "hidden", "n_positions": "context",
    "layer_norm_epsilon": "norm_eps", "resid_pdrop": "dropout", "rotary_emb_base": "rope_base",
}  # fmt: skip


def read_nomic_bert(hf_config: dict[str, Any]) -> dict[str, Any]:
    older = {ours: hf_config[theirs] for theirs, ours in OLDER.items() if theirs in hf_config}
    context = older.get("context", hf_config.get("max_position_embeddings", 2048))
    base, scaling = read_rope({"rope_theta": older.get("rope_base", 1000.0), **hf_config}, context)
    return {**older, "rope_base": base, "rope_scaling": scaling}


GGUF_NAMES: list[Row] = [
    ("token_{embd,types,embd_norm}", "embed.{token,types,norm}"),
    FUSED_QKV,
    ("blk.*.attn_output", "blocks.*.attn.o"),
    ("blk.*.{attn,layer}_output_norm", "blocks.*.{attn,ffn}_norm"),
    ("blk.*.ffn_{gate,up,down}", "blocks.*.ffn.{gate,up,down}"),
]

NOMIC_BERT = Family(
    "nomic-bert", NomicBertConfig, nomic_bert, nomic_bert_names, KEYS,
    presets={
        "nomic-bert-2048": NomicBertConfig(),
        "nomic-embed-text-v1.5": NomicBertConfig(context=8192, head="none"),
    },
    tiny=NomicBertConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64),
    objective="masked", prefix="nomic_bert", model_types=("nomic_bert",),
    heads=published_heads("NomicBert", "span", words="mlm"),
    require={
        "activation_function": ("swiglu",), "prenorm": (False,), "use_rms_norm": (False, None),
        "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,),
        "rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,), "rotary_scaling_factor": (None,),
    },
    read=read_nomic_bert,
    reads={theirs: "int" if theirs.startswith("n_") else "float" for theirs in OLDER},
    copies={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    gguf="nomic-bert", gguf_names=GGUF_NAMES, gguf_head="none",
    gguf_write=lambda c: {"nomic-bert.attention.causal": False},
    gguf_keys=gguf_keys("nomic-bert", NomicBertConfig) | {"tokenizer.ggml.token_type_count": "types"},
    paper="Nussbaum et al. 2024, arXiv 2402.01613",
)  # fmt: skip
