"""Descendants of LLaMA that need no new part.

Arcee:      SwiGLU → an MLP with squared ReLU
Ministral:  three of four layers have Mistral's window
Seed-OSS:   biases on queries, keys and values
Granite:    embeddings, scores, what a part adds and logits are each multiplied by a constant
Nemotron:   RMSNorm → LayerNorm that multiplies by 1 + γ   an MLP with squared ReLU   half of each head turned

Helium:     rotary pairs side by side
Ernie 4.5:  rotary pairs side by side, perhaps biases everywhere
Jais 2:     Nemotron with plain LayerNorm, biases, and whole heads turned
HyperCLOVA: Granite with norms before and after the parts
CWM:        three of four layers have a window, the first of four sees all
Persimmon:  an MLP with squared ReLU   LayerNorm, also of queries and keys   half of each head turned   biases

StarCoder2 (Lozhkov et al. 2024, arXiv 2402.19173).

From LLaMA to StarCoder2:  RMSNorm → LayerNorm   SwiGLU → GELU MLP   biases   each position sees a window

StableLM 3B, and StableLM 2 (Bellagente et al. 2024, arXiv 2402.17834).

From LLaMA to StableLM:  RMSNorm → LayerNorm   rotary in a quarter of each head
StableLM 2 1.6B:  biases on queries, keys and values
StableLM 2 12B:  attention and feed-forward side by side
                 queries and keys normalised, each head by its own norm

Command R and R+ (Cohere 2024), Command R7B and A (Cohere 2025, arXiv 2504.00698).

From StableLM 12B to Command R:  norms without shift   rotary in the whole head   logits times a constant
From Command R to R7B:  three of four layers see a window, and the others have no rotary positions

GLM-4 (GLM Team 2024, arXiv 2406.12793), in the format of transformers: GLM-4-9B and GLM-4-0414.

From LLaMA to GLM-4-9B:  biases on queries, keys and values   rotary in half of each head
                         few key and value heads
From it to GLM-4-0414:  norms after the parts, too
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.llama_lineage.gemma import sandwich
from heedful.models.decoders.llama_lineage.llama import (
    LLAMA,
    MISTRAL,
    DecoderConfig,
    LlamaConfig,
    MistralConfig,
    PartialRotaryConfig,
    llama,
    llama_attention,
    paired_rows,
)
from heedful.models.decoders.llama_lineage.phi import GATE_UP
from heedful.models.family import descend, gguf_keys, no_token_ids, published_heads
from heedful.models.gguf_config import QKV, ROWS
from heedful.nn.attention.multi_head import head_size
from heedful.nn.block import Block, ParallelBlock, SandwichBlock
from heedful.nn.context import Part
from heedful.nn.ffn import MLP, GatedMLP, activation
from heedful.nn.norm import HeadLayerNorm, LayerNorm, OffsetLayerNorm, RMSNorm
from heedful.nn.position import Llama3Scaling
from heedful.weights.names import Row
from heedful.weights.ops import Fused, MinusOne, PerHead, Stacked


class MinistralConfig(MistralConfig):
    local: tuple[int, ...] = derived(lambda c: tuple(range(c.layers)))  # layers with the window


class SeedOSSConfig(
    LlamaConfig, vocab=155136, dim=5120, layers=64, heads=80, kv_heads=8, head_dim=128, hidden=27648,
    context=524288, rope_base=1e7,
):  # fmt: skip
    bias: bool = True  # of queries, keys and values
    out_bias: bool = False


class GraniteConfig(LlamaConfig, vocab=49155, context=4096, norm_eps=1e-5, tied=True):
    embed_scale: float = 12.0
    score_scale: float = 0.0078125
    residual_scale: float = 0.22  # of what a part adds
    logit_divisor: float = 16.0


class NemotronConfig(
    PartialRotaryConfig, vocab=256000, dim=3072, heads=24, hidden=9216, context=4096, act="relu2",
    norm_eps=1e-5,
):  # fmt: skip
    bias: bool = False
    ffn_bias: bool = False


class Ernie45Config(
    DecoderConfig, vocab=103424, dim=1024, layers=18, heads=16, kv_heads=2, head_dim=128, hidden=3072,
    context=131072, rope_base=500000.0, norm_eps=1e-5, tied=True,
):  # fmt: skip
    bias: bool = False  # of all matrices but the output's


class HyperCLOVAXConfig(LlamaConfig):
    embed_scale: float = 1.0
    score_scale: float = derived(lambda c: c.head_dim**-0.5)
    residual_scale: float = 1.0  # of what a part adds
    logit_scale: float = 1.0
    post_norm: bool = True


class PersimmonConfig(
    PartialRotaryConfig, vocab=262144, layers=36, heads=64, hidden=16384, context=16384, act="relu2",
    rope_base=25000.0, norm_eps=1e-5,
):  # fmt: skip
    qk_norm: bool = True

    def check(self) -> None:
        super().check()
        if self.kv_heads != self.heads or self.head_dim != head_size(self.dim, self.heads):
            raise ConfigError("every head of a persimmon has its own key, and dim / heads entries")


def persimmon(c: PersimmonConfig) -> LM:
    norm = lambda size: LayerNorm(size, c.norm_eps)
    of_head = lambda: norm(c.head_dim) if c.qk_norm else None
    attn = lambda rotary, i: llama_attention(c, rotary, i, bias=True, q_norm=of_head(), k_norm=of_head())
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act))
    return llama(c, attn=attn, ffn=ffn, norm=lambda: norm(c.dim), block=partial(Block, dropout=c.dropout))


def ungated_mlp(c: DecoderConfig) -> MLP:
    return MLP(c.dim, c.hidden, activation(c.act), bias=vars(c)["ffn_bias"])


def granite(c: Any, block: Callable[..., Part] = Block) -> LM:
    """Divide the residual stream by r: then parts add what they give, as norm(x, ε) = norm(x / r, ε / r²)."""
    r = c.residual_scale
    attn = lambda rotary, i: llama_attention(c, rotary, i, scale=c.score_scale)
    norm = lambda: RMSNorm(c.dim, c.norm_eps / r**2)
    scale = vars(c).get("logit_scale") or 1 / c.logit_divisor
    return llama(c, attn=attn, norm=norm, block=block, embed_scale=c.embed_scale / r, scale=scale)


def hyperclova(c: HyperCLOVAXConfig) -> LM:
    after = lambda: RMSNorm(c.dim, c.norm_eps)
    block = lambda norm, **parts: SandwichBlock(norm, after, **parts)
    return granite(c, block if c.post_norm else Block)


ARCEE = descend(
    LLAMA, "arcee", sizes=dict(
        vocab=128004, dim=2560, layers=36, heads=20, hidden=18432, context=65536, act="relu2", norm_eps=1e-5
    ),
    build=lambda c: llama(c, ffn=lambda i: ungated_mlp(c)),
    presets={"afm-4.5b": dict(kv_heads=4)},
    heads=published_heads("Arcee"),
    absent={
        "vocab_size": 32000, "num_hidden_layers": 32, "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    },
    gguf="arcee", gguf_tensors=LLAMA.gguf_tensors, paper="Arcee AI 2025, AFM-4.5B",
)  # fmt: skip

MINISTRAL = descend(
    MISTRAL, "ministral", MinistralConfig,
    presets={"ministral-8b": dict(
        vocab=131072, layers=36, kv_heads=8, head_dim=128, hidden=12288, context=32768, rope_base=1e8,
        norm_eps=1e-5, window=32768, local=tuple(i for i in range(36) if i % 4),
    )},
    tiny=dict(local=(1,)), heads=published_heads("Ministral"), absent=MISTRAL.absent,
    names=LLAMA.names, paper="Mistral AI 2024, Ministral 8B",
)  # fmt: skip

SEED_OSS = descend(
    LLAMA, "seedoss", SeedOSSConfig, presets={"seed-oss-36b": {}},
    tiny=dict(head_dim=12), heads=published_heads("SeedOss"), model_types=("seed_oss",),
    keys=dict(attention_out_bias="out_bias", attention_dropout="dropout", residual_dropout="dropout"),
    absent={
        "hidden_size": 4096, "rope_theta": 10000.0, "attention_dropout": 0.1, "residual_dropout": 0.1,
    }, usual=no_token_ids,
    gguf="seed_oss", gguf_names=[("blk.*.post_attention_norm", "blocks.*.ffn_norm"), *ROWS],
    gguf_tensors={**LLAMA.gguf_tensors, "out_bias": ("blk.0.attn_output.bias", True, False)},
    paper="ByteDance Seed Team 2025, Seed-OSS",
)  # fmt: skip

GRANITE = descend(
    LLAMA, "granite", GraniteConfig, build=granite,
    keys=dict(
        embedding_multiplier="embed_scale", attention_multiplier="score_scale",
        residual_multiplier="residual_scale", logits_scaling="logit_divisor",
    ),
    presets={
        "granite-3.0-2b": dict(
            dim=2048, layers=40, kv_heads=8, hidden=8192, score_scale=0.015625, logit_divisor=8.0
        ),
        "granite-3.0-8b": dict(layers=40, kv_heads=8, hidden=12800),
    },
    tiny=dict(embed_scale=3.0, score_scale=0.5, residual_scale=0.25, logit_divisor=2.0),
    heads={"lm": "GraniteForCausalLM", "none": "GraniteModel"},
    absent={
        "vocab_size": 32000, "intermediate_size": 11008,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    gguf="granite", gguf_keys={**gguf_keys("granite", GraniteConfig), "granite.logit_scale": "logit_divisor"},
    gguf_tensors=LLAMA.gguf_tensors, paper="Granite Team, IBM 2024, Granite 3.0",
)  # fmt: skip

HYPERCLOVAX = descend(
    GRANITE, "hyperclovax", HyperCLOVAXConfig, build=hyperclova,
    own_names=[("model.layers.*.{post_norm1,post_norm2}", "blocks.*.{attn_post_norm,ffn_post_norm}")],
    keys=dict(logits_scaling="logit_scale", use_post_norm="post_norm"), presets={},
    tiny=dict(embed_scale=3.0, score_scale=0.5, residual_scale=0.25, logit_scale=0.5),
    heads={"lm": "HyperCLOVAXForCausalLM", "none": "HyperCLOVAXModel"},
    paper="NAVER Cloud 2025, arXiv 2506.22403",
)  # fmt: skip

NEMOTRON = descend(
    LLAMA, "nemotron", NemotronConfig, keys=dict(norm_eps="norm_eps"),
    build=lambda c: llama(
        c, ffn=lambda i: ungated_mlp(c), norm=lambda: OffsetLayerNorm(c.dim, c.norm_eps)
    ),
    presets={
        "minitron-4b": dict(kv_heads=8),
        "minitron-8b": dict(dim=4096, heads=48, kv_heads=8, head_dim=128, hidden=16384),
    },
    heads=published_heads("Nemotron"),
    absent={
        "hidden_size": 6144, "num_attention_heads": 48,
        "intermediate_size": 24576, "partial_rotary_factor": 0.5,
    },
    gguf="nemotron", gguf_names=[(*row, MinusOne()) if "norm.weight" in row[1] else row for row in ROWS],
    gguf_tensors=LLAMA.gguf_tensors, paper="Muralidharan et al. 2024, arXiv 2407.14679",
)  # fmt: skip


HELIUM = descend(
    LLAMA, "helium", sizes=dict(
        vocab=48000, dim=2560, layers=24, heads=20, hidden=7040, context=4096, rope_base=100000.0,
        norm_eps=1e-8,
    ),
    build=lambda c: llama(c, attn=partial(llama_attention, c, out_bias=False)),
    own_names=lambda c: paired_rows(c, "model.layers.*.self_attn.{}_proj"),
    presets={"helium-1-preview-2b": {}}, heads=published_heads("Helium", "span"), usual=no_token_ids,
    absent={"head_dim": 128, "num_key_value_heads": 20, "rope_theta": 100000.0},
    paper="Kyutai 2025, Helium 1",
)  # fmt: skip
ERNIE_4_5 = descend(
    LLAMA, "ernie4-5", Ernie45Config, keys=dict(use_bias="bias"), presets={"ernie-4.5-0.3b": {}},
    build=lambda c: llama(
        c, ffn=lambda i: GatedMLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    ),
    own_names=lambda c: paired_rows(c, "model.layers.*.self_attn.{}_proj"),
    heads={"lm": "Ernie4_5ForCausalLM", "none": "Ernie4_5Model"}, absent={"rope_theta": 500000.0},
    paper="Baidu 2025, ERNIE 4.5",
)  # fmt: skip
JAIS2 = descend(
    LLAMA, "jais2", keys=dict(layer_norm_eps="norm_eps"), presets={"jais-2-8b": {}},
    sizes=dict(
        vocab=150272, dim=3328, heads=26, hidden=26624, context=8192, act="relu2", norm_eps=1e-5, bias=True,
        ffn_bias=True,
    ),
    build=lambda c: llama(c, ffn=lambda i: ungated_mlp(c), norm=lambda: LayerNorm(c.dim, c.norm_eps)),
    heads={"lm": "Jais2ForCausalLM", "none": "Jais2Model"}, paper="Inception 2025, Jais 2",
)  # fmt: skip
CWM = descend(
    MISTRAL, "cwm", MinistralConfig, presets={"cwm-32b": {}}, sizes=dict(
        vocab=128256, dim=6144, layers=64, heads=48, kv_heads=8, head_dim=128, hidden=21504, context=131072,
        rope_base=1000000.0, rope_scaling=Llama3Scaling(16.0), norm_eps=1e-5, window=8192,
        local=derived(lambda c: tuple(i for i in range(c.layers) if i % 4)),
    ),
    tiny=dict(window=4, local=(1,), rope_scaling=None),
    heads={"lm": "CwmForCausalLM", "none": "CwmModel"}, require={"mlp_bias": (False,)},
    absent={"rope_parameters": dict(
        rope_type="llama3", rope_theta=1e6, factor=16.0, high_freq_factor=4.0, low_freq_factor=1.0,
        original_max_position_embeddings=8192,
    )},
    paper="FAIR CodeGen Team 2025, arXiv 2510.02387",
)  # fmt: skip
PERSIMMON = descend(
    LLAMA, "persimmon", PersimmonConfig, build=persimmon, own_names=lambda c: [
        ("model.layers.*.self_attn.query_key_value", QKV, PerHead(c.heads)),
        ("model.layers.*.self_attn.dense", "blocks.*.attn.o"),
        ("model.layers.*.self_attn.{q,k}_layernorm", "blocks.*.attn.{q,k}_norm"),
        ("model.layers.*.mlp.{dense_h_to_4h,dense_4h_to_h}", "blocks.*.ffn.{up,down}"),
        ("model.final_layernorm", "blocks.norm"),
    ],
    without=("kv_heads", "head_dim"),
    keys=dict(
        layer_norm_eps="norm_eps", qk_layernorm="qk_norm", hidden_dropout="dropout",
        attention_dropout="dropout",
    ),
    presets={"persimmon-8b": {}}, tiny=dict(kv_heads=4, hidden=48),
    heads=published_heads("Persimmon", "span"),
    absent={
        "hidden_size": 4096, "num_attention_heads": 64, "rope_theta": 10000.0, "partial_rotary_factor": 0.5
    },
    paper="Elsen et al. 2023, Persimmon-8B",
)  # fmt: skip


class StarCoder2Config(
    DecoderConfig, vocab=49152, dim=3072, layers=30, heads=24, kv_heads=2,
    hidden=derived(lambda c: 4 * c.dim), context=16384, act="gelu_pytorch_tanh", rope_base=1e6,
    norm_eps=1e-5, tied=True,
):  # fmt: skip
    window: int | None = None  # how far a position sees; None: everything before it
    bias: bool = True  # of all matrices but the output's


def starcoder2(c: StarCoder2Config) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    return llama(c, ffn=ffn, norm=norm, block=partial(Block, dropout=c.dropout))


STARCODER2 = descend(
    LLAMA, "starcoder2", StarCoder2Config, build=starcoder2,
    own_names=[("model.layers.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}")],
    keys=dict(
        norm_epsilon="norm_eps", use_bias="bias", attention_dropout="dropout", residual_dropout="dropout"
    ),
    presets={
        "starcoder2-3b": dict(window=4096, rope_base=999999.4420358813),
        "starcoder2-7b": dict(dim=4608, layers=32, heads=36, kv_heads=4, window=4096, dropout=0.1),
        "starcoder2-15b": dict(
            dim=6144, layers=40, heads=48, kv_heads=4, window=4096, rope_base=1e5, tied=False
        ),
    },
    tiny=dict(window=6), heads=published_heads("Starcoder2", "span"),
    absent={"max_position_embeddings": 4096},
    require={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    gguf="starcoder2", gguf_names=ROWS, gguf_tensors={"bias": ("blk.0.attn_q.bias", True, False)},
    # llama.cpp knows no window of this family, so that we write none; one that a file states is read.
    gguf_read=lambda source: {"window": source.metadata.get("starcoder2.attention.sliding_window")},
    gguf_keys=gguf_keys("starcoder2", StarCoder2Config, "window"),
    paper="Lozhkov et al. 2024, arXiv 2402.19173",
)  # fmt: skip


class StableLMConfig(
    PartialRotaryConfig, vocab=50304, dim=2560, hidden=6912, context=4096,
    rope_dim=derived(lambda c: c.head_dim // 4), norm_eps=1e-5,
):  # fmt: skip
    bias: bool = False  # of queries, keys and values
    qk_norm: bool = False
    parallel: bool = False  # attention and feed-forward side by side

    def check(self) -> None:
        if self.head_dim != head_size(self.dim, self.heads):
            raise ConfigError(f"`head_dim={self.head_dim}` is dim / heads in a stablelm", hint="leave it out")
        super().check()


def stablelm(c: StableLMConfig) -> LM:
    of_heads = lambda heads: HeadLayerNorm(heads, c.head_dim, c.norm_eps) if c.qk_norm else None
    attn = lambda rotary, i: llama_attention(
        c, rotary, i, out_bias=False, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads)
    )
    block = partial(ParallelBlock if c.parallel else Block, dropout=c.dropout)
    return llama(c, attn=attn, norm=lambda: LayerNorm(c.dim, c.norm_eps), block=block)


STABLELM = descend(
    LLAMA, "stablelm", StableLMConfig, build=stablelm,
    own_names=[
        (
            "model.layers.*.self_attn.{q,k}_layernorm.norms.*.weight", "blocks.*.attn.{q,k}_norm.weight",
            Stacked(),
        ),
        ("model.layers.*.input_layernorm", "blocks.*.norm"),
    ],
    without=("head_dim",), keys=dict(
        layer_norm_eps="norm_eps", use_qkv_bias="bias", qk_layernorm="qk_norm",
        use_parallel_residual="parallel", attention_dropout="dropout", hidden_dropout="dropout",
    ),
    presets={
        "stablelm-3b": {},
        "stablelm-2-1.6b": dict(vocab=100352, dim=2048, layers=24, hidden=5632, bias=True),
        "stablelm-2-12b": dict(
            vocab=100352, dim=5120, layers=40, kv_heads=8, hidden=13824, qk_norm=True, parallel=True
        ),
    },
    tiny=dict(qk_norm=True, parallel=True), heads=published_heads("StableLm", "span"),
    absent={
        "max_position_embeddings": 4096, "hidden_size": 2560, "num_attention_heads": 32, "rotary_pct": 0.25,
    },
    gguf="stablelm", gguf_names=ROWS,
    gguf_tensors={
        "bias": ("blk.0.attn_q.bias", True, False), "qk_norm": ("blk.0.attn_q_norm.weight", True, False),
        "parallel": ("blk.0.ffn_norm.weight", False, True),
    },
    paper="Bellagente et al. 2024, arXiv 2402.17834",
)  # fmt: skip


class CohereConfig(
    DecoderConfig, vocab=256000, dim=8192, layers=40, heads=64, hidden=22528, context=131072, rope_base=8e6,
    norm_eps=1e-5, tied=True,
):  # fmt: skip
    bias: bool = False
    qk_norm: bool = False
    logit_scale: float = 0.0625


class Cohere2Config(
    CohereConfig, dim=4096, layers=32, heads=32, hidden=14336, context=8192, rope_base=50000.0,
    logit_scale=0.25,
):  # fmt: skip
    window: int = 4096  # how far a position sees in the layers that `local` lists
    local: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if (i + 1) % 4))
    unrotated: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if i not in c.local))


def cohere(c: CohereConfig) -> LM:
    of_heads = lambda heads: HeadLayerNorm(heads, c.head_dim, c.norm_eps) if c.qk_norm else None
    attn = lambda rotary, i: llama_attention(
        c, rotary, i, q_norm=of_heads(c.heads), k_norm=of_heads(c.kv_heads)
    )
    norm = lambda: LayerNorm(c.dim, c.norm_eps, bias=False)
    return llama(c, attn=attn, norm=norm, block=ParallelBlock, scale=c.logit_scale)


COHERE = descend(
    LLAMA, "cohere", CohereConfig, build=cohere, own_names=lambda c: [
        *paired_rows(c, "model.layers.*.self_attn.{}_proj"),
        *paired_rows(c, "model.layers.*.self_attn.{}_norm", "_norm"),
        ("model.layers.*.input_layernorm", "blocks.*.norm"),
    ],
    keys=dict(layer_norm_eps="norm_eps", use_qk_norm="qk_norm", logit_scale="logit_scale"),
    without=("head_dim",),
    presets={
        "command-r-35b": {},
        "command-r-plus": dict(
            dim=12288, layers=64, heads=96, kv_heads=8, hidden=33792, rope_base=75e6, qk_norm=True,
            logit_scale=0.8333333333333334,
        ),
    },
    tiny=dict(qk_norm=True, logit_scale=0.5, tied=True),
    heads={"lm": "CohereForCausalLM", "none": "CohereModel"}, usual=no_token_ids,
    absent={"max_position_embeddings": 8192, "rope_theta": 500000.0},
    gguf="command-r", gguf_names=lambda c: [
        *paired_rows(c, "blk.*.attn_{}"), *paired_rows(c, "blk.*.attn_{}_norm", "_norm"), *ROWS
    ],
    gguf_tensors={"qk_norm": ("blk.0.attn_q_norm.weight", True, False)}, paper="Cohere 2024, Command R",
)  # fmt: skip

COHERE2 = descend(
    COHERE, "cohere2", Cohere2Config, build=cohere, without=("head_dim", "qk_norm", "unrotated"),
    presets={
        "command-r7b": dict(kv_heads=8),
        "command-a": dict(
            dim=12288, layers=64, heads=96, kv_heads=8, hidden=36864, context=131072, logit_scale=0.25,
        ),
    },
    tiny=dict(window=4, local=(0,), qk_norm=False),
    heads={"lm": "Cohere2ForCausalLM", "none": "Cohere2Model"},
    absent={
        "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64,
        "intermediate_size": 22528, "logit_scale": 0.0625,
    },
    gguf="cohere2", gguf_tensors={}, paper="Cohere 2025, arXiv 2504.00698",
)  # fmt: skip


class GLMConfig(
    PartialRotaryConfig, vocab=151552, layers=40, kv_heads=2, head_dim=128, hidden=13696, context=131072,
    norm_eps=1.5625e-7,
):  # fmt: skip
    bias: bool = True  # of queries, keys and values
    out_bias: bool = False


def glm_rows(c: GLMConfig, queries: str, gate_up: str, rows: list[Row]) -> list[Row]:
    """Rotary pairs stand side by side at the beginning of each head."""
    turned = paired_rows(c, queries, rotary=c.rope_dim, first=True)
    return [*turned, (gate_up, GATE_UP, Fused()), *rows]


COMMON: dict[str, Any] = dict(
    without=("out_bias",), usual=no_token_ids,
    gguf_names=lambda c: glm_rows(c, "blk.*.attn_{}", "blk.*.ffn_up", ROWS),
    gguf_tensors={"bias": ("blk.0.attn_q.bias", True, False)},
)  # fmt: skip

GLM = descend(
    LLAMA, "glm", GLMConfig, own_names=lambda c: glm_rows(
        c, "model.layers.*.self_attn.{}_proj", "model.layers.*.mlp.gate_up_proj",
        [("model.layers.*.post_{self_attn,mlp}_layernorm", "blocks.*.{attn,ffn}_post_norm")],
    ),
    presets={"glm-4-9b": {}},
    tiny=dict(head_dim=8, kv_heads=2), heads=published_heads("Glm", "span"),
    absent={"partial_rotary_factor": 0.5, "head_dim": 128}, gguf="chatglm",
    paper="GLM Team 2024, arXiv 2406.12793", **COMMON,
)  # fmt: skip

GLM4 = descend(
    GLM, "glm4", sizes=dict(context=32768, norm_eps=1e-5), build=lambda c: llama(c, block=sandwich),
    presets={
        "glm-4-9b-0414": {}, "glm-4-32b-0414": dict(dim=6144, layers=61, heads=48, hidden=23040)
    },
    heads=published_heads("Glm4", "span"),
    absent={**GLM.absent, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7},
    gguf="glm4", paper="GLM Team 2025, GLM-4-0414", **COMMON,
)  # fmt: skip
