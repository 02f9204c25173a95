"""StarCoder2 (Lozhkov et al. 2024, arXiv 2402.19173).

From LLaMA:  RMSNorm → LayerNorm   SwiGLU → GELU MLP   biases   each position sees a window
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import LLAMA, NAMES, DecoderConfig, llama
from heedful.models.family import descend, gguf_keys, published_heads
from heedful.models.gguf_config import ROWS
from heedful.nn.block import Block
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm


@dataclass(frozen=True, kw_only=True)
class StarCoder2Config(DecoderConfig):
    vocab: int = 49152
    dim: int = 3072
    layers: int = 30
    heads: int = 24
    kv_heads: int = 2
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 16384
    window: int | None = None  # how far a position sees; None: everything before it
    act: str = "gelu_pytorch_tanh"
    rope_base: float = 1e6
    norm_eps: float = 1e-5
    bias: bool = True  # of all matrices but the output's
    tied: bool = True


def starcoder2(c: StarCoder2Config) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    return llama(c, ffn=ffn, norm=norm, block=partial(Block, dropout=c.dropout))


STARCODER2 = descend(
    LLAMA, "starcoder2", StarCoder2Config, build=starcoder2,
    names=[("model.layers.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}"), *NAMES],
    keys=dict(
        norm_epsilon="norm_eps", use_bias="bias", attention_dropout="dropout", residual_dropout="dropout"
    ),
    presets={
        "starcoder2-3b": dict(window=4096, rope_base=999999.4420358813),
        "starcoder2-7b": dict(dim=4608, layers=32, heads=36, kv_heads=4, window=4096, dropout=0.1),
        "starcoder2-15b": dict(
            dim=6144, layers=40, heads=48, kv_heads=4, window=4096, rope_base=1e5, tied=False
        ),
    },
    tiny=dict(window=6), heads=published_heads("Starcoder2", "span"),
    absent={"max_position_embeddings": 4096},
    require={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    gguf="starcoder2", gguf_names=ROWS, gguf_tensors={"bias": ("blk.0.attn_q.bias", True, False)},
    # llama.cpp knows no window of this family, so that we write none; one that a file states is read.
    gguf_read=lambda source: {"window": source.metadata.get("starcoder2.attention.sliding_window")},
    gguf_keys=gguf_keys("starcoder2", StarCoder2Config, "window"),
    paper="Lozhkov et al. 2024, arXiv 2402.19173",
)  # fmt: skip
