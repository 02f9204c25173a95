"""The Transformer (Vaswani et al. 2017, arXiv 1706.03762).

From RNNsearch:  attention alone, in encoder, decoder and between them   no recurrence, so positions are added
                 one table for source, target and output, times √D where it is read
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from heedful.models.base import Config, Seq2Seq, derived, from_zero
from heedful.models.family import declare
from heedful.models.shared import plain_stack
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.block import Stack
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import LMHead, NoHead, choose_head
from heedful.nn.position import Sinusoidal


class TransformerConfig(Config, vocab=37000, dim=512):
    layers: int = 6  # of the encoder, as are heads and hidden; the decoder's follow
    heads: int = 8
    hidden: int = derived(lambda c: 4 * c.dim)
    decoder_layers: int = derived(lambda c: c.layers)
    decoder_heads: int = derived(lambda c: c.heads)
    decoder_hidden: int = derived(lambda c: c.hidden)
    act: str = "relu"
    norm_first: bool = False  # norms before each part and at the end, or after each part
    dropout: float = 0.1
    start_token: int = from_zero(0)  # what the decoder reads first


def transformer(c: TransformerConfig) -> Seq2Seq:
    embed = Embedding(c.vocab, c.dim, position=Sinusoidal(c.dim), scale=c.dim**0.5, dropout=c.dropout)
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=True), none=NoHead)
    return Seq2Seq(embed, *transformer_stacks(c), head, start_token=c.start_token)


def transformer_stacks(
    c: TransformerConfig, reader: Callable[[int], Part] | None = None
) -> tuple[Stack, Stack]:
    """The encoder and the decoder, which attends to the encoder's output as well.

    `reader(i)` makes the attention of layer i of the encoder. Matrices of attention have biases unless the
    config says otherwise.
    """
    order: Literal["pre", "post"] = "pre" if c.norm_first else "post"
    options: dict[str, Any] = {"bias": vars(c).get("bias", True), "dropout": c.dropout}
    decoder = plain_stack(
        c, layers=c.decoder_layers, order=order,
        ffn=lambda i: MLP(c.dim, c.decoder_hidden, activation(c.act)),
        attn=lambda i: Attention(c.dim, c.decoder_heads, **options),
        cross=lambda i: CrossAttention(c.dim, c.decoder_heads, **options),
    )  # fmt: skip
    return plain_stack(c, attn=reader, order=order), decoder


TRANSFORMER = declare(
    "transformer", TransformerConfig, transformer,
    presets={"transformer-base": {}, "transformer-big": dict(dim=1024, heads=16, dropout=0.3)},
    tiny=dict(hidden=48), objective="translate", heads=("lm", "none"),
    paper="Vaswani et al. 2017, arXiv 1706.03762",
)  # fmt: skip
