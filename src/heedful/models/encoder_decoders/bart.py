"""BART (Lewis et al. 2020, arXiv 1910.13461) and Marian's translation models (Junczys-Dowmunt et al. 2018).

From the Transformer:    learned positions   a norm after the embedding   GELU
From BART to Marian:     sinusoidal positions again, sines before cosines   no norm there   SiLU
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import Family, Seq2Seq, derived, from_zero
from heedful.models.encoder_decoders.transformer import (
    TransformerConfig,
    transformer_decoder,
    transformer_encoder,
)
from heedful.nn.embedding import Embedding
from heedful.nn.head import ClassifyHead, LMHead, NoHead, Pooler, choose_head
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned, Sinusoidal
from heedful.weights.names import Row
from heedful.weights.ops import Row1


@dataclass(frozen=True, kw_only=True)
class BartConfig(TransformerConfig):
    vocab: int = 50265
    dim: int = 1024
    layers: int = 12
    heads: int = 16
    context: int = 1024
    act: str = "gelu"
    scale_embed: bool = False  # by √D
    start_token: int = from_zero(2)
    labels: int = 3


@dataclass(frozen=True, kw_only=True)
class MarianConfig(BartConfig):
    vocab: int = 58101
    source_vocab: int = derived(lambda c: c.vocab)
    shared: bool = derived(lambda c: c.source_vocab == c.vocab)  # one table for source and target
    dim: int = 512
    layers: int = 6
    heads: int = 8
    context: int = 512
    act: str = "swish"
    scale_embed: bool = True
    start_token: int = derived(lambda c: c.vocab - 1, minimum=0)

    def check(self) -> None:
        super().check()
        if self.shared and self.source_vocab != self.vocab:
            raise ConfigError(
                f"vocab={self.vocab} is not source_vocab={self.source_vocab}", hint="say shared=False"
            )


def bart(c: BartConfig) -> Seq2Seq:
    embed, target = (
        Embedding(
            c.vocab, c.dim, position=Learned(c.context, c.dim, offset=2), norm=LayerNorm(c.dim),
            scale=embed_scale(c), dropout=c.dropout,
        )
        for _ in ("source", "target")
    )  # fmt: skip
    target.token = embed.token  # one table for both; only positions and norms are their own
    head = choose_head(
        c.head,
        lm=lambda: LMHead(c.dim, c.vocab, tied=True, shift=True),
        classify=lambda: ClassifyHead(Pooler(c.dim, token="last"), c.dim, c.labels),
        none=NoHead,
    )
    stacks = transformer_encoder(c), transformer_decoder(c)
    return Seq2Seq(embed, *stacks, head, target_embed=target, start_token=c.start_token)


def marian(c: MarianConfig) -> Seq2Seq:
    positions = Sinusoidal(c.dim, layout="halves")
    table = lambda vocab: Embedding(vocab, c.dim, position=positions, scale=embed_scale(c), dropout=c.dropout)
    target = None if c.shared else table(c.vocab)
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=True, shift=True), none=NoHead)
    source, stacks = table(c.source_vocab), (transformer_encoder(c), transformer_decoder(c))
    return Seq2Seq(source, *stacks, head, target_embed=target, start_token=c.start_token)


def embed_scale(c: BartConfig) -> float:
    return c.dim**0.5 if c.scale_embed else 1.0


STACK_NAMES = [
    ("model.encoder.layers.*.self_attn.{q_proj,k_proj,v_proj,out_proj}", "encoder.*.attn.{q,k,v,o}"),
    ("model.encoder.layers.*.{fc1,fc2}", "encoder.*.ffn.{up,down}"),
    ("model.encoder.layers.*.{self_attn,final}_layer_norm", "encoder.*.{attn,ffn}_norm"),
    ("model.decoder.layers.*.self_attn.{q_proj,k_proj,v_proj,out_proj}", "decoder.*.attn.{q,k,v,o}"),
    ("model.decoder.layers.*.encoder_attn.{q_proj,k_proj,v_proj,out_proj}", "decoder.*.cross.{q,k,v,o}"),
    ("model.decoder.layers.*.{fc1,fc2}", "decoder.*.ffn.{up,down}"),
    ("model.decoder.layers.*.{self_attn,encoder_attn,final}_layer_norm", "decoder.*.{attn,cross,ffn}_norm"),
    ("final_logits_bias", "head.shift", Row1()),
]

BART_NAMES = [
    ("model.shared", "embed.token"),
    ("model.encoder.{embed_positions,layernorm_embedding}", "embed.{position,norm}"),
    ("model.decoder.{embed_positions,layernorm_embedding}", "target_embed.{position,norm}"),
    *STACK_NAMES,
    ("classification_head.{dense,out_proj}", "head.{pool.dense,label}"),
]


def marian_names(c: MarianConfig) -> list[Row]:
    source = "model.shared" if c.shared else "model.encoder.embed_tokens"
    return [(source, "embed.token"), ("model.decoder.embed_tokens", "target_embed.token"), *STACK_NAMES]


KEYS = {
    "d_model": "dim", "encoder_layers": "layers", "decoder_layers": "decoder_layers",
    "encoder_attention_heads": "heads", "decoder_attention_heads": "decoder_heads",
    "encoder_ffn_dim": "hidden", "decoder_ffn_dim": "decoder_hidden", "max_position_embeddings": "context",
    "activation_function": "act", "dropout": "dropout", "scale_embedding": "scale_embed",
    "decoder_start_token_id": "start_token",
}  # fmt: skip


def read_vocabularies(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Files without a target vocabulary have one for both."""
    source = hf_config["vocab_size"]
    shared = hf_config.get("share_encoder_decoder_embeddings", True)
    target = source if shared else hf_config.get("decoder_vocab_size") or source
    return {"source_vocab": source, "vocab": target, "shared": shared}


BART = Family(
    "bart", BartConfig, bart, BART_NAMES, {"vocab_size": "vocab", **KEYS},
    presets={"bart-base": BartConfig(dim=768, layers=6, heads=12), "bart-large": BartConfig()},
    tiny=BartConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64), objective="denoise",
    prefix="model", model_types=("bart",),
    heads={
        "lm": "BartForConditionalGeneration", "classify": "BartForSequenceClassification",
        "none": "BartModel",
    },
    require={
        "tie_word_embeddings": (True,), "normalize_before": (False,), "normalize_embedding": (True,),
        "static_position_embeddings": (False,), "add_final_layer_norm": (False,),
    },
    copies={
        "lm_head.weight": "model.decoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
    },
    drop=("*encoder.version", "*decoder.version"), paper="Lewis et al. 2020, arXiv 1910.13461",
)  # fmt: skip

MARIAN = replace(
    BART, name="marian", config=MarianConfig, build=marian, names=marian_names, keys=KEYS,
    presets={"opus-mt-en-de": MarianConfig()},
    tiny=MarianConfig(vocab=128, dim=32, layers=2, heads=4, hidden=48, context=64, start_token=0),
    objective="translate", model_types=("marian",), heads={"lm": "MarianMTModel", "none": "MarianModel"},
    require={
        "tie_word_embeddings": (True,), "normalize_before": (False,), "normalize_embedding": (False,),
        "static_position_embeddings": (True,), "add_final_layer_norm": (False,),
    },
    absent={
        "d_model": 1024, "encoder_layers": 12, "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "decoder_layers": 12, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
        "max_position_embeddings": 1024, "activation_function": "gelu", "scale_embedding": False,
        "num_labels": 2,
    },
    read=read_vocabularies, write=lambda c: {
        "vocab_size": c.source_vocab, "decoder_vocab_size": c.vocab,
        "share_encoder_decoder_embeddings": c.shared,
    },
    # Every published Marian model begins what it writes with the token that pads.
    usual=lambda c: {"pad_token_id": c.start_token},
    reads={"vocab_size": "int", "decoder_vocab_size": "int", "share_encoder_decoder_embeddings": "bool"},
    drop=("*embed_positions.weight",),  # tables of sines, computed here
    paper="Junczys-Dowmunt et al. 2018, arXiv 1804.00344",
)  # fmt: skip
