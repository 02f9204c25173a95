"""ViT (Dosovitskiy et al. 2021, arXiv 2010.11929) before a decoder: TrOCR (Li et al. 2023, arXiv 2109.10282),
and captions by GPT-2.

From the Transformer:  the encoder is ViT or DeiT (vit.py)
TrOCR's decoder:       BART's, with its own output matrix; keys and values read ViT's own width
GPT-2's decoder:       norms before each part, a cross-attention between the two
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.core.images import ImageProcessor
from heedful.models.base import MediaSeq2Seq, derived, from_zero
from heedful.models.decoders.bart_decoders import TROCR
from heedful.models.encoder_decoders.bart import STACK_NAMES
from heedful.models.encoders.bert import infer_pooler
from heedful.models.family import PlainConfig, declare
from heedful.models.hf_config import read_part
from heedful.models.shared import plain_stack
from heedful.models.vision.vit import (
    VIT,
    ViTConfig,
    patch_embedding,
    read_size,
    vit_encoder,
    vit_names,
    write_size,
)
from heedful.nn.attention.multi_head import CrossAttention
from heedful.nn.embedding import Embedding
from heedful.nn.head import LMHead, Pooler, choose_head
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned, Sinusoidal
from heedful.weights.names import Row
from heedful.weights.ops import Fused, Transposed

# Where the norms of each decoder stand: after its parts, as in BART, or before them.
DECODERS: dict[str, Literal["pre", "post"]] = {"trocr": "post", "gpt2": "pre"}


class VisionConfig(PlainConfig, vocab=50265, dim=1024, heads=16):
    """Fields without a prefix are the decoder's, which writes; the encoder's begin with `encoder_`."""

    decoder: str = "trocr"  # or gpt2
    context: int = 512
    act: str = derived(lambda c: "gelu_new" if c.decoder == "gpt2" else "gelu")
    learned_positions: bool = True  # else sines
    embed_norm: bool = derived(lambda c: c.decoder == "trocr")
    scale_embed: bool = False  # by √D
    start_token: int = from_zero(2)
    height: int = 384  # of an image, in pixels
    width: int = derived(lambda c: c.height)
    channels: int = 3
    patch: int = 16
    first: int = 1  # learned vectors before the patches: the class token, and DeiT's second
    encoder_dim: int = 768
    encoder_layers: int = 12
    encoder_heads: int = 12
    encoder_hidden: int = derived(lambda c: 4 * c.encoder_dim)
    encoder_act: str = "gelu"
    encoder_norm_eps: float = 1e-12
    encoder_dropout: float = 0.0
    encoder_bias: bool = True  # of queries, keys and values
    memory_dim: int = derived(lambda c: c.encoder_dim if c.decoder == "trocr" else c.dim)  # of keys' input
    pooler: bool = False  # keep one that the file has and nothing reads

    @property
    def vit(self) -> ViTConfig:
        """The encoder alone."""
        own = {name.removeprefix("encoder_"): getattr(self, name) for name in ENCODER_KEYS.values()}
        return ViTConfig(height=self.height, width=self.width, first=self.first, **own)

    def check(self) -> None:
        check_choice("decoder", self.decoder, DECODERS, ConfigError)
        if self.decoder == "gpt2" and (self.embed_norm or self.scale_embed or not self.learned_positions):
            raise ConfigError(
                "a gpt2 decoder has learned positions, no norm there and no scale",
                hint="take `decoder='trocr'`",
            )
        if self.memory_dim not in (self.encoder_dim, self.dim) or (
            self.decoder == "gpt2" and self.memory_dim != self.dim
        ):
            raise ConfigError(
                f"`memory_dim={self.memory_dim}` is neither `encoder_dim={self.encoder_dim}` "
                f"nor `dim={self.dim}`",
                hint="leave it out",
            )
        if self.decoder == "trocr" and self.norm_eps != 1e-5:
            raise ConfigError(
                f"`norm_eps={self.norm_eps}` is 1e-5 in every trocr decoder", hint="leave it out"
            )
        self.vit.check()


def vision(c: VisionConfig) -> MediaSeq2Seq:
    project = None if c.memory_dim == c.encoder_dim else nn.Linear(c.encoder_dim, c.dim)
    target = Embedding(
        c.vocab, c.dim, position=text_positions(c),
        norm=LayerNorm(c.dim, c.norm_eps) if c.embed_norm else None,
        scale=c.dim**0.5 if c.scale_embed else 1.0, dropout=c.dropout,
    )  # fmt: skip
    cross = lambda i: CrossAttention(c.dim, c.heads, bias=True, dropout=c.dropout, memory_dim=c.memory_dim)
    decoder = plain_stack(c, cross=cross, order=DECODERS[c.decoder])
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied))
    head = head.keep(Pooler(c.encoder_dim)) if c.pooler else head
    model = MediaSeq2Seq(
        patch_embedding(c.vit), vit_encoder(c.vit), decoder, head,
        target_embed=target, project=project, start_token=c.start_token,
    )  # fmt: skip
    model.image_processor = ImageProcessor(c.height, c.width, c.channels)
    return model


def text_positions(c: VisionConfig) -> Learned | Sinusoidal:
    """The decoder's positions; TrOCR's begin at 2, and its sines are spaced as in fairseq."""
    offset = 2 if c.decoder == "trocr" else 0
    if c.learned_positions:
        return Learned(c.context, c.dim, offset)
    return Sinusoidal(c.dim, 10000.0 ** (c.dim / (c.dim - 2)), layout="halves", offset=offset)


def vision_names(c: VisionConfig) -> list[Row]:
    return [
        *vit_names(c.vit, "encoder", "encoder"),
        ("enc_to_dec_proj", "project"),
        *(GPT2_NAMES if c.decoder == "gpt2" else TROCR_NAMES),
    ]


TROCR_NAMES: list[Row] = [
    ("decoder.model.decoder.embed_{tokens,positions}", "target_embed.{token,position}"),
    ("decoder.model.decoder.layernorm_embedding", "target_embed.norm"),
    *((f"decoder.{theirs}", *ours) for theirs, *ours in STACK_NAMES),
    ("decoder.output_projection", "head.out"),
]

HEADS_OF_GPT2 = ("decoder.*.attn.q", "decoder.*.attn.k", "decoder.*.attn.v")
GPT2_NAMES: list[Row] = [
    ("decoder.transformer.{wte,wpe}", "target_embed.{token,position}"),
    ("decoder.transformer.h.*.attn.c_attn", HEADS_OF_GPT2, Fused(transposed=True)),
    ("decoder.transformer.h.*.attn.c_proj", "decoder.*.attn.o", Transposed()),
    ("decoder.transformer.h.*.crossattention.q_attn", "decoder.*.cross.q", Transposed()),
    (
        "decoder.transformer.h.*.crossattention.c_attn",
        ("decoder.*.cross.k", "decoder.*.cross.v"),
        Fused(transposed=True),
    ),
    ("decoder.transformer.h.*.crossattention.c_proj", "decoder.*.cross.o", Transposed()),
    ("decoder.transformer.h.*.mlp.{c_fc,c_proj}", "decoder.*.ffn.{up,down}", Transposed()),
    ("decoder.transformer.h.*.{ln_1,ln_cross_attn,ln_2}", "decoder.*.{attn,cross,ffn}_norm"),
    ("decoder.transformer.ln_f", "decoder.norm"),
    ("decoder.lm_head", "head.out"),
]

ENCODER_KEYS = {
    theirs: ours if ours in ("channels", "patch") else f"encoder_{ours}"
    for theirs, ours in VIT.keys.items()
    if theirs != "attention_probs_dropout_prob"  # the same number again
}
DECODER_KEYS = {
    "trocr": TROCR.keys,
    "gpt2": {
        "vocab_size": "vocab", "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_inner": "hidden",
        "n_positions": "context", "activation_function": "act", "layer_norm_epsilon": "norm_eps",
        "resid_pdrop": "dropout", "tie_word_embeddings": "tied",
    },
}  # fmt: skip
ENCODERS = {1: "vit", 2: "deit"}  # learned vectors before the patches → the published encoder
# What a published config need not say, where ours says something else.
UNSAID: dict[str, dict[str, int]] = {
    "gpt2": {"vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_positions": 1024}
}
GPT2_REQUIRED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}


def read_parts(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Our fields from the two configs that a published one holds."""
    values: dict[str, Any] = {}
    parts = {"encoder": tuple(ENCODERS.values()), "decoder": tuple(DECODERS)}
    for name, kinds in parts.items():
        part, kind = hf_config[name], hf_config[name].get("model_type")
        if kind not in kinds:
            raise ConfigError(
                f'config.json has a {name} with "model_type": {kind!r:.80}',
                hint=f"built here: {', '.join(kinds)}",
            )
        part = UNSAID.get(kind, {}) | {key: value for key, value in part.items() if value is not None}
        keys = ENCODER_KEYS if name == "encoder" else DECODER_KEYS[kind]
        values |= read_part(VisionConfig, part, keys, name)
        if name == "encoder":
            values |= read_size(part)
            values["first"] = 1 + parts["encoder"].index(kind)
            continue
        wrong = [key for key, value in GPT2_REQUIRED.items() if part.get(key, value) != value]
        if kind == "gpt2" and wrong:
            raise ConfigError(
                f'config.json: "{wrong[0]}": {part[wrong[0]]!r:.80} of the decoder is not supported'
            )
        own = (hf_config.get("decoder_start_token_id"), part.get("decoder_start_token_id"))
        first = next((i for i in (*own, part.get("bos_token_id")) if i is not None), 0)
        values |= {"decoder": kind, "start_token": first}
        values["memory_dim"] = part.get("cross_attention_hidden_size") if kind == "trocr" else None
        values["memory_dim"] = values["memory_dim"] or values.get("dim", VisionConfig.dim)
    return values


def write_parts(c: VisionConfig) -> dict[str, Any]:
    """The two published configs of ours."""
    encoder = {theirs: getattr(c, ours) for theirs, ours in ENCODER_KEYS.items()}
    decoder = {theirs: getattr(c, ours) for theirs, ours in DECODER_KEYS[c.decoder].items()}
    decoder |= {"model_type": c.decoder, "is_decoder": True, "add_cross_attention": True}
    if c.decoder == "trocr":
        decoder["cross_attention_hidden_size"] = c.memory_dim if c.memory_dim == c.encoder_dim else None
        decoder["decoder_start_token_id"] = c.start_token
    return {
        "encoder": encoder | write_size(c.vit) | {"model_type": ENCODERS[c.first]},
        "decoder": decoder,
        "decoder_start_token_id": c.start_token,
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
    }


VISION = declare(
    "vision-encoder-decoder", VisionConfig, vision, names=vision_names, without=VisionConfig.field_names(),
    presets={
        "trocr-base-printed": dict(encoder_bias=False, pooler=True),
        "vit-gpt2-image-captioning": dict(
            decoder="gpt2", vocab=50257, dim=768, heads=12, context=1024, start_token=50256, height=224,
            pooler=True
        ),
    },
    tiny=dict(
        hidden=48, height=8, width=16, patch=4, encoder_dim=24, encoder_layers=2, encoder_heads=3,
        encoder_hidden=40,
    ),
    objective="translate", model_types=("vision-encoder-decoder",), heads={"lm": "VisionEncoderDecoderModel"},
    read=read_parts,
    reads={"encoder": "dict", "decoder": "dict"}, write=write_parts, merges=("encoder", "decoder"),
    infer=infer_pooler,  # most files have the encoder's pooler, which nothing reads
    drop=("*.attn.bias", "*.crossattention.bias", "*._float_tensor"),
    paper="Dosovitskiy et al. 2021, arXiv 2010.11929; Li et al. 2023, arXiv 2109.10282",
)  # fmt: skip
