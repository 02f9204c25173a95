"""CLIP (Radford et al. 2021, arXiv 2103.00020): images and texts in one space, so that words can name images.

A text and an image become one vector each, and training pulls the two of a pair together and all others of
the batch apart. A label is then a sentence such as "a photo of a cat": no classifier has to be trained.

From GPT-2 to the text encoder:  the vector of the end token, projected   x σ(1.702 x) for GELU
From ViT to the image encoder:   a norm before the blocks   no bias of patches   the class token, projected
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor

from heedful.core.errors import ConfigError
from heedful.core.images import ImageProcessor
from heedful.models.base import LM, DualEncoder, MediaLM, derived
from heedful.models.calls import ForwardOptions
from heedful.models.family import PlainConfig, declare, descend
from heedful.models.hf_config import read_part
from heedful.models.vision.vit import VIT, ViTConfig, read_size, vit_encoder, write_size
from heedful.nn.context import Context
from heedful.nn.embedding import Embedding, PatchEmbedding
from heedful.nn.head import NoHead, PooledTokens, ProjectHead, choose_head
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Learned
from heedful.weights.names import Row
from heedful.weights.ops import Reshape

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of their images
HIGHEST = 2  # the `eos` of early files, which means the token with the highest id


class ClipTextConfig(
    PlainConfig, vocab=49408, dim=512, heads=8, act="quick_gelu", dropout=0.0, head="project"
):  # fmt: skip
    context: int = 77
    project_dim: int = 512
    eos: int = derived(lambda c: c.vocab - 1, minimum=0)  # the token whose vector stands for the text


class ClipVisionConfig(
    ViTConfig, patch=32, norm_eps=1e-5, act="quick_gelu", head="project", pooler=False
):  # fmt: skip
    project_dim: int = 512

    def check(self) -> None:
        super().check()
        if self.first != 1 or not self.bias or self.pooler:
            raise ConfigError("an image encoder of CLIP has one class token, biases and no pooler")


class ClipConfig(ClipTextConfig, head="contrast"):
    """Fields without a prefix are the text encoder's; the image encoder's begin with `image_`."""

    height: int = 224  # of an image, in pixels
    width: int = derived(lambda c: c.height)
    channels: int = 3
    patch: int = 32
    image_dim: int = 768
    image_layers: int = 12
    image_heads: int = 12
    image_hidden: int = derived(lambda c: 4 * c.image_dim)
    image_act: str = "quick_gelu"
    image_norm_eps: float = 1e-5
    image_dropout: float = 0.0

    @property
    def text(self) -> ClipTextConfig:
        """The text encoder alone."""
        return ClipTextConfig(**{n: getattr(self, n) for n in TEXT_FIELDS}, project_dim=self.project_dim)

    @property
    def vision(self) -> ClipVisionConfig:
        """The image encoder alone."""
        fields = {n: getattr(self, image_field(n)) for n in IMAGE_FIELDS}
        return ClipVisionConfig(**fields, width=self.width, project_dim=self.project_dim)

    def check(self) -> None:
        if self.head != "contrast":
            raise ConfigError(
                f"`head={self.head!r}` is not one of clip, which compares texts and images",
                hint="model.text and model.image are its two encoders",
            )
        self.vision.check()


class ClipText(LM):
    """An LM whose head reads the end token."""

    def read(
        self, tokens: Tensor, *, path: str = "", **how: Unpack[ForwardOptions]
    ) -> tuple[Tensor, Context]:
        """For the head a text ends at its first end token; one without any, at its last token."""
        hidden, ctx = super().read(tokens, path=path, **how)
        end = self.config.eos  # type: ignore[attr-defined]
        ends = tokens == (tokens.amax(1, keepdim=True) if end == HIGHEST else end)
        read = (ends.cumsum(1) - ends.long()) == 0  # up to the first end, that one included
        return hidden, replace(ctx, valid_new=read if ctx.valid_new is None else ctx.valid_new & read)


def clip_text(c: ClipTextConfig) -> ClipText:
    embed = Embedding(c.vocab, c.dim, position=Learned(c.context, c.dim))
    head = choose_head(
        c.head, project=lambda: ProjectHead(PooledTokens("last"), c.dim, c.project_dim), none=NoHead
    )
    return ClipText(embed, vit_encoder(c), head)


def clip_vision(c: ClipVisionConfig) -> MediaLM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    size, pool = (c.height, c.width), lambda: PooledTokens("first", norm())
    embed = PatchEmbedding(size, c.patch, c.channels, c.dim, bias=False, norm=norm())
    head = choose_head(
        c.head, project=lambda: ProjectHead(pool(), c.dim, c.project_dim), none=lambda: NoHead(pool())
    )
    model = MediaLM(embed, vit_encoder(c, last_norm=False), head, causal=False)
    model.image_processor = ImageProcessor(*size, c.channels, MEAN, STD, resample=3)
    model.image_processor = replace(model.image_processor, crop=size, shortest=max(size))
    return model


def clip(c: ClipConfig) -> DualEncoder:
    text, image = clip_text(c.text), clip_vision(c.vision)
    text.config, text.family = c.text, CLIP_TEXT
    image.config, image.family = c.vision, CLIP_VISION
    return DualEncoder(text, image)


LAYERS = [
    ("self_attn.{q_proj,k_proj,v_proj,out_proj}", "attn.{q,k,v,o}"),
    ("mlp.{fc1,fc2}", "ffn.{up,down}"),
    ("layer_norm{1,2}", "{attn,ffn}_norm"),
]


def text_names(c: ClipTextConfig, at: str = "") -> list[Row]:
    return [
        ("text_model.embeddings.{token,position}_embedding", f"{at}embed.{{token,position}}"),
        *((f"text_model.encoder.layers.*.{theirs}", f"{at}blocks.*.{ours}") for theirs, ours in LAYERS),
        ("text_model.final_layer_norm", f"{at}blocks.norm"),
        ("text_projection", f"{at}head.project"),
    ]


def vision_names(c: ClipVisionConfig, at: str = "") -> list[Row]:
    patches = Reshape((-1, c.channels, c.patch, c.patch))
    return [
        ("vision_model.embeddings.class_embedding", f"{at}embed.first.0"),
        ("vision_model.embeddings.patch_embedding.weight", f"{at}embed.token.weight", patches),
        ("vision_model.embeddings.position_embedding", f"{at}embed.position"),
        ("vision_model.pre_layrnorm", f"{at}embed.norm"),
        *((f"vision_model.encoder.layers.*.{theirs}", f"{at}blocks.*.{ours}") for theirs, ours in LAYERS),
        ("vision_model.post_layernorm", f"{at}head.pool.norm"),
        ("visual_projection", f"{at}head.project"),
    ]


def image_field(name: str) -> str:
    """The name in `ClipConfig` of a field of the image encoder."""
    return name if name in ("height", "channels", "patch") else f"image_{name}"


CLIP_TEXT = declare(
    "clip-text-model", ClipTextConfig, clip_text, names=text_names, without=("tied",),
    keys={"projection_dim": "project_dim", "layer_norm_eps": "norm_eps", "eos_token_id": "eos"},
    absent={"eos_token_id": 49407}, presets={}, tiny=dict(head="project", project_dim=20),
    prefix="text_model", heads={"project": "CLIPTextModelWithProjection", "none": "CLIPTextModel"},
    objective="contrast", paper="Radford et al. 2021, arXiv 2103.00020",
)  # fmt: skip
CLIP_VISION = descend(
    VIT, "clip-vision-model", ClipVisionConfig, build=clip_vision, names=vision_names,
    keys={"attention_dropout": "dropout", "projection_dim": "project_dim"},
    without=("first", "bias", "pooler"), absent={"patch_size": 32}, presets={}, tiny=dict(project_dim=20),
    prefix="vision_model", heads={"project": "CLIPVisionModelWithProjection", "none": "CLIPVisionModel"},
    objective="contrast", require={}, infer=None, paper=CLIP_TEXT.paper,
)  # fmt: skip

TEXT_FIELDS = [*dict.fromkeys(CLIP_TEXT.keys.values())]
TEXT_FIELDS.remove("project_dim")
IMAGE_FIELDS = [n for n in dict.fromkeys(CLIP_VISION.keys.values()) if n != "project_dim"] + ["height"]


def read_parts(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Our fields from the two configs that a published one holds; early files have each twice."""
    values: dict[str, Any] = {}
    for kind, family in (("text", CLIP_TEXT), ("vision", CLIP_VISION)):
        part = hf_config.get(f"{kind}_config_dict") or hf_config.get(f"{kind}_config") or {}
        part = {**family.absent, **{key: value for key, value in part.items() if value is not None}}
        name = image_field if kind == "vision" else str
        keys = {theirs: name(ours) for theirs, ours in family.keys.items() if ours != "project_dim"}
        values |= read_part(ClipConfig, part, keys, f"{kind}_config")
        if kind == "vision":
            values |= read_size(part)
    return values


def write_parts(c: ClipConfig) -> dict[str, Any]:
    """The two published configs of ours."""
    text = {theirs: getattr(c.text, ours) for theirs, ours in CLIP_TEXT.keys.items()}
    vision = {theirs: getattr(c.vision, ours) for theirs, ours in CLIP_VISION.keys.items()}
    return {
        "text_config": text | {"model_type": "clip_text_model"},
        "vision_config": vision | write_size(c.vision) | {"model_type": "clip_vision_model"},
    }


B16: dict[str, Any] = dict(patch=16)
L14: dict[str, Any] = dict(
    dim=768, heads=12, project_dim=768, patch=14, image_dim=1024, image_layers=24, image_heads=16
)
CLIP = declare(
    "clip", ClipConfig, clip, names=lambda c: [
        *text_names(c.text, "text."), *vision_names(c.vision, "image."), ("logit_scale", "head.scale")
    ],
    keys={"projection_dim": "project_dim"},
    without=[name for name in ClipConfig.field_names() if name != "project_dim"],
    presets={
        "clip-vit-base-patch32": {}, "clip-vit-base-patch16": B16, "clip-vit-large-patch14": L14,
        "clip-vit-large-patch14-336": dict(**L14, height=336),
    },
    tiny=dict(
        head="contrast", project_dim=20, height=8, width=16, patch=4, image_dim=24, image_layers=2,
        image_heads=3, image_hidden=40,
    ),
    heads={"contrast": "CLIPModel"}, objective="contrast", read=read_parts, write=write_parts,
    reads={f"{kind}_config{end}": "dict" for kind in ("text", "vision") for end in ("", "_dict")},
    merges=("text_config", "vision_config"), paper=CLIP_TEXT.paper,
)  # fmt: skip
