"""Masked-word encoders without attention, to stand next to BERT on the same data and budget.

    bilstm   two LSTMs a layer, one reading ahead, one back (Graves and Schmidhuber 2005; Peters et al. 2018)
    cnn      residual convolutions: each word with its neighbours (Collobert et al. 2011; Gehring et al. 2017)

From BERT:  a state that passes every word, or a window of them, in place of attention   no positions
"""

from __future__ import annotations

import torch.nn.functional as F

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, derived
from heedful.models.encoders.bert import encoder_head
from heedful.models.family import declare
from heedful.nn.attention.disentangled import Neighbours
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import Head, MLMHead, PooledTokens
from heedful.nn.norm import LayerNorm
from heedful.nn.recurrent import LSTM, Bidirectional


class EncoderConfig(Config, vocab=30522, dim=768, layers=6, head="mlm"):
    norm_eps: float = 1e-12
    dropout: float = 0.1
    tied: bool = True


class BiLSTMConfig(EncoderConfig):
    def check(self) -> None:
        if self.dim % 2:
            raise ConfigError(
                f"`dim={self.dim}` is odd", hint=f"each direction has half of it: choose {self.dim + 1}"
            )


class CNNConfig(EncoderConfig):
    hidden: int = derived(lambda c: 4 * c.dim)
    kernel: int = 5  # how many positions a layer sees, its own in the middle
    act: str = "gelu"


def baseline_head(c: EncoderConfig) -> Head:
    words = lambda: MLMHead(c.dim, c.vocab, F.gelu, eps=c.norm_eps, tied=c.tied)
    return encoder_head(c, lambda: PooledTokens("mean"), mlm=words)


def bilstm(c: BiLSTMConfig) -> LM:
    reader = lambda reverse: LSTM(c.dim, c.dim // 2, dropout=c.dropout, reverse=reverse)
    layers = [Bidirectional(reader(False), reader(True)) for _ in range(c.layers)]
    return LM(Embedding(c.vocab, c.dim, dropout=c.dropout), Stack(layers), baseline_head(c), causal=False)


def cnn(c: CNNConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    conv = lambda: Neighbours(c.dim, c.kernel, activation(c.act))
    block = lambda: Block(norm, "pre", c.dropout, conv=conv(), ffn=MLP(c.dim, c.hidden, activation(c.act)))
    layers = Stack([block() for _ in range(c.layers)], norm())
    return LM(Embedding(c.vocab, c.dim, dropout=c.dropout), layers, baseline_head(c), causal=False)


HEADS = ("mlm", "classify", "tag", "none")

BILSTM = declare(
    "bilstm", BiLSTMConfig, bilstm, presets={}, objective="masked", heads=HEADS,
    paper="Graves and Schmidhuber 2005; Peters et al. 2018, arXiv 1802.05365",
)  # fmt: skip

CNN = declare(
    "cnn", CNNConfig, cnn, presets={}, tiny=dict(hidden=64), objective="masked", heads=HEADS,
    paper="Collobert et al. 2011; Gehring et al. 2017, arXiv 1705.03122",
)  # fmt: skip
