"""BART (Lewis et al. 2020, arXiv 1910.13461), mBART (Liu et al. 2020), Marian's translation models
(Junczys-Dowmunt et al. 2018), Pegasus (Zhang et al. 2020), M2M-100 (Fan et al. 2021), NLLB (2022), PLBART
(Ahmad et al. 2021), MVP (Tang et al. 2023), Blenderbot (Roller et al. 2021), BigBird-Pegasus (Zaheer 2020).

From the Transformer:    learned positions   a norm after the embedding   GELU
From BART to Marian:     sinusoidal positions again, sines before cosines   no norm there   SiLU
From BART to LED:        Longformer's windows in the encoder, so that it reads 16,384 tokens
From BART to mBART:      norms before the parts
From Marian to Pegasus:  norms before the parts   ReLU
From Pegasus to M2M-100: sines whose frequencies fall a little faster   no shift of logits
From BART to PLBART:     smaller, and trained on programs
From BART to MVP:        the same, trained on many labelled tasks
From mBART to Blenderbot: no norm after the embedding   few layers in the encoder and many in the decoder
Blenderbot small:        BART, but the decoder has its norm before positions are added
From Pegasus to BigBird: BigBird's blocks in the encoder   learned positions
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import Seq2Seq, derived, from_zero
from heedful.models.encoder_decoders.transformer import TransformerConfig, transformer_stacks
from heedful.models.encoders.sparse import (
    BIG_BIRD,
    block_attention,
    layer_windows,
    read_windows,
    windowed_attention,
)
from heedful.models.family import declare, descend
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.head import ClassifyHead, LMHead, NoHead, Pooler, choose_head
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned, Sinusoidal
from heedful.weights.names import Row
from heedful.weights.ops import Reshape


class BartConfig(
    TransformerConfig, vocab=50265, dim=1024, layers=12, heads=16, act="gelu", start_token=from_zero(2),
    labels=3,
):  # fmt: skip
    context: int = 1024
    scale_embed: bool = False  # by √D
    tied: bool = True


class MarianConfig(
    BartConfig, vocab=58101, dim=512, layers=6, heads=8, context=512, act="swish", scale_embed=True,
    start_token=derived(lambda c: c.vocab - 1, minimum=0), labels=2,
):  # fmt: skip
    source_vocab: int = derived(lambda c: c.vocab)
    shared: bool = derived(lambda c: c.source_vocab == c.vocab)  # one table for source and target

    def check(self) -> None:
        super().check()
        if self.shared and self.source_vocab != self.vocab:
            raise ConfigError(
                f"`vocab={self.vocab}` must equal `source_vocab={self.source_vocab}` to share a table",
                hint="make them equal, or set `shared=False`",
            )


class LEDConfig(BartConfig, labels=2):
    source_context: int = 16384
    windows: tuple[int, ...] = derived(lambda c: (512,) * c.layers)  # of the encoder, to both sides together
    first: int = from_zero(0)  # tokens of the source that see all

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "windows", layer_windows(self.windows, self.layers))


class BigBirdPegasusConfig(
    BartConfig, vocab=96103, layers=16, context=4096, act="gelu_new", norm_first=True, scale_embed=True,
    labels=2,
):  # fmt: skip
    sparse: bool = True
    block: int = 64  # tokens that see alike
    random: int = from_zero(3)  # blocks that a block sees at random
    bias: bool = False  # of the attention's matrices


def bart(
    c: BartConfig, positions: tuple[Learned, Learned] | None = None,
    reader: Callable[[int], Part] | None = None, *, offset: int = 2, embed_norm: bool = True,
) -> Seq2Seq:  # fmt: skip
    """BART, or a descendant with other positions of source and target, or another attention to the source."""
    source, other = positions or (Learned(c.context, c.dim, offset) for _ in range(2))
    embed, target = (
        Embedding(
            c.vocab, c.dim, position=position, norm=LayerNorm(c.dim) if embed_norm else None,
            scale=embed_scale(c), dropout=c.dropout,
        )
        for position in (source, other)
    )  # fmt: skip
    head = choose_head(
        c.head,
        lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied, shift=True),
        classify=lambda: ClassifyHead(Pooler(c.dim, token="last"), c.dim, c.labels),
        none=NoHead,
    )
    if c.tied:
        target.token = embed.token  # one table for both; only positions and norms are their own
    else:
        head.keep(nn.Embedding(c.vocab, c.dim))  # the table for both, which the file has and nothing reads
    stacks = transformer_stacks(c, reader)
    return Seq2Seq(embed, *stacks, head, target_embed=target, start_token=c.start_token)


def led(c: LEDConfig) -> Seq2Seq:
    positions = (Learned(c.source_context, c.dim), Learned(c.context, c.dim))
    return bart(c, positions, partial(windowed_attention, c))


def blenderbot_small(c: BartConfig) -> Seq2Seq:
    """The target's norm comes before its positions are added, and its tokens are not scaled."""
    model = bart(c, offset=0)
    assert model.target_embed is not None
    model.target_embed.widen, model.target_embed.norm = LayerNorm(c.dim), None
    model.target_embed.scale = 1.0
    return model


def marian(c: MarianConfig, positions: Sinusoidal | None = None, shift: bool = True) -> Seq2Seq:
    positions = positions or Sinusoidal(c.dim, layout="halves")
    table = lambda vocab: Embedding(vocab, c.dim, position=positions, scale=embed_scale(c), dropout=c.dropout)
    target = None if c.shared else table(c.vocab)
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=True, shift=shift), none=NoHead)
    source, stacks = table(c.source_vocab), transformer_stacks(c)
    return Seq2Seq(source, *stacks, head, target_embed=target, start_token=c.start_token)


def m2m_100(c: MarianConfig) -> Seq2Seq:
    """The frequencies of fairseq's sines end at 1/10000, where others end just before."""
    half = c.dim // 2
    sines = Sinusoidal(c.dim, 10000.0 ** (half / (half - 1)), layout="halves", offset=2)
    return marian(c, sines, shift=False)


def embed_scale(c: BartConfig) -> float:
    return c.dim**0.5 if c.scale_embed else 1.0


TABLES: list[Row] = [
    ("model.{encoder,decoder}.embed_tokens", "{embed,target_embed}.token"),
    ("lm_head", "head.out"),
]
STACK_NAMES = [
    ("model.encoder.layers.*.self_attn.{q_proj,k_proj,v_proj,out_proj}", "encoder.*.attn.{q,k,v,o}"),
    ("model.encoder.layers.*.{fc1,fc2}", "encoder.*.ffn.{up,down}"),
    ("model.encoder.layers.*.{self_attn,final}_layer_norm", "encoder.*.{attn,ffn}_norm"),
    ("model.decoder.layers.*.self_attn.{q_proj,k_proj,v_proj,out_proj}", "decoder.*.attn.{q,k,v,o}"),
    ("model.decoder.layers.*.encoder_attn.{q_proj,k_proj,v_proj,out_proj}", "decoder.*.cross.{q,k,v,o}"),
    ("model.decoder.layers.*.{fc1,fc2}", "decoder.*.ffn.{up,down}"),
    ("model.decoder.layers.*.{self_attn,encoder_attn,final}_layer_norm", "decoder.*.{attn,cross,ffn}_norm"),
    ("model.{encoder,decoder}.layer_norm", "{encoder,decoder}.norm"),
    ("final_logits_bias", "head.shift", Reshape((1, -1))),
]

BART_NAMES: list[Row] = [
    ("model.encoder.{embed_positions,layernorm_embedding}", "embed.{position,norm}"),
    ("model.decoder.{embed_positions,layernorm_embedding}", "target_embed.{position,norm}"),
    *STACK_NAMES,
    ("classification_head.{dense,out_proj}", "head.{pool.dense,label}"),
]


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


BART = declare(
    "bart", BartConfig, bart,
    names=lambda c: [("model.shared", "embed.token" if c.tied else "head.kept"), *TABLES, *BART_NAMES],
    keys={"vocab_size": "vocab", "tie_word_embeddings": "tied", **KEYS},
    presets={"bart-base": dict(dim=768, layers=6, heads=12), "bart-large": {}}, tiny=dict(hidden=48),
    objective="denoise", prefix="model",
    heads={
        "lm": "BartForConditionalGeneration", "classify": "BartForSequenceClassification",
        "none": "BartModel",
    },
    require={
        "normalize_before": (False,), "normalize_embedding": (True,),
        "static_position_embeddings": (False,), "add_final_layer_norm": (False,),
    },
    drop=("*encoder.version", "*decoder.version"), paper="Lewis et al. 2020, arXiv 1910.13461",
)  # fmt: skip

LED = descend(
    BART, "led", LEDConfig, build=led, prefix="led", without=("windows", "first", "tied", "scale_embed"),
    own_names=[
        (
            "led.encoder.layers.*.self_attn.longformer_self_attn.{query,key,value}",
            "encoder.*.attn.{q,k,v}",
        ),
        (
            "led.encoder.layers.*.self_attn.longformer_self_attn.{query,key,value}_global",
            "encoder.*.attn.{first_q,first_k,first_v}",
        ),
        ("led.encoder.layers.*.self_attn.output", "encoder.*.attn.o"),
    ],
    keys={
        "max_encoder_position_embeddings": "source_context", "max_decoder_position_embeddings": "context",
    },
    presets={"led-base-16384": dict(dim=768, layers=6, heads=12), "led-large-16384": {}},
    tiny=dict(windows=(4, 4), source_context=64),
    heads={"lm": "LEDForConditionalGeneration", "none": "LEDModel"},
    require={"tie_word_embeddings": (True,)},
    absent={"attention_window": 512, "encoder_layers": 12},
    read=lambda hf: read_windows(hf, "encoder_layers"),
    write=lambda c: {
        "attention_window": list(c.windows), **({"first_tokens": c.first} if c.first else {}),
    },
    reads={"attention_window": "int | tuple[int, ...]", "first_tokens": "int"},
    paper="Beltagy et al. 2020, arXiv 2004.05150",
)  # fmt: skip

MBART = descend(
    BART, "mbart", sizes=dict(vocab=250054, norm_first=True, scale_embed=True, labels=2),
    presets={"mbart-large-50": {}}, require={},
    heads={kind: f"M{name}" for kind, name in BART.heads.items()},
    absent={"vocab_size": 50265, "scale_embedding": False},
    paper="Liu et al. 2020, arXiv 2001.08210",
)  # fmt: skip

PLBART = descend(
    BART, "plbart", presets={"plbart-base": {}}, require={},
    sizes=dict(vocab=50005, dim=768, layers=6, heads=12, scale_embed=True, labels=2),
    heads={kind: name.replace("Bart", "PLBart") for kind, name in BART.heads.items()},
    paper="Ahmad et al. 2021, arXiv 2103.06333",
)  # fmt: skip
MVP = descend(
    BART, "mvp", sizes=dict(vocab=50267, labels=2), presets={"mvp": {}}, require={"use_prompt": (False,)},
    heads={kind: name.replace("Bart", "Mvp") for kind, name in BART.heads.items()},
    paper="Tang et al. 2023, arXiv 2206.12131",
)  # fmt: skip

BLENDERBOT = descend(
    BART, "blenderbot", build=partial(bart, offset=0, embed_norm=False), require={},
    sizes=dict(
        vocab=8008, dim=2560, layers=2, heads=32, context=128, norm_first=True, start_token=from_zero(1),
        labels=2,
    ),
    presets={
        "blenderbot-400m-distill": dict(dim=1280, decoder_layers=12, scale_embed=True),
        "blenderbot-3b": dict(decoder_layers=24, scale_embed=True),
    },
    heads={"lm": "BlenderbotForConditionalGeneration", "none": "BlenderbotModel"},
    usual=lambda c: {"pad_token_id": 0},
    absent={"decoder_layers": 24, "encoder_ffn_dim": 10240, "decoder_ffn_dim": 10240},
    paper="Roller et al. 2021, arXiv 2004.13637",
)  # fmt: skip
BLENDERBOT_SMALL = descend(
    BART, "blenderbot-small", build=blenderbot_small, require={},
    sizes=dict(vocab=54944, dim=512, layers=8, context=512, start_token=from_zero(1), labels=2),
    own_names=[("model.decoder.layernorm_embedding", "target_embed.widen")],
    presets={"blenderbot-90m": dict(scale_embed=True)}, model_types=("blenderbot-small",),
    heads={"lm": "BlenderbotSmallForConditionalGeneration", "none": "BlenderbotSmallModel"},
    usual=lambda c: {"pad_token_id": 0}, absent={"vocab_size": 50265},
    paper="Roller et al. 2021, arXiv 2004.13637",
)  # fmt: skip

BIGBIRD_PEGASUS = descend(
    BART, "bigbird-pegasus", BigBirdPegasusConfig, without=("sparse",),
    build=lambda c: bart(c, reader=partial(block_attention, c), offset=0, embed_norm=False),
    own_names=[
        ("model.encoder.layers.*.self_attn.self.{query,key,value}", "encoder.*.attn.{q,k,v}"),
        ("model.encoder.layers.*.self_attn.output", "encoder.*.attn.o"),
        ("model.encoder.layernorm_embedding", "encoder.norm"),
        ("model.decoder.layernorm_embedding", "decoder.norm"),
    ],
    keys={"block_size": "block", "num_random_blocks": "random", "use_bias": "bias"},
    presets={"bigbird-pegasus-large-arxiv": {}}, tiny=dict(block=1, random=1),
    heads={kind: name.replace("Bart", "BigBirdPegasus") for kind, name in BART.heads.items()},
    require={}, usual=lambda c: {"pad_token_id": 0}, read=BIG_BIRD.read, write=BIG_BIRD.write,
    reads=BIG_BIRD.reads, paper="Zaheer et al. 2020, arXiv 2007.14062",
)  # fmt: skip

MARIAN = descend(
    BART, "marian", MarianConfig, build=marian, presets={"opus-mt-en-de": {}},
    names=lambda c: [
        *([("model.{shared,decoder.embed_tokens}", "embed.token")] if c.shared else []),
        *TABLES, *STACK_NAMES,
    ],
    without=("vocab", "tied", "source_vocab", "shared"), tiny=dict(start_token=0),
    objective="translate", heads={"lm": "MarianMTModel", "none": "MarianModel"},
    require={
        "tie_word_embeddings": (True,), "normalize_before": (False,), "normalize_embedding": (False,),
        "static_position_embeddings": (True,), "add_final_layer_norm": (False,),
    },
    absent={
        "d_model": 1024, "encoder_layers": 12, "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "decoder_layers": 12, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
        "max_position_embeddings": 1024, "activation_function": "gelu", "scale_embedding": False,
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

PEGASUS = descend(
    MARIAN, "pegasus", sizes=dict(
        vocab=96103, dim=1024, layers=16, heads=16, context=1024, act="relu", norm_first=True,
        start_token=from_zero(0),
    ),
    keys={"vocab_size": "vocab"}, without=("source_vocab", "shared"),
    presets={"pegasus-large": {}}, objective="denoise", require={"tie_word_embeddings": (True,)},
    heads={"lm": "PegasusForConditionalGeneration", "none": "PegasusModel"}, read=None, write=None, reads={},
    absent={
        "vocab_size": 50265, "encoder_layers": 12, "decoder_layers": 12, "activation_function": "gelu",
        "scale_embedding": False,
    },
    usual=lambda c: {"pad_token_id": 0}, paper="Zhang et al. 2020, arXiv 1912.08777",
)  # fmt: skip

M2M_100 = descend(
    PEGASUS, "m2m100", sizes=dict(vocab=128112, layers=12, start_token=from_zero(2)), build=m2m_100,
    objective="translate", model_types=("m2m_100",),
    presets={
        "m2m100-418m": {}, "nllb-200-distilled-600m": dict(vocab=256206),
        "nllb-200-3.3b": dict(vocab=256206, dim=2048, layers=24, hidden=8192),
    },
    heads={"lm": "M2M100ForConditionalGeneration", "none": "M2M100Model"},
    require={"tie_word_embeddings": (True,), "pad_token_id": (1,)},
    usual=lambda c: {"pad_token_id": 1},
    paper="Fan et al. 2021, arXiv 2010.11125",
)  # fmt: skip
