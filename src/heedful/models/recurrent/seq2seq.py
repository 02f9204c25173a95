"""Recurrent encoder-decoders: from one vector for the whole sentence to attention.

    seq2seq     Sutskever et al. 2014, arXiv 1409.3215: the encoder's last state is all the decoder gets
    rnnsearch   Bahdanau et al. 2015, arXiv 1409.0473: a new context at every step, by additive attention
    luong       Luong et al. 2015, arXiv 1508.04025: simpler scores, at the present step, fed to the next

From seq2seq to rnnsearch:  both reading directions   every state kept, not the last alone   learned alignment
From rnnsearch to luong:    look with h_t, not h_{t−1}   deep LSTMs   dot products
"""

from __future__ import annotations

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.models.base import Config, Seq2Seq, derived, from_zero
from heedful.models.family import declare
from heedful.nn.attention.attentive import (
    Additive,
    AttentiveUnit,
    Concat,
    Dot,
    FromBack,
    General,
    InputFeeding,
    LayerByLayer,
    Maxout,
    Score,
)
from heedful.nn.block import Stack
from heedful.nn.embedding import Embedding
from heedful.nn.head import Head, LMHead, NoHead, choose_head
from heedful.nn.recurrent import LSTM, Bidirectional, GatedUnit


class Seq2SeqConfig(Config, layers=4):
    vocab: int = 80000  # of the target
    source_vocab: int = derived(lambda c: c.vocab)
    dim: int = 1000  # of each layer's state
    table_dim: int = derived(lambda c: c.dim)
    dropout: float = 0.0
    reverse: bool = True  # read the source from its last word to its first
    start_token: int = from_zero(0)  # what the decoder reads first


class RNNSearchConfig(Config, vocab=30000, dim=1000, layers=1):
    source_vocab: int = derived(lambda c: c.vocab)
    table_dim: int = 620
    align: int = derived(lambda c: c.dim)  # hidden size of the score
    maxout: int = derived(lambda c: c.dim // 2)  # size of the deep output
    bias: bool = True
    dropout: float = 0.0
    start_token: int = from_zero(0)

    def check(self) -> None:
        if self.layers != 1:
            raise ConfigError(
                f"`layers={self.layers}`, but this decoder has only one layer",
                hint="use luong for more layers",
            )


SCORES: dict[str, type[Score]] = {"dot": Dot, "general": General, "concat": Concat}


class LuongConfig(Seq2SeqConfig, vocab=50000, dropout=0.2):
    score: str = "general"

    def check(self) -> None:
        check_choice("score", self.score, SCORES, ConfigError)


def seq2seq_embeddings(c: Seq2SeqConfig | RNNSearchConfig) -> tuple[Embedding, Embedding]:
    make = lambda vocab: Embedding(vocab, c.table_dim, dropout=c.dropout)
    return make(c.source_vocab), make(c.vocab)


def seq2seq_head(c: Config, dim: int, *, bias: bool) -> Head:
    return choose_head(c.head, lm=lambda: LMHead(dim, c.vocab, bias=bias), none=NoHead)


def lstms(c: Seq2SeqConfig, *, reverse: bool) -> Stack:
    sizes = [c.table_dim] + [c.dim] * (c.layers - 1)
    return Stack([LSTM(size, c.dim, dropout=c.dropout, reverse=reverse) for size in sizes])


def seq2seq(c: Seq2SeqConfig) -> Seq2Seq:
    source, target = seq2seq_embeddings(c)
    return Seq2Seq(
        source, lstms(c, reverse=c.reverse), lstms(c, reverse=False), seq2seq_head(c, c.dim, bias=True),
        target_embed=target, bridge=LayerByLayer(), start_token=c.start_token,
    )  # fmt: skip


def rnnsearch(c: RNNSearchConfig) -> Seq2Seq:
    source, target = seq2seq_embeddings(c)
    reader = lambda reverse: GatedUnit(c.table_dim, c.dim, bias=c.bias, reverse=reverse)
    memory = 2 * c.dim
    decoder = Stack([
        AttentiveUnit(c.table_dim, c.dim, memory, Additive(c.dim, memory, c.align), bias=c.bias),
        Maxout(c.dim + c.table_dim + memory, c.maxout, bias=c.bias, dropout=c.dropout),
    ])  # fmt: skip
    return Seq2Seq(
        source, Stack([Bidirectional(reader(False), reader(True))]), decoder,
        seq2seq_head(c, c.maxout, bias=c.bias), target_embed=target,
        bridge=FromBack(c.dim, c.dim, bias=c.bias), start_token=c.start_token,
    )  # fmt: skip


def luong(c: LuongConfig) -> Seq2Seq:
    source, target = seq2seq_embeddings(c)
    score = SCORES[c.score](c.dim, c.dim, c.dim)
    decoder = InputFeeding(c.table_dim, c.dim, c.layers, c.dim, score, dropout=c.dropout)
    return Seq2Seq(
        source, lstms(c, reverse=c.reverse), Stack([decoder]), seq2seq_head(c, c.dim, bias=False),
        target_embed=target, bridge=LayerByLayer(single_part=True), start_token=c.start_token,
    )  # fmt: skip


SEQ2SEQ = declare(
    "seq2seq", Seq2SeqConfig, seq2seq, presets={"seq2seq-sutskever": dict(source_vocab=160000)},
    tiny=dict(source_vocab=96), objective="translate", heads=("lm", "none"),
    paper="Sutskever et al. 2014, arXiv 1409.3215",
)  # fmt: skip

RNNSEARCH = declare(
    "rnnsearch", RNNSearchConfig, rnnsearch, presets={"rnnsearch-50": {}},
    tiny=dict(layers=1, source_vocab=96, table_dim=24), objective="translate", heads=("lm", "none"),
    paper="Bahdanau et al. 2015, arXiv 1409.0473",
)  # fmt: skip

LUONG = declare(
    "luong", LuongConfig, luong, presets={"luong": {}}, tiny=dict(source_vocab=96), objective="translate",
    heads=("lm", "none"), paper="Luong et al. 2015, arXiv 1508.04025",
)  # fmt: skip
