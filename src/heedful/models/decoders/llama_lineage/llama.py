"""LLaMA (Touvron et al. 2023, arXiv 2302.13971), Llama 2 and 3, Mistral, SmolLM2.

From GPT-2:  learned positions → rotary   LayerNorm → RMSNorm   GELU MLP → SwiGLU   no biases
Llama 2/3:   groups of heads share keys and values   longer contexts by rescaled rotary frequencies
Mistral:     each position sees a window

Mixtral (Jiang et al. 2024, arXiv 2401.04088).

From Mistral to Mixtral:  eight MLPs in each layer, of which two read each token
                          no window in the released models

DiffLlama (Ye et al. 2024, arXiv 2410.05258). A softmax gives every key some weight, so that in a long text
the few words that matter drown in small weights of all others. Differential attention computes two patterns
from two halves of the queries and keys, and subtracts one from the other: what both see alike, the noise,
cancels. How much of the second pattern is subtracted is learned, and begins smaller in early layers than in
late ones. A norm of each head follows, because differences are smaller than the patterns they come from. The
paper reports sparser patterns, better retrieval from long texts and fewer outliers among activations.

From LLaMA to DiffLlama:  two softmaxes and their difference in the place of one   a norm of every head
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.family import PlainConfig, declare, descend, gguf_keys, published_heads
from heedful.models.gguf_config import EXPERT_ROWS, ROWS
from heedful.models.shared import check_rope_dim, decoder_head, plain_stack
from heedful.nn.attention.differential import DifferentialAttention
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.head import Head
from heedful.nn.moe import Experts, MoE, SoftmaxRouter
from heedful.nn.norm import RMSNorm
from heedful.nn.position import Rotary, Scaling
from heedful.weights.names import Row
from heedful.weights.ops import Pairs, Stacked

LAYER_LISTS = {"local", "unrotated", "dense"}  # fields of descendants that list layers


class DecoderConfig(
    PlainConfig, vocab=32000, dim=4096, layers=32, heads=32, act="silu", norm_eps=1e-6, tied=False,
):  # fmt: skip
    """What LLaMA and its descendants share."""

    kv_heads: int = derived(lambda c: c.heads)
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    hidden: int = derived(lambda c: -(-(8 * c.dim // 3) // 256) * 256)  # 8/3 dim, in steps of 256
    context: int = 2048
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    dropout: float = 0.0  # of the attention's weights

    def check(self) -> None:
        check_divides("kv_heads", self.kv_heads, "heads", self.heads)
        for name in LAYER_LISTS & set(self.field_names()):  # layers that the model does not have say nothing
            object.__setattr__(self, name, tuple(i for i in getattr(self, name) if i < self.layers))

    def window_at(self, layer: int) -> int | None:
        """How far a position of a layer sees: `window`, in those that `local` lists if there is a list."""
        fields = vars(self)
        return fields.get("window") if layer in fields.get("local", (layer,)) else None


class PartialRotaryConfig(DecoderConfig):
    """A decoder whose heads are turned in part."""

    rope_dim: int = derived(lambda c: c.head_dim // 2)  # entries of a head that are turned

    def check(self) -> None:
        super().check()
        check_rope_dim(self.rope_dim, self.head_dim)


class LlamaConfig(DecoderConfig):
    bias: bool = False  # of the attention's matrices
    ffn_bias: bool = False


class MistralConfig(DecoderConfig):
    window: int | None = None  # how far a position sees; None: everything before it


def llama_attention(
    c: DecoderConfig, rotary: Rotary | None, layer: int, kind: type[Attention] = Attention, **more: Any
) -> Attention:
    """Attention of a layer as the config's fields say; `more` is what a descendant does otherwise."""
    bias, out_bias = (vars(c).get(name) for name in ("bias", "out_bias"))
    options: dict[str, Any] = {"bias": bool(bias), "out_bias": out_bias, "dropout": c.dropout}
    options["window"] = c.window_at(layer)
    rotary = None if layer in vars(c).get("unrotated", ()) else rotary
    return kind(c.dim, c.heads, c.kv_heads, c.head_dim, rotary=rotary, **options | more)


def llama_mlp(c: DecoderConfig) -> GatedMLP:
    return GatedMLP(c.dim, c.hidden, activation(c.act), bias=vars(c).get("ffn_bias", False))


def llama(
    c: Any, *, attn: Callable[[Rotary, int], Part] | None = None,
    ffn: Callable[[int], Part] | None = None, norm: Callable[[], nn.Module] | None = None,
    block: Callable[..., Part] = Block, embed_scale: float = 1.0, head: Head | None = None,
    causal: bool = True, **words: Any,
) -> LM:  # fmt: skip
    """Build LLaMA of a DecoderConfig, or a descendant from the parts in which it differs.

    `attn(rotary, i)` and `ffn(i)` make the parts of layer i, `norm()` makes a norm, and
    `block(norm, attn=…, ffn=…)` puts them together. The embedding is multiplied by
    `embed_scale`. `words` are options of the head that predicts words. An encoder has `causal=False`
    and may replace the `head`.
    """
    rotary = Rotary(vars(c).get("rope_dim", c.head_dim), c.rope_base, c.rope_scaling)
    norm = norm or (lambda: RMSNorm(c.dim, c.norm_eps))
    attn = attn or (lambda rotary, i: llama_attention(c, rotary, i))
    ffn = ffn or (lambda i: llama_mlp(c))
    stack = plain_stack(c, attn=partial(attn, rotary), ffn=ffn, norm=norm, block=block)
    embed = Embedding(c.vocab, c.dim, scale=embed_scale)
    return LM(embed, stack, head or decoder_head(c, **words), causal=causal)


NAMES: list[Row] = [
    ("model.embed_tokens", "embed.token"),
    ("model.layers.*.self_attn.{q,k,v,o}_proj", "blocks.*.attn.{q,k,v,o}"),
    ("model.layers.*.mlp.{gate,up,down}_proj", "blocks.*.ffn.{gate,up,down}"),
    ("model.layers.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm"),
    ("model.norm", "blocks.norm"),
    ("{lm_head,score,qa_outputs}", "head.{out,label,span}"),
    ("score", "head.tag"),
]


def published_names(c: DecoderConfig, rows: Sequence[Row] = NAMES) -> list[Row]:
    """The published classes for spans, and no others, call the backbone of LLaMA and Qwen transformer."""
    if c.head != "span":
        return list(rows)
    return [(theirs.replace("model.", "transformer.", 1), *rest) for theirs, *rest in rows]


def paired_rows(c: DecoderConfig, theirs: str, ours: str = "", **options: Any) -> list[Row]:
    """Rows of queries and keys whose rotary pairs stand side by side; `theirs` has {} for q and k.

    Where a layer turns nothing, the order of a head's entries does not matter, as long as it is one for both.
    """
    heads = {"q": c.heads, "k": c.kv_heads}
    return [(theirs.format(x), f"blocks.*.attn.{x}{ours}", Pairs(n, **options)) for x, n in heads.items()]


def llama_gguf_names(c: DecoderConfig) -> list[Row]:
    return [*paired_rows(c, "blk.*.attn_{}"), *ROWS]


LLAMA = declare(
    "llama", LlamaConfig, llama, names=published_names,
    presets={
        "llama-7b": {},
        "llama-13b": dict(dim=5120, layers=40, heads=40),
        "llama-33b": dict(dim=6656, layers=60, heads=52),
        "llama-65b": dict(dim=8192, layers=80, heads=64),
        "llama-3-8b": dict(
            vocab=128256, kv_heads=8, hidden=14336, context=8192, rope_base=500000.0, norm_eps=1e-5
        ),
        "smollm2-135m": dict(
            vocab=49152, dim=576, layers=30, heads=9, kv_heads=3, hidden=1536, context=8192,
            rope_base=100000.0, norm_eps=1e-5, tied=True
        ),
    },
    tiny=dict(kv_heads=2, hidden=48), prefix="model", heads=published_heads("Llama"),
    gguf="llama", gguf_names=llama_gguf_names,
    gguf_tensors={
        "bias": ("blk.0.attn_q.bias", True, False), "ffn_bias": ("blk.0.ffn_up.bias", True, False),
    },
    gguf_keys={"llama.rope.dimension_count": "head_dim", **gguf_keys("llama", LlamaConfig)},
    paper="Touvron et al. 2023, arXiv 2302.13971",
)  # fmt: skip

MISTRAL = descend(
    LLAMA, "mistral", MistralConfig, names=NAMES,
    presets={"mistral-7b": dict(kv_heads=8, hidden=14336, context=32768, window=4096, norm_eps=1e-5)},
    tiny=dict(window=6), heads=published_heads("Mistral"), gguf="llama", gguf_keys=LLAMA.gguf_keys,
    absent={
        "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    paper="Jiang et al. 2023, arXiv 2310.06825",
)  # fmt: skip


class MixtralConfig(
    MistralConfig, kv_heads=8, hidden=14336, context=32768, rope_base=1000000.0, norm_eps=1e-5,
):  # fmt: skip
    experts: int = 8
    active: int = 2  # experts per token


def softmax_moe(c: Any, shared: Part | None = None) -> MoE:
    """The experts of a layer; `shared` reads all tokens. Weights sum to 1 if the config is silent."""
    hidden, normalise = vars(c).get("expert_hidden", c.hidden), vars(c).get("normalise", True)
    router = SoftmaxRouter(c.dim, c.experts, c.active, normalise=normalise)
    return MoE(router, Experts(c.experts, c.dim, hidden, activation(c.act)), shared)


MIXTRAL = descend(
    MISTRAL, "mixtral", MixtralConfig,
    own_names=[
        ("model.layers.*.block_sparse_moe.gate", "blocks.*.ffn.router.score"),
        (
            "model.layers.*.block_sparse_moe.experts.*.{w1,w3,w2}.weight",
            "blocks.*.ffn.experts.{gate,up,down}", Stacked(),
        ),
    ],
    build=lambda c: llama(c, ffn=lambda i: softmax_moe(c)),
    keys={"num_local_experts": "experts", "num_experts_per_tok": "active"},
    presets={
        "mixtral-8x7b": {},
        "mixtral-8x22b": dict(dim=6144, layers=56, heads=48, hidden=16384, context=65536),
    },
    tiny=dict(hidden=24, experts=4, window=None), heads=published_heads("Mixtral"),
    gguf="llama", gguf_when="llama.expert_count",  # GGUF files call it a LLaMA that has experts
    gguf_names=lambda c: [*EXPERT_ROWS, *llama_gguf_names(c)],
    gguf_keys={
        **MISTRAL.gguf_keys, "llama.expert_count": "experts", "llama.expert_used_count": "active",
    },
    absent={"max_position_embeddings": 131072, "rope_theta": 1000000.0},
    paper="Jiang et al. 2024, arXiv 2401.04088",
)  # fmt: skip


class DiffLlamaConfig(LlamaConfig, dim=2048, layers=16, hidden=8192, norm_eps=1e-5):
    def check(self) -> None:
        super().check()
        if self.kv_heads % 2 or self.dropout:
            raise ConfigError(
                f"`kv_heads={self.kv_heads}`, `dropout={self.dropout}` do not fit differential attention",
                hint="choose an even number of key heads, and no dropout: the paper has none",
            )


DIFFLLAMA = descend(
    LLAMA, "diffllama", DiffLlamaConfig, without=("ffn_bias",),
    build=lambda c: llama(c, attn=lambda rotary, i: DifferentialAttention(
        c.dim, c.heads, c.kv_heads, c.head_dim, layer=i, rotary=rotary, bias=c.bias, eps=c.norm_eps
    )),
    names=lambda c: published_names(
        c, [("model.layers.*.self_attn.lambda_{q1,k1,q2,k2}", "blocks.*.attn.{a1,b1,a2,b2}"), *NAMES]
    ),
    presets={"diffllama": {}}, heads=published_heads("DiffLlama"), paper="Ye et al. 2024, arXiv 2410.05258",
)  # fmt: skip
