"""ViT (Dosovitskiy et al. 2021, arXiv 2010.11929), DeiT (Touvron et al. 2021, arXiv 2012.12877).

From BERT to ViT:  an image cut into patches   norms before each part   the class token is a learned vector
From ViT to DeiT:  a second learned token, for distillation
"""

from __future__ import annotations

from typing import Any

from heedful.core.errors import ConfigError
from heedful.core.images import ImageProcessor
from heedful.models.base import MediaLM, derived, from_zero
from heedful.models.encoders.bert import LARGE, infer_pooler
from heedful.models.family import PlainConfig, declare, descend
from heedful.models.shared import plain_stack
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Stack
from heedful.nn.embedding import PatchEmbedding
from heedful.nn.head import ClassifyHead, NoHead, PooledTokens, Pooler, choose_head
from heedful.weights.names import Row
from heedful.weights.ops import Reshape


class ViTConfig(PlainConfig, vocab=from_zero(0), norm_eps=1e-12, dropout=0.0, head="classify"):
    height: int = 224  # of an image, in pixels
    width: int = derived(lambda c: c.height)
    channels: int = 3
    patch: int = 16
    first: int = 1  # learned vectors before the patches: the class token, and DeiT's second
    bias: bool = True  # of queries, keys and values
    pooler: bool = derived(lambda c: c.head == "none")  # keep one that nothing reads

    def check(self) -> None:
        if self.vocab:
            raise ConfigError(f"`vocab={self.vocab}`, but a vit reads no words", hint="leave it out")
        if self.first not in (1, 2):
            raise ConfigError(f"`first={self.first}` is neither ViT's class token nor DeiT's two tokens")


def vit(c: ViTConfig) -> MediaLM:
    head = choose_head(
        c.head, classify=lambda: ClassifyHead(PooledTokens("first"), c.dim, c.labels), none=NoHead
    )
    head = head.keep(Pooler(c.dim)) if c.pooler else head
    model = MediaLM(patch_embedding(c), vit_encoder(c), head, causal=False)
    model.image_processor = ImageProcessor(c.height, c.width, c.channels)
    return model


def patch_embedding(c: ViTConfig) -> PatchEmbedding:
    return PatchEmbedding((c.height, c.width), c.patch, c.channels, c.dim, first=c.first, dropout=c.dropout)


def vit_encoder(c: Any, **layers: Any) -> Stack:
    bias = vars(c).get("bias", True)
    attn = lambda i: Attention(c.dim, c.heads, bias=bias, out_bias=True, dropout=c.dropout)
    return plain_stack(c, attn=attn, **layers)


def vit_names(c: ViTConfig, stem: str = "vit", stack: str = "blocks") -> list[Row]:
    layer, patches = f"{stem}.encoder.layer.*", f"{stem}.embeddings.patch_embeddings.projection"
    return [
        (f"{stem}.embeddings.cls_token", "embed.first.0", Reshape((1, 1, -1))),
        (f"{stem}.embeddings.distillation_token", "embed.first.1", Reshape((1, 1, -1))),
        (f"{stem}.embeddings.position_embeddings", "embed.position.weight", Reshape((1, -1, c.dim))),
        (f"{patches}.weight", "embed.token.weight", Reshape((-1, c.channels, c.patch, c.patch))),
        (f"{patches}.bias", "embed.token.bias"),
        (f"{layer}.attention.attention.{{query,key,value}}", f"{stack}.*.attn.{{q,k,v}}"),
        (f"{layer}.attention.output.dense", f"{stack}.*.attn.o"),
        (f"{layer}.{{intermediate,output}}.dense", f"{stack}.*.ffn.{{up,down}}"),
        (f"{layer}.{{layernorm_before,layernorm_after}}", f"{stack}.*.{{attn_norm,ffn_norm}}"),
        (f"{stem}.layernorm", f"{stack}.norm"),
        (f"{stem}.pooler.dense", "head.kept.dense"),
        ("classifier", "head.label"),
    ]


def read_size(hf_config: dict[str, Any]) -> dict[str, Any]:
    size = hf_config.get("image_size", 224)
    return dict(zip(("height", "width"), size if isinstance(size, list) else (size, size), strict=True))


def write_size(c: ViTConfig) -> dict[str, Any]:
    return {"image_size": c.height if c.height == c.width else [c.height, c.width]}


VIT = declare(
    "vit", ViTConfig, vit, names=vit_names, without=("vocab", "tied"),
    keys={
        "layer_norm_eps": "norm_eps", "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "dropout", "qkv_bias": "bias", "num_channels": "channels",
        "patch_size": "patch",
    },
    presets={
        "vit-base-patch16-224": dict(labels=1000), "vit-base-patch16-384": dict(height=384, labels=1000),
        "vit-large-patch16-224": dict(**LARGE, labels=1000),
    },
    tiny=dict(vocab=0, hidden=48, height=8, width=16, patch=4, labels=5),
    objective="classify", prefix="vit", heads={"classify": "ViTForImageClassification", "none": "ViTModel"},
    require={"pooler_act": ("tanh",)}, read=read_size, write=write_size,
    reads={"image_size": "int | tuple[int, ...]"}, infer=infer_pooler,
    paper="Dosovitskiy et al. 2021, arXiv 2010.11929",
)  # fmt: skip

DEIT = descend(
    VIT, "deit", sizes=dict(first=2), prefix="deit",
    presets={"deit-tiny-patch16-224": dict(dim=192, heads=3, labels=1000)}, without=("first",),
    heads={"classify": "DeiTForImageClassification", "none": "DeiTModel"},
    paper="Touvron et al. 2021, arXiv 2012.12877",
)  # fmt: skip
