"""MPNet (Song et al. 2020, arXiv 2004.09297).

From RoBERTa:  distances in the scores too, in T5's buckets   no segments   WordPiece
Its objective, words predicted in a permuted order, is not built here: ours trains it on masked words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heedful.core.errors import ConfigError
from heedful.models.base import from_zero
from heedful.models.encoders.bert import (
    KEYS,
    ROBERTA,
    TINY,
    RobertaConfig,
    backbone_names,
    bert_encoder,
    roberta_head,
    roberta_head_names,
)
from heedful.nn.position import BucketBias
from heedful.weights.names import Row


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(RobertaConfig):
    vocab: int = 30527
    types: int = from_zero(0)

    def check(self) -> None:
        if (self.types, self.offset) != (0, 2):
            raise ConfigError("types and offset are fixed in an mpnet", hint="build a roberta")


def mpnet_names(c: MPNetConfig) -> list[Row]:
    layer = "mpnet.encoder.layer.*.attention"
    return [
        (f"{layer}.attn.{{q,k,v,o}}", "blocks.*.attn.{q,k,v,o}"),
        (f"{layer}.LayerNorm", "blocks.*.attn_norm"),
        ("mpnet.encoder.relative_attention_bias", "blocks.bias.table"),
        *backbone_names("mpnet"),
        *roberta_head_names(c),
    ]


MPNET = replace(
    ROBERTA, name="mpnet", config=MPNetConfig, names=mpnet_names, prefix="mpnet",
    build=lambda c: bert_encoder(c, roberta_head(c), BucketBias(c.heads, causal=False)),
    keys={theirs: ours for theirs, ours in KEYS.items() if ours != "types"}, model_types=("mpnet",),
    presets={"mpnet-base": MPNetConfig(), "all-mpnet-base-v2": MPNetConfig(head="none")},
    tiny=MPNetConfig(**TINY),
    heads={kind: name.replace("Roberta", "MPNet") for kind, name in ROBERTA.heads.items()},
    require={"relative_attention_num_buckets": (32,)}, fixed={"relative_attention_num_buckets": 32},
    read=lambda hf_config: {"context": hf_config["max_position_embeddings"] - 2},
    absent={"max_position_embeddings": 512, "layer_norm_eps": 1e-12},
    copies={
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    paper="Song et al. 2020, arXiv 2004.09297",
)  # fmt: skip
