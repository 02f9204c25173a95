"""Relatives of BERT.

Megatron-BERT (Shoeybi et al. 2019, arXiv 1909.08053), RoBERTa with norms before the parts (Wettig et al.
2023, arXiv 2202.08005), RemBERT (Chung et al. 2021, arXiv 2010.12821), data2vec's text encoder (Baevski
et al. 2022), XLM-R XL (Goyal et al. 2021), BERT for generation (Rothe 2020).

Norms after the parts make a deep BERT hard to train: the signal passes a norm at every step of the way down.
Megatron moved them before the parts, so that a straight path leads through the whole stack, and BERTs beyond
336 million parameters became better instead of worse. RemBERT asks where parameters are well spent. Tables of
tokens and output matrices need not be one: a small table and a large output matrix, which is thrown away
after pretraining, give a better encoder of the same size.

From BERT to Megatron-BERT:      norms before the parts   a last norm   none after the embedding
From RoBERTa to pre-layer-norm:  norms before the parts   a last norm
From BERT to RemBERT:            narrow token vectors   a separate, wide output matrix   32 layers
From RoBERTa to data2vec-text:   another task: it predicts the vectors of a teacher
From pre-layer-norm to XLM-R XL: none after the embedding   36 layers
From BERT to generation:         a decoder, or an encoder for one   no token types

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
    BERT,
    KEYS,
    LARGE,
    REQUIRE,
    ROBERTA,
    BertConfig,
    RobertaConfig,
    backbone_names,
    bert,
    bert_encoder,
    encoder_head,
    infer_bert,
    out_names,
    pretrain_head,
    roberta_head,
    write_offset,
)
from heedful.models.family import PlainConfig, declare, descend, published_heads
from heedful.nn.ffn import activation
from heedful.nn.head import DetectHead, LMHead, MLMHead, NoHead, Pooler, choose_head
from heedful.nn.position import BucketBias
from heedful.weights.names import Row


class RemBertConfig(
    BertConfig, vocab=250300, dim=1152, layers=32, heads=18, dropout=0.0, tied=False, head="mlm",
    pooler=derived(lambda c: c.head == "none"),
):  # fmt: skip
    table_dim: int = 256  # of token vectors
    out_dim: int = 1664  # of the rows of the output matrix


def rembert(c: RemBertConfig) -> LM:
    words = lambda: MLMHead(
        c.dim, c.vocab, activation(c.act), table_dim=c.out_dim, eps=c.norm_eps, tied=False
    )
    return bert_encoder(
        c, encoder_head(c, lambda: Pooler(c.dim), mlm=words), project=nn.Linear(c.table_dim, c.dim)
    )


def bert_generation(c: RobertaConfig) -> LM:
    words = lambda: LMHead(c.dim, c.vocab, tied=c.tied, bias=True)
    return bert_encoder(c, choose_head(c.head, lm=words, none=NoHead))


MEGATRON_BERT = descend(
    BERT, "megatron-bert", sizes=dict(**LARGE, vocab=29056),
    build=partial(bert, order="pre", embed_norm=False),
    own_names=[
        ("bert.encoder.layer.*.attention.ln", "blocks.*.attn_norm"),
        ("bert.encoder.layer.*.ln", "blocks.*.ffn_norm"), ("bert.encoder.ln", "blocks.norm"),
    ],
    presets={"megatron-bert-cased-345m": {}}, without=("pooler",),
    model_types=("megatron-bert",),
    heads={kind: f"Megatron{name}" for kind, name in BERT.heads.items()} | {"lm": "MegatronBertForCausalLM"},
    paper="Shoeybi et al. 2019, arXiv 1909.08053",
)  # fmt: skip

ROBERTA_PRE_NORM = descend(
    ROBERTA, "roberta-prelayernorm", prefix="roberta_prelayernorm",
    own_names=[
        (
            "roberta_prelayernorm.encoder.layer.*.{attention,intermediate}.LayerNorm",
            "blocks.*.{attn,ffn}_norm",
        ),
        ("roberta_prelayernorm.LayerNorm", "blocks.norm"),
    ],
    build=lambda c: bert_encoder(c, roberta_head(c), order="pre"), model_types=("roberta-prelayernorm",),
    presets={"efficient-mlm-m0.40": LARGE}, absent=ROBERTA.absent,
    heads={kind: name.replace("Roberta", "RobertaPreLayerNorm") for kind, name in ROBERTA.heads.items()},
    paper="Wettig et al. 2023, arXiv 2202.08005",
)  # fmt: skip

REMBERT = descend(
    BERT, "rembert", RemBertConfig, build=rembert, prefix="rembert", objective="masked",
    own_names=[
        ("rembert.encoder.embedding_hidden_mapping_in", "embed.project"),
        ("cls.predictions.{dense,LayerNorm,decoder}", "head.{dense,norm,out}"),
    ],
    keys={"input_embedding_size": "table_dim", "output_embedding_size": "out_dim"},
    without=("pooler", "causal", "tied"), presets={"rembert": {}}, tiny=dict(table_dim=16, out_dim=24),
    heads=published_heads("RemBert", words="mlm"), infer=None,
    require={"is_decoder": (False,), "add_cross_attention": (False,)},
    paper="Chung et al. 2021, arXiv 2010.12821",
)  # fmt: skip

DATA2VEC_TEXT = descend(
    ROBERTA, "data2vec-text", prefix="data2vec_text", model_types=("data2vec-text",),
    presets={"data2vec-text-base": dict(pooler=True)}, absent={**ROBERTA.absent, "vocab_size": 30522},
    heads={kind: name.replace("Roberta", "Data2VecText") for kind, name in ROBERTA.heads.items()},
    paper="Baevski et al. 2022, arXiv 2202.03555",
)  # fmt: skip

XLM_ROBERTA_XL = descend(
    ROBERTA, "xlm-roberta-xl", own_names=[
        ("roberta.encoder.layer.*.attention.self_attn_layer_norm", "blocks.*.attn_norm"),
        ("roberta.encoder.layer.*.LayerNorm", "blocks.*.ffn_norm"),
        ("roberta.encoder.LayerNorm", "blocks.norm"),
    ],
    sizes=dict(vocab=250880, dim=2560, layers=36, heads=32),
    build=lambda c: bert_encoder(c, roberta_head(c), order="pre", embed_norm=False),
    presets={"xlm-roberta-xl": {}, "xlm-roberta-xxl": dict(dim=4096, layers=48)},
    model_types=("xlm-roberta-xl",), absent={"max_position_embeddings": 514},
    heads={kind: name.replace("Roberta", "XLMRobertaXL") for kind, name in ROBERTA.heads.items()},
    paper="Goyal et al. 2021, arXiv 2105.00572",
)  # fmt: skip

BERT_GENERATION = descend(
    BERT, "bert-generation", RobertaConfig, build=bert_generation,
    sizes=dict(
        **LARGE, vocab=50358, offset=from_zero(0), types=from_zero(0), norm_eps=1e-12, head="lm", pooler=False
    ),
    names=[*backbone_names("bert"), ("lm_head.decoder", "head.out")],
    presets={"bert-for-seq-generation": {}}, without=("types", "offset", "pooler", "tied"),
    require={"tie_word_embeddings": (True,), "add_cross_attention": (False,)}, absent={"is_decoder": False},
    objective="next_token", model_types=("bert-generation",), infer=None,
    copies={"lm_head.bias": "lm_head.decoder.bias"},
    heads={"lm": "BertGenerationDecoder", "none": "BertGenerationEncoder"},
    paper="Rothe et al. 2020, arXiv 1907.12461",
)  # fmt: skip


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


MPNET = descend(
    ROBERTA, "mpnet", MPNetConfig, prefix="mpnet", without=("types", "causal"),
    own_names=[
        ("mpnet.encoder.layer.*.attention.attn.{q,k,v,o}", "blocks.*.attn.{q,k,v,o}"),
        ("mpnet.encoder.layer.*.attention.LayerNorm", "blocks.*.attn_norm"),
        ("mpnet.encoder.relative_attention_bias", "blocks.bias.table"),
    ],
    build=lambda c: bert_encoder(c, roberta_head(c), bias=BucketBias(c.heads, causal=False)),
    presets={"mpnet-base": {}, "all-mpnet-base-v2": dict(head="none")},
    heads=published_heads("MPNet", words="mlm"),
    require={"relative_attention_num_buckets": (32,)},
    write=lambda c: write_offset(c) | {"relative_attention_num_buckets": 32},
    read=lambda hf_config: {"context": hf_config["max_position_embeddings"] - 2},
    absent={"max_position_embeddings": 512, "layer_norm_eps": 1e-12},
    paper="Song et al. 2020, arXiv 2004.09297",
)  # fmt: skip
