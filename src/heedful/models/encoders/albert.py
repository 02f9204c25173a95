"""ALBERT (Lan et al. 2020, arXiv 1909.11942).

From BERT:  a narrow table of tokens, widened at the first layer   shared layers   the order of sentences
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived, from_zero
from heedful.models.encoders.bert import KEYS, REQUIRE, out_names
from heedful.models.family import published_heads
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import Head, MLMHead, NextHead, Pooler, PretrainHead, choose_head, encoder_heads
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(Config):
    vocab: int = 30000
    dim: int = 768
    table_dim: int = 128  # of the token vectors
    layers: int = 12
    groups: int = 1  # how many sets of weights the layers share
    inner: int = 1  # blocks in each layer
    heads: int = 12
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 512
    types: int = from_zero(2)
    act: str = "gelu_new"
    norm_eps: float = 1e-12
    dropout: float = 0.0
    tied: bool = True
    head: str = "pretrain"
    pooler: bool = derived(lambda c: c.head == "none")  # keep one that the head does not read

    def check(self) -> None:
        if not 1 <= self.groups <= self.layers or self.inner < 1:
            raise ConfigError(f"groups={self.groups} of inner={self.inner} cannot make layers={self.layers}")


def albert_head(c: AlbertConfig) -> Head:
    pool = lambda: Pooler(c.dim)
    act, tied = activation(c.act), c.tied
    mlm = lambda: MLMHead(
        c.dim, c.vocab, act, table_dim=c.table_dim, eps=c.norm_eps, tied=tied, spare=not tied
    )  # fmt: skip
    return choose_head(
        c.head,
        pretrain=lambda: PretrainHead(mlm(), NextHead(pool(), c.dim)),
        mlm=mlm,
        **encoder_heads(c.dim, c.labels, pool, c.dropout),
    )


def albert(c: AlbertConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    embed = Embedding(
        c.vocab, c.table_dim, position=Learned(c.context, c.table_dim), types=c.types,
        norm=LayerNorm(c.table_dim, c.norm_eps), project=nn.Linear(c.table_dim, c.dim), dropout=c.dropout,
    )  # fmt: skip
    attn = lambda: Attention(c.dim, c.heads, bias=True, dropout=c.dropout)
    block = lambda: Block(norm, "post", c.dropout, attn=attn(), ffn=MLP(c.dim, c.hidden, activation(c.act)))
    # Layer i belongs to group i·groups/layers; a layer is all blocks of its group in turn.
    depth = [i * c.groups // c.layers * c.inner + j for i in range(c.layers) for j in range(c.inner)]
    blocks = Stack([block() for _ in range(c.groups * c.inner)], depth=depth)
    head = albert_head(c)
    return LM(embed, blocks, head.keep(Pooler(c.dim)) if c.pooler else head, causal=False)


def albert_names(c: AlbertConfig) -> list[Row]:
    words = "head.mlm" if c.head == "pretrain" else "head"
    rows: list[Row] = [
        ("albert.embeddings.{word,position,token_type}_embeddings", "embed.{token,position,types}"),
        ("albert.embeddings.LayerNorm", "embed.norm"),
        ("albert.encoder.embedding_hidden_mapping_in", "embed.project"),
        ("albert.pooler", "head.kept.dense"),
        ("albert.pooler", "head.pool.dense"),
        ("albert.pooler", "head.next.pool.dense"),
        ("predictions.{dense,LayerNorm}", f"{words}.{{dense,norm}}"),
        *out_names("predictions", words, c.tied),
        ("sop_classifier.classifier", "head.next.next"),
        ("classifier", "head.label"),
        ("classifier", "head.tag"),
        ("qa_outputs", "head.span"),
    ]
    for n in range(c.groups * c.inner):
        layer = f"albert.encoder.albert_layer_groups.{n // c.inner}.albert_layers.{n % c.inner}"
        rows += [
            (f"{layer}.attention.{{query,key,value,dense}}", f"blocks.{n}.attn.{{q,k,v,o}}"),
            (f"{layer}.{{attention.LayerNorm,full_layer_layer_norm}}", f"blocks.{n}.{{attn,ffn}}_norm"),
            (f"{layer}.{{ffn,ffn_output}}", f"blocks.{n}.ffn.{{up,down}}"),
        ]
    return rows


def infer_albert(names: set[str], values: dict[str, Any]) -> dict[str, Any]:
    """Old files hold more than their class reads: a pooler, or the order head next to the masked words'."""
    has = lambda start: any(name.startswith(start) for name in names)
    head = values["head"]
    if head in ("none", "mlm") and has("predictions."):
        head = "pretrain" if has("sop_classifier.") else "mlm"
    reads = head in ("pretrain", "classify")
    return {"head": head, "pooler": (has("albert.pooler.") or has("pooler.")) and not reads} if names else {}


ALBERT = Family(
    "albert", AlbertConfig, albert, albert_names,
    {
        **KEYS, "embedding_size": "table_dim", "num_hidden_groups": "groups", "inner_group_num": "inner",
    },
    presets={"albert-base-v2": AlbertConfig(head="mlm", pooler=True)},
    tiny=AlbertConfig(
        vocab=128, dim=32, table_dim=16, layers=3, groups=2, inner=2, heads=4, hidden=48, context=64
    ),
    objective="masked", prefix="albert", model_types=("albert",),
    absent={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    heads={"pretrain": "AlbertForPreTraining"} | published_heads("Albert", words="mlm"),
    require=REQUIRE, infer=infer_albert,
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    drop=("*position_ids",), paper="Lan et al. 2020, arXiv 1909.11942",
)  # fmt: skip
