"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236), GLA, which gates it (Yang et al. 2024,
arXiv 2312.06635), Based (Arora et al. 2024, arXiv 2402.18668).

From the Transformer:  exp(q·k) → φ(q)·φ(k), so that the past is one matrix
To GLA:                that matrix forgets, each key channel at a pace the token chooses   no positions
To Based:              φ is exp's Taylor series   most layers are short convolutions, some see a window

RetNet (Sun et al. 2023, arXiv 2307.08621): one equation that is a Transformer in training, an RNN in use.

Without its softmax, attention is a product of three matrices, and products can be regrouped: the sum over all
earlier keys and values may be kept as one matrix that every new token updates. RetNet does so, and lets that
matrix fade by a factor γ for each step. γ is near 1 and differs from head to head: some heads look at the
last dozens of tokens, others at thousands. A text can then be read in three ways with one result. In
parallel, like attention, which trains fast. Token by token with a memory of fixed size, which writes fast.
And chunk by chunk, parallel inside and recurrent between them, which reads very long texts. A norm for each
head makes up for the softmax that is gone.

From the Transformer:  softmax → a decay per head   rotary positions   a norm of each head   a gate
From GLA:              the decay is fixed, not chosen by the token

RWKV-4 (Peng et al. 2023, arXiv 2305.13048), a recurrent network that is trained like a Transformer.

Attention compares every token with every other one. RWKV drops the query: a token's key alone says how much
it weighs, and that weight fades with every step at a pace that each channel has learned. So the sum over the
past needs no list of keys, only two running sums for each channel, and a text of any length is written with
a memory of fixed size. Over a whole text the same sums are computed at once, which is why it trains as fast
as a Transformer. A second trick replaces positions and short convolutions: every matrix reads a mixture of a
token and the one before it.

From the Transformer:  attention → decaying sums of keys and values   no positions
                       a gate after both parts   the square of ReLU
"""

from __future__ import annotations

from heedful.core.checks import check_divides
from heedful.models.base import LM, Config, derived
from heedful.models.family import PlainConfig, check_layers, declare
from heedful.models.shared import decoder_head, plain_stack
from heedful.nn.attention.multi_head import Attention, head_size
from heedful.nn.block import Block, Stack
from heedful.nn.context import Part
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP, activation
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.position import Rotary, Sinusoidal
from heedful.nn.state_space.linear_attention import (
    GatedConv,
    GatedLinearAttention,
    LinearAttention,
    Retention,
    elu_features,
    taylor_features,
)
from heedful.nn.state_space.rwkv import ChannelMix, TimeMix
from heedful.weights.names import Row
from heedful.weights.ops import Reshape


class GLAConfig(Config, vocab=32000, dim=1024, layers=24):
    heads: int = 4
    key_dim: int = derived(lambda c: head_size(c.dim, c.heads) // 2)  # of one head; values have dim / heads
    rank: int = 16  # of the matrix that makes the decays
    hidden: int = derived(lambda c: -(-(8 * c.dim // 3) // 256) * 256)  # 8/3 dim, in steps of 256
    act: str = "silu"
    norm_eps: float = 1e-6
    tied: bool = True


class BasedConfig(Config, vocab=50264, dim=1024, layers=27):
    heads: int = 16
    key_dim: int = 16  # of one linear head, before the Taylor series
    linear_at: tuple[int, ...] = derived(lambda c: tuple(range(1, c.layers - 1, 5)))  # which layers see all
    window_at: tuple[int, ...] = derived(lambda c: tuple(i + 1 for i in c.linear_at))  # which a window
    window_heads: int = derived(lambda c: c.heads)
    window: int = 128
    width: int = 3  # tokens the short convolution sees
    hidden: int = derived(lambda c: 2 * c.dim)
    act: str = "silu"
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    tied: bool = True

    def check(self) -> None:
        check_layers(self, "linear_at", "window_at")


def linear_attention(c: PlainConfig) -> LM:
    attn = lambda i: LinearAttention(c.dim, c.heads, features=elu_features, bias=True)
    embed = Embedding(c.vocab, c.dim, position=Sinusoidal(c.dim), scale=c.dim**0.5, dropout=c.dropout)
    return LM(embed, plain_stack(c, attn=attn), decoder_head(c))


def gla(c: GLAConfig) -> LM:
    stack = plain_stack(
        c, norm=lambda: RMSNorm(c.dim, c.norm_eps),
        attn=lambda i: GatedLinearAttention(c.dim, c.heads, c.key_dim, rank=c.rank, eps=c.norm_eps),
        ffn=lambda i: GatedMLP(c.dim, c.hidden, activation(c.act)),
    )  # fmt: skip
    return LM(Embedding(c.vocab, c.dim), stack, decoder_head(c))


def based(c: BasedConfig) -> LM:
    norm, rotary = lambda: RMSNorm(c.dim, c.norm_eps), Rotary(c.dim // c.window_heads, c.rope_base)
    ffn = lambda: GatedMLP(c.dim, c.hidden, activation(c.act))

    def block(i: int) -> Block:
        if i in c.linear_at:
            attn: Part = LinearAttention(c.dim, c.heads, c.key_dim, features=taylor_features)
        elif i in c.window_at:
            attn = Attention(c.dim, c.window_heads, window=c.window, rotary=rotary)
        else:
            return Block(norm, conv=GatedConv(c.dim, 2 * c.dim, c.width), ffn=ffn())
        return Block(norm, attn=attn, ffn=ffn())

    return LM(Embedding(c.vocab, c.dim), Stack([block(i) for i in range(c.layers)], norm()), decoder_head(c))


LINEAR = declare(
    "linear", PlainConfig, linear_attention, presets={"linear-124m": {}},
    heads={"lm": "LinearLM", "none": "LinearModel"}, paper="Katharopoulos et al. 2020, arXiv 2006.16236",
)  # fmt: skip

GLA = declare(
    "gla", GLAConfig, gla, presets={"gla-340m": {}, "gla-1.3b": dict(dim=2048)}, tiny=dict(rank=4, hidden=48),
    heads={"lm": "GLALM", "none": "GLAModel"}, paper="Yang et al. 2024, arXiv 2312.06635",
)  # fmt: skip

BASED = declare(
    "based", BasedConfig, based,
    presets={
        "based-360m": {},
        "based-1b": dict(
            dim=1792, layers=36, heads=28, window_heads=16, linear_at=(1, 6, 11, 16, 21, 27, 33), window=64
        ),
    },
    tiny=dict(layers=3, key_dim=4, window=4, hidden=48),
    read=lambda given: {n: tuple(given[n]) for n in ("linear_at", "window_at") if n in given},
    heads={"lm": "BasedLM", "none": "BasedModel"}, paper="Arora et al. 2024, arXiv 2402.18668",
)  # fmt: skip


class RetNetConfig(Config, vocab=50257, dim=2048, layers=24):
    heads: int = derived(lambda c: max(c.dim // 256, 1))
    value_dim: int = derived(lambda c: 2 * c.dim)  # of all heads together
    hidden: int = derived(lambda c: 2 * c.dim)
    act: str = "gelu"
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    tied: bool = True

    def check(self) -> None:
        check_divides("heads", self.heads, "value_dim", self.value_dim)


def retnet(c: RetNetConfig) -> LM:
    rotary = Rotary(c.dim // c.heads, c.rope_base)
    attn = lambda i: Retention(c.dim, c.heads, c.value_dim, rotary, eps=c.norm_eps)
    ffn = lambda i: MLP(c.dim, c.hidden, activation(c.act), bias=False)
    return LM(Embedding(c.vocab, c.dim), plain_stack(c, attn=attn, ffn=ffn), decoder_head(c))


RETNET = declare(
    "retnet", RetNetConfig, retnet,
    presets={
        "retnet-1.3b": {},
        "retnet-2.7b": dict(dim=2560, layers=32),
        "retnet-6.7b": dict(dim=4096, layers=32),
    },
    tiny=dict(hidden=48), heads={"lm": "RetNetLM", "none": "RetNetModel"},
    paper="Sun et al. 2023, arXiv 2307.08621",
)  # fmt: skip


class RwkvConfig(Config, vocab=50277, dim=4096, layers=32):
    mix_dim: int = derived(lambda c: c.dim)  # channels of the time mixing
    hidden: int = derived(lambda c: 4 * c.dim)
    norm_eps: float = 1e-5
    tied: bool = False


def rwkv(c: RwkvConfig) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    block = lambda: Block(norm, attn=TimeMix(c.dim, c.mix_dim), ffn=ChannelMix(c.dim, c.hidden))
    stack = Stack([block() for _ in range(c.layers)], LayerNorm(c.dim))  # whose ε the config does not set
    return LM(Embedding(c.vocab, c.dim, norm=norm()), stack, decoder_head(c))


MIX = Reshape((1, 1, -1))
NAMES: list[Row] = [
    ("rwkv.embeddings", "embed.token"),
    ("rwkv.blocks.0.pre_ln", "embed.norm"),
    ("rwkv.blocks.*.ln1", "blocks.*.attn_norm"),
    ("rwkv.blocks.*.ln2", "blocks.*.ffn_norm"),
    *((f"rwkv.blocks.*.attention.time_mix_{theirs}", f"blocks.*.attn.mix.{ours}", MIX)
      for theirs, ours in (("key", "k"), ("value", "v"), ("receptance", "gate"))),
    *((f"rwkv.blocks.*.feed_forward.time_mix_{theirs}", f"blocks.*.ffn.mix.{ours}", MIX)
      for theirs, ours in (("key", "up"), ("receptance", "gate"))),
    ("rwkv.blocks.*.attention.time_{decay,first}", "blocks.*.attn.{decay,bonus}"),
    ("rwkv.blocks.*.attention.{key,value,receptance,output}", "blocks.*.attn.{k,v,gate,out}"),
    ("rwkv.blocks.*.feed_forward.{key,receptance,value}", "blocks.*.ffn.{up,gate,down}"),
    ("rwkv.ln_out", "blocks.norm"),
    ("head", "head.out"),
]  # fmt: skip

RWKV = declare(
    "rwkv", RwkvConfig, rwkv, names=NAMES,
    keys={
        "vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers",
        "attention_hidden_size": "mix_dim", "intermediate_size": "hidden", "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tied",
    },
    presets={
        f"rwkv-4-{size}": dict(dim=dim, layers=layers)
        for size, dim, layers in (
            ("169m", 768, 12), ("430m", 1024, 24), ("1b5", 2048, 24), ("3b", 2560, 32), ("7b", 4096, 32),
            ("14b", 5120, 40),
        )
    },
    tiny=dict(hidden=48), heads={"lm": "RwkvForCausalLM", "none": "RwkvModel"}, prefix="rwkv",
    paper="Peng et al. 2023, arXiv 2305.13048",
)  # fmt: skip
