"""The decoders of BART and its relatives alone, and TrOCR's (Li et al. 2023, arXiv 2109.10282).

An encoder-decoder that should only continue a text needs neither its encoder nor the attention to it. What
remains is a GPT with the habits of its family. The `model_type` of a published file does not say which of
the two it is. Its class does: BartForConditionalGeneration or BartForCausalLM. Files of the second class
still have the attention to an encoder. Nothing reads it, and it is kept so that saving gives it back.

From BART to its decoder:  no encoder   no attention to one   no shift of logits
From BART's to TrOCR's:    positions may be sines   the norm after the embedding may be missing
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch import nn

from heedful.models.base import LM, Config
from heedful.models.decoders.gpt_lineage.gpt_relatives import XGLMConfig, layer_names
from heedful.models.encoder_decoders import bart
from heedful.models.family import Family, declare
from heedful.models.shared import decoder_head, plain_stack
from heedful.nn.embedding import Embedding
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned, Sinusoidal
from heedful.weights.names import Row


class BartDecoderConfig(XGLMConfig, vocab=50265, layers=12, context=1024, scale_embed=False):
    cross: bool = False  # keep the attention to an encoder, which published files have and nothing reads


class BigBirdPegasusDecoderConfig(
    BartDecoderConfig, context=4096, act="gelu_new", scale_embed=True, tied=False
):
    bias: bool = False  # of the attention's matrices


class TrOCRDecoderConfig(BartDecoderConfig, context=512):
    learned_positions: bool = True  # else sines
    embed_norm: bool = True


def bart_decoder(
    c: Any, order: Literal["pre", "post"] = "post", offset: int = 2, norm_at: Literal[0, 1, 2] = 2,
    sines: Sinusoidal | None = None,
) -> LM:  # fmt: skip
    """The decoder of BART, or of a relative with other positions and norms elsewhere.

    The embedding's norm comes after positions are added (`norm_at=2`), before (1, where a scale would change
    nothing), or is missing (0).
    """
    scale = c.dim**0.5 if c.scale_embed else 1.0
    norm = lambda: LayerNorm(c.dim)
    embed = Embedding(
        c.vocab, c.dim, position=sines or Learned(c.context, c.dim, offset), dropout=c.dropout,
        norm=norm() if norm_at == 2 else None, scale=1.0 if norm_at == 1 else scale,
        widen=norm() if norm_at == 1 else None,
    )  # fmt: skip
    head = decoder_head(c)
    if c.cross:
        square = lambda: nn.Linear(c.dim, c.dim, bias=vars(c).get("bias", True))
        unread = lambda: nn.ModuleDict({"norm": norm()} | {name: square() for name in "qkvo"})
        head.keep(nn.ModuleList([unread() for _ in range(c.layers)]))
    return LM(embed, plain_stack(c, order=order), head)


def trocr_decoder(c: TrOCRDecoderConfig) -> LM:
    sines = Sinusoidal(c.dim, 10000.0 ** (c.dim / (c.dim - 2)), layout="halves", offset=2)
    return bart_decoder(c, norm_at=2 if c.embed_norm else 0, sines=None if c.learned_positions else sines)


def sine_decoder(c: BartDecoderConfig, order: Literal["pre", "post"]) -> LM:
    return bart_decoder(c, order, norm_at=0, sines=Sinusoidal(c.dim, layout="halves"))


STEM = "model.decoder"
KEYS = {
    "vocab_size": "vocab", "d_model": "dim", "decoder_layers": "layers", "decoder_attention_heads": "heads",
    "decoder_ffn_dim": "hidden", "max_position_embeddings": "context", "activation_function": "act",
    "scale_embedding": "scale_embed", "dropout": "dropout", "tie_word_embeddings": "tied",
}  # fmt: skip


NAMES: list[Row] = [
    *layer_names(STEM),
    (f"{STEM}.layers.*.encoder_attn.{{q_proj,k_proj,v_proj,out_proj}}", "head.kept.*.{q,k,v,o}"),
    (f"{STEM}.layers.*.encoder_attn_layer_norm", "head.kept.*.norm"),
]  # fmt: skip
OPTIONS: dict[str, Any] = dict(
    names=[(f"{STEM}.layernorm_embedding", "embed.norm"), *NAMES], without=("cross",),
    infer=lambda names, values: {"cross": any(".encoder_attn." in n for n in names)} if names else {},
    keys=KEYS, presets={}, tiny=dict(hidden=48), prefix="model", drop=("*embed_positions.weights",),
    copies={"lm_head.weight": f"{STEM}.embed_tokens.weight"},
    write=lambda c: {"is_decoder": True, "is_encoder_decoder": False},
)  # fmt: skip


def decoder_alone(parent: Family, config: type[Config] = BartDecoderConfig, **changes: Any) -> Family:
    """The decoder of a published encoder-decoder. A silent file means what it means to the parent's class."""
    whole = parent.config.strict()
    absent = {theirs: getattr(whole, parent.keys[theirs]) for theirs in KEYS if theirs in parent.keys}
    own: dict[str, Any] = {
        "build": bart_decoder, "heads": {"lm": parent.heads["none"].removesuffix("Model") + "ForCausalLM"},
        "model_types": parent.model_types, "absent": {**absent, **parent.absent}, "usual": parent.usual,
        "drop": parent.drop, "paper": parent.paper,
    }  # fmt: skip
    return declare(f"{parent.name}-decoder", config, **OPTIONS | own | changes)


BART = decoder_alone(bart.BART)
PLBART = decoder_alone(bart.PLBART)
MVP = decoder_alone(bart.MVP, require=bart.MVP.require)
MBART = decoder_alone(bart.MBART, build=partial(bart_decoder, order="pre"))
MARIAN = decoder_alone(
    bart.MARIAN, build=partial(sine_decoder, order="post"), usual=lambda c: {"pad_token_id": c.vocab - 1}
)  # fmt: skip
PEGASUS = decoder_alone(bart.PEGASUS, build=partial(sine_decoder, order="pre"))
BLENDERBOT = decoder_alone(bart.BLENDERBOT, build=partial(bart_decoder, order="pre", offset=0, norm_at=0))
BLENDERBOT_SMALL = decoder_alone(
    bart.BLENDERBOT_SMALL, build=partial(bart_decoder, offset=0, norm_at=1),
    names=[(f"{STEM}.layernorm_embedding", "embed.widen"), *NAMES],
)  # fmt: skip
BIGBIRD_PEGASUS = decoder_alone(
    bart.BIGBIRD_PEGASUS, BigBirdPegasusDecoderConfig, copies={},
    keys={theirs: ours for theirs, ours in KEYS.items() if ours != "tied"} | {"use_bias": "bias"},
    without=("cross", "tied"),  # its class ties nothing
    build=partial(bart_decoder, order="pre", offset=0, norm_at=0),
    names=[(f"{STEM}.layernorm_embedding", "blocks.norm"), *NAMES],
)  # fmt: skip
TROCR = declare(
    "trocr", TrOCRDecoderConfig, trocr_decoder, heads={"lm": "TrOCRForCausalLM"}, model_types=("trocr",),
    **OPTIONS | dict(
        keys={
            **KEYS, "use_learned_position_embeddings": "learned_positions",
            "layernorm_embedding": "embed_norm",
        },
        names=[("output_projection", "head.out"), *OPTIONS["names"]],
        copies={"output_projection.weight": f"{STEM}.embed_tokens.weight"},
    ),
    require={"cross_attention_hidden_size": (None,)}, paper="Li et al. 2023, arXiv 2109.10282",
)  # fmt: skip
