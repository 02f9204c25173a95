"""Relatives of GPT-2 that need no new part: CTRL (Keskar et al. 2019, arXiv 1909.05858), XGLM (Lin et al.
2022, arXiv 2112.10668), BioGPT (Luo et al. 2022, arXiv 2210.10341).

CTRL was the first large model that one could steer: every training text begins with a word that says where it
comes from (Wikipedia, Reviews, Links), so that the same word, put before a prompt, chooses the style. XGLM is
a GPT for thirty languages, BioGPT one for abstracts of medical papers. All three differ from GPT-2 by small
habits: embeddings times the root of their width, as in the paper of 2017, and positions of two kinds.

From GPT-2 to CTRL:   sines instead of learned positions   embeddings times √D   ReLU
From GPT-2 to XGLM:   sines whose frequencies fall a little faster, from the second on   embeddings times √D
From XGLM to BioGPT:  learned positions
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from heedful.models.base import LM, Config, derived
from heedful.models.decoders.gpt_lineage.gpt import gpt_decoder
from heedful.models.family import declare, descend, published_heads, published_keys
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned, Sinusoidal
from heedful.weights.names import Row


class XGLMConfig(Config, vocab=256008, dim=1024, layers=24):
    heads: int = 16
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "gelu"
    scale_embed: bool = True  # by √D
    dropout: float = 0.1
    tied: bool = True


class CTRLConfig(Config, vocab=246534, dim=1280, layers=48):
    heads: int = 16
    hidden: int = 8192
    context: int = 256  # trained on; sines have no end
    dropout: float = 0.1
    tied: bool = True


def scaled_decoder(c: Any, position: Learned | Sinusoidal, *, scale: bool = True, **more: Any) -> LM:
    """GPT-2 with other positions, whose embeddings are multiplied by √D."""
    factor = c.dim**0.5 if scale else 1.0
    embed = Embedding(c.vocab, c.dim, position=position, scale=factor, dropout=c.dropout)
    return gpt_decoder(c, embed, **more)


def ctrl(c: CTRLConfig) -> LM:
    return scaled_decoder(
        c, Sinusoidal(c.dim, layout="halves"), norm=lambda: LayerNorm(c.dim, 1e-6), word_bias=True,
        ffn=lambda i: MLP(c.dim, c.hidden, F.relu),
    )  # fmt: skip


def xglm(c: XGLMConfig) -> LM:
    half = c.dim // 2
    sines = Sinusoidal(c.dim, 10000.0 ** (half / (half - 1)), layout="halves", offset=2)
    return scaled_decoder(c, sines, scale=c.scale_embed)


def layer_names(stem: str) -> list[Row]:
    layer = f"{stem}.layers.*"
    return [
        (f"{stem}.embed_{{tokens,positions}}", "embed.{token,position}"),
        (f"{layer}.self_attn.{{q,k,v,out}}_proj", "blocks.*.attn.{q,k,v,o}"),
        (f"{layer}.{{fc1,fc2}}", "blocks.*.ffn.{up,down}"),
        (f"{layer}.{{self_attn,final}}_layer_norm", "blocks.*.{attn,ffn}_norm"),
        (f"{stem}.layer_norm", "blocks.norm"),
        ("{lm_head,score,classifier}", "head.{out,label,tag}"),
    ]


XGLM_KEYS = {
    "vocab_size": "vocab", "d_model": "dim", "num_layers": "layers", "attention_heads": "heads",
    "ffn_dim": "hidden", "max_position_embeddings": "context", "activation_function": "act",
    "scale_embedding": "scale_embed", "dropout": "dropout", "attention_dropout": "dropout",
    "tie_word_embeddings": "tied",
}  # fmt: skip

XGLM = declare(
    "xglm", XGLMConfig, xglm, names=layer_names("model"), keys=XGLM_KEYS,
    presets={"xglm-564m": {}, "xglm-1.7b": dict(dim=2048)}, tiny=dict(hidden=48), prefix="model",
    heads={"lm": "XGLMForCausalLM", "none": "XGLMModel"}, require={"add_cross_attention": (False,)},
    copies={"lm_head.weight": "model.embed_tokens.weight"}, drop=("*embed_positions.weights",),
    paper="Lin et al. 2022, arXiv 2112.10668",
)  # fmt: skip

BIOGPT = descend(
    XGLM, "biogpt", sizes=dict(vocab=42384, context=1024), prefix="biogpt",
    build=lambda c: scaled_decoder(c, Learned(c.context, c.dim, offset=2), scale=c.scale_embed),
    names=[("output_projection", "head.out"), *layer_names("biogpt")],
    without=XGLM_KEYS.values(), keys=published_keys(
        XGLMConfig, hidden_dropout_prob="dropout", attention_probs_dropout_prob="dropout",
        scale_embedding="scale_embed",
    ),
    presets={"biogpt": {}, "biogpt-large": dict(vocab=57717, dim=1600, layers=48, heads=25, context=2048)},
    heads=published_heads("BioGpt", "span"), require={}, drop=(),
    copies={"output_projection.weight": "biogpt.embed_tokens.weight"},
    paper="Luo et al. 2022, arXiv 2210.10341",
)  # fmt: skip

CTRL = declare(
    "ctrl", CTRLConfig, ctrl, names=[
        ("transformer.w", "embed.token"),
        ("transformer.h.*.multi_head_attention.{Wq,Wk,Wv,dense}", "blocks.*.attn.{q,k,v,o}"),
        ("transformer.h.*.ffn.{0,2}", "blocks.*.ffn.{up,down}"),
        ("transformer.h.*.layernorm{1,2}", "blocks.*.{attn,ffn}_norm"),
        ("transformer.layernorm", "blocks.norm"),
        ("{lm_head,classifier}", "head.{out,label}"),
    ],
    keys={
        "vocab_size": "vocab", "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "dff": "hidden",
        "n_positions": "context", "tie_word_embeddings": "tied", "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
    },
    presets={"ctrl": {}}, tiny=dict(hidden=48), prefix="transformer",
    heads={"lm": "CTRLLMHeadModel", "classify": "CTRLForSequenceClassification", "none": "CTRLModel"},
    require={"layer_norm_epsilon": (1e-6,)}, copies={"lm_head.weight": "transformer.w.weight"},
    paper="Keskar et al. 2019, arXiv 1909.05858",
)  # fmt: skip
