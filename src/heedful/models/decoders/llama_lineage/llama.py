"""LLaMA (Touvron et al. 2023, arXiv 2302.13971), Llama 2 and 3, Mistral, SmolLM2.

From GPT-2:  learned positions → rotary   LayerNorm → RMSNorm   GELU MLP → SwiGLU   no biases
Llama 2/3:   groups of heads share keys and values   longer contexts by rescaled rotary frequencies
Mistral:     each position sees a window
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived
from heedful.models.family import published_heads, published_keys
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, Stack
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.head import LMHead, SpanHead, choose_head, decoder_heads
from heedful.nn.norm import RMSNorm
from heedful.nn.position import Rotary, Scaling
from heedful.weights.names import Row
from heedful.weights.ops import Pairs

LAYER_LISTS = {"local", "unrotated", "dense"}  # fields of descendants that list layers


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """What LLaMA and its descendants share."""

    vocab: int = 32000
    dim: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = derived(lambda c: c.heads)
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    hidden: int = derived(
        lambda c: -(-(8 * c.dim // 3) // 256) * 256
    )  # 8/3 dim, rounded up to a multiple of 256
    context: int = 2048
    act: str = "silu"
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    norm_eps: float = 1e-6
    dropout: float = 0.0  # of the attention's weights
    tied: bool = False

    def check(self) -> None:
        check_divides("kv_heads", self.kv_heads, "heads", self.heads)
        for name in LAYER_LISTS & set(
            self.field_names()
        ):  # a longer list than the model is deep says nothing more
            object.__setattr__(self, name, tuple(i for i in getattr(self, name) if i < self.layers))

    def window_at(self, layer: int) -> int | None:
        """How far a position of a layer sees: `window`, in those that `local` lists if there is a list."""
        fields = vars(self)
        return fields.get("window") if layer in fields.get("local", (layer,)) else None


def check_rope_dim(rope_dim: int, head_dim: int) -> None:
    """Raise ConfigError for a part of a head that holds no rotary pairs."""
    if rope_dim % 2 or not 2 <= rope_dim <= head_dim:
        raise ConfigError(
            f"rope_dim={rope_dim} of a head of {head_dim} entries",
            hint="it holds rotary pairs: an even number from 2 to the size of a head",
        )


@dataclass(frozen=True, kw_only=True)
class PartialRotaryConfig(DecoderConfig):
    """A decoder whose heads are turned in part."""

    rope_dim: int = derived(lambda c: c.head_dim // 2)  # entries of a head that are turned

    def check(self) -> None:
        super().check()
        check_rope_dim(self.rope_dim, self.head_dim)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    bias: bool = False  # of the attention's matrices
    ffn_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class MistralConfig(DecoderConfig):
    window: int | None = None  # how far a position sees; None: everything before it


def llama_attention(c: DecoderConfig, rotary: Rotary | None, layer: int, **more: Any) -> Attention:
    """Attention of a layer as the config's fields say; `more` is what a descendant does otherwise."""
    options = {"bias": vars(c).get("bias", False), "window": c.window_at(layer), "dropout": c.dropout}
    rotary = None if layer in vars(c).get("unrotated", ()) else rotary
    return Attention(c.dim, c.heads, c.kv_heads, c.head_dim, rotary=rotary, **options | more)


def llama_mlp(c: DecoderConfig) -> GatedMLP:
    return GatedMLP(c.dim, c.hidden, activation(c.act), bias=vars(c).get("ffn_bias", False))


def llama(
    c: DecoderConfig, *, attn: Callable[[Rotary, int], Part] | None = None,
    ffn: Callable[[int], Part] | None = None, norm: Callable[[], nn.Module] | None = None,
    block: Callable[..., Part] = Block, scale: float = 1.0, softcap: float | None = None,
    head_bias: bool = False,
) -> LM:  # fmt: skip
    """LLaMA, and what a descendant does otherwise, if given.

    `attn(rotary, i)` and `ffn(i)` make the parts of layer i, `norm()` makes a norm, and
    `block(norm, attn=…, ffn=…)` puts them together. The embedding is multiplied by `scale`.
    """
    rotary = Rotary(vars(c).get("rope_dim", c.head_dim), c.rope_base, c.rope_scaling)
    norm = norm or (lambda: RMSNorm(c.dim, c.norm_eps))
    attn = attn or (lambda rotary, i: llama_attention(c, rotary, i))
    ffn = ffn or (lambda i: llama_mlp(c))
    blocks = [block(norm, attn=attn(rotary, i), ffn=ffn(i)) for i in range(c.layers)]
    stack = Stack(blocks, norm())
    head = choose_head(
        c.head,
        lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied, bias=head_bias, softcap=softcap),
        span=lambda: SpanHead(c.dim),
        **decoder_heads(c.dim, c.labels),
    )
    return LM(Embedding(c.vocab, c.dim, scale=scale), stack, head)


NAMES: list[Row] = [
    ("model.embed_tokens", "embed.token"),
    ("model.layers.*.self_attn.{q,k,v,o}_proj", "blocks.*.attn.{q,k,v,o}"),
    ("model.layers.*.mlp.{gate,up,down}_proj", "blocks.*.ffn.{gate,up,down}"),
    ("model.layers.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm"),
    ("model.norm", "blocks.norm"),
    ("lm_head", "head.out"),
    ("score", "head.label"),
    ("score", "head.tag"),
    ("qa_outputs", "head.span"),
]


def published_names(c: DecoderConfig, rows: Sequence[Row] = NAMES) -> list[Row]:
    """The published classes for spans, and no others, call the backbone of LLaMA and Qwen transformer."""
    if c.head != "span":
        return list(rows)
    return [(theirs.replace("model.", "transformer.", 1), *rest) for theirs, *rest in rows]


def llama_gguf_names(c: DecoderConfig) -> list[Row]:
    """GGUF keeps rotary pairs side by side, so queries and keys are reordered."""
    return [
        ("token_embd", "embed.token"),
        ("blk.*.attn_q", "blocks.*.attn.q", Pairs(c.heads)),
        ("blk.*.attn_k", "blocks.*.attn.k", Pairs(c.kv_heads)),
        ("blk.*.attn_{v,output}", "blocks.*.attn.{v,o}"),
        ("blk.*.ffn_{gate,up,down}", "blocks.*.ffn.{gate,up,down}"),
        ("blk.*.{attn,ffn}_norm", "blocks.*.{attn,ffn}_norm"),
        ("output_norm", "blocks.norm"),
        ("output", "head.out"),
    ]


LLAMA = Family(
    "llama", LlamaConfig, llama, published_names, published_keys(LlamaConfig),
    presets={
        "llama-7b": LlamaConfig(),
        "llama-13b": LlamaConfig(dim=5120, layers=40, heads=40),
        "llama-33b": LlamaConfig(dim=6656, layers=60, heads=52),
        "llama-65b": LlamaConfig(dim=8192, layers=80, heads=64),
        "llama-3-8b": LlamaConfig(
            vocab=128256, kv_heads=8, hidden=14336, context=8192, rope_base=500000.0, norm_eps=1e-5
        ),
        "smollm2-135m": LlamaConfig(
            vocab=49152, dim=576, layers=30, heads=9, kv_heads=3, hidden=1536, context=8192,
            rope_base=100000.0, norm_eps=1e-5, tied=True,
        ),
    },
    tiny=LlamaConfig(vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64),
    objective="next_token", prefix="model", model_types=("llama",),
    heads=published_heads("Llama"),
    copies={"lm_head.weight": "model.embed_tokens.weight", "output.weight": "token_embd.weight"},
    drop=("*.rotary_emb.inv_freq", "rope_freqs.weight"), gguf="llama", gguf_names=llama_gguf_names,
    gguf_tensors={
        "bias": ("blk.0.attn_q.bias", True, False), "ffn_bias": ("blk.0.ffn_up.bias", True, False),
    },
    gguf_keys={
        "llama.rope.dimension_count": "head_dim", "llama.attention.key_length": "head_dim",
        "llama.attention.value_length": "head_dim",
        "llama.embedding_length": "dim", "llama.block_count": "layers", "llama.attention.head_count": "heads",
        "llama.attention.head_count_kv": "kv_heads", "llama.feed_forward_length": "hidden",
        "llama.context_length": "context", "llama.rope.freq_base": "rope_base",
        "llama.attention.layer_norm_rms_epsilon": "norm_eps", "llama.vocab_size": "vocab",
    },
    paper="Touvron et al. 2023, arXiv 2302.13971",
)  # fmt: skip

MISTRAL = replace(
    LLAMA, name="mistral", config=MistralConfig, names=NAMES, gguf_tensors={},
    keys=published_keys(MistralConfig), model_types=("mistral",),
    presets={
        "mistral-7b": MistralConfig(kv_heads=8, hidden=14336, context=32768, window=4096, norm_eps=1e-5)
    },
    tiny=MistralConfig(vocab=128, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=64, window=6),
    heads=published_heads("Mistral"),
    absent={
        "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    paper="Jiang et al. 2023, arXiv 2310.06825",
)  # fmt: skip
