"""RoFormer (Su et al. 2021, arXiv 2104.09864), which brought rotary positions.

From BERT:  learned positions → rotary   no pooler   trained on masked words alone
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM
from heedful.models.encoders.bert import (
    BERT,
    TINY,
    BertConfig,
    backbone_names,
    bert_encoder,
    mlm_head,
    out_names,
    qkv_names,
)
from heedful.models.family import published_heads
from heedful.nn.attention.multi_head import head_size
from heedful.nn.ffn import activation
from heedful.nn.head import Pooler, choose_head, encoder_heads
from heedful.nn.position import Rotary
from heedful.weights.names import Row
from heedful.weights.ops import Pairs


@dataclass(frozen=True, kw_only=True)
class RoFormerConfig(BertConfig):
    vocab: int = 50000
    context: int = 1536
    head: str = "mlm"
    pooler: bool = False


def roformer(c: RoFormerConfig) -> LM:
    pool = lambda: Pooler(c.dim, activation(c.act), dropout=c.dropout)
    heads = encoder_heads(c.dim, c.labels, pool, c.dropout)
    head = choose_head(c.head, mlm=lambda: mlm_head(c), **heads)
    return bert_encoder(c, head, rotary=Rotary(head_size(c.dim, c.heads)))


def roformer_names(c: RoFormerConfig) -> list[Row]:
    """Published rotary pairs stand side by side."""
    theirs, pairs = "roformer.encoder.layer.*.attention.self", Pairs(c.heads)
    return [
        (f"{theirs}.{{query,key}}", "blocks.*.attn.{q,k}", pairs),
        *backbone_names("roformer"),
        qkv_names("roformer"),
        ("cls.predictions.transform.{dense,LayerNorm}", "head.{dense,norm}"),
        *out_names("cls.predictions", "head", c.tied),
        ("classifier.{dense,out_proj}", "head.{pool.dense,label}"),
        ("classifier", "head.tag"),
    ]


def read_roformer(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Token vectors as wide as the layers: files with narrow ones are not read."""
    dim = hf_config.get("hidden_size", 768)
    if (hf_config.get("embedding_size") or dim) != dim:
        raise ConfigError(
            f"config.json has embedding_size={hf_config['embedding_size']}", f"it must be {dim}"
        )
    return {}


ROFORMER = replace(
    BERT, name="roformer", config=RoFormerConfig, build=roformer, names=roformer_names, prefix="roformer",
    presets={"roformer-chinese-base": RoFormerConfig()}, tiny=RoFormerConfig(**TINY), objective="masked",
    model_types=("roformer",), heads=published_heads("RoFormer", words="mlm"),
    require={"rotary_value": (False,), "is_decoder": (False,), "add_cross_attention": (False,)},
    read=read_roformer, reads={"embedding_size": "int"}, write=lambda c: {"embedding_size": c.dim},
    infer=None,
    copies={theirs: ours.replace("bert.", "roformer.") for theirs, ours in BERT.copies.items()},
    drop=("*embed_positions.weight",), gguf="", gguf_names=(), gguf_keys={}, gguf_read=None, gguf_write=None,
    paper="Su et al. 2021, arXiv 2104.09864",
)  # fmt: skip
