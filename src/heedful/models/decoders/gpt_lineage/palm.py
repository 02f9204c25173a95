"""PaLM (Chowdhery et al. 2022, arXiv 2204.02311).

From GPT-3:  attention and feed-forward side by side   one key and value head for all   SwiGLU
             rotary positions   no biases, in norms neither   logits divided by √D
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import decoder_head
from heedful.models.recurrent.language_models import same_keys, same_names
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import ParallelBlock, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary


@dataclass(frozen=True, kw_only=True)
class PalmConfig(Config):
    vocab: int = 256000
    dim: int = 4096
    layers: int = 32
    heads: int = 16
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "silu"
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    dropout: float = 0.0  # the paper trains without, and tunes with 0.1


def palm(c: PalmConfig) -> LM:
    rotary = Rotary(c.head_dim, c.rope_base)
    norm = lambda: LayerNorm(c.dim, c.norm_eps, bias=False)
    attn = lambda: Attention(c.dim, c.heads, 1, c.head_dim, rotary=rotary, dropout=c.dropout)
    ffn = lambda: GatedMLP(c.dim, c.hidden, activation(c.act))
    block = lambda: ParallelBlock(norm, c.dropout, attn=attn(), ffn=ffn())
    head = decoder_head(c, tied=True, scale=c.dim**-0.5)  # §5: logits divided by √D
    embed = Embedding(c.vocab, c.dim, dropout=c.dropout)
    return LM(embed, Stack([block() for _ in range(c.layers)], norm()), head)


NAMES = same_names(
    "embed.token", "blocks.*.norm", "blocks.*.attn.{q,k,v,o}", "blocks.*.ffn.{gate,up,down}", "blocks.norm",
    "head.{label,tag,span}",
)  # fmt: skip

PALM = Family(
    "palm", PalmConfig, palm, NAMES, same_keys(PalmConfig),
    presets={
        "palm-8b": PalmConfig(),
        "palm-62b": PalmConfig(dim=8192, layers=64, heads=32),
        "palm-540b": PalmConfig(dim=18432, layers=118, heads=48, head_dim=256),
    },
    tiny=PalmConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64), objective="next_token",
    heads={kind: f"heedful-palm-{kind}" for kind in ("lm", "classify", "tag", "span", "none")},
    paper="Chowdhery et al. 2022, arXiv 2204.02311",
)  # fmt: skip
