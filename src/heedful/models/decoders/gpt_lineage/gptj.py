"""GPT-J (Wang and Komatsuzaki 2021) and CodeGen (Nijkamp et al. 2022, arXiv 2203.13474), its twin.

From GPT-2:  attention and feed-forward side by side, from one norm   no biases in attention
             learned positions → rotary, in a part of each head
             a separate output matrix, with a bias
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.core.checks import check_divides
from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import check_rope_dim, decoder_head
from heedful.models.family import descend, published_heads
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import ParallelBlock, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary
from heedful.weights.names import Row
from heedful.weights.ops import SAME, Each, Pairs, PerHead

PARTS = 4  # of CodeGen's matrices


@dataclass(frozen=True, kw_only=True)
class GPTJConfig(Config):
    vocab: int = 50400
    dim: int = 4096
    layers: int = 28
    heads: int = 16
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "gelu_new"
    rope_dim: int = 64  # entries of a head that are turned
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tied: bool = False

    def check(self) -> None:
        check_rope_dim(self.rope_dim, head_size(self.dim, self.heads))


@dataclass(frozen=True, kw_only=True)
class CodeGenConfig(GPTJConfig):
    vocab: int = 51200
    dim: int = 1024
    layers: int = 20
    rope_dim: int = 32

    def check(self) -> None:
        super().check()
        check_divides("parts", PARTS, "heads", self.heads)


def gptj(c: GPTJConfig) -> LM:
    rotary = Rotary(c.rope_dim)
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    attn = lambda: Attention(c.dim, c.heads, rotary=rotary, dropout=c.dropout)
    ffn = lambda: MLP(c.dim, c.hidden, activation(c.act))
    block = lambda: ParallelBlock(norm, c.dropout, attn=attn(), ffn=ffn())
    head = decoder_head(c, bias=True)
    embed = Embedding(c.vocab, c.dim, dropout=c.dropout)
    return LM(embed, Stack([block() for _ in range(c.layers)], norm()), head)


def gptj_names(c: GPTJConfig) -> list[Row]:
    """Published rotary pairs stand side by side; ours half of the turned entries apart."""
    return [
        ("transformer.wte", "embed.token"),
        ("transformer.h.*.attn.{q,k}_proj", "blocks.*.attn.{q,k}", Pairs(c.heads, c.rope_dim, first=True)),
        ("transformer.h.*.attn.{v,out}_proj", "blocks.*.attn.{v,o}"),
        ("transformer.h.*.mlp.{fc_in,fc_out}", "blocks.*.ffn.{up,down}"),
        ("transformer.h.*.ln_1", "blocks.*.norm"),
        ("transformer.ln_f", "blocks.norm"),
        ("{lm_head,score,qa_outputs}", "head.{out,label,span}"),
    ]


def codegen_names(c: CodeGenConfig) -> list[Row]:
    """Each of the parts that its matrices were trained in has queries, values and keys of its heads."""
    pairs = Pairs(c.heads, c.rope_dim, first=True)
    fused = Each(PerHead(PARTS), (pairs, SAME, pairs))
    qvk = ("blocks.*.attn.q", "blocks.*.attn.v", "blocks.*.attn.k")
    return [("transformer.h.*.attn.qkv_proj", qvk, fused), *gptj_names(c)]


KEYS = {
    "vocab_size": "vocab", "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_inner": "hidden",
    "n_positions": "context", "rotary_dim": "rope_dim", "activation_function": "act",
    "layer_norm_epsilon": "norm_eps", "resid_pdrop": "dropout", "attn_pdrop": "dropout",
    "embd_pdrop": "dropout", "tie_word_embeddings": "tied",
}  # fmt: skip

GPTJ = Family(
    "gptj", GPTJConfig, gptj, gptj_names, KEYS,
    presets={"gpt-j-6b": GPTJConfig()},
    tiny=GPTJConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64, rope_dim=4),
    objective="next_token", prefix="transformer", model_types=("gptj",),
    heads=published_heads("GPTJ", "tag"),
    require={"scale_attn_weights": (True,)}, copies={"lm_head.weight": "transformer.wte.weight"},
    drop=("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions"),
    paper="Wang and Komatsuzaki 2021, GPT-J-6B",
)  # fmt: skip

CODEGEN = descend(
    GPTJ, "codegen", CodeGenConfig, names=codegen_names,
    presets={
        "codegen-350m": {}, "codegen-2b": dict(dim=2560, layers=32, heads=32, rope_dim=64),
        "codegen-6b": dict(dim=4096, layers=33, rope_dim=64),
        "codegen-16b": dict(dim=6144, layers=34, heads=24, rope_dim=64),
    },
    heads={"lm": "CodeGenForCausalLM", "none": "CodeGenModel"},
    absent={"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "rotary_dim": 64},
    paper="Nijkamp et al. 2022, arXiv 2203.13474",
)  # fmt: skip
