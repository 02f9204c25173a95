"""ELECTRA (Clark et al. 2020, arXiv 2003.10555).

From BERT:  a small generator fills the masks, and the encoder learns which tokens are not the original ones.
The discriminator (head "detect") and the generator (head "mlm") are two models of this one family.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from heedful.models.base import LM, Config, Family, derived, from_zero
from heedful.models.encoders.bert import KEYS, REQUIRE, backbone_names, qkv_names
from heedful.models.family import published_heads
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import DetectHead, MLMHead, Pooler, choose_head, encoder_heads
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(Config):
    vocab: int = 30522
    dim: int = 256
    table_dim: int = 128  # of the token vectors
    layers: int = 12
    heads: int = 4
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 512
    types: int = from_zero(2)
    act: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.1
    tied: bool = True
    head: str = "detect"


def electra(c: ElectraConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    embed = Embedding(
        c.vocab, c.table_dim, position=Learned(c.context, c.table_dim), types=c.types,
        norm=LayerNorm(c.table_dim, c.norm_eps), dropout=c.dropout,
        project=nn.Linear(c.table_dim, c.dim) if c.table_dim != c.dim else None,
    )  # fmt: skip
    attn = lambda: Attention(c.dim, c.heads, bias=True, dropout=c.dropout)
    block = lambda: Block(norm, "post", c.dropout, attn=attn(), ffn=MLP(c.dim, c.hidden, activation(c.act)))
    pool = lambda: Pooler(c.dim, F.gelu, c.dropout)
    head = choose_head(
        c.head,
        detect=lambda: DetectHead(c.dim, activation(c.act)),
        mlm=lambda: MLMHead(c.dim, c.vocab, F.gelu, table_dim=c.table_dim, eps=c.norm_eps, tied=c.tied),
        **encoder_heads(c.dim, c.labels, pool, c.dropout),
    )
    return LM(embed, Stack([block() for _ in range(c.layers)]), head, causal=False)


NAMES = [
    *backbone_names("electra"),
    qkv_names("electra"),
    ("electra.embeddings_project", "embed.project"),
    ("discriminator_predictions.{dense,dense_prediction}", "head.{dense,replaced}"),
    ("classifier.{dense,out_proj}", "head.{pool.dense,label}"),
    ("classifier", "head.tag"),
]

GENERATOR_NAMES = [
    ("generator_predictions.{dense,LayerNorm}", "head.{dense,norm}"),
    ("generator_lm_head", "head.out"),
    *NAMES,
]


ELECTRA = Family(
    "electra", ElectraConfig, electra, lambda c: GENERATOR_NAMES if c.head == "mlm" else NAMES,
    {**KEYS, "embedding_size": "table_dim"},
    presets={"electra-small": ElectraConfig()},
    tiny=ElectraConfig(vocab=128, dim=32, table_dim=16, layers=2, heads=4, context=64),
    objective="replaced", prefix="electra", model_types=("electra",),
    heads={"detect": "ElectraForPreTraining"} | published_heads("Electra", words="mlm"),
    require=REQUIRE,
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    drop=("*position_ids",), paper="Clark et al. 2020, arXiv 2003.10555",
)  # fmt: skip
