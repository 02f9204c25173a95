"""Encoders with rotary positions.

RoFormer (Su et al. 2021, arXiv 2104.09864), which brought rotary positions.

From BERT to RoFormer:  learned positions → rotary   no pooler   trained on masked words alone

NomicBERT (Nussbaum et al. 2024, arXiv 2402.01613).

From BERT to NomicBERT:  learned positions → rotary, which reach longer texts than those trained on
                         GELU → SwiGLU
                         no biases in attention and feed-forward

ModernBERT (Warner et al. 2024, arXiv 2412.13663).

From BERT to ModernBERT:  learned positions → rotary
                          post-norm → pre-norm, none before the first attention   GELU → GeGLU
                          two of three layers see a window, and turn faster   no biases   one segment

Its decoder (Weller et al. 2025, arXiv 2507.11412).

From ModernBERT to its decoder:  each position sees those before it   trained on the next word

EuroBERT (Boizard et al. 2025, arXiv 2503.05500).

From LLaMA to EuroBERT:  every position sees all others   trained on masked words
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError
from heedful.models.base import LM, derived, from_zero
from heedful.models.decoders.llama_lineage.llama import LLAMA, LlamaConfig, llama
from heedful.models.encoders.bert import (
    BERT,
    KEYS,
    BertConfig,
    backbone_names,
    bert_encoder,
    encoder_head,
    out_names,
)
from heedful.models.family import (
    PlainConfig,
    check_layers,
    declare,
    descend,
    gguf_keys,
    no_token_ids,
    published_heads,
)
from heedful.models.gguf_config import FUSED_QKV, ROWS
from heedful.models.hf_config import read_local_layers, read_rope
from heedful.models.shared import plain_stack
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import GatedMLP, activation
from heedful.nn.head import (
    DecoderMLMHead,
    Head,
    MLMHead,
    NoHead,
    PlainMLMHead,
    Pooler,
    TagHead,
    Transform,
    choose_head,
)
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Rotary, Scaling
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.names import Row
from heedful.weights.ops import Fused, Pairs


def roformer(c: BertConfig) -> LM:
    pool = lambda: Pooler(c.dim, activation(c.act), dropout=c.dropout)
    return bert_encoder(c, encoder_head(c, pool), rotary=Rotary(head_size(c.dim, c.heads)))


def roformer_names(c: BertConfig) -> list[Row]:
    """Published rotary pairs stand side by side."""
    theirs, pairs = "roformer.encoder.layer.*.attention.self", Pairs(c.heads)
    return [
        (f"{theirs}.{{query,key}}", "blocks.*.attn.{q,k}", pairs),
        *backbone_names("roformer"),
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
            f'config.json has "embedding_size": {hf_config["embedding_size"]}', f"it must be {dim}"
        )
    return {}


ROFORMER = descend(
    BERT, "roformer", build=roformer,
    sizes=dict(vocab=50000, context=1536, head="mlm", pooler=False), names=roformer_names, prefix="roformer",
    presets={"roformer-chinese-base": {}}, objective="masked", heads=published_heads("RoFormer", words="mlm"),
    require={"rotary_value": (False,), "is_decoder": (False,), "add_cross_attention": (False,)},
    read=read_roformer, reads={"embedding_size": "int"}, write=lambda c: {"embedding_size": c.dim},
    infer=None,
    drop=("*embed_positions.weight",),
    paper="Su et al. 2021, arXiv 2104.09864",
)  # fmt: skip


class NomicBertConfig(PlainConfig, vocab=30528, act="silu", norm_eps=1e-12, dropout=0.0, head="mlm"):
    head_dim: int = derived(lambda c: head_size(c.dim, c.heads))
    context: int = 2048
    types: int = from_zero(2)
    rope_base: float = 1000.0
    rope_scaling: Scaling | None = None


def nomic_bert(c: NomicBertConfig) -> LM:
    rotary = Rotary(c.head_dim, c.rope_base, c.rope_scaling)
    attn = lambda i: Attention(c.dim, c.heads, head_dim=c.head_dim, rotary=rotary, dropout=c.dropout)
    head = encoder_head(c, lambda: Pooler(c.dim))
    ffn = lambda i: GatedMLP(c.dim, c.hidden, activation(c.act))
    return bert_encoder(c, head, rotary=rotary, attn=attn, ffn=ffn)


LAYER = "nomic_bert.encoder.layers.*"

# The first files are configured in GPT-2's words.
OLDER = {
    "n_embd": "dim", "n_layer": "layers", "n_head": "heads", "n_inner": "hidden", "n_positions": "context",
    "layer_norm_epsilon": "norm_eps", "resid_pdrop": "dropout", "rotary_emb_base": "rope_base",
}  # fmt: skip


def read_nomic_bert(hf_config: dict[str, Any]) -> dict[str, Any]:
    older = {ours: hf_config[theirs] for theirs, ours in OLDER.items() if theirs in hf_config}
    context = older.get("context", hf_config.get("max_position_embeddings", 2048))
    base, scaling = read_rope({"rope_theta": older.get("rope_base", 1000.0), **hf_config}, context)
    return {**older, "rope_base": base, "rope_scaling": scaling}


GGUF_NAMES: list[Row] = [
    ("token_{embd,types,embd_norm}", "embed.{token,types,norm}"),
    FUSED_QKV,
    ("blk.*.attn_output", "blocks.*.attn.o"),
    ("blk.*.{attn,layer}_output_norm", "blocks.*.{attn,ffn}_norm"),
    ("blk.*.ffn_{gate,up,down}", "blocks.*.ffn.{gate,up,down}"),
]

NOMIC_BERT = declare(
    "nomic-bert", NomicBertConfig, nomic_bert, names=lambda c: [
        ("nomic_bert.embeddings.{word,token_type}_embeddings", "embed.{token,types}"),
        ("nomic_bert.emb_ln", "embed.norm"),
        (f"{LAYER}.attn.Wqkv", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused()),
        (f"{LAYER}.attn.out_proj", "blocks.*.attn.o"),
        (f"{LAYER}.mlp.{{fc11,fc12,fc2}}", "blocks.*.ffn.{up,gate,down}"),
        (f"{LAYER}.{{norm1,norm2}}", "blocks.*.{attn,ffn}_norm"),
        ("cls.predictions.transform.{dense,layer_norm}", "head.{dense,norm}"),
        *out_names("cls.predictions", "head", c.tied),
        ("nomic_bert.pooler.dense", "head.pool.dense"),
        ("classifier", "head.{label,tag}"),
        ("qa_outputs", "head.span"),
    ],
    keys=KEYS,
    presets={"nomic-bert-2048": {}, "nomic-embed-text-v1.5": dict(context=8192, head="none")},
    tiny=dict(hidden=48), objective="masked", prefix="nomic_bert",
    heads=published_heads("NomicBert", "span", words="mlm"),
    require={
        "activation_function": ("swiglu",), "prenorm": (False,), "use_rms_norm": (False, None),
        "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,),
        "rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,), "rotary_scaling_factor": (None,),
    },
    read=read_nomic_bert, reads={theirs: "int" if theirs.startswith("n_") else "float" for theirs in OLDER},
    gguf="nomic-bert", gguf_names=GGUF_NAMES, gguf_head="none",
    gguf_write=lambda c: {"nomic-bert.attention.causal": False},
    gguf_keys=gguf_keys("nomic-bert", NomicBertConfig) | {"tokenizer.ggml.token_type_count": "types"},
    paper="Nussbaum et al. 2024, arXiv 2402.01613",
)  # fmt: skip


class ModernBertConfig(
    PlainConfig, vocab=50368, layers=22, hidden=derived(lambda c: 3 * c.dim // 2), dropout=0.0, head="mlm",
):  # fmt: skip
    context: int = 8192
    window: int = 128  # tokens that a local layer sees, half of them on each side
    local: tuple[int, ...] = derived(lambda c: tuple(i for i in range(c.layers) if i % 3))
    rope_base: float = 160000.0
    rope_scaling: Scaling | None = None
    local_rope_base: float = 10000.0
    local_rope_scaling: Scaling | None = None
    norm_bias: bool = False
    bias: bool = False  # of the attention's matrices
    ffn_bias: bool = False
    head_bias: bool = False  # of the matrix that a head begins with
    head_act: str = "gelu"
    out_bias: bool = True  # of the words
    pooling: str = "first"  # which vector is classified: of the first token, or the mean

    def check(self) -> None:
        check_layers(self, "local")
        check_choice("pooling", self.pooling, ("first", "mean"), ConfigError)


def modernbert(c: ModernBertConfig, causal: bool = False) -> LM:
    size = head_size(c.dim, c.heads)
    norm = lambda: LayerNorm(c.dim, c.norm_eps, bias=c.norm_bias)
    turns = Rotary(size, c.rope_base, c.rope_scaling)
    local_turns = Rotary(size, c.local_rope_base, c.local_rope_scaling)
    reach = c.window // 2 + (not causal)
    attn = lambda i: Attention(
        c.dim, c.heads, bias=c.bias, rotary=local_turns if i in c.local else turns,
        window=reach if i in c.local else None, dropout=c.dropout,
    )  # fmt: skip
    ffn = lambda i: GatedMLP(c.dim, c.hidden, activation(c.act), bias=c.ffn_bias, dropout=c.dropout)
    stack = plain_stack(c, attn=attn, ffn=ffn, norm=norm, block=Block)
    stack[0].attn_norm = nn.Identity()  # the embedding's norm stands just before it
    embed = Embedding(c.vocab, c.dim, norm=norm(), dropout=c.dropout)
    return LM(embed, stack, modernbert_head(c), causal=causal)


def modernbert_head(c: ModernBertConfig) -> Head:
    """Every head begins with norm(act(dense x)), of all tokens or of the one vector that it classifies."""
    norm, act = lambda: LayerNorm(c.dim, c.norm_eps, bias=c.norm_bias), activation(c.head_act)
    mlm: dict[str, Any] = dict(eps=c.norm_eps, tied=c.tied, norm_bias=c.norm_bias, out_bias=c.out_bias)
    return encoder_head(
        c, lambda: Pooler(c.dim, act, token=c.pooling, bias=c.head_bias, norm=norm()),
        transform=lambda: Transform(c.dim, act, norm(), bias=c.head_bias),
        mlm=lambda: MLMHead(c.dim, c.vocab, act, bias=c.head_bias, **mlm),
        lm=lambda: DecoderMLMHead(c.dim, c.vocab, act, bias=c.head_bias, **mlm),
    )  # fmt: skip


POOLING = {"cls": "first", "mean": "mean"}


def read_modernbert(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Newer files list the kind of every layer; older ones say which layers are global."""
    layers, apart = hf_config.get("num_hidden_layers", 22), hf_config.get("global_attn_every_n_layers", 3)
    # A head of sentence vectors, which is ours, uses the same key.
    own = str(hf_config.get("model_type")).startswith("heedful-")
    pooling = "cls" if own else hf_config.get("classifier_pooling", "cls")
    local = read_local_layers(hf_config, (i for i in range(layers) if i % apart))
    return {"local": local, "pooling": POOLING.get(pooling, pooling)}


APART = "modern-bert.attention.sliding_window_pattern"  # how many layers the global ones are apart


def read_modernbert_gguf(source: GGUFFile) -> dict[str, Any]:
    layers, apart = source.metadata.get("modern-bert.block_count", 22), source.metadata.get(APART, 3)
    return {"local": tuple(i for i in range(layers) if i % max(apart, 1))}


def write_modernbert_gguf(c: ModernBertConfig) -> dict[str, Any]:
    apart = next((i for i in range(1, c.layers) if i not in c.local), c.layers)
    return {APART: apart, "modern-bert.attention.causal": False}


MODERNBERT = declare(
    "modernbert", ModernBertConfig, modernbert, names=[
        ("model.embeddings.{tok_embeddings,norm}", "embed.{token,norm}"),
        ("model.layers.*.attn.Wqkv", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused()),
        ("model.layers.*.attn.Wo", "blocks.*.attn.o"),
        ("model.layers.*.mlp.Wi", ("blocks.*.ffn.gate", "blocks.*.ffn.up"), Fused()),
        ("model.layers.*.mlp.Wo", "blocks.*.ffn.down"),
        ("model.layers.*.{attn,mlp}_norm", "blocks.*.{attn,ffn}_norm"),
        ("model.final_norm", "blocks.norm"),
        *(("head.{dense,norm}", f"head.{where}{{dense,norm}}") for where in ("", "pool.", "transform.")),
        ("decoder", "head.out"),
        *(("classifier", f"head.{kind}") for kind in ("label", "tag", "span")),
    ],
    keys=dict(
        local_attention="window", hidden_activation="act", norm_eps="norm_eps", norm_bias="norm_bias",
        classifier_bias="head_bias", classifier_activation="head_act", decoder_bias="out_bias",
        attention_dropout="dropout", mlp_dropout="dropout", embedding_dropout="dropout",
    ),
    presets={"modernbert-base": {}, "modernbert-large": dict(dim=1024, layers=28, heads=16, hidden=2624)},
    tiny=dict(layers=3, hidden=48, window=4), objective="masked", prefix="model",
    heads=published_heads("ModernBert", words="mlm"), read=read_modernbert, write=lambda c: {
        "classifier_pooling": next(theirs for theirs, ours in POOLING.items() if ours == c.pooling)
    },
    usual=no_token_ids,
    reads={
        "layer_types": "tuple[str, ...]", "global_attn_every_n_layers": "int", "rope_parameters": "dict",
        "global_rope_theta": "float", "local_rope_theta": "float",
    },
    gguf="modern-bert",
    gguf_names=[
        ("token_{embd,embd_norm}", "embed.{token,norm}"),
        FUSED_QKV,
        ("blk.*.ffn_up", ("blocks.*.ffn.gate", "blocks.*.ffn.up"), Fused()),
        *ROWS,
    ],
    gguf_head="none", gguf_read=read_modernbert_gguf,
    gguf_write=write_modernbert_gguf, paper="Warner et al. 2024, arXiv 2412.13663",
)  # fmt: skip


MODERNBERT_DECODER = descend(
    MODERNBERT, "modernbert-decoder", sizes=dict(head="lm"), build=partial(modernbert, causal=True),
    own_names=[
        ("model.layers.*.attn.{q_proj,k_proj,v_proj}", "blocks.*.attn.{q,k,v}"),
        ("lm_head.{dense,norm}", "head.{dense,norm}"),
    ],
    presets={"ettin-decoder-150m": {}}, without=("pooling",), model_types=("modernbert-decoder",),
    objective="next_token", heads={"lm": "ModernBertDecoderForCausalLM", "none": "ModernBertDecoderModel"},
    write=None, usual=lambda c: {"pad_token_id": 0},
    paper="Weller et al. 2025, arXiv 2507.11412",
)  # fmt: skip


def eurobert(c: LlamaConfig) -> LM:
    head = choose_head(
        c.head, mlm=lambda: PlainMLMHead(c.dim, c.vocab, tied=c.tied, bias=c.ffn_bias),
        tag=lambda: TagHead(c.dim, c.labels), none=NoHead,
    )  # fmt: skip
    return llama(c, head=head, causal=False)


EUROBERT = descend(
    LLAMA, "eurobert", sizes=dict(
        vocab=128256, dim=768, layers=12, heads=12, hidden=3072, context=8192, rope_base=250000.0,
        norm_eps=1e-5, head="mlm",
    ),
    build=eurobert, own_names=[("classifier", "head.tag")], objective="masked",
    presets={
        "eurobert-210m": {},
        "eurobert-610m": dict(dim=1152, layers=26, heads=18, kv_heads=6, hidden=4096),
        "eurobert-2.1b": dict(dim=2304, layers=32, heads=18, kv_heads=6, hidden=6144),
    },
    tiny=dict(head="mlm"),
    heads={"mlm": "EuroBertForMaskedLM", "tag": "EuroBertForTokenClassification", "none": "EuroBertModel"},
    usual=no_token_ids, absent={"rope_theta": 10000.0}, paper="Boizard et al. 2025, arXiv 2503.05500",
)  # fmt: skip
