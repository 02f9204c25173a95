"""DeBERTa (He et al. 2021, arXiv 2006.03654), DeBERTa v2 and v3 (He et al. 2023, arXiv 2111.09543).

From BERT:   positions enter the scores as vectors of distances, not the embedding
v2:          far distances share buckets, a convolution next to the first layer, a norm over the distances
v3:          v2 whose distances use the content's own projections, trained as ELECTRA is
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
from heedful.models.encoders.bert import KEYS, backbone_names, bert_encoder, encoder_head, out_names
from heedful.models.family import PlainConfig, declare, descend, published_heads
from heedful.nn.attention.disentangled import TERMS, ConvBlock, DisentangledAttention, Distances, Neighbours
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import Head, Pooler
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned
from heedful.weights.names import Row
from heedful.weights.ops import PerHead


class DebertaConfig(PlainConfig, vocab=50265, norm_eps=1e-7, head="mlm"):
    context: int = 512
    table_dim: int = derived(lambda c: c.dim)  # of the token vectors
    types: int = from_zero(0)
    absolute: bool = False  # learned positions in the embedding too
    relative: bool = True  # distances in the scores
    terms: tuple[str, ...] = TERMS  # which of content to position, position to content
    far: int = derived(lambda c: c.context)  # the largest distance that is told apart
    pool_act: str = "gelu"
    legacy: bool = False  # the masked-word head under BERT's names, with its own matrix if not tied

    def check(self) -> None:
        if not self.legacy and self.table_dim != self.dim:
            raise ConfigError(
                f"`table_dim={self.table_dim}` is not `dim={self.dim}`: this needs `legacy=True`"
            )
        if not self.legacy and not self.tied:
            raise ConfigError("`tied=False` needs `legacy=True`: the newer head has no separate matrix")


class DebertaV2Config(DebertaConfig, vocab=128100):
    buckets: int = from_zero(256)  # 0: every distance has its own vector
    shared: bool = True  # distances use the content's projections
    far_norm: bool = True  # a norm over the vectors of distances
    conv: int = from_zero(0)  # width of the convolution next to the first layer; 0: none
    conv_groups: int = 1
    conv_act: str = "tanh"

    def check(self) -> None:
        super().check()
        if self.buckets and self.far <= self.buckets // 2 + 1:
            raise ConfigError(
                f"`buckets={self.buckets}` are too many for distances below `far={self.far}`",
                hint="raise far, or set `buckets=0`",
            )
        check_divides("conv_groups", self.conv_groups, "dim", self.dim)


def deberta_embedding(c: DebertaConfig) -> Embedding:
    widen = nn.Linear(c.table_dim, c.dim, bias=False) if c.table_dim != c.dim else nn.Identity()
    project = nn.Sequential(OrderedDict(widen=widen, norm=LayerNorm(c.dim, c.norm_eps)))
    position = Learned(c.context, c.table_dim) if c.absolute else None
    return Embedding(
        c.vocab, c.table_dim, position=position, types=c.types, project=project, dropout=c.dropout
    )  # fmt: skip


def deberta_head(c: DebertaConfig) -> Head:
    return encoder_head(c, lambda: Pooler(c.dim, activation(c.pool_act)))


def deberta(c: DebertaConfig) -> LM:
    distances = Distances(c.dim, c.far) if c.relative else None
    attn = lambda i: DisentangledAttention(
        c.dim, c.heads, distances, c.terms, key_bias=False, dropout=c.dropout
    )
    return bert_encoder(c, deberta_head(c), embed=deberta_embedding(c), attn=attn)


def deberta_v2(c: DebertaV2Config) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    distances = Distances(c.dim, c.far, c.buckets, norm() if c.far_norm else None) if c.relative else None
    attn = lambda: DisentangledAttention(
        c.dim, c.heads, distances, c.terms, shared=c.shared, dropout=c.dropout
    )  # fmt: skip
    mlp = lambda: MLP(c.dim, c.hidden, activation(c.act))
    conv = lambda: Neighbours(c.dim, c.conv, activation(c.conv_act), groups=c.conv_groups, dropout=c.dropout)
    block = lambda: Block(norm, "post", c.dropout, attn=attn(), ffn=mlp())
    first = lambda: ConvBlock(norm, c.dropout, attn=attn(), ffn=mlp(), conv=conv()) if c.conv else block()
    blocks = [first(), *(block() for _ in range(c.layers - 1))]
    return LM(deberta_embedding(c), Stack(blocks), deberta_head(c), causal=False)


SELF = "deberta.encoder.layer.*.attention.self"


def shared_names(c: DebertaConfig) -> list[Row]:
    masked = "cls.predictions.transform" if c.legacy else "lm_predictions.lm_head"
    return [
        ("deberta.embeddings.{embed_proj,LayerNorm}", "embed.project.{widen,norm}"),
        ("deberta.encoder.rel_embeddings", "blocks.0.attn.distances.table"),
        (f"{masked}.{{dense,LayerNorm}}", "head.{dense,norm}"),
        *out_names(masked.removesuffix(".transform"), "head", c.tied),
        ("cls.predictions.decoder.weight", "head.out.weight"),
        ("pooler.dense", "head.pool.dense"),
        ("classifier", "head.{label,tag}"),
    ]


def deberta_names(c: DebertaConfig) -> list[Row]:
    qkv = tuple(f"blocks.*.attn.{x}.weight" for x in "qkv")
    return [
        (f"{SELF}.in_proj.weight", qkv, PerHead(c.heads)),
        (f"{SELF}.{{q,v}}_bias", "blocks.*.attn.{q,v}.bias"),
        (f"{SELF}.{{pos_proj,pos_q_proj}}", "blocks.*.attn.{pos_k,pos_q}"),
        *shared_names(c),
        *backbone_names("deberta"),
    ]


ABSENT = {"position_biased_input": True, "relative_attention": False, "legacy": True}


def read_deberta(hf_config: dict[str, Any]) -> dict[str, Any]:
    terms = hf_config.get("pos_att_type") or []
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    far = hf_config.get("max_relative_positions", -1)
    return {"terms": tuple(t.strip() for t in terms), **({"far": far} if far > 0 else {})}


def read_deberta_v2(hf_config: dict[str, Any]) -> dict[str, Any]:
    norm = "layer_norm" in str(hf_config.get("norm_rel_ebd", "none")).lower()
    buckets = max(hf_config.get("position_buckets", -1), 0)
    return read_deberta(hf_config) | {"far_norm": norm, "buckets": buckets}


def write_deberta(c: DebertaConfig) -> dict[str, Any]:
    return {"pos_att_type": list(c.terms), "max_relative_positions": c.far, "pooler_hidden_size": c.dim}


def write_deberta_v2(c: DebertaV2Config) -> dict[str, Any]:
    norm = "layer_norm" if c.far_norm else "none"
    return write_deberta(c) | {"norm_rel_ebd": norm, "position_buckets": c.buckets or -1}


def infer_deberta(names: set[str], values: dict[str, Any]) -> dict[str, Any]:
    """The published files name no class and hold the newer masked-word head."""
    if values["head"] in ("none", "mlm") and any(name.startswith("lm_predictions.") for name in names):
        return {"head": "mlm", "legacy": False, "tied": True}
    return {}


# The released files keep an unused table of positions, and v3's the discriminator that trained it.
DROP = ("*embeddings.position_embeddings.weight", "mask_predictions.*")

DEBERTA = declare(
    "deberta", DebertaConfig, deberta, names=deberta_names, keys={
        **KEYS, "embedding_size": "table_dim", "position_biased_input": "absolute",
        "relative_attention": "relative", "pooler_hidden_act": "pool_act", "legacy": "legacy",
    },
    presets={"deberta-base": {}},
    tiny=dict(far=6), objective="masked", prefix="deberta", heads=published_heads("Deberta", words="mlm"),
    require={"talking_head": (False,)}, read=read_deberta, write=write_deberta, infer=infer_deberta,
    absent=ABSENT, drop=DROP, reads={
        "pos_att_type": "str | tuple[str, ...]", "max_relative_positions": "int", "norm_rel_ebd": "str",
        "position_buckets": "int",
    },
    paper="He et al. 2021, arXiv 2006.03654",
)  # fmt: skip

DEBERTA_V2 = descend(
    DEBERTA, "deberta-v2", DebertaV2Config, build=deberta_v2, names=lambda c: [
        (f"{SELF}.{{query,key,value,pos_key,pos_query}}_proj", "blocks.*.attn.{q,k,v,pos_k,pos_q}"),
        ("deberta.encoder.LayerNorm", "blocks.0.attn.distances.norm"),
        ("deberta.encoder.conv.{conv,LayerNorm}", "blocks.0.{conv.conv,conv_norm}"),
        *shared_names(c),
        *backbone_names("deberta"),
    ],
    keys=dict(
        share_att_key="shared", conv_kernel_size="conv", conv_groups="conv_groups", conv_act="conv_act"
    ),
    presets={"deberta-v3-base": {}}, tiny=dict(far=64, buckets=8, conv=3), model_types=("deberta-v2",),
    heads=published_heads("DebertaV2", words="mlm"), require={}, read=read_deberta_v2,
    write=write_deberta_v2, absent={
        **ABSENT, "share_att_key": False, "conv_kernel_size": 0, "hidden_size": 1536, "num_hidden_layers": 24,
        "num_attention_heads": 24, "intermediate_size": 6144,
    },
    paper="He et al. 2023, arXiv 2111.09543",
)  # fmt: skip
