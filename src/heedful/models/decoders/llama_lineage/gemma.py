"""Gemma (Gemma Team 2024, arXiv 2403.08295), Gemma 2 (arXiv 2408.00118), Gemma 3 (2025, arXiv 2503.19786).

From LLaMA:          GELU instead of SiLU   embeddings times √D   norms multiply by 1 + γ   wide heads
From Gemma to 2:     norms after the parts too   every other layer sees a window   scores and logits capped
From Gemma 2 to 3:   queries and keys normalised instead of scores capped   five windows for each whole layer,
                     whose rotary positions turn more slowly
From Gemma 2 to VaultGemma:  no norms after the parts   trained with differential privacy
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.llama import LLAMA, NAMES, DecoderConfig, llama, llama_attention
from heedful.models.family import descend, published_heads
from heedful.models.gguf_config import ROWS
from heedful.nn.block import Block, MakeNorm, SandwichBlock
from heedful.nn.context import Part
from heedful.nn.norm import OffsetRMSNorm
from heedful.nn.position import LinearScaling, Rotary
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import MinusOne


class GemmaConfig(
    DecoderConfig, vocab=256000, dim=3072, layers=28, heads=16, head_dim=256, hidden=24576, context=8192,
    act="gelu_pytorch_tanh", tied=True,
):  # fmt: skip
    bias: bool = False  # of the attention's matrices


class Gemma2Config(GemmaConfig, dim=2304, layers=26, heads=8, kv_heads=4, hidden=9216):
    score_dim: int = derived(lambda c: c.head_dim)  # scores are divided by its root
    window: int = 4096  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(lambda c: tuple(range(0, c.layers, 2)))
    softcap: float | None = 50.0  # of scores
    logit_softcap: float | None = 30.0

    def check(self) -> None:
        super().check()
        for name in ("softcap", "logit_softcap"):
            if getattr(self, name) == 0:
                raise ConfigError(
                    f"`{name}=0` would set everything to 0", hint="give a number above 0, or None"
                )


class Gemma3Config(
    Gemma2Config, vocab=262144, context=131072, rope_base=1000000.0, softcap=None, logit_softcap=None,
):  # fmt: skip
    local_rope_base: float = 10000.0
    local: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if (i + 1) % 6))
    bidirectional: bool = False  # an encoder, whose windows lie half on each side

    def window_at(self, layer: int) -> int | None:
        window = super().window_at(layer)
        return window // 2 + 1 if self.bidirectional and window else window


def sandwich(norm: MakeNorm, attn: Part, ffn: Part) -> SandwichBlock:
    """A block with the same kind of norm before and after its parts."""
    return SandwichBlock(norm, norm, attn=attn, ffn=ffn)


def gemma2(c: Gemma2Config, block: Callable[..., Part] = sandwich) -> LM:
    norm, scale = lambda: OffsetRMSNorm(c.dim, c.norm_eps), c.score_dim**-0.5
    attn = lambda rotary, i: llama_attention(c, rotary, i, scale=scale, softcap=c.softcap)
    return llama(c, attn=attn, norm=norm, block=block, embed_scale=c.dim**0.5, softcap=c.logit_softcap)


def gemma3(c: Gemma3Config) -> LM:
    near, scale = Rotary(c.head_dim, c.local_rope_base), c.score_dim**-0.5
    norm, of_head = (lambda size=size: OffsetRMSNorm(size, c.norm_eps) for size in (c.dim, c.head_dim))
    attn = lambda far, i: llama_attention(
        c, near if i in c.local else far, i, q_norm=of_head(), k_norm=of_head(), scale=scale
    )
    return llama(
        c, attn=attn, norm=norm, block=sandwich, embed_scale=c.dim**0.5, causal=not c.bidirectional,
        softcap=c.logit_softcap,
    )  # fmt: skip


def read_gemma(hf_config: dict[str, Any]) -> dict[str, Any]:
    """What early releases call gelu is its approximation by tanh."""
    act = hf_config.get("hidden_activation") or hf_config.get("hidden_act", "gelu")
    return {"act": "gelu_pytorch_tanh" if act == "gelu" else act}


# GGUF keeps 1 + γ of every norm.
GGUF_NAMES: list[Row] = [(*row, MinusOne()) if "norm" in row[1] else row for row in ROWS]


def read_gemma_gguf(source: GGUFFile) -> dict[str, Any]:
    """The 27B models divide scores by √(D/H), which the file does not say; the others by √K."""
    keys = ("block_count", "embedding_length", "attention.head_count")
    layers, dim, heads = (source.metadata.get(f"{source.architecture}.{key}") for key in keys)
    return {"score_dim": dim // heads} if layers in (46, 62) and dim and heads else {}


GEMMA = descend(
    LLAMA, "gemma", GemmaConfig, names=NAMES,
    build=lambda c: llama(c, norm=lambda: OffsetRMSNorm(c.dim, c.norm_eps), embed_scale=c.dim**0.5),
    presets={"gemma-2b": dict(dim=2048, layers=18, heads=8, kv_heads=1, hidden=16384), "gemma-7b": {}},
    tiny=dict(kv_heads=1, head_dim=12), heads=published_heads("Gemma", "span"), read=read_gemma,
    reads={"hidden_activation": "str"}, require={"use_bidirectional_attention": (None, False)},
    gguf="gemma", gguf_names=GGUF_NAMES, paper="Gemma Team 2024, arXiv 2403.08295",
)  # fmt: skip

GEMMA2 = descend(
    GEMMA, "gemma2", Gemma2Config, build=gemma2, own_names=[
        ("model.layers.*.{pre,post}_feedforward_layernorm", "blocks.*.ffn_{norm,post_norm}"),
        ("model.layers.*.post_attention_layernorm", "blocks.*.attn_post_norm"),
        ("model.layers.*.self_attn.{q,k}_norm", "blocks.*.attn.{q,k}_norm"),
    ],
    keys=dict(
        hidden_activation="act", query_pre_attn_scalar="score_dim", attn_logit_softcapping="softcap",
        final_logit_softcapping="logit_softcap",
    ),
    presets={
        "gemma-2-2b": {},
        "gemma-2-9b": dict(dim=3584, layers=42, heads=16, kv_heads=8, hidden=14336),
        "gemma-2-27b": dict(
            dim=4608, layers=46, heads=32, kv_heads=16, head_dim=128, hidden=36864, score_dim=144
        ),
    },
    tiny=dict(kv_heads=2, window=4, softcap=2.0, logit_softcap=3.0), heads=published_heads("Gemma2", "span"),
    read=None, reads={}, gguf="gemma2", gguf_read=read_gemma_gguf, paper="Gemma Team 2024, arXiv 2408.00118",
)  # fmt: skip

VAULT_GEMMA = descend(
    GEMMA2, "vaultgemma", build=lambda c: gemma2(c, Block),
    names=[("model.layers.*.pre_feedforward_layernorm", "blocks.*.ffn_norm"), *NAMES],
    presets={"vaultgemma-1b": dict(dim=1152, heads=4, hidden=6912, window=512, context=1024)},
    heads={"lm": "VaultGemmaForCausalLM", "none": "VaultGemmaModel"},
    paper="Google Research 2025, arXiv 2510.15001",
)  # fmt: skip

# The text models of those that read images, too.
WITH_IMAGES: dict[str, Any] = dict(vocab=262208, window=1024, rope_scaling=LinearScaling(8.0))

GEMMA3 = descend(
    GEMMA2, "gemma3", Gemma3Config, build=gemma3, keys=dict(use_bidirectional_attention="bidirectional"),
    presets={
        "embeddinggemma-300m": dict(
            dim=768, layers=24, heads=3, kv_heads=1, hidden=1152, window=512, context=2048,
            bidirectional=True, head="none",
        ),
        "gemma-3-270m": dict(
            dim=640, layers=18, heads=4, kv_heads=1, hidden=2048, window=512, context=32768
        ),
        "gemma-3-1b": dict(
            dim=1152, layers=26, heads=4, kv_heads=1, hidden=6912, window=512, context=32768
        ),
        "gemma-3-4b": dict(**WITH_IMAGES, dim=2560, layers=34, hidden=10240),
        "gemma-3-12b": dict(**WITH_IMAGES, dim=3840, layers=48, heads=16, kv_heads=8, hidden=15360),
        "gemma-3-27b": dict(
            **WITH_IMAGES, dim=5376, layers=62, heads=32, kv_heads=16, head_dim=128, hidden=21504,
            score_dim=168,
        ),
    },
    tiny=dict(local=(0,), softcap=None, logit_softcap=None), model_types=("gemma3_text",),
    heads={
        "lm": "Gemma3ForCausalLM", "classify": "Gemma3TextForSequenceClassification",
        "none": "Gemma3TextModel",
    },
    require={"attn_logit_softcapping": (None,)},
    absent={"vocab_size": 262208}, gguf="gemma3", gguf_read=read_gemma_gguf,
    paper="Gemma Team 2025, arXiv 2503.19786",
)  # fmt: skip
