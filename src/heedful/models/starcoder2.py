"""StarCoder2 (Lozhkov et al. 2024, arXiv 2402.19173).

From GPT-2:  learned positions → rotary   groups of heads share keys and values   each position sees a window
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heedful.models.base import LM, Config, Family, derived
from heedful.models.gguf_tables import gguf_keys, gguf_names
from heedful.models.llama import read_llama, write_llama
from heedful.nn.attention import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.head import LMHead, choose_head, decoder_heads
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary
from heedful.nn.rope import Scaling
from heedful.weights.gguf import GGUFFile
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class StarCoder2Config(Config):
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
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-5
    bias: bool = True  # of all matrices but the output's
    dropout: float = 0.0
    tied: bool = True


def starcoder2(c: StarCoder2Config) -> LM:
    rotary = Rotary(c.dim // c.heads, c.rope_base, c.rope_scaling)
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(
        c.dim, c.heads, c.kv_heads, bias=c.bias, rotary=rotary, window=c.window, dropout=c.dropout
    )
    ffn = lambda: MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    block = lambda: Block(norm, "pre", c.dropout, attn=attn(), ffn=ffn())
    words = lambda: LMHead(c.dim, c.vocab, tied=c.tied)
    head = choose_head(c.head, lm=words, **decoder_heads(c.dim, c.labels))
    embed = Embedding(c.vocab, c.dim, dropout=c.dropout)
    return LM(embed, Stack([block() for _ in range(c.layers)], norm()), head)


NAMES: list[Row] = [
    ("model.embed_tokens", "embed.token"),
    ("model.layers.*.self_attn.{q,k,v,o}_proj", "blocks.*.attn.{q,k,v,o}"),
    ("model.layers.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}"),
    ("model.layers.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm"),
    ("model.norm", "blocks.norm"),
    ("{lm_head,score,score}", "head.{out,label,tag}"),
]


def read_gguf(source: GGUFFile) -> dict[str, Any]:
    return {"bias": "blk.0.attn_q.bias" in source.entries}


KEYS = {
    "vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers",
    "num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "intermediate_size": "hidden",
    "max_position_embeddings": "context", "sliding_window": "window", "hidden_act": "act",
    "norm_epsilon": "norm_eps", "use_bias": "bias", "attention_dropout": "dropout",
    "residual_dropout": "dropout", "embedding_dropout": "dropout", "tie_word_embeddings": "tied",
}  # fmt: skip

STARCODER2 = Family(
    "starcoder2", StarCoder2Config, starcoder2, NAMES, KEYS,
    presets={
        "starcoder2-3b": StarCoder2Config(window=4096, rope_base=999999.4420358813),
        "starcoder2-7b": StarCoder2Config(dim=4608, layers=32, heads=36, kv_heads=4, window=4096),
        "starcoder2-15b": StarCoder2Config(
            dim=6144, layers=40, heads=48, kv_heads=4, window=4096, rope_base=1e5, tied=False
        ),
    },
    tiny=StarCoder2Config(
        vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64, window=6
    ),
    objective="next_token", prefix="model", model_types=("starcoder2",),
    heads={
        "lm": "Starcoder2ForCausalLM", "classify": "Starcoder2ForSequenceClassification",
        "tag": "Starcoder2ForTokenClassification", "none": "Starcoder2Model",
    },
    require={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    read=read_llama, write=write_llama,
    copies={"lm_head.weight": "model.embed_tokens.weight", "output.weight": "token_embd.weight"},
    drop=("*.rotary_emb.inv_freq",), gguf="starcoder2", gguf_names=gguf_names, gguf_read=read_gguf,
    gguf_keys=gguf_keys("starcoder2", StarCoder2Config),
    paper="Lozhkov et al. 2024, arXiv 2402.19173",
)  # fmt: skip
