"""S4 (Gu et al. 2022, arXiv 2111.00396), with S4D's diagonal matrix (Gu, Gupta et al., arXiv 2206.11893).

From the Transformer:  attention and feed-forward → a long convolution and a gated matrix   no positions
From an RNN:           the recurrence is linear and the same at every step: a whole sequence is one FFT

The preset is a size of ours: the paper's language model has a vocabulary that was never published.
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.core.errors import ConfigError
from heedful.models.base import LM, Config, Family
from heedful.models.recurrent.language_models import same_keys, same_names
from heedful.models.state_space.mamba import check_steps
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.head import LMHead, NoHead, choose_head
from heedful.nn.norm import LayerNorm
from heedful.nn.state_space.ssm import S4


@dataclass(frozen=True, kw_only=True)
class S4Config(Config):
    vocab: int = 50257
    dim: int = 768
    layers: int = 24
    state: int = 64  # numbers each channel remembers
    step_min: float = 0.001  # Δ before training
    step_max: float = 0.1
    norm_eps: float = 1e-5
    dropout: float = 0.1
    tied: bool = True

    def check(self) -> None:
        if self.state < 2 or self.state % 2:
            raise ConfigError(f"state={self.state} is odd, but holds pairs", hint=f"take {self.state + 1}")
        check_steps(self.step_min, self.step_max)


def s4(c: S4Config) -> LM:
    norm = lambda: LayerNorm(c.dim, c.norm_eps)
    ssm = lambda: S4(c.dim, c.state, step=(c.step_min, c.step_max), dropout=c.dropout)
    blocks = [Block(norm, "pre", c.dropout, ssm=ssm()) for _ in range(c.layers)]
    head = choose_head(c.head, lm=lambda: LMHead(c.dim, c.vocab, tied=c.tied), none=NoHead)
    return LM(Embedding(c.vocab, c.dim, dropout=c.dropout), Stack(blocks, norm()), head)


NAMES = same_names(
    "embed.token", "blocks.*.ssm.{step_log,A_log,A_turn,C,D,out}", "blocks.*.ssm_norm", "blocks.norm",
    "head.out",
)  # fmt: skip

S4_LM = Family(
    "s4", S4Config, s4, NAMES, same_keys(S4Config),
    presets={"s4-69m": S4Config()},
    tiny=S4Config(vocab=128, dim=32, layers=2, state=8),
    objective="next_token", heads={"lm": "S4LM", "none": "S4Model"},
    paper="Gu et al. 2022, arXiv 2111.00396",
)  # fmt: skip
