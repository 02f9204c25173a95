"""Decoders whose attention and feed-forward stand side by side.

PaLM (Chowdhery et al. 2022, arXiv 2204.02311).

From GPT-3 to PaLM:  attention and feed-forward side by side   one key and value head for all   SwiGLU
                     rotary positions   no biases, in norms neither   logits divided by √D

GPT-J (Wang and Komatsuzaki 2021) and CodeGen (Nijkamp et al. 2022, arXiv 2203.13474), its twin.

From GPT-2 to GPT-J:  attention and feed-forward side by side, from one norm   no biases in attention
                      learned positions → rotary, in a part of each head
                      a separate output matrix, with a bias

GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia (Biderman et al. 2023, arXiv 2304.01373).

From GPT-2 to GPT-NeoX:  learned positions → rotary, in a quarter of each head   its own output matrix
                         attention and feed-forward side by side, each with its own norm

Falcon (Almazrouei et al. 2023, arXiv 2311.16867).

From GPT-3 to Falcon:  one key and value head for all, in the larger models for a group of heads   no biases
                       rotary positions (ALiBi in the first, 1B)
                       attention and feed-forward side by side, from one norm or from two
"""

from __future__ import annotations

from functools import partial
from typing import Any

from heedful.core.checks import check_divides
from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, derived
from heedful.models.decoders.gpt_lineage.gpt import GPT2_KEYS, gpt_decoder
from heedful.models.family import PlainConfig, declare, descend, published_heads
from heedful.models.gguf_config import FUSED_QKV, QKV, ROWS
from heedful.models.shared import check_rope_dim, decoder_head, plain_stack
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP, activation
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary, RoundedALiBi, Scaling
from heedful.weights.names import Row
from heedful.weights.ops import SAME, Each, Pairs, PerHead


class PalmConfig(Config, vocab=256000, dim=4096, layers=32):
    heads: int = 16
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    hidden: int = derived(lambda c: 4 * c.dim)
    context: int = 2048
    act: str = "silu"
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    dropout: float = 0.0  # the paper trains without, and tunes with 0.1


def palm(c: PalmConfig) -> LM:
    rotary = Rotary(c.head_dim, c.rope_base)
    stack = plain_stack(
        c, norm=lambda: LayerNorm(c.dim, c.norm_eps, bias=False),
        attn=lambda i: Attention(c.dim, c.heads, 1, c.head_dim, rotary=rotary, dropout=c.dropout),
        ffn=lambda i: GatedMLP(c.dim, c.hidden, activation(c.act)),
        block=partial(ParallelBlock, dropout=c.dropout),
    )  # fmt: skip
    head = decoder_head(c, tied=True, scale=c.dim**-0.5)  # §5: logits divided by √D
    return LM(Embedding(c.vocab, c.dim, dropout=c.dropout), stack, head)


PALM = declare(
    "palm", PalmConfig, palm,
    presets={
        "palm-8b": {},
        "palm-62b": dict(dim=8192, layers=64, heads=32),
        "palm-540b": dict(dim=18432, layers=118, heads=48, head_dim=256),
    },
    tiny=dict(hidden=48), heads=("lm", "classify", "tag", "span", "none"),
    paper="Chowdhery et al. 2022, arXiv 2204.02311",
)  # fmt: skip


PARTS = 4  # of CodeGen's matrices


class GPTJConfig(
    PlainConfig, vocab=50400, dim=4096, layers=28, heads=16, act="gelu_new", dropout=0.0, tied=False,
):  # fmt: skip
    context: int = 2048
    rope_dim: int = 64  # entries of a head that are turned

    def check(self) -> None:
        check_rope_dim(self.rope_dim, head_size(self.dim, self.heads))


class CodeGenConfig(GPTJConfig, vocab=51200, dim=1024, layers=20, rope_dim=32):
    def check(self) -> None:
        super().check()
        check_divides("parts", PARTS, "heads", self.heads)


def gptj(c: GPTJConfig) -> LM:
    rotary, embed = Rotary(c.rope_dim), Embedding(c.vocab, c.dim, dropout=c.dropout)
    attn = lambda i: Attention(c.dim, c.heads, rotary=rotary, dropout=c.dropout)
    return gpt_decoder(c, embed, attn=attn, block=partial(ParallelBlock, dropout=c.dropout), word_bias=True)


def codegen_rows(c: CodeGenConfig) -> list[Row]:
    """Each of the parts that its matrices were trained in has queries, values and keys of its heads."""
    pairs = Pairs(c.heads, c.rope_dim, first=True)
    fused = Each(PerHead(PARTS), (pairs, SAME, pairs))
    qvk = ("blocks.*.attn.q", "blocks.*.attn.v", "blocks.*.attn.k")
    return [("transformer.h.*.attn.qkv_proj", qvk, fused)]


GPTJ = declare(
    "gptj", GPTJConfig, gptj, names=lambda c: [
        # Published rotary pairs stand side by side; ours half of the turned entries apart.
        ("transformer.wte", "embed.token"),
        ("transformer.h.*.attn.{q,k}_proj", "blocks.*.attn.{q,k}", Pairs(c.heads, c.rope_dim, first=True)),
        ("transformer.h.*.attn.{v,out}_proj", "blocks.*.attn.{v,o}"),
        ("transformer.h.*.mlp.{fc_in,fc_out}", "blocks.*.ffn.{up,down}"),
        ("transformer.h.*.ln_1", "blocks.*.norm"),
        ("transformer.ln_f", "blocks.norm"),
        ("{lm_head,score,qa_outputs}", "head.{out,label,span}"),
    ],
    keys={**GPT2_KEYS, "rotary_dim": "rope_dim"},
    presets={"gpt-j-6b": {}}, tiny=dict(hidden=48, rope_dim=4), prefix="transformer",
    heads=published_heads("GPTJ", "tag"),
    require={"scale_attn_weights": (True,)},
    drop=("*.attn.bias", "*.attn.embed_positions"),
    paper="Wang and Komatsuzaki 2021, GPT-J-6B",
)  # fmt: skip

CODEGEN = descend(
    GPTJ, "codegen", CodeGenConfig, own_names=codegen_rows,
    presets={
        "codegen-350m": {}, "codegen-2b": dict(dim=2560, layers=32, heads=32, rope_dim=64),
        "codegen-6b": dict(dim=4096, layers=33, rope_dim=64),
        "codegen-16b": dict(dim=6144, layers=34, heads=24, rope_dim=64),
    },
    heads={"lm": "CodeGenForCausalLM", "none": "CodeGenModel"},
    absent={"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "rotary_dim": 64},
    paper="Nijkamp et al. 2022, arXiv 2203.13474",
)  # fmt: skip


class NeoXConfig(PlainConfig, vocab=50432, dim=6144, layers=44, heads=64, dropout=0.0, tied=False):
    context: int = 2048
    rope_dim: int = derived(lambda c: head_size(c.dim, c.heads) // 4)  # entries of a head that are turned
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    bias: bool = True  # of the attention's matrices
    parallel: bool = True  # attention and feed-forward side by side

    @property
    def head_dim(self) -> int:
        return head_size(self.dim, self.heads)

    def check(self) -> None:
        check_rope_dim(self.rope_dim, self.head_dim)


def neox(c: NeoXConfig) -> LM:
    rotary = Rotary(c.rope_dim, c.rope_base, c.rope_scaling)
    block = partial(ParallelBlock, separate=True) if c.parallel else Block
    embed = Embedding(c.vocab, c.dim, dropout=c.dropout)
    return gpt_decoder(c, embed, rotary=rotary, block=partial(block, dropout=c.dropout))


def neox_names(c: NeoXConfig) -> list[Row]:
    theirs = "gpt_neox.layers.*"
    return [
        ("gpt_neox.embed_in", "embed.token"),
        (f"{theirs}.attention.query_key_value", QKV, PerHead(c.heads)),
        (f"{theirs}.attention.dense", "blocks.*.attn.o"),
        (f"{theirs}.mlp.{{dense_h_to_4h,dense_4h_to_h}}", "blocks.*.ffn.{up,down}"),
        (f"{theirs}.{{input,post_attention}}_layernorm", "blocks.*.{attn,ffn}_norm"),
        ("gpt_neox.final_layer_norm", "blocks.norm"),
        ("{embed_out,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
        ("lm_head", "head.out"),
    ]


PYTHIA: dict[str, tuple[int, int, int]] = {  # dim, layers, heads
    "14m": (128, 6, 4), "31m": (256, 6, 8), "70m": (512, 6, 8), "160m": (768, 12, 12),
    "410m": (1024, 24, 16), "1b": (2048, 16, 8), "1.4b": (2048, 24, 16), "2.8b": (2560, 32, 32),
    "6.9b": (4096, 32, 32), "12b": (5120, 36, 40),
}  # fmt: skip
VOCABULARIES = {"6.9b": 50432, "12b": 50688}  # padded further, the larger the model


NEOX = declare(
    "gpt-neox", NeoXConfig, neox, names=neox_names,
    keys=dict(
        layer_norm_eps="norm_eps", use_parallel_residual="parallel", hidden_dropout="dropout",
        attention_dropout="dropout",
    ),
    presets={
        "gpt-neox-20b": dict(act="gelu_fast"),
        **{
            f"pythia-{size}": dict(
                vocab=VOCABULARIES.get(size, 50304), dim=dim, layers=layers, heads=heads
            )
            for size, (dim, layers, heads) in PYTHIA.items()
        },
    },
    tiny=dict(hidden=48), prefix="gpt_neox", heads=published_heads("GPTNeoX"),
    absent={
        "max_position_embeddings": 2048, "hidden_size": 6144, "num_attention_heads": 64, "rotary_pct": 0.25,
    },
    drop=("*.attention.bias",), gguf="gptneox",
    gguf_names=[FUSED_QKV, *ROWS], gguf_tensors={"bias": ("blk.0.attn_qkv.bias", True, False)},
    paper="Black et al. 2022, arXiv 2204.06745",
)  # fmt: skip


class FalconConfig(PlainConfig, vocab=65024, dim=4544, layers=32, heads=71, dropout=0.0):
    kv_heads: int = 1
    context: int = 2048
    parallel: bool = True  # attention and feed-forward side by side
    norms: int = 1  # of parts that stand side by side: one for both, or 2
    alibi: bool = False  # instead of rotary positions
    rope_base: float = 10000.0
    rope_scaling: Scaling | None = None
    bias: bool = False  # of all matrices but the output's

    @property
    def new_architecture(self) -> bool:
        """Whether this is what published configs call the new architecture."""
        return self.norms == 2 or self.kv_heads not in (1, self.heads)

    def check(self) -> None:
        if self.norms > 2:
            raise ConfigError(
                f"`norms={self.norms}` is more than the two parts of a block", hint="choose 1 or 2"
            )
        if self.new_architecture and not self.parallel:
            raise ConfigError(
                f"`kv_heads={self.kv_heads}` and `norms={self.norms}` need `parallel=True`",
                hint=f"without it kv_heads is 1 or {self.heads}, and norms is 1",
            )


def falcon(c: FalconConfig) -> LM:
    size = head_size(c.dim, c.heads)
    rotary = None if c.alibi else Rotary(size, c.rope_base, c.rope_scaling)
    attn = lambda i: Attention(c.dim, c.heads, c.kv_heads, bias=c.bias, rotary=rotary, dropout=c.dropout)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), bias=c.bias)
    block = partial(ParallelBlock, separate=c.norms == 2) if c.parallel else Block
    return gpt_decoder(
        c, Embedding(c.vocab, c.dim), attn=attn, ffn=ffn, block=partial(block, dropout=c.dropout),
        bias=RoundedALiBi(c.heads, size) if c.alibi else None,
    )  # fmt: skip


def falcon_names(c: FalconConfig) -> list[Row]:
    norms: list[Row] = [("transformer.h.*.input_layernorm", "blocks.*.norm")]
    if not c.parallel:
        norms = [("transformer.h.*.{input,post_attention}_layernorm", "blocks.*.{attn,ffn}_norm")]
    elif c.norms == 2:
        norms = [("transformer.h.*.{ln_attn,ln_mlp}", "blocks.*.{attn,ffn}_norm")]
    return [
        ("transformer.word_embeddings", "embed.token"),
        ("transformer.h.*.self_attention.query_key_value", QKV, PerHead(c.kv_heads)),
        ("transformer.h.*.self_attention.dense", "blocks.*.attn.o"),
        ("transformer.h.*.mlp.{dense_h_to_4h,dense_4h_to_h}", "blocks.*.ffn.{up,down}"),
        *norms,
        ("transformer.ln_f", "blocks.norm"),
        ("{lm_head,score,classifier,qa_outputs}", "head.{out,label,tag,span}"),
    ]


def falcon_gguf_names(c: FalconConfig) -> list[Row]:
    """Where there are two norms, attn_norm_2 is the one before attention."""
    norms: Row = ("blk.*.{attn_norm_2,attn_norm}", "blocks.*.{attn,ffn}_norm")
    return [FUSED_QKV, *([norms] if c.norms == 2 else []), *ROWS]


def read_falcon(hf_config: dict[str, Any]) -> dict[str, Any]:
    """The new architecture has groups of heads; the old one has one key head for all, or one for each."""
    new, heads = hf_config.get("new_decoder_architecture", False), hf_config["num_attention_heads"]
    kv_heads = 1 if hf_config.get("multi_query", True) else heads
    return {
        "kv_heads": hf_config.get("num_kv_heads", heads) if new else kv_heads,
        "parallel": new or hf_config.get("parallel_attn", True),
        "norms": hf_config.get("num_ln_in_parallel_attn", 2 if new else 1),
    }


FALCON = declare(
    "falcon", FalconConfig, falcon, names=falcon_names, without=("kv_heads",),
    keys=dict(
        ffn_hidden_size="hidden", activation="act", alibi="alibi", bias="bias", layer_norm_epsilon="norm_eps",
        hidden_dropout="dropout", attention_dropout="dropout",
    ),
    presets={
        "falcon-7b": {},
        "falcon-40b": dict(dim=8192, layers=60, heads=128, kv_heads=8, norms=2),
        "falcon-180b": dict(dim=14848, layers=80, heads=232, kv_heads=8, norms=2),
        "falcon2-11b": dict(
            dim=4096, layers=60, heads=32, kv_heads=8, hidden=16384, context=8192, rope_base=500042.0,
            tied=False
        ),
        "falcon-rw-1b": dict(
            vocab=50304, dim=2048, layers=24, heads=32, kv_heads=32, alibi=True, parallel=False, bias=True
        ),
    },
    tiny=dict(hidden=48), prefix="transformer", heads=published_heads("Falcon"), read=read_falcon,
    write=lambda c: {
        "new_decoder_architecture": c.new_architecture,
        "num_kv_heads": c.kv_heads if c.new_architecture else c.heads,
        "multi_query": c.kv_heads == 1, "parallel_attn": c.parallel,
        "num_ln_in_parallel_attn": c.norms if c.new_architecture else None,
    },
    absent={"num_attention_heads": 71},
    reads={
        "new_decoder_architecture": "bool", "multi_query": "bool", "parallel_attn": "bool",
        "num_kv_heads": "int", "num_ln_in_parallel_attn": "int",
    },
    gguf="falcon", gguf_names=falcon_gguf_names,
    gguf_tensors={"norms": ("blk.0.attn_norm_2.weight", 2, 1), "bias": ("blk.0.attn_qkv.bias", True, False)},
    paper="Almazrouei et al. 2023, arXiv 2311.16867",
)  # fmt: skip
