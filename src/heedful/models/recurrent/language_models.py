"""Recurrent language models: RNN (Elman 1990; Mikolov et al. 2010), LSTM (Zaremba et al. 2014), GRU (Cho et
al. 2014). A vector per layer is all they remember.

From RNN to LSTM:  a cell c next to h, which gates write, keep and read
From LSTM to GRU:  two gates instead of three, no cell
"""

from __future__ import annotations

from functools import partial

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, derived
from heedful.models.family import declare, same_keys, same_names  # noqa: F401, which others import here
from heedful.nn.block import Stack
from heedful.nn.embedding import Embedding
from heedful.nn.head import ClassifyHead, LMHead, NoHead, PooledTokens, TagHead, choose_head
from heedful.nn.recurrent import GRU, LSTM, RNN, Recurrence


class RecurrentConfig(Config, vocab=33278, layers=2):
    dim: int = 650  # of each layer's state
    table_dim: int = derived(lambda c: c.dim)
    bias: bool = True
    dropout: float = 0.5  # of what goes from layer to layer
    tied: bool = False

    def check(self) -> None:
        if self.tied and self.table_dim != self.dim:
            raise ConfigError(
                f"`tied=True` needs `table_dim={self.table_dim}` to equal `dim={self.dim}`",
                hint=f"set `table_dim={self.dim}`, or `tied=False`",
            )


def stack_layers(c: RecurrentConfig, layer: type[Recurrence]) -> LM:
    sizes = [c.table_dim] + [c.dim] * (c.layers - 1)
    blocks = [layer(size, c.dim, bias=c.bias, dropout=c.dropout) for size in sizes]
    head = choose_head(
        c.head,
        lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied, bias=True),
        classify=lambda: ClassifyHead(PooledTokens("last"), c.dim, c.labels),
        tag=lambda: TagHead(c.dim, c.labels),
        none=NoHead,
    )
    return LM(Embedding(c.vocab, c.table_dim, dropout=c.dropout), Stack(blocks), head)


HEADS = ("lm", "classify", "tag", "none")
TINY = dict(dropout=0.1)

RNN_LM = declare(
    "rnn", RecurrentConfig, partial(stack_layers, layer=RNN),
    presets={"rnn-char": dict(vocab=128, dim=100, layers=1, dropout=0.0)}, tiny=TINY, heads=HEADS,
    paper="Elman 1990, Finding Structure in Time; Mikolov et al. 2010",
)  # fmt: skip

LSTM_LM = declare(
    "lstm", RecurrentConfig, partial(stack_layers, layer=LSTM), presets={"lstm-wikitext2": dict(tied=True)},
    tiny=TINY, heads=HEADS, paper="Hochreiter and Schmidhuber 1997; Zaremba et al. 2014, arXiv 1409.2329",
)  # fmt: skip

GRU_LM = declare(
    "gru", RecurrentConfig, partial(stack_layers, layer=GRU), presets={}, tiny=TINY, heads=HEADS,
    paper="Cho et al. 2014, arXiv 1406.1078",
)  # fmt: skip
