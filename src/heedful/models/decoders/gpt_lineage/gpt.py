"""GPT (Radford et al. 2018), GPT-2 (Radford et al. 2019), GPT-3 (Brown et al. 2020, arXiv 2005.14165).

From the Transformer:  the decoder alone   learned positions   GELU
From GPT to GPT-2:     norm before each part instead of after   a last norm
From GPT-2 to GPT-3:   every other layer sees only a band of the nearest positions

GPT-Neo (Black et al. 2021), SantaCoder and StarCoder (Ben Allal et al. 2023; Li et al. 2023, 2305.06161).

From GPT-3 to GPT-Neo:     scores not divided by √K   biases only after attention and in feed-forward
From GPT-2 to SantaCoder:  one key and value head for all

OPT (Zhang et al. 2022, arXiv 2205.01068).

From GPT-3 to OPT:  every layer sees everything before it   ReLU
OPT 350m:  norms after each part instead of before   token vectors narrower than the layers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, derived
from heedful.models.family import PlainConfig, declare, descend, published_heads
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.models.shared import decoder_head, plain_stack
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, activation
from heedful.nn.position import Learned
from heedful.weights.names import Row
from heedful.weights.ops import Fused, PerHead, Transposed


class GPTConfig(PlainConfig, vocab=40478, act="gelu_new"):
    context: int = 512


class GPT2Config(GPTConfig, vocab=50257, context=1024):
    scaled: bool = True  # scores, by 1/√K
    scaled_by_layer: bool = False  # scores of layer i by 1/i, too (Karamcheti et al. 2021, Mistral)


class GPT3Config(GPT2Config, dim=12288, layers=96, heads=96, context=2048):
    window: int = 256  # of every other layer; the paper gives no number


def gpt_embedding(c: GPTConfig) -> Embedding:
    return Embedding(c.vocab, c.dim, position=Learned(c.context, c.dim), dropout=c.dropout)


def gpt_attention(c: Any, **more: Any) -> Attention:
    return Attention(c.dim, c.heads, **{"bias": True, "dropout": c.dropout} | more)


def gpt_decoder(c: Any, embed: Embedding | None = None, *, word_bias: bool = False, **layers: Any) -> LM:
    """GPT-2, or a descendant with another embedding, or other `layers` (see plain_stack)."""
    head = decoder_head(c, dropout=c.dropout, bias=word_bias)
    return LM(embed or gpt_embedding(c), plain_stack(c, **layers), head)


# GPT's name → ours: what it calls gelu is the approximation by tanh that others call gelu_new.
ACTS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "swish"}


def gpt(c: GPTConfig) -> LM:
    if c.act not in ACTS.values():
        raise ConfigError(
            f"`act={c.act!r}` has no name in a published gpt", hint=f"use {', '.join(ACTS.values())}"
        )
    if c.hidden != 4 * c.dim:
        raise ConfigError(
            f"`hidden={c.hidden}` must be 4 · dim = {4 * c.dim} in a gpt", hint="build a gpt2 for others"
        )
    return gpt_decoder(c, order="post")


def gpt2(c: GPT2Config, attn: Callable[[int], Attention] | None = None) -> LM:
    """GPT-2, or a descendant whose layer i has the attention `attn(i)`."""
    scale = head_size(c.dim, c.heads) ** -0.5 if c.scaled else 1.0
    attn = attn or (lambda i: gpt_attention(c, scale=scale / (i + 1 if c.scaled_by_layer else 1)))
    return gpt_decoder(c, attn=attn)


BLOCK_NAMES = [
    ("transformer.h.*.attn.c_attn", QKV, Fused(transposed=True)),
    ("transformer.h.*.attn.c_proj", "blocks.*.attn.o", Transposed()),
    ("transformer.h.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}", Transposed()),
    ("transformer.h.*.{ln_1,ln_2}", "blocks.*.{attn_norm,ffn_norm}"),
    ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
]

GPT2_NAMES = [
    ("transformer.wte", "embed.token"),
    ("transformer.wpe", "embed.position"),
    ("transformer.ln_f", "blocks.norm"),
    *BLOCK_NAMES,
]

KEYS = {
    "vocab_size": "vocab", "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_positions": "context",
    "layer_norm_epsilon": "norm_eps", "tie_word_embeddings": "tied",
    "resid_pdrop": "dropout", "attn_pdrop": "dropout", "embd_pdrop": "dropout",
}  # fmt: skip
GPT2_KEYS = {**KEYS, "n_inner": "hidden", "activation_function": "act"}

GPT = declare(
    "gpt", GPTConfig, gpt, names=[
        ("transformer.tokens_embed", "embed.token"),
        ("transformer.positions_embed", "embed.position"),
        *BLOCK_NAMES,
    ],
    keys=KEYS, without=("act", "hidden"), presets={"gpt": {}},
    prefix="transformer", model_types=("openai-gpt",), reads={"afn": "str"}, absent={"afn": "gelu"},
    read=lambda hf_config: {"act": ACTS.get(hf_config["afn"], hf_config["afn"])},
    write=lambda c: {"afn": next(theirs for theirs, ours in ACTS.items() if ours == c.act)},
    paper="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
    heads={
        "lm": "OpenAIGPTLMHeadModel", "classify": "OpenAIGPTForSequenceClassification",
        "none": "OpenAIGPTModel",
    },
    drop=("*.attn.bias",),
)  # fmt: skip


GPT2 = declare(
    "gpt2", GPT2Config, gpt2, names=GPT2_NAMES,
    keys={
        **GPT2_KEYS, "scale_attn_weights": "scaled", "scale_attn_by_inverse_layer_idx": "scaled_by_layer",
    },
    presets={
        "gpt2": {},
        "gpt2-medium": dict(dim=1024, layers=24, heads=16),
        "gpt2-large": dict(dim=1280, layers=36, heads=20),
        "gpt2-xl": dict(dim=1600, layers=48, heads=25),
    },
    prefix="transformer",
    heads={
        "lm": "GPT2LMHeadModel", "classify": "GPT2ForSequenceClassification",
        "tag": "GPT2ForTokenClassification", "span": "GPT2ForQuestionAnswering", "none": "GPT2Model",
    },
    model_types=("gpt2", "gpt-sw3"),  # GPT-SW3 differs by its sizes and its tokenizer
    require={"add_cross_attention": (False,)},
    drop=("*.attn.bias",), gguf="gpt2",
    gguf_names=[("position_embd", "embed.position"), FUSED_QKV, *ROWS],
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
)  # fmt: skip

GPT3 = declare(
    "gpt3", GPT3Config,
    lambda c: gpt2(c, lambda i: gpt_attention(c, window=c.window if i % 2 else None)),
    names=GPT2_NAMES, keys={**GPT2.keys, "window": "window"}, presets={"gpt3": {}},
    tiny=dict(window=4), prefix="transformer", heads={"lm": "GPT3LMHeadModel", "none": "GPT3Model"},
    model_types=(),
    paper="Brown et al. 2020, arXiv 2005.14165",
)  # fmt: skip


class GPTNeoConfig(GPT2Config, dim=2048, layers=24, heads=16, context=2048, dropout=0.0, scaled=False):
    window: int = 256  # how far a position sees in the layers that `near` lists
    near: tuple[int, ...] = derived(lambda c: tuple(range(1, c.layers, 2)))


class BigCodeConfig(
    GPT2Config, vocab=49152, dim=6144, layers=40, heads=48, context=8192, act="gelu_pytorch_tanh",
):  # fmt: skip
    kv_heads: int = 1

    def check(self) -> None:
        if self.kv_heads not in (1, self.heads):
            raise ConfigError(f"`kv_heads={self.kv_heads}` must be 1 or {self.heads}, as many as heads")


def gpt_neo(c: GPTNeoConfig) -> LM:
    plain: dict[str, Any] = {"bias": False, "out_bias": True, "scale": None if c.scaled else 1.0}
    return gpt2(c, lambda i: gpt_attention(c, window=c.window if i in c.near else None, **plain))


def bigcode(c: BigCodeConfig) -> LM:
    scale = None if c.scaled else 1.0
    return gpt2(c, lambda i: gpt_attention(c, kv_heads=c.kv_heads, scale=scale))


def read_gpt_neo(hf_config: dict[str, Any]) -> dict[str, Any]:
    """`attention_types` lists pairs: kinds of layers, and how often they are repeated."""
    kinds = [kind for group, times in hf_config["attention_types"] for kind in group * times]
    return {"near": tuple(i for i, kind in enumerate(kinds) if kind == "local")}


def write_gpt_neo(c: GPTNeoConfig) -> dict[str, Any]:
    kinds = ["local" if i in c.near else "global" for i in range(c.layers)]
    return {"attention_types": [[kinds, 1]], "attention_layers": kinds}


GPT_NEO = descend(
    GPT2, "gpt-neo", GPTNeoConfig, build=gpt_neo, own_names=[
        ("transformer.h.*.attn.attention.{q,k,v,out}_proj", "blocks.*.attn.{q,k,v,o}"),
        ("transformer.h.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}"),
    ],
    without=("near", "scaled_by_layer", "scaled"),
    presets={
        "gpt-neo-125m": dict(dim=768, layers=12, heads=12), "gpt-neo-1.3b": {},
        "gpt-neo-2.7b": dict(dim=2560, layers=32, heads=20),
    },
    tiny=dict(window=4), heads=published_heads("GPTNeo"), read=read_gpt_neo, write=write_gpt_neo,
    keys={
        "hidden_size": "dim", "num_layers": "layers", "num_heads": "heads", "intermediate_size": "hidden",
        "max_position_embeddings": "context", "activation_function": "act", "layer_norm_epsilon": "norm_eps",
        "window_size": "window", "resid_dropout": "dropout", "embed_dropout": "dropout",
        "attention_dropout": "dropout",
    },
    require={}, absent={"attention_types": [[["global", "local"], 12]]}, reads={"attention_types": "list"},
    paper="Black et al. 2021, GPT-Neo",
)  # fmt: skip

BIGCODE = descend(
    GPT2, "gpt-bigcode", BigCodeConfig, build=bigcode, own_names=lambda c: [
        # Keys and values are fused head by head, or follow the queries if heads share them.
        ("transformer.h.*.attn.c_attn", QKV, Fused() if c.kv_heads == 1 else PerHead(c.heads)),
        ("transformer.h.*.attn.c_proj", "blocks.*.attn.o"),
        ("transformer.h.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}"),
    ],
    without=("kv_heads", "scaled_by_layer"),
    presets={
        "starcoder": {}, "starcoderbase-1b": dict(dim=2048, layers=24, heads=16),
        "santacoder": dict(vocab=49280, dim=2048, layers=24, heads=16, context=2048),
    },
    heads=published_heads("GPTBigCode", "span"), gguf="starcoder",
    read=lambda hf: {"kv_heads": 1 if hf.get("multi_query", True) else hf.get("n_head", 12)},
    write=lambda c: {"multi_query": c.kv_heads == 1}, reads={"multi_query": "bool", "n_head": "int"},
    absent={"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    paper="Li et al. 2023, arXiv 2305.06161",
)  # fmt: skip


class OPTConfig(Config, vocab=50272, dim=768, layers=12):
    table_dim: int = derived(lambda c: c.dim)  # of the token vectors
    heads: int = 12
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "relu"
    norm_first: bool = True  # before each part, or after it
    no_last_norm: bool = False  # as in early conversions
    bias: bool = True  # of the layers' matrices
    dropout: float = 0.1
    tied: bool = True


def opt(c: OPTConfig) -> LM:
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    project = lambda size, to: None if c.table_dim == c.dim else nn.Linear(size, to, bias=False)
    positions, widen = Learned(c.context, c.dim, offset=2), project(c.table_dim, c.dim)
    embed = Embedding(c.vocab, c.table_dim, position=positions, widen=widen)
    blocks = plain_stack(
        c, ffn=ffn, order="pre" if c.norm_first else "post", last_norm=not c.no_last_norm,
        narrow=project(c.dim, c.table_dim),
    )  # fmt: skip
    return LM(embed, blocks, decoder_head(c, dim=c.table_dim, dropout=c.dropout))


NAMES: list[Row] = [
    ("model.decoder.embed_{tokens,positions}", "embed.{token,position}"),
    ("model.decoder.project_{in,out}", "{embed.widen,blocks.narrow}"),
    ("model.decoder.layers.*.self_attn.{q,k,v,out}_proj", "blocks.*.attn.{q,k,v,o}"),
    ("model.decoder.layers.*.{fc1,fc2}", "blocks.*.ffn.{up,down}"),
    ("model.decoder.layers.*.{self_attn,final}_layer_norm", "blocks.*.{attn,ffn}_norm"),
    ("model.decoder.final_layer_norm", "blocks.norm"),
    ("{lm_head,score,qa_outputs}", "head.{out,label,span}"),
]
SIZES: dict[str, tuple[int, int, int]] = {  # dim, layers, heads
    "125m": (768, 12, 12), "1.3b": (2048, 24, 32), "2.7b": (2560, 32, 32), "6.7b": (4096, 32, 32),
    "13b": (5120, 40, 40), "30b": (7168, 48, 56), "66b": (9216, 64, 72), "175b": (12288, 96, 96),
}  # fmt: skip

OPT = declare(
    "opt", OPTConfig, opt, names=NAMES,
    keys=dict(
        word_embed_proj_dim="table_dim", ffn_dim="hidden", activation_function="act", dropout="dropout",
        do_layer_norm_before="norm_first", enable_bias="bias", _remove_final_layer_norm="no_last_norm",
    ),
    presets={
        "opt-350m": dict(dim=1024, table_dim=512, layers=24, heads=16, norm_first=False),
        **{f"opt-{s}": dict(dim=dim, layers=n, heads=heads) for s, (dim, n, heads) in SIZES.items()},
    },
    tiny=dict(hidden=48), prefix="model", heads=published_heads("OPT", "tag"),
    require={"layer_norm_elementwise_affine": (True,)},
    paper="Zhang et al. 2022, arXiv 2205.01068",
)  # fmt: skip
