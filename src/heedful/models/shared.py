"""What models of several lineages are built of: a stack of layers, and a decoder's head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import Config
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.context import Part
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import (
    ClassifyHead,
    Head,
    LMHead,
    NoHead,
    PooledTokens,
    SpanHead,
    TagHead,
    choose_head,
)
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary


def plain_stack(
    c: Any, *, attn: Callable[[int], Part] | None = None, cross: Callable[[int], Part] | None = None,
    ffn: Callable[[int], Part] | None = None, norm: Callable[[], nn.Module] | None = None,
    block: Callable[..., Part] | None = None, order: Literal["pre", "post"] = "pre",
    layers: int | None = None, rotary: Rotary | None = None, last_norm: bool = True, **stack: Any,
) -> Stack:  # fmt: skip
    """The layers of a Transformer, or of a descendant from the parts in which it differs.

    `attn(i)`, `cross(i)` and `ffn(i)` make the parts of layer i, `norm()` makes a norm, and
    `block(norm, attn=…, ffn=…)` puts them together: with norms before the parts and one more at the end, or
    after the parts if `order` is "post". By default the parts are those that the fields of the config
    describe: attention, a LayerNorm, and an MLP. `stack` are options of the stack.
    """
    values = vars(c)
    dropout, depth = values.get("dropout", 0.0), stack.get("depth")
    norm = norm or (lambda: LayerNorm(c.dim, values.get("norm_eps", 1e-5)))
    block = block or partial(Block, order=order, dropout=dropout)
    bias = values.get("bias", True)
    attn = attn or (lambda i: Attention(c.dim, c.heads, bias=bias, rotary=rotary, dropout=dropout))
    ffn = ffn or (lambda i: MLP(c.dim, c.hidden, activation(c.act)))
    count = layers or c.layers if depth is None else max(depth) + 1
    makers = {"attn": attn, **({} if cross is None else {"cross": cross}), "ffn": ffn}
    blocks = [block(norm, **{name: make(i) for name, make in makers.items()}) for i in range(count)]
    return Stack(blocks, norm() if order == "pre" and last_norm else None, **stack)


def decoder_head(c: Config, *, dim: int | None = None, dropout: float = 0.0, **words: Any) -> Head:
    """The head of a decoder's config; `words` are options of the one that predicts words.

    It reads vectors of `dim` numbers, the config's own unless given. A class is read off the last token.
    """
    size, options = dim or c.dim, {"tied": vars(c).get("tied", False)} | words
    return choose_head(
        c.head,
        lm=lambda: LMHead(size, c.vocab, **options),
        span=lambda: SpanHead(size),
        classify=lambda: ClassifyHead(PooledTokens("last"), size, c.labels, bias=False),
        tag=lambda: TagHead(size, c.labels, dropout=dropout),
        none=NoHead,
    )


def check_rope_dim(rope_dim: int, head_dim: int) -> None:
    """Raise ConfigError for a part of a head that holds no rotary pairs."""
    if rope_dim % 2 or not 2 <= rope_dim <= head_dim:
        raise ConfigError(
            f"`rope_dim={rope_dim}` cannot be rotated in a head of {head_dim} entries",
            hint="choose an even number from 2 to the size of a head",
        )
