"""RetNet (Sun et al. 2023, arXiv 2307.08621): one equation that is a Transformer in training, an RNN in use.

Without its softmax, attention is a product of three matrices, and products can be regrouped: the sum over all
earlier keys and values may be kept as one matrix that every new token updates. RetNet does so, and lets that
matrix fade by a factor γ for each step. γ is near 1 and differs from head to head: some heads look at the
last dozens of tokens, others at thousands. A text can then be read in three ways with one result. In
parallel, like attention, which trains fast. Token by token with a memory of fixed size, which writes fast.
And chunk by chunk, parallel inside and recurrent between them, which reads very long texts. A norm for each
head makes up for the softmax that is gone.

From the Transformer:  softmax → a decay per head   rotary positions   a norm of each head   a gate
From GLA:              the decay is fixed, not chosen by the token
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.core.checks import check_divides
from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import decoder_head
from heedful.models.recurrent.language_models import same_keys, same_names
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary
from heedful.nn.state_space.linear_attention import Retention


@dataclass(frozen=True, kw_only=True)
class RetNetConfig(Config):
    vocab: int = 50257
    dim: int = 2048
    layers: int = 24
    heads: int = derived(lambda c: max(c.dim // 256, 1))
    value_dim: int = derived(lambda c: 2 * c.dim)  # of all heads together
    hidden: int = derived(lambda c: 2 * c.dim)
    act: str = "gelu"
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    tied: bool = True

    def check(self) -> None:
        check_divides("heads", self.heads, "value_dim", self.value_dim)


def retnet(c: RetNetConfig) -> LM:
    norm, rotary = lambda: LayerNorm(c.dim, c.norm_eps), Rotary(c.dim // c.heads, c.rope_base)
    attn = lambda: Retention(c.dim, c.heads, c.value_dim, rotary, eps=c.norm_eps)
    ffn = lambda: MLP(c.dim, c.hidden, activation(c.act), bias=False)
    stack = Stack([Block(norm, attn=attn(), ffn=ffn()) for _ in range(c.layers)], norm())
    return LM(Embedding(c.vocab, c.dim), stack, decoder_head(c))


RETNET = Family(
    "retnet", RetNetConfig, retnet,
    same_names(
        "embed.token", "blocks.*.attn.{q,k,v,o,gate}", "blocks.*.ffn.{up,down}", "blocks.*.{attn,ffn}_norm",
        "blocks.norm", "head.{out,label,tag,span}",
    ),
    same_keys(RetNetConfig),
    presets={
        "retnet-1.3b": RetNetConfig(),
        "retnet-2.7b": RetNetConfig(dim=2560, layers=32),
        "retnet-6.7b": RetNetConfig(dim=4096, layers=32),
    },
    tiny=RetNetConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48), objective="next_token",
    heads={"lm": "RetNetLM", "none": "RetNetModel"}, paper="Sun et al. 2023, arXiv 2307.08621",
)  # fmt: skip
