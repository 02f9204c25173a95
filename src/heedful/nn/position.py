"""Where a token stands.

Added to the embedding (Sinusoidal, Learned), turned into q and k (Rotary), or added to the scores (ALiBi,
BucketBias).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.core.errors import ConfigError
from heedful.nn.context import Context
from heedful.nn.rope import Scaling, frequencies


class Sinusoidal(nn.Module):
    """p(t, 2i) = sin(t / base^(2i/D)),  p(t, 2i+1) = cos(t / base^(2i/D))   (Vaswani et al. 2017 §3.5)

    `layout="halves"` puts all sines before all cosines, as some published decoders do. t begins at `offset`.
    """

    context: int | None = None  # defined for any position

    def __init__(
        self, dim: int, base: float = 10000.0, layout: Literal["pairs", "halves"] = "pairs", offset: int = 0
    ) -> None:
        super().__init__()
        self.dim, self.base, self.layout, self.offset = dim, base, layout, offset

    def forward(self, pos: Tensor) -> Tensor:
        half = torch.arange(0, self.dim, 2, device=pos.device, dtype=torch.float64)
        angle = (pos + self.offset)[..., None] / self.base ** (half / self.dim)  # (B, T, D/2)
        pair = (angle.sin(), angle.cos())
        table = torch.stack(pair, -1).flatten(-2) if self.layout == "pairs" else torch.cat(pair, -1)
        return table[..., : self.dim].float()


class Learned(nn.Embedding):
    """p(t) = table[t + offset]   (Gehring et al. 2017; BERT, GPT)

    `offset` rows at the start belong to no position: a habit of fairseq's padding index.
    """

    def __init__(self, context: int, dim: int, offset: int = 0) -> None:
        super().__init__(context + offset, dim)
        self.context, self.offset = context, offset

    def forward(self, pos: Tensor) -> Tensor:
        return super().forward(pos + self.offset)


class Rotary(nn.Module):
    """q_t → R_t q_t,  k_s → R_s k_s, so that q·k depends on t − s alone   (Su et al. 2021, eq. 14–16)

    R_t turns the pair (x_i, x_{i+K/2}) by the angle t·f_i, f_i = base^(−2i/K); a scaling changes f. Only the
    first `dim` entries of a head are turned.
    """

    def __init__(self, dim: int, base: float = 10000.0, scaling: Scaling | None = None) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(
                f"a head of {dim} entries has no rotary pairs", hint=f"choose {dim + 1} or {dim - 1}"
            )
        if base <= 0:
            raise ConfigError(f"rope_base={base:g} makes no angles", hint="it must be above 0, usually 10000")
        self.dim, self.base, self.scaling = dim, base, scaling

    @property
    def by_length(self) -> bool:
        """True if the angles depend on how long the sequence is."""
        return self.scaling is not None and self.scaling.by_length

    def table(self, pos: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (B, 1, T, K/2) of every angle at `pos`, for texts of `length` (B or 1, 1 or T)."""
        freq, gain = frequencies(self.dim, self.base, self.scaling, length[..., None])
        angle = (pos[..., None] * freq)[:, None]
        return angle.cos() * gain, angle.sin() * gain

    def forward(self, x: Tensor, pos: Tensor, ctx: Context) -> Tensor:
        cos, sin = self._once(pos, ctx)
        a, b = (
            x[..., : self.dim].float().chunk(2, -1)
        )  # angles in float32: bf16 cannot tell position 257 from 258
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
        return turned if x.shape[-1] == self.dim else torch.cat((turned, x[..., self.dim :]), -1)

    def _once(self, pos: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """The table at `pos`, made once per pass: all layers turn by the same angles."""
        if torch.compiler.is_compiling():  # the compiler shares common expressions by itself
            return self.table(pos, ctx.length)
        key = (id(self), id(pos))
        if key not in ctx.memo:  # `pos` is kept with its table, so that its id stays its own
            ctx.memo[key] = (pos, *self.table(pos, ctx.length))
        _, cos, sin = ctx.memo[key]
        return cos, sin


class ALiBi(nn.Module):
    """b_h(i, j) = −m_h (i − j), m_h = 2^(−8h/H)   (Press et al. 2022)

    For a head count that is no power of two the slopes of the next lower power are taken, then every other
    slope of the next higher one.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def slopes(self, device: torch.device) -> Tensor:
        """m_h, (H,)"""
        low = 2 ** math.floor(math.log2(self.heads))
        h = torch.arange(1, 2 * low + 1, device=device, dtype=torch.float64)  # made where it is used
        return torch.cat((-8 * h[:low] / low, -4 * h[::2] / low))[: self.heads].exp2().float()

    def forward(self, ctx: Context) -> Tensor:
        distance = ctx.q_pos[:, :, None] - ctx.k_pos[:, None, :]  # (B, T, S)
        return -self.slopes(distance.device)[:, None, None] * distance[:, None]


class RoundedALiBi(ALiBi):
    """b_h(j) = m_h j / √K in bfloat16: ALiBi as the published implementation of Falcon rounds it

    What is added to a whole row of scores changes no weight: without rounding this is −m_h (i − j) / √K.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__(heads)
        self.scale = head_dim**-0.5

    def forward(self, ctx: Context) -> Tensor:
        slopes = self.slopes(ctx.k_pos.device).bfloat16()
        rounded = slopes[:, None] * ctx.k_pos[:, None, :]  # (B, H, S)
        return (rounded.float() * self.scale)[:, :, None].expand(-1, -1, ctx.q_pos.shape[1], -1)


class BucketBias(nn.Module):
    """b_h(i, j) = table[bucket(j − i), h], added to every score of the stack   (T5 §2.1)

    Half of the buckets are exact distances, the rest grow logarithmically up to `far`; seen both ways, half
    of all serve each direction. Computed once per stack and shared by its layers; cross-attention has none.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, *, causal: bool) -> None:
        super().__init__()
        self.buckets, self.far, self.causal = buckets, max_distance, causal
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of a distance j − i."""
        if self.causal:
            count, steps = self.buckets, (-distance).clamp(min=0)
            sign = torch.zeros_like(distance)
        else:
            count, steps = self.buckets // 2, distance.abs()
            sign = (distance > 0) * count
        exact = count // 2
        # The clamp keeps log away from 0; those distances take the exact branch anyway.
        ratio = torch.log(steps.clamp(min=1).float() / exact) / math.log(self.far / exact)
        far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
        return sign + torch.where(steps < exact, steps, far)

    def forward(self, ctx: Context) -> Tensor:
        distance = ctx.k_pos[:, None, :] - ctx.q_pos[:, :, None]  # (B, T, S)
        bias: Tensor = self.table(self.bucket(distance)).permute(0, 3, 1, 2)  # (B, H, T, S)
        return bias
