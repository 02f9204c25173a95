"""DiffLlama: LLaMA with differential attention (Ye et al. 2024, arXiv 2410.05258).

A softmax gives every key some weight, so that a long text drowns the few words that matter in small weights
of all others. Differential attention computes two patterns from two halves of the queries and keys, and
subtracts one from the other: what both see alike, the noise, cancels, as in an amplifier with two inputs.
How much of the second pattern is subtracted is learned, λ, and begins smaller in early layers than in late
ones. A norm of each head follows, because differences are smaller than the patterns they come from. The paper
reports sparser patterns, better retrieval from long texts and fewer outliers among activations.

From LLaMA to DiffLlama:  two softmaxes and their difference in the place of one   a norm of every head
"""

from __future__ import annotations

from heedful.core.errors import ConfigError
from heedful.models.base import LM
from heedful.models.decoders.llama_lineage.llama import LLAMA, NAMES, LlamaConfig, llama, published_names
from heedful.models.family import descend, published_heads
from heedful.nn.attention.differential import DifferentialAttention


class DiffLlamaConfig(LlamaConfig, dim=2048, layers=16, hidden=8192, norm_eps=1e-5):
    def check(self) -> None:
        super().check()
        if self.kv_heads % 2 or self.dropout:
            raise ConfigError(
                f"`kv_heads={self.kv_heads}`, `dropout={self.dropout}` do not fit differential attention",
                hint="choose an even number of key heads, and no dropout: the paper has none",
            )


def diffllama(c: DiffLlamaConfig) -> LM:
    return llama(c, attn=lambda rotary, i: DifferentialAttention(
        c.dim, c.heads, c.kv_heads, c.head_dim, layer=i, rotary=rotary, bias=c.bias, eps=c.norm_eps
    ))  # fmt: skip


DIFFLLAMA = descend(
    LLAMA, "diffllama", DiffLlamaConfig, build=diffllama, without=("ffn_bias",),
    names=lambda c: published_names(
        c, [("model.layers.*.self_attn.lambda_{q1,k1,q2,k2}", "blocks.*.attn.{a1,b1,a2,b2}"), *NAMES]
    ),
    presets={"diffllama": {}}, heads=published_heads("DiffLlama"), paper="Ye et al. 2024, arXiv 2410.05258",
)  # fmt: skip
