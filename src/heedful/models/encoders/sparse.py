"""Encoders of long texts: Longformer (Beltagy et al. 2020), BigBird (Zaheer et al. 2020).

Attention compares every token with every other, so that a text eight times as long costs sixty-four times as
much. Longformer lets a token see a window around itself, so that the cost per token does not depend on the
length of the text. Information still crosses the text, a window per layer, and a few tokens see all and are
seen by all, such as the one that a class is read off. These have separate matrices for queries, keys and
values.

BigBird counts in blocks: each sees its neighbours, the first and the last block, and some drawn at random.
Random links make every two blocks near neighbours in a few steps, as in a small world, and the paper proves
that such a pattern can compute everything that full attention can. Both start from RoBERTa's weights.

From RoBERTa to Longformer:  a window of tokens   own matrices for the tokens that see all   4096 positions
From BERT to BigBird:        blocks of tokens see few blocks   4096 positions
"""

from __future__ import annotations

from functools import partial
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
from heedful.models.encoders.bert import (
    BERT,
    KEYS,
    ROBERTA,
    BertConfig,
    RobertaConfig,
    bert_encoder,
    encoder_head,
    pretrain_head,
    read_offset,
    roberta_head,
    write_offset,
)
from heedful.models.family import descend, published_heads
from heedful.nn.attention.multi_head import Attention
from heedful.nn.attention.sparse import BlockSparseAttention, WindowedAttention
from heedful.nn.ffn import activation
from heedful.nn.head import Pooler


def layer_windows(windows: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """One even window for each layer; the last stands for those that are not listed."""
    if any(window % 2 or window < 2 for window in windows):
        raise ConfigError(f"`windows={windows}` should be even: half of each lies on either side")
    return windows[:layers] + windows[-1:] * (layers - len(windows))


def read_windows(hf_config: dict[str, Any], layers: str) -> dict[str, Any]:
    """The windows, one number or a list, and how many tokens see all, if it is not said by the head."""
    windows = hf_config["attention_window"]
    every = (windows,) * hf_config[layers] if isinstance(windows, int) else tuple(windows)
    first = {"first": hf_config["first_tokens"]} if "first_tokens" in hf_config else {}
    return {"windows": every} | first


class LongformerConfig(RobertaConfig, context=4096):
    windows: tuple[int, ...] = derived(lambda c: (512,) * c.layers)  # of each layer, to both sides together
    first: int = derived(lambda c: int(c.head == "classify"), minimum=0)  # tokens that see all

    def check(self) -> None:
        object.__setattr__(self, "windows", layer_windows(self.windows, self.layers))


def windowed_attention(c: Any, layer: int) -> WindowedAttention:
    reach = c.windows[layer] // 2
    return WindowedAttention(c.dim, c.heads, reach=reach, first=c.first, dropout=c.dropout)


def longformer(c: LongformerConfig) -> LM:
    return bert_encoder(c, roberta_head(c), attn=partial(windowed_attention, c))


def write_longformer(c: LongformerConfig) -> dict[str, Any]:
    usual = int(c.head == "classify")
    return {
        **write_offset(c), "attention_window": list(c.windows),
        **({} if c.first == usual else {"first_tokens": c.first}),
    }  # fmt: skip


LONGFORMER = descend(
    ROBERTA, "longformer", LongformerConfig, build=longformer, prefix="longformer",
    own_names=[(
        "longformer.encoder.layer.*.attention.self.{query,key,value}_global",
        "blocks.*.attn.{first_q,first_k,first_v}",
    )],
    without=("windows", "first", "causal"),
    presets={"longformer-base-4096": {}, "longformer-large-4096": dict(dim=1024, layers=24, heads=16)},
    tiny=dict(windows=(4, 4)), heads=published_heads("Longformer", "span", words="mlm"), require={},
    read=lambda hf_config: read_offset(hf_config) | read_windows(hf_config, "num_hidden_layers"),
    write=write_longformer,
    reads={"pad_token_id": "int", "attention_window": "int | tuple[int, ...]", "first_tokens": "int"},
    absent={
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "vocab_size": 30522,
        "attention_window": 512, "num_hidden_layers": 12,
    },
    paper="Beltagy et al. 2020, arXiv 2004.05150",
)  # fmt: skip


class BigBirdConfig(
    BertConfig, vocab=50358, context=4096, act="gelu_new",
    pooler=derived(lambda c: c.head not in ("pretrain", "next")),
):  # fmt: skip
    sparse: bool = True
    block: int = 64  # tokens that see alike
    random: int = from_zero(3)  # blocks that a block sees at random
    bias: bool = True  # of queries, keys and values
    scale_embed: bool = False  # by √D


def block_attention(c: Any, layer: int, **more: Any) -> Attention:
    """Attention of blocks, or the plain one of a config that is not `sparse`."""
    options: dict[str, Any] = {"bias": c.bias, "dropout": c.dropout, **more}
    if not c.sparse:
        return Attention(c.dim, c.heads, **options)
    return BlockSparseAttention(c.dim, c.heads, block=c.block, random=c.random, layer=layer, **options)


def big_bird(c: BigBirdConfig) -> LM:
    pool = lambda: Pooler(c.dim, activation(c.act), c.dropout)
    head = encoder_head(c, pool, pretrain=lambda: pretrain_head(c))
    attn = partial(block_attention, c, out_bias=True)
    return bert_encoder(c, head, attn=attn, embed_scale=c.dim**0.5 if c.scale_embed else 1.0)


BIG_BIRD = descend(
    BERT, "big-bird", BigBirdConfig, build=big_bird,
    own_names=[
        ("bert.pooler", "head.kept.dense"), ("bert.pooler", "head.next.pool.dense"),
        ("classifier.{dense,out_proj}", "head.{pool.dense,label}"),
    ],
    keys={
        **KEYS, "block_size": "block", "num_random_blocks": "random", "use_bias": "bias",
        "rescale_embeddings": "scale_embed",
    },
    without=("sparse", "pooler", "causal"),
    presets={"bigbird-roberta-base": {}, "bigbird-roberta-large": dict(dim=1024, layers=24, heads=16)},
    tiny=dict(block=1, random=1), infer=None,
    heads={
        "pretrain": "BigBirdForPreTraining", "mlm": "BigBirdForMaskedLM", "none": "BigBirdModel",
        "tag": "BigBirdForTokenClassification", "classify": "BigBirdForSequenceClassification",
    },
    require={"is_decoder": (False,), "add_cross_attention": (False,)},
    read=lambda hf: {"sparse": hf.get("attention_type", "block_sparse") == "block_sparse"},
    write=lambda c: {"attention_type": "block_sparse" if c.sparse else "original_full"},
    reads={"attention_type": "str"}, paper="Zaheer et al. 2020, arXiv 2007.14062",
)  # fmt: skip
