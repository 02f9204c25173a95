"""OPT (Zhang et al. 2022, arXiv 2205.01068).

From GPT-3:  every layer sees everything before it   ReLU
In 350m:     norms after each part instead of before   token vectors narrower than the layers
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import decoder_head
from heedful.models.family import published_heads, published_keys
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class OPTConfig(Config):
    vocab: int = 50272
    dim: int = 768
    table_dim: int = derived(lambda c: c.dim)  # of the token vectors
    layers: int = 12
    heads: int = 12
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "relu"
    norm_first: bool = True  # before each part, or after it
    no_last_norm: bool = False  # as in early conversions
    bias: bool = True  # of the layers' matrices
    dropout: float = 0.1
    tied: bool = True


def opt(c: OPTConfig) -> LM:
    norm = lambda: LayerNorm(c.dim)
    attn = lambda: Attention(c.dim, c.heads, bias=c.bias, dropout=c.dropout)
    ffn = lambda: MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    block = lambda: Block(norm, "pre" if c.norm_first else "post", c.dropout, attn=attn(), ffn=ffn())
    project = lambda size, to: None if c.table_dim == c.dim else nn.Linear(size, to, bias=False)
    positions, widen = Learned(c.context, c.dim, offset=2), project(c.table_dim, c.dim)
    embed = Embedding(c.vocab, c.table_dim, position=positions, widen=widen)
    last, narrow = norm() if c.norm_first and not c.no_last_norm else None, project(c.dim, c.table_dim)
    blocks = Stack([block() for _ in range(c.layers)], last, narrow=narrow)
    return LM(embed, blocks, decoder_head(c, dim=c.table_dim, dropout=c.dropout))


NAMES: list[Row] = [
    ("model.decoder.embed_{tokens,positions}", "embed.{token,position}"),
    ("model.decoder.project_{in,out}", "{embed.widen,blocks.narrow}"),
    ("model.decoder.layers.*.self_attn.{q,k,v,out}_proj", "blocks.*.attn.{q,k,v,o}"),
    ("model.decoder.layers.*.{fc1,fc2}", "blocks.*.ffn.{up,down}"),
    ("model.decoder.layers.*.{self_attn,final}_layer_norm", "blocks.*.{attn,ffn}_norm"),
    ("model.decoder.final_layer_norm", "blocks.norm"),
    ("{lm_head,score,qa_outputs}", "head.{out,label,span}"),
]
KEYS = published_keys(
    OPTConfig, word_embed_proj_dim="table_dim", ffn_dim="hidden", activation_function="act",
    do_layer_norm_before="norm_first", enable_bias="bias", dropout="dropout",
    _remove_final_layer_norm="no_last_norm",
)  # fmt: skip
SIZES: dict[str, tuple[int, int, int]] = {  # dim, layers, heads
    "125m": (768, 12, 12), "1.3b": (2048, 24, 32), "2.7b": (2560, 32, 32), "6.7b": (4096, 32, 32),
    "13b": (5120, 40, 40), "30b": (7168, 48, 56), "66b": (9216, 64, 72), "175b": (12288, 96, 96),
}  # fmt: skip

OPT = Family(
    "opt", OPTConfig, opt, NAMES, KEYS,
    presets={
        "opt-350m": OPTConfig(dim=1024, table_dim=512, layers=24, heads=16, norm_first=False),
        **{f"opt-{s}": OPTConfig(dim=dim, layers=n, heads=heads) for s, (dim, n, heads) in SIZES.items()},
    },
    tiny=OPTConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64), objective="next_token",
    prefix="model", model_types=("opt",),
    heads=published_heads("OPT", "tag"),
    require={"layer_norm_elementwise_affine": (True,)},
    copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    paper="Zhang et al. 2022, arXiv 2205.01068",
)  # fmt: skip
