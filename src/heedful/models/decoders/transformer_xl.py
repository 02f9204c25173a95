"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860): a Transformer that remembers beyond its segment.

A Transformer of 2018 read text in segments of a few hundred tokens and knew nothing of the one before.
Transformer-XL keeps the keys and values of every layer, so that the next segment looks back at them. Since
each layer looks back one memory further, the reach grows with depth. Positions counted from the start of a
segment would then mean two things at once. So the paper scores by the distance between query and key instead,
with a term for content, one for distance, and a learned preference of each head for either. Caches of today's
decoders and their relative positions both go back to this idea.

From the Transformer:  the decoder alone   a memory of `window` tokens   distances instead of positions
                       no norm after the last layer
"""

from __future__ import annotations

from heedful.models.base import LM, Config, derived
from heedful.models.family import declare
from heedful.models.shared import decoder_head, plain_stack
from heedful.nn.attention.multi_head import head_size
from heedful.nn.attention.relative import RelativeAttention
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation


class TransformerXLConfig(Config, dim=512, layers=12):
    vocab: int = 204  # the bytes of enwik8
    heads: int = 8
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    hidden: int = derived(lambda c: 4 * c.dim)
    window: int = 512  # how many tokens a position sees, itself included
    act: str = "relu"
    dropout: float = 0.1
    tied: bool = True


def transformer_xl(c: TransformerXLConfig) -> LM:
    attn = lambda i: RelativeAttention(c.dim, c.heads, c.head_dim, window=c.window, dropout=c.dropout)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), dropout=c.dropout)
    embed = Embedding(c.vocab, c.dim, scale=c.dim**0.5, dropout=c.dropout)
    return LM(embed, plain_stack(c, attn=attn, ffn=ffn, order="post"), decoder_head(c))


TRANSFORMER_XL = declare(
    "transformer-xl", TransformerXLConfig, transformer_xl,
    presets={
        "transformer-xl-enwik8-12l": {},
        "transformer-xl-enwik8-24l": dict(dim=1024, layers=24, hidden=3072, window=768),
    },
    tiny=dict(hidden=48, window=6), heads={"lm": "TransformerXLLM", "none": "TransformerXLModel"},
    paper="Dai et al. 2019, arXiv 1901.02860",
)  # fmt: skip
