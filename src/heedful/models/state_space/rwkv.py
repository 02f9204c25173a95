"""RWKV-4 (Peng et al. 2023, arXiv 2305.13048), a recurrent network that is trained like a Transformer.

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

from dataclasses import dataclass

from heedful.models.base import LM, Config, Family, derived
from heedful.models.decoders.shared import decoder_head
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.norm import LayerNorm
from heedful.nn.state_space.rwkv import ChannelMix, TimeMix
from heedful.weights.names import Row
from heedful.weights.ops import Reshape


@dataclass(frozen=True, kw_only=True)
class RwkvConfig(Config):
    vocab: int = 50277
    dim: int = 4096
    layers: int = 32
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

RWKV = Family(
    "rwkv", RwkvConfig, rwkv, NAMES,
    {
        "vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers",
        "attention_hidden_size": "mix_dim", "intermediate_size": "hidden", "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tied",
    },
    presets={
        f"rwkv-4-{size}": RwkvConfig(dim=dim, layers=layers)
        for size, dim, layers in (
            ("169m", 768, 12), ("430m", 1024, 24), ("1b5", 2048, 24), ("3b", 2560, 32), ("7b", 4096, 32),
            ("14b", 5120, 40),
        )
    },
    tiny=RwkvConfig(vocab=128, dim=32, layers=2, hidden=48), objective="next_token",
    heads={"lm": "RwkvForCausalLM", "none": "RwkvModel"}, prefix="rwkv", model_types=("rwkv",),
    copies={"head.weight": "rwkv.embeddings.weight"}, paper="Peng et al. 2023, arXiv 2305.13048",
)  # fmt: skip
