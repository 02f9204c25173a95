"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia (Biderman et al. 2023, arXiv 2304.01373).

From GPT-2:  learned positions → rotary, in a quarter of each head   its own output matrix
             attention and feed-forward side by side, each with its own norm
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import check_rope_dim, decoder_head
from heedful.models.family import gguf_keys, published_heads, published_keys
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, ParallelBlock, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary, Scaling
from heedful.weights.names import Row
from heedful.weights.ops import PerHead


@dataclass(frozen=True, kw_only=True)
class NeoXConfig(Config):
    vocab: int = 50432
    dim: int = 6144
    layers: int = 44
    heads: int = 64
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "gelu"
    rope_dim: int = derived(lambda c: head_size(c.dim, c.heads) // 4)  # entries of a head that are turned
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-5
    bias: bool = True  # of the attention's matrices
    parallel: bool = True  # attention and feed-forward side by side
    dropout: float = 0.0
    tied: bool = False

    @property
    def head_dim(self) -> int:
        return head_size(self.dim, self.heads)

    def check(self) -> None:
        check_rope_dim(self.rope_dim, self.head_dim)


def neox(c: NeoXConfig) -> LM:
    rotary = Rotary(c.rope_dim, c.rope_base, c.rope_scaling)
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(c.dim, c.heads, bias=c.bias, rotary=rotary, dropout=c.dropout)
    parts = lambda: {"attn": attn(), "ffn": MLP(c.dim, c.hidden, activation(c.act))}
    block = lambda: (
        ParallelBlock(norm, c.dropout, separate=True, **parts())
        if c.parallel
        else Block(norm, "pre", c.dropout, **parts())
    )
    head = decoder_head(c, dropout=c.dropout)
    embed = Embedding(c.vocab, c.dim, dropout=c.dropout)
    return LM(embed, Stack([block() for _ in range(c.layers)], norm()), head)


def neox_names(c: NeoXConfig) -> list[Row]:
    theirs = "gpt_neox.layers.*"
    return [
        ("gpt_neox.embed_in", "embed.token"),
        (f"{theirs}.attention.query_key_value", QKV, PerHead(c.heads)),
        (f"{theirs}.attention.dense", "blocks.*.attn.o"),
        (f"{theirs}.mlp.{{dense_h_to_4h,dense_4h_to_h}}", "blocks.*.ffn.{up,down}"),
        (f"{theirs}.{{input,post_attention}}_layernorm", "blocks.*.{attn,ffn}_norm"),
        ("gpt_neox.final_layer_norm", "blocks.norm"),
        ("{embed_out,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
    ]


KEYS = published_keys(
    NeoXConfig, layer_norm_eps="norm_eps", use_parallel_residual="parallel", hidden_dropout="dropout",
    attention_dropout="dropout",
)  # fmt: skip
PYTHIA: dict[str, tuple[int, int, int]] = {  # dim, layers, heads
    "14m": (128, 6, 4), "31m": (256, 6, 8), "70m": (512, 6, 8), "160m": (768, 12, 12),
    "410m": (1024, 24, 16), "1b": (2048, 16, 8), "1.4b": (2048, 24, 16), "2.8b": (2560, 32, 32),
    "6.9b": (4096, 32, 32), "12b": (5120, 36, 40),
}  # fmt: skip
VOCABULARIES = {"6.9b": 50432, "12b": 50688}  # padded further, the larger the model


NEOX = Family(
    "gpt-neox", NeoXConfig, neox, neox_names, KEYS,
    presets={
        "gpt-neox-20b": NeoXConfig(act="gelu_fast"),
        **{
            f"pythia-{size}": NeoXConfig(
                vocab=VOCABULARIES.get(size, 50304), dim=dim, layers=layers, heads=heads
            )
            for size, (dim, layers, heads) in PYTHIA.items()
        },
    },
    tiny=NeoXConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64), objective="next_token",
    prefix="gpt_neox", model_types=("gpt_neox",),
    heads=published_heads("GPTNeoX"),
    absent={
        "max_position_embeddings": 2048, "hidden_size": 6144, "num_attention_heads": 64, "rotary_pct": 0.25,
    },
    copies={"lm_head.weight": "embed_out.weight", "embed_out.weight": "gpt_neox.embed_in.weight",
            "output.weight": "token_embd.weight"},
    drop=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    gguf="gptneox", gguf_names=[FUSED_QKV, *ROWS], gguf_keys=gguf_keys("gptneox", NeoXConfig),
    gguf_tensors={"bias": ("blk.0.attn_qkv.bias", True, False)},
    paper="Black et al. 2022, arXiv 2204.06745",
)  # fmt: skip
