"""What decoders of both lineages share: the choice of a head, and a check of rotary positions."""

from __future__ import annotations

from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import Config
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
