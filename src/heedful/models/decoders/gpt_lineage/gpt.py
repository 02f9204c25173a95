"""GPT (Radford et al. 2018), GPT-2 (Radford et al. 2019), GPT-3 (Brown et al. 2020, arXiv 2005.14165).

From the Transformer:  the decoder alone   learned positions   GELU
From GPT to GPT-2:     norm before each part instead of after   a last norm
From GPT-2 to GPT-3:   every other layer sees only a band of the nearest positions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import decoder_head
from heedful.models.family import gguf_keys
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned
from heedful.weights.ops import Fused, Transposed


@dataclass(frozen=True, kw_only=True)
class GPTConfig(Config):
    vocab: int = 40478
    dim: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 512
    act: str = "gelu_new"
    norm_eps: float = 1e-5
    dropout: float = 0.1
    tied: bool = True


@dataclass(frozen=True, kw_only=True)
class GPT2Config(GPTConfig):
    vocab: int = 50257
    context: int = 1024
    scaled: bool = True  # scores, by 1/√K
    scaled_by_layer: bool = False  # scores of layer i by 1/i, too (Karamcheti et al. 2021, Mistral)


@dataclass(frozen=True, kw_only=True)
class GPT3Config(GPT2Config):
    dim: int = 12288
    layers: int = 96
    heads: int = 96
    context: int = 2048
    window: int = 256  # of every other layer; the paper gives no number


def gpt_embedding(c: GPTConfig) -> Embedding:
    return Embedding(c.vocab, c.dim, position=Learned(c.context, c.dim), dropout=c.dropout)


def gpt_attention(c: GPTConfig, **more: Any) -> Attention:
    return Attention(c.dim, c.heads, **{"bias": True, "dropout": c.dropout} | more)


def gpt_mlp(c: GPTConfig) -> MLP:
    return MLP(c.dim, c.hidden, activation(c.act))


def gpt_norm(c: GPTConfig) -> Callable[[], nn.Module]:
    return lambda: LayerNorm(c.dim, c.norm_eps)


# GPT's name → ours: what it calls gelu is the approximation by tanh that others call gelu_new.
ACTS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "swish"}


def gpt(c: GPTConfig) -> LM:
    if c.act not in ACTS.values():
        raise ConfigError(
            f"act={c.act!r} has no name in a published gpt", hint=f"use {', '.join(ACTS.values())}"
        )
    if c.hidden != 4 * c.dim:
        raise ConfigError(f"hidden={c.hidden} is fixed in a gpt, 4 dim = {4 * c.dim}", hint="build a gpt2")
    block = lambda: Block(gpt_norm(c), "post", c.dropout, attn=gpt_attention(c), ffn=gpt_mlp(c))
    return LM(gpt_embedding(c), Stack([block() for _ in range(c.layers)]), decoder_head(c, dropout=c.dropout))


def gpt2(c: GPT2Config, attn: Callable[[int], Attention] | None = None) -> LM:
    """GPT-2, or a descendant whose layer i has the attention `attn(i)`."""
    scale = head_size(c.dim, c.heads) ** -0.5 if c.scaled else 1.0
    attn = attn or (lambda i: gpt_attention(c, scale=scale / (i + 1 if c.scaled_by_layer else 1)))
    block = lambda i: Block(gpt_norm(c), "pre", c.dropout, attn=attn(i), ffn=gpt_mlp(c))
    blocks = Stack([block(i) for i in range(c.layers)], gpt_norm(c)())
    return LM(gpt_embedding(c), blocks, decoder_head(c, dropout=c.dropout))


def gpt3(c: GPT3Config) -> LM:
    return gpt2(c, lambda i: gpt_attention(c, window=c.window if i % 2 else None))


BLOCK_NAMES = [
    ("transformer.h.*.attn.c_attn", QKV, Fused(transposed=True)),
    ("transformer.h.*.attn.c_proj", "blocks.*.attn.o", Transposed()),
    ("transformer.h.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}", Transposed()),
    ("transformer.h.*.{ln_1,ln_2}", "blocks.*.{attn_norm,ffn_norm}"),
    ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
]

GPT_NAMES = [
    ("transformer.tokens_embed", "embed.token"),
    ("transformer.positions_embed", "embed.position"),
    *BLOCK_NAMES,
]

GPT2_NAMES = [
    ("transformer.wte", "embed.token"),
    ("transformer.wpe", "embed.position"),
    ("transformer.ln_f", "blocks.norm"),
    *BLOCK_NAMES,
]

KEYS = {
    "vocab_size": "vocab", "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_positions": "context",
    "layer_norm_epsilon": "norm_eps", "tie_word_embeddings": "tied",
    "resid_pdrop": "dropout", "attn_pdrop": "dropout", "embd_pdrop": "dropout",
}  # fmt: skip


TINY: dict[str, Any] = dict(vocab=128, dim=32, layers=2, heads=4, context=64)

GPT = Family(
    "gpt", GPTConfig, gpt, GPT_NAMES, KEYS,
    presets={"gpt": GPTConfig()}, tiny=GPTConfig(**TINY), objective="next_token", prefix="transformer",
    model_types=("openai-gpt",), reads={"afn": "str"}, absent={"afn": "gelu"},
    read=lambda hf_config: {"act": ACTS.get(hf_config["afn"], hf_config["afn"])},
    write=lambda c: {"afn": next(theirs for theirs, ours in ACTS.items() if ours == c.act)},
    paper="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
    heads={
        "lm": "OpenAIGPTLMHeadModel", "classify": "OpenAIGPTForSequenceClassification",
        "none": "OpenAIGPTModel",
    },
    copies={"lm_head.weight": "transformer.tokens_embed.weight"}, drop=("*.attn.bias", "*position_ids"),
)  # fmt: skip


GPT2 = Family(
    "gpt2", GPT2Config, gpt2, GPT2_NAMES, {
        **KEYS, "n_inner": "hidden", "activation_function": "act", "scale_attn_weights": "scaled",
        "scale_attn_by_inverse_layer_idx": "scaled_by_layer",
    },
    presets={
        "gpt2": GPT2Config(),
        "gpt2-medium": GPT2Config(dim=1024, layers=24, heads=16),
        "gpt2-large": GPT2Config(dim=1280, layers=36, heads=20),
        "gpt2-xl": GPT2Config(dim=1600, layers=48, heads=25),
    },
    tiny=GPT2Config(**TINY), objective="next_token", prefix="transformer", model_types=("gpt2",),
    heads={
        "lm": "GPT2LMHeadModel", "classify": "GPT2ForSequenceClassification",
        "tag": "GPT2ForTokenClassification", "span": "GPT2ForQuestionAnswering", "none": "GPT2Model",
    },
    require={"add_cross_attention": (False,)},
    copies={"lm_head.weight": "transformer.wte.weight", "output.weight": "token_embd.weight"},
    drop=("*.attn.bias", "*.attn.masked_bias"),
    gguf="gpt2", gguf_names=[("position_embd", "embed.position"), FUSED_QKV, *ROWS],
    gguf_keys=gguf_keys("gpt2", GPT2Config),
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
)  # fmt: skip

GPT3 = Family(
    "gpt3", GPT3Config, gpt3, GPT2_NAMES, {**GPT2.keys, "window": "window"},
    presets={"gpt3": GPT3Config()}, tiny=GPT3Config(**TINY, window=4), objective="next_token",
    prefix="transformer", heads={"lm": "GPT3LMHeadModel", "none": "GPT3Model"},
    copies=GPT2.copies, paper="Brown et al. 2020, arXiv 2005.14165",
)  # fmt: skip
