"""Where a token stands.

Added to the embedding (Sinusoidal, Learned), turned into q and k (Rotary), or added to the scores (ALiBi,
BucketBias). A `Scaling` is a published way to stretch the rotary frequencies f_i = base^(−2i/K) to longer
texts.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from heedful.core.errors import ConfigError
from heedful.nn.context import Context


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


class SineTable(nn.Module):
    """p(t) = table[t]: sines before cosines, stored with the weights and not learned   (Whisper)"""

    weight: Tensor

    def __init__(self, context: int, dim: int) -> None:
        super().__init__()
        sines = Sinusoidal(dim, 10000.0 ** (dim / (dim - 2)), layout="halves")
        self.context = context
        self.register_buffer("weight", sines(torch.arange(context)))

    def forward(self, pos: Tensor) -> Tensor:
        return self.weight[pos]


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
            raise ConfigError(
                f"`rope_base={base:g}` is not a valid base", hint="it must be above 0, usually 10000"
            )
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
        cos, sin = ctx.once(self, pos, lambda: self.table(pos, ctx.length))
        # In float32 or better: bf16 cannot tell the angle of position 257 from that of 258.
        a, b = x[..., : self.dim].to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
        return turned if x.shape[-1] == self.dim else torch.cat((turned, x[..., self.dim :]), -1)


class ALiBi(nn.Module):
    """b_h(i, j) = −m_h (i − j), m_h = 2^(−8h/H)   (Press et al. 2022)

    For a head count that is not a power of two the slopes of the next lower power are taken, then every other
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
        return bias.contiguous()  # with keys further apart, a GPU's fused attention would refuse it


@dataclass(frozen=True)
class Scaling:
    """Rescales rotary frequencies. `by_length` ones change with the length of the text.

    A key keeps the frequencies of the pass that wrote it. If a text grows past `reread_length` tokens, every
    position gets other frequencies, and the model reads the text again. An `is_unlimited` one reads texts
    that are longer than the context that the config states.
    """

    factor: float = 1.0
    by_length: ClassVar[bool] = False
    is_unlimited: ClassVar[bool] = False

    @property
    def reread_length(self) -> int | None:
        return None

    def regime(self, length: int) -> int:
        """Return a number that two lengths share if, and only if, they have the same frequencies."""
        return 0

    @property
    def gain(self) -> float:
        """The factor of cos and sin."""
        return 1.0

    def rescale(self, freq: Tensor, base: float, length: Tensor) -> Tensor:
        """New frequencies (…, K/2) or (1, K/2) from f (K/2,) for texts of `length` (…, 1)."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """f / factor: positions are interpolated   (Chen et al. 2023)"""

    def rescale(self, freq: Tensor, base: float, length: Tensor) -> Tensor:
        return freq[None] / self.factor


@dataclass(frozen=True)
class NTKScaling(Scaling):
    """base → base · (factor · n/n₀ − factor + 1)^(K/(K−2)) for n > n₀ tokens   (dynamic NTK, bloc97 2023)

    The base changes with every token past n₀. While a text is generated, a key keeps the base that it was
    written with, as in transformers. A single pass over the whole text has one base for all of it. So steps
    and a single pass give different logits past n₀.
    """

    context: int = 2048  # n₀, the length trained on
    by_length: ClassVar[bool] = True
    is_unlimited: ClassVar[bool] = True

    def regime(self, length: int) -> int:
        return max(length, self.context)

    def rescale(self, freq: Tensor, base: float, length: Tensor) -> Tensor:
        K = 2 * freq.shape[0]
        n = length.clamp(min=self.context).to(freq.dtype)
        stretch = (self.factor * n / self.context - (self.factor - 1)) ** (K / (K - 2))  # (…, 1)
        i = torch.arange(0, K, 2, device=freq.device, dtype=freq.dtype) / K
        return (base * stretch) ** -i


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """f · r + f/factor · (1 − r), r a ramp over i   (Peng et al. 2023 §3.2)

    Fast pairs stay, slow ones are interpolated.

    cos and sin are multiplied by 0.1·mscale·ln(factor) + 1 (eq. 22), or by what the checkpoint states.
    """

    context: int = 2048  # the length trained on before
    fast: float = 32.0  # pairs that turn more often than this over the context stay
    slow: float = 1.0  # pairs that turn less often are interpolated
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True

    @property
    def gain(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_gain(self.factor, self.mscale) / yarn_gain(self.factor, self.mscale_all_dim)
        return yarn_gain(self.factor)

    def rescale(self, freq: Tensor, base: float, length: Tensor) -> Tensor:
        K = 2 * freq.shape[0]

        def pair(turns: float) -> float:
            """The pair that turns so often over the context."""
            return K * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair(self.fast), pair(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, K - 1)
        i = torch.arange(K // 2, device=freq.device, dtype=freq.dtype)
        stay = 1 - ((i - low) / max(high - low, 0.001)).clamp(0, 1)
        return (freq * stay + freq / self.factor * (1 - stay))[None]


def yarn_gain(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1   (Peng et al. 2023, eq. 22)"""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """f where the wavelength is short, f/factor where it is long, a linear blend between   (Llama 3.1)"""

    context: int = 8192  # the length trained on before
    low: float = 1.0  # waves longer than context/low are divided
    high: float = 4.0  # waves shorter than context/high stay

    def rescale(self, freq: Tensor, base: float, length: Tensor) -> Tensor:
        turns = self.context * freq / (2 * math.pi)  # how often the pair turns over the context
        blend = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (freq * blend + freq / self.factor * (1 - blend))[None]


@functools.lru_cache(maxsize=64)
def factor_tensor(factors: tuple[float, ...], device: torch.device) -> Tensor:
    """The factors as a tensor. A CUDA graph cannot record the copy to the device, so it is made once."""
    return torch.tensor(factors, device=device)


@dataclass(frozen=True)
class LongScaling(Scaling):
    """f_i / short_i for texts of up to n₀ tokens, f_i / long_i for longer ones   (Ding et al. 2024)

    A text that grows past n₀ while it is generated is read again with the long factors, as in transformers.

    cos and sin are multiplied by √(1 + ln factor / ln n₀), or by what the checkpoint states.
    """

    context: int = 4096  # n₀, the length trained on before
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    attention_factor: float | None = None
    by_length: ClassVar[bool] = True

    @property
    def reread_length(self) -> int | None:
        return self.context

    def regime(self, length: int) -> int:
        return int(length > self.context)

    @property
    def gain(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.context)) if self.factor > 1 else 1.0

    def rescale(self, freq: Tensor, base: float, length: Tensor) -> Tensor:
        make = factor_tensor.__wrapped__ if torch.compiler.is_compiling() else factor_tensor
        short, long = (make(factors, freq.device) for factors in (self.short, self.long))  # (K/2,)
        return freq / torch.where(length > self.context, long, short)  # (…, K/2)


def frequencies(dim: int, base: float, scaling: Scaling | None, length: Tensor) -> tuple[Tensor, float]:
    """The frequencies (…, K/2) or (1, K/2) of a rotary head of size `dim`, and the gain of cos and sin."""
    i = torch.arange(0, dim, 2, device=length.device, dtype=torch.float32) / dim
    freq = base**-i
    return (freq[None], 1.0) if scaling is None else (scaling.rescale(freq, base, length), scaling.gain)
