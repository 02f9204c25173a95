"""Variants of BERT that share layers, learn from replaced tokens, or score distances.

ALBERT (Lan et al. 2020, arXiv 1909.11942).

From BERT to ALBERT:  a narrow table of tokens, widened at the first layer   shared layers
                      the order of sentences

ELECTRA (Clark et al. 2020, arXiv 2003.10555).

From BERT to ELECTRA:  a small generator fills the masks, and the encoder learns which tokens are not the
                       original ones.
The discriminator (head "detect") and the generator (head "mlm") are two models of this one family.

MPNet (Song et al. 2020, arXiv 2004.09297).

From RoBERTa to MPNet:  distances in the scores too, in T5's buckets   no segments   WordPiece
Its objective, words predicted in a permuted order, is not supported: ours trains it on masked words.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
from heedful.models.encoders.bert import (
    KEYS,
    REQUIRE,
    ROBERTA,
    RobertaConfig,
    backbone_names,
    bert_encoder,
    encoder_head,
    infer_bert,
    out_names,
    pretrain_head,
    qkv_names,
    roberta_head,
    roberta_head_names,
)
from heedful.models.family import PlainConfig, declare, descend, published_heads
from heedful.nn.ffn import activation
from heedful.nn.head import DetectHead, MLMHead, Pooler
from heedful.nn.position import BucketBias
from heedful.weights.names import Row


class AlbertConfig(PlainConfig, vocab=30000, act="gelu_new", norm_eps=1e-12, dropout=0.0, head="pretrain"):
    table_dim: int = 128  # of the token vectors
    groups: int = 1  # how many sets of weights the layers share
    inner: int = 1  # blocks in each layer
    context: int = 512
    types: int = from_zero(2)
    pooler: bool = derived(lambda c: c.head == "none")  # keep one that the head does not read

    def check(self) -> None:
        if not 1 <= self.groups <= self.layers or self.inner < 1:
            raise ConfigError(
                f"`groups={self.groups}` and `inner={self.inner}` do not fit `layers={self.layers}`",
                hint="choose 1 to as many groups as layers, and at least 1 inner layer",
            )


def albert(c: AlbertConfig) -> LM:
    head = encoder_head(c, lambda: Pooler(c.dim), pretrain=lambda: pretrain_head(c))
    # Layer i belongs to group i·groups/layers; a layer is all blocks of its group in turn.
    depth = [i * c.groups // c.layers * c.inner + j for i in range(c.layers) for j in range(c.inner)]
    return bert_encoder(c, head, project=nn.Linear(c.table_dim, c.dim), depth=depth)


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
        ("classifier", "head.{label,tag}"),
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


ALBERT = declare(
    "albert", AlbertConfig, albert, names=albert_names,
    keys={
        **KEYS, "embedding_size": "table_dim", "num_hidden_groups": "groups", "inner_group_num": "inner",
    },
    presets={"albert-base-v2": dict(head="mlm", pooler=True)},
    tiny=dict(table_dim=16, layers=3, groups=2, inner=2, hidden=48), objective="masked", prefix="albert",
    absent={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    heads={"pretrain": "AlbertForPreTraining"} | published_heads("Albert", words="mlm"), require=REQUIRE,
    infer=partial(infer_bert, order="sop_classifier.", pooler="pooler."),
     paper="Lan et al. 2020, arXiv 1909.11942",
)  # fmt: skip


class ElectraConfig(PlainConfig, vocab=30522, dim=256, heads=4, norm_eps=1e-12, head="detect"):
    table_dim: int = 128  # of the token vectors
    context: int = 512
    types: int = from_zero(2)


def electra(c: ElectraConfig) -> LM:
    head = encoder_head(
        c, lambda: Pooler(c.dim, F.gelu, c.dropout), detect=lambda: DetectHead(c.dim, activation(c.act)),
        mlm=lambda: MLMHead(c.dim, c.vocab, F.gelu, table_dim=c.table_dim, eps=c.norm_eps, tied=c.tied),
    )  # fmt: skip
    project = nn.Linear(c.table_dim, c.dim) if c.table_dim != c.dim else None
    return bert_encoder(c, head, project=project)


NAMES = [
    *backbone_names("electra"),
    qkv_names("electra"),
    ("electra.embeddings_project", "embed.project"),
    ("discriminator_predictions.{dense,dense_prediction}", "head.{dense,replaced}"),
    ("generator_lm_head", "head.out"),
    ("classifier.{dense,out_proj}", "head.{pool.dense,label}"),
    ("classifier", "head.tag"),
]
GENERATOR_NAMES = [("generator_predictions.{dense,LayerNorm}", "head.{dense,norm}"), *NAMES]


ELECTRA = declare(
    "electra", ElectraConfig, electra, names=lambda c: GENERATOR_NAMES if c.head == "mlm" else NAMES,
    keys={**KEYS, "embedding_size": "table_dim"}, presets={"electra-small": {}}, tiny=dict(table_dim=16),
    objective="replaced", prefix="electra",
    heads={"detect": "ElectraForPreTraining"} | published_heads("Electra", words="mlm"), require=REQUIRE,
    paper="Clark et al. 2020, arXiv 2003.10555",
)  # fmt: skip


class MPNetConfig(RobertaConfig, vocab=30527, types=from_zero(0)):
    def check(self) -> None:
        if (self.types, self.offset) != (0, 2):
            raise ConfigError("types and offset are fixed in an mpnet", hint="build a roberta")


def mpnet_names(c: MPNetConfig) -> list[Row]:
    layer = "mpnet.encoder.layer.*.attention"
    return [
        (f"{layer}.attn.{{q,k,v,o}}", "blocks.*.attn.{q,k,v,o}"),
        (f"{layer}.LayerNorm", "blocks.*.attn_norm"),
        ("mpnet.encoder.relative_attention_bias", "blocks.bias.table"),
        *backbone_names("mpnet"),
        *roberta_head_names(c),
    ]


MPNET = descend(
    ROBERTA, "mpnet", MPNetConfig, names=mpnet_names, prefix="mpnet", without=("types", "causal"),
    build=lambda c: bert_encoder(c, roberta_head(c), bias=BucketBias(c.heads, causal=False)),
    presets={"mpnet-base": {}, "all-mpnet-base-v2": dict(head="none")},
    heads=published_heads("MPNet", words="mlm"),
    require={"relative_attention_num_buckets": (32,)}, fixed={"relative_attention_num_buckets": 32},
    read=lambda hf_config: {"context": hf_config["max_position_embeddings"] - 2},
    absent={"max_position_embeddings": 512, "layer_norm_eps": 1e-12},
    paper="Song et al. 2020, arXiv 2004.09297",
)  # fmt: skip
