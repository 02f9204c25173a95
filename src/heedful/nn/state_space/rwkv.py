"""RWKV's two parts (Peng et al. 2023, arXiv 2305.13048): time mixing in the place of attention, and channel
mixing in that of the feed-forward network. Both read a mixture of a token and the one before it.

Every channel is a head of size 1: the `pattern` is (B, C, T, T) and pattern @ v = heads, v (B, C, T, 1). A
memory of fixed size holds no past positions, so that a pass that goes on from one has no pattern.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.context import Context, PartState
from heedful.nn.state import StatefulPart, recall, remember
from heedful.nn.state_space.scan import scatter_valid
from heedful.nn.state_space.ssm import delayed, show_pattern, shows_pattern

NOTHING = -1e9  # the logarithm of a weight that is none; finite, so that gradients are
BREAK = 1e4  # between the logarithms of two documents: e^−10000 is 0
SMALLEST = 1e-30  # what a value of 0 is taken for, of which there is no logarithm


class TokenShift(nn.Module):
    """μ ⊙ x_t + (1 − μ) ⊙ x_{t−1}, for each of several μ   (eq. 11–13)"""

    def __init__(self, dim: int, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.empty(dim)))

    def initialise(self) -> None:
        for mix in self.parameters():
            nn.init.constant_(mix, 0.5)

    def mixtures(self, x: Tensor, ctx: Context, state: PartState | None) -> list[Tensor]:
        """The mixture of each μ, in their order."""
        before = delayed(x, 2, ctx, state)[0]
        before = before if ctx.valid_new is None else scatter_valid(before, ctx.valid_new)
        return [torch.lerp(before, x, mix.to(x.dtype)) for mix in self.parameters()]


class TimeMix(StatefulPart):
    """wkv_t = (Σ_{s<t} e^(k_s − (t−1−s) w) v_s + e^(u + k_t) v_t) / (the same sums without v)
    out(σ(gate) ⊙ wkv)   (eq. 14–18)

    Attention whose scores are a key alone, less a decay w of each channel for every step: no query, and the
    newest token has a bonus u. The weights of a row sum to 1. The sums over the past are kept as logarithms
    in float64, so that one pass is a cumulative sum and nothing overflows. Positive and negative values have
    separate sums.
    """

    pattern_kind = "softmax"
    pattern_leaves_out = "the gate after it"

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.mix = TokenShift(dim, "k", "v", "gate")
        self.k, self.v, self.gate = (nn.Linear(dim, hidden, bias=False) for _ in range(3))
        self.out = nn.Linear(hidden, dim, bias=False)
        self.decay = nn.Parameter(torch.empty(hidden))  # log w
        self.bonus = nn.Parameter(torch.empty(hidden))  # u

    def initialise(self) -> None:
        """Decays from slow to fast, and log 0.3 as bonus   (as in the authors' code)"""
        self.mix.initialise()
        count = len(self.decay)
        self.decay.copy_(-5 + 8 * torch.linspace(0, 1, count, device=self.decay.device) ** 0.7)
        nn.init.constant_(self.bonus, -1.2)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        with_pattern = shows_pattern(ctx, state)
        of_k, of_v, of_gate = self.mix.mixtures(x, ctx, state)
        k, gate = self.k(of_k).double(), ctx.see("gate", self.gate(of_gate))
        v = ctx.see("v", self.v(of_v).mT[..., None])  # (B, C, T, 1)
        w, u = self.decay.double().exp(), self.bonus.double()
        valid = torch.ones_like(k[..., :1]) if ctx.valid_new is None else ctx.valid_new[..., None].double()
        key, count = (
            k.masked_fill(valid == 0, NOTHING),
            valid.cumsum(1),
        )  # (B, T, 1): how many tokens there are
        began = 0.0 if ctx.fresh is None else BREAK * ctx.fresh[..., None].double().cumsum(1)
        late = count * w + began  # what a key's logarithm has at its own token: later ones have more
        value = v[..., 0].mT.double()
        parts = [torch.zeros_like(key), value.clamp(min=SMALLEST).log(), (-value).clamp(min=SMALLEST).log()]
        terms = torch.stack([key + late + part for part in parts], 1)  # (B, 3, T, C): of 1, v > 0 and v < 0
        past = recall(state, "sums")
        past = torch.full_like(terms[:, :, 0], NOTHING) if past is None else past
        sums = torch.cat((past[:, :, None], terms), 2).logcumsumexp(2)  # (B, 3, 1 + T, C)
        remember(state, sums=sums[:, :, -1] - (late[:, -1:] if isinstance(late, Tensor) else 0.0))
        new = torch.stack([k + u + part for part in parts], 1)
        total, plus, minus = torch.logaddexp(sums[:, :, :-1] - (late - w)[:, None], new).unbind(1)
        heads = valid * ((plus - total).exp() - (minus - total).exp())
        heads = heads.to(x.dtype).mT[..., None]  # (B, C, T, 1)
        if with_pattern:
            scores = (key + late)[:, None] - (late - w + total)[:, :, None]  # (B, T, S, C)
            later = torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=torch.bool).triu()
            scores = scores.masked_fill(later[..., None], NOTHING)
            pattern = scores.exp() + torch.diag_embed((k + u - total).exp().mT).permute(0, 2, 3, 1)
            pattern = (pattern * valid[:, :, None]).permute(0, 3, 1, 2).to(x.dtype)
            heads = show_pattern(ctx, heads, v, pattern)
        read = ctx.see("heads", heads)[..., 0].mT
        return self.out(ctx.see("hidden", torch.sigmoid(gate) * read))


class ChannelMix(StatefulPart):
    """σ(gate) ⊙ down(max(0, up)²), of mixtures with the token before   (eq. 19–21)"""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.mix = TokenShift(dim, "up", "gate")
        self.up = nn.Linear(dim, hidden, bias=False)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def initialise(self) -> None:
        self.mix.initialise()

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        of_up, of_gate = self.mix.mixtures(x, ctx, state)
        hidden = ctx.see("hidden", F.relu(ctx.see("up", self.up(of_up))).square())
        return torch.sigmoid(ctx.see("gate", self.gate(of_gate))) * self.down(hidden)
