"""BERT (Devlin et al. 2019, arXiv 1810.04805), RoBERTa (Liu et al. 2019), XLM-R (Conneau et al. 2020),
DistilBERT (Sanh et al. 2019), CamemBERT (Martin et al. 2020), ERNIE (Sun et al. 2019).

From the Transformer:  the encoder alone   learned positions   token types   GELU   two objectives
RoBERTa:               no sentence pairs, one type; the table of positions starts at the padding's index + 1
XLM-R:                 RoBERTa with the vocabulary of a hundred languages
DistilBERT:            half the layers, no types, no pooler

With head "lm" BERT, RoBERTa and their relatives are decoders (`is_decoder`): they see what came before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch.nn.functional as F
from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
from heedful.models.family import PlainConfig, declare, descend, gguf_keys, published_heads
from heedful.models.shared import plain_stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import Activation, activation
from heedful.nn.head import (
    ClassifyHead,
    DecoderMLMHead,
    Head,
    MLMHead,
    NextHead,
    NoHead,
    Pooler,
    PretrainHead,
    SpanHead,
    TagHead,
    Transform,
    choose_head,
)
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned, Rotary
from heedful.weights.names import Row


class BertConfig(PlainConfig, vocab=30522, norm_eps=1e-12, head="pretrain"):
    context: int = 512
    offset: int = from_zero(0)  # rows of the position table before the first position
    types: int = from_zero(2)
    pooler: bool = derived(lambda c: c.head == "none")  # keep one that the head does not read
    causal: bool = derived(lambda c: c.head == "lm")  # a decoder

    def check(self) -> None:
        if self.offset or not self.types:
            raise ConfigError(
                "a bert needs `offset=0` and at least one type", hint="build a roberta or a distilbert"
            )


class RobertaConfig(BertConfig, vocab=50265, offset=2, types=1, norm_eps=1e-5, head="mlm"):
    def check(self) -> None:
        """Nothing is fixed: neither the offset nor the types."""


class DistilBertConfig(BertConfig, layers=6, types=from_zero(0), head="mlm", pooler=False):
    def check(self) -> None:
        if (self.types, self.offset, self.norm_eps, self.pooler) != (0, 0, 1e-12, False):
            raise ConfigError(
                "types, offset, norm_eps and pooler are fixed in a distilbert", hint="build a bert"
            )


def bert_encoder(
    c: Any, head: Head, *, embed: Embedding | None = None, project: nn.Module | None = None,
    embed_scale: float = 1.0, embed_norm: bool = True, rotary: Rotary | None = None,
    order: Literal["pre", "post"] = "post", **layers: Any,
) -> LM:  # fmt: skip
    """BERT's encoder, or that of a descendant with another embedding, or other `layers` (see plain_stack).

    `rotary` stands in the place of learned positions. Tokens are as wide as the config's `table_dim`, if it
    has one. A `causal` config makes a decoder.
    """
    size = vars(c).get("table_dim", c.dim)
    embed = embed or Embedding(
        c.vocab, size, position=None if rotary else Learned(c.context, size, vars(c).get("offset", 0)),
        types=c.types, norm=LayerNorm(size, c.norm_eps) if embed_norm else None, project=project,
        scale=embed_scale, dropout=c.dropout,
    )  # fmt: skip
    head = head.keep(Pooler(c.dim)) if vars(c).get("pooler") else head
    stack = plain_stack(c, order=order, rotary=rotary, **layers)
    return LM(embed, stack, head, causal=vars(c).get("causal", False))


def mlm_head(c: Any, kind: type[MLMHead] = MLMHead, act: Activation | None = None) -> MLMHead:
    """The head of masked words; of `kind` DecoderMLMHead the same for the next word."""
    return kind(
        c.dim, c.vocab, act or activation(c.act), table_dim=vars(c).get("table_dim"), eps=c.norm_eps,
        tied=c.tied, spare=not c.tied,
    )  # fmt: skip


def encoder_head(
    c: Any, pool: Callable[[], nn.Module], *, transform: Callable[[], Transform | None] = lambda: None,
    **own: Callable[[], Head],
) -> Head:  # fmt: skip
    """The head that the config asks for: masked words, a class for what `pool` gives, a tag per token, a
    span, none, or one of the family's `own`.
    """
    makers: dict[str, Callable[[], Head]] = {
        "mlm": lambda: mlm_head(c),
        "classify": lambda: ClassifyHead(pool(), c.dim, c.labels, dropout=c.dropout),
        "tag": lambda: TagHead(c.dim, c.labels, dropout=c.dropout, transform=transform()),
        "span": lambda: SpanHead(c.dim, transform=transform()),
        "none": NoHead,
    }
    return choose_head(c.head, **makers | own)


def pretrain_head(c: Any) -> PretrainHead:
    """Masked words, and the order of two sentences."""
    return PretrainHead(mlm_head(c), NextHead(Pooler(c.dim), c.dim))


def bert(c: BertConfig, **encoder: Any) -> LM:
    pool = lambda: Pooler(c.dim)
    head = encoder_head(
        c, pool, pretrain=lambda: pretrain_head(c), next=lambda: NextHead(pool(), c.dim),
        lm=lambda: mlm_head(c, DecoderMLMHead),
    )  # fmt: skip
    return bert_encoder(c, head, **encoder)


def roberta_head(c: RobertaConfig) -> Head:
    pool = lambda: Pooler(c.dim, dropout=c.dropout)
    words = lambda kind: lambda: mlm_head(c, kind, F.gelu)
    return encoder_head(c, pool, mlm=words(MLMHead), lm=words(DecoderMLMHead))


def distilbert(c: DistilBertConfig) -> LM:
    words = lambda: MLMHead(c.dim, c.vocab, activation(c.act), eps=c.norm_eps, tied=c.tied)
    return bert_encoder(c, encoder_head(c, lambda: Pooler(c.dim, F.relu), mlm=words))


def backbone_names(stem: str) -> list[Row]:
    """The rows that BERT and all that took over its names share."""
    layer = f"{stem}.encoder.layer.*"
    return [
        (f"{stem}.embeddings.{{word,position,token_type}}_embeddings", "embed.{token,position,types}"),
        (f"{stem}.embeddings.LayerNorm", "embed.norm"),
        (f"{layer}.attention.self.{{query,key,value}}", "blocks.*.attn.{q,k,v}"),
        (f"{layer}.attention.output.dense", "blocks.*.attn.o"),
        (f"{layer}.attention.output.LayerNorm", "blocks.*.attn_norm"),
        (f"{layer}.{{intermediate,output}}.dense", "blocks.*.ffn.{up,down}"),
        (f"{layer}.output.LayerNorm", "blocks.*.ffn_norm"),
        (f"{stem}.pooler.dense", "head.kept.dense"),
        ("qa_outputs", "head.span"),
    ]


def out_names(stem: str, head: str, tied: bool) -> list[Row]:
    """The output matrix of masked words: a tied one is the embedding's, and its bias stands alone."""
    bias = "out.bias" if tied else "spare"
    rows: list[Row] = [(f"{stem}.decoder", f"{head}.out"), (f"{stem}.bias", f"{head}.{bias}")]
    return rows[::-1] if tied else rows


def bert_names(c: BertConfig) -> list[Row]:
    words = "head.mlm" if c.head == "pretrain" else "head"
    return [
        *backbone_names("bert"),
        ("bert.pooler.dense", "head.pool.dense"),
        ("bert.pooler.dense", "head.next.pool.dense"),
        ("cls.predictions.transform.{dense,LayerNorm}", f"{words}.{{dense,norm}}"),
        *out_names("cls.predictions", words, c.tied),
        ("cls.seq_relationship", "head.next.next" if c.head == "pretrain" else "head.next"),
        ("classifier", "head.{label,tag}"),
    ]


KEYS = {
    "layer_norm_eps": "norm_eps", "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "dropout"
}  # fmt: skip

REQUIRE = {"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)}
DECODER_KEYS = {**KEYS, "is_decoder": "causal"}  # of families that may be decoders
DECODER_REQUIRE = {key: allowed for key, allowed in REQUIRE.items() if key != "is_decoder"}


def infer_bert(
    names: set[str],
    values: dict[str, Any],
    order: str = "cls.seq_relationship.",
    pooler: str = "pooler.dense.",
) -> dict[str, Any]:
    """Old files hold more than their class reads: a pooler, or also the head that `order` names."""
    has = lambda word: any(word in name for name in names)
    head = values["head"]
    if head in ("none", "mlm") and has("predictions."):
        head = "pretrain" if has(order) else "mlm"
    reads = head in ("pretrain", "next", "classify")
    return {"head": head, "pooler": has(pooler) and not reads} if names else {}


def infer_pooler(names: set[str], values: dict[str, Any]) -> dict[str, Any]:
    """The published pooler is no part of any RoBERTa head, yet most files have one."""
    return {"pooler": any("pooler.dense." in name for name in names)} if names else {}


def read_offset(hf_config: dict[str, Any]) -> dict[str, Any]:
    offset = int(hf_config.get("pad_token_id", 1)) + 1
    return {"offset": offset, "context": hf_config["max_position_embeddings"] - offset}


def write_offset(c: RobertaConfig) -> dict[str, Any]:
    return {"max_position_embeddings": c.context + c.offset, "pad_token_id": c.offset - 1}


LARGE: dict[str, Any] = dict(dim=1024, layers=24, heads=16)

BERT = declare(
    "bert", BertConfig, bert, names=bert_names, keys=DECODER_KEYS,
    presets={
        "bert-base-uncased": {},
        "bert-base-cased": dict(vocab=28996),
        "bert-large-uncased": dict(**LARGE),
        "minilm-l6": dict(dim=384, layers=6, head="none"),
        "minilm-l12": dict(dim=384, head="none"),
    },
    objective="masked_and_next", prefix="bert",
    heads={
        "pretrain": "BertForPreTraining", "next": "BertForNextSentencePrediction", "lm": "BertLMHeadModel",
        **published_heads("Bert", words="mlm"),
    },
    require=DECODER_REQUIRE, infer=infer_bert, paper="Devlin et al. 2019, arXiv 1810.04805", gguf="bert",
    gguf_names=[
        ("token_embd", "embed.token"),
        ("position_embd", "embed.position"),
        ("token_types", "embed.types"),
        ("token_embd_norm", "embed.norm"),
        ("blk.*.attn_{q,k,v,output}", "blocks.*.attn.{q,k,v,o}"),
        ("blk.*.{attn,layer}_output_norm", "blocks.*.{attn,ffn}_norm"),
        ("blk.*.ffn_{up,down}", "blocks.*.ffn.{up,down}"),
    ],
    gguf_head="none", gguf_read=lambda source: {"pooler": False},
    gguf_write=lambda c: {"bert.attention.causal": False},
    gguf_keys=gguf_keys("bert", BertConfig) | {"tokenizer.ggml.token_type_count": "types"},
)  # fmt: skip

ERNIE = descend(
    BERT, "ernie", prefix="ernie",
    presets={"ernie-2.0-base": dict(head="none"), "ernie-2.0-large": dict(**LARGE, head="none")},
    heads={kind: name.replace("Bert", "Ernie") for kind, name in BERT.heads.items()}
    | {"lm": "ErnieForCausalLM"},
    require={**DECODER_REQUIRE, "use_task_id": (None, False)}, write=lambda c: {"use_task_id": False},
    paper="Sun et al. 2019, arXiv 1907.12412",
)  # fmt: skip

ROBERTA = declare(
    "roberta", RobertaConfig, lambda c: bert_encoder(c, roberta_head(c)),
    names=lambda c: [
        *backbone_names("roberta"),
        ("lm_head.{dense,layer_norm}", "head.{dense,norm}"),
        *out_names("lm_head", "head", c.tied),
        ("classifier.{dense,out_proj}", "head.{pool.dense,label}"),
        ("classifier", "head.tag"),
    ],
    keys=DECODER_KEYS, presets={"roberta-base": dict(pooler=True)},
    objective="masked", prefix="roberta",
    heads={**published_heads("Roberta", words="mlm"), "lm": "RobertaForCausalLM"}, require=DECODER_REQUIRE,
    read=read_offset, infer=infer_pooler,
    write=write_offset,
    reads={"pad_token_id": "int"},
    absent={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
     paper="Liu et al. 2019, arXiv 1907.11692",
)  # fmt: skip

XLM_ROBERTA = descend(
    ROBERTA, "xlm-roberta", model_types=("xlm-roberta",),
    presets={"xlm-roberta-base": dict(vocab=250002, pooler=True)},
    heads=published_heads("XLMRoberta", words="mlm"),
    absent={**ROBERTA.absent, "vocab_size": 30522},
    paper="Conneau et al. 2020, arXiv 1911.02116",
)  # fmt: skip

CAMEMBERT = descend(
    XLM_ROBERTA, "camembert", presets={"camembert-base": dict(vocab=32005, pooler=True)},
    heads=published_heads("Camembert", words="mlm"), absent=XLM_ROBERTA.absent,
    paper="Martin et al. 2020, arXiv 1911.03894",
)  # fmt: skip

DISTILBERT = declare(
    "distilbert", DistilBertConfig, distilbert, names=[
        ("distilbert.embeddings.{word,position}_embeddings", "embed.{token,position}"),
        ("distilbert.embeddings.LayerNorm", "embed.norm"),
        ("distilbert.transformer.layer.*.attention.{q,k,v,out}_lin", "blocks.*.attn.{q,k,v,o}"),
        ("distilbert.transformer.layer.*.ffn.{lin1,lin2}", "blocks.*.ffn.{up,down}"),
        ("distilbert.transformer.layer.*.{sa,output}_layer_norm", "blocks.*.{attn,ffn}_norm"),
        ("vocab_{transform,layer_norm,projector}", "head.{dense,norm,out}"),
        ("pre_classifier", "head.pool.dense"),
        ("classifier", "head.{label,tag}"),
        ("qa_outputs", "head.span"),
    ],
    keys={
        "vocab_size": "vocab", "dim": "dim", "n_layers": "layers", "n_heads": "heads", "hidden_dim": "hidden",
        "max_position_embeddings": "context", "activation": "act", "dropout": "dropout",
        "attention_dropout": "dropout", "tie_word_embeddings": "tied",
    },
    without=("types", "norm_eps"),
    presets={"distilbert-base-uncased": {}}, objective="masked", prefix="distilbert",
    heads=published_heads("DistilBert", words="mlm"),
     paper="Sanh et al. 2019, arXiv 1910.01108",
)  # fmt: skip
