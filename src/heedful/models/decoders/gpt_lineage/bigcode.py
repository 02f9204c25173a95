"""GPT-Neo (Black et al. 2021), SantaCoder and StarCoder (Ben Allal et al. 2023; Li et al. 2023, 2305.06161).

From GPT-3 to GPT-Neo:     scores not divided by √K   biases only after attention and in feed-forward
From GPT-2 to SantaCoder:  one key and value head for all
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived
from heedful.models.decoders.gpt_lineage.gpt import GPT2, GPT2_NAMES, GPT2Config, gpt2, gpt_attention
from heedful.models.family import descend, published_heads
from heedful.models.gguf_config import QKV
from heedful.weights.names import Row
from heedful.weights.ops import Fused, PerHead


@dataclass(frozen=True, kw_only=True)
class GPTNeoConfig(GPT2Config):
    dim: int = 2048
    layers: int = 24
    heads: int = 16
    context: int = 2048
    dropout: float = 0.0
    scaled: bool = False
    window: int = 256  # how far a position sees in the layers that `near` lists
    near: tuple[int, ...] = derived(lambda c: tuple(range(1, c.layers, 2)))


@dataclass(frozen=True, kw_only=True)
class BigCodeConfig(GPT2Config):
    vocab: int = 49152
    dim: int = 6144
    layers: int = 40
    heads: int = 48
    context: int = 8192
    act: str = "gelu_pytorch_tanh"
    kv_heads: int = 1

    def check(self) -> None:
        if self.kv_heads not in (1, self.heads):
            raise ConfigError(f"kv_heads={self.kv_heads}", hint=f"choose 1 or {self.heads}")


def gpt_neo(c: GPTNeoConfig) -> LM:
    plain: dict[str, Any] = {"bias": False, "out_bias": True, "scale": None if c.scaled else 1.0}
    return gpt2(c, lambda i: gpt_attention(c, window=c.window if i in c.near else None, **plain))


def bigcode(c: BigCodeConfig) -> LM:
    scale = None if c.scaled else 1.0
    return gpt2(c, lambda i: gpt_attention(c, kv_heads=c.kv_heads, scale=scale))


GPT_NEO_NAMES: list[Row] = [
    ("transformer.h.*.attn.attention.{q,k,v,out}_proj", "blocks.*.attn.{q,k,v,o}"),
    ("transformer.h.*.mlp.{c_fc,c_proj}", "blocks.*.ffn.{up,down}"),
    *GPT2_NAMES,
]


def bigcode_names(c: BigCodeConfig) -> list[Row]:
    """Heads of their own keys are fused head by head, the one head of all after the queries."""
    fused = Fused() if c.kv_heads == 1 else PerHead(c.heads)
    return [
        ("transformer.h.*.attn.c_attn", QKV, fused), ("transformer.h.*.attn.c_proj", "blocks.*.attn.o"),
        *GPT_NEO_NAMES[1:],
    ]  # fmt: skip


def read_gpt_neo(hf_config: dict[str, Any]) -> dict[str, Any]:
    """`attention_types` lists pairs: kinds of layers, and how often they are repeated."""
    kinds = [kind for group, times in hf_config["attention_types"] for kind in group * times]
    return {"near": tuple(i for i, kind in enumerate(kinds) if kind == "local")}


def write_gpt_neo(c: GPTNeoConfig) -> dict[str, Any]:
    kinds = ["local" if i in c.near else "global" for i in range(c.layers)]
    return {"attention_types": [[kinds, 1]], "attention_layers": kinds}


GPT_NEO = descend(
    GPT2, "gpt-neo", GPTNeoConfig, build=gpt_neo, names=GPT_NEO_NAMES,
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
    GPT2, "gpt-bigcode", BigCodeConfig, build=bigcode, names=bigcode_names,
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
