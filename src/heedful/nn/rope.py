"""How far rotary positions reach: one class per published rescaling of the frequencies f_i = base^(−2i/K)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scaling:
    """Rescales rotary frequencies. `by_length` ones change with the length of the text.

    A key keeps the frequencies of the pass that wrote it. If a text grows past `reread_length` tokens, every
    position gets other frequencies, and the model reads the text again.
    """

    factor: float = 1.0

    @property
    def by_length(self) -> bool:
        return False

    @property
    def reread_length(self) -> int | None:
        return None

    @property
    def is_unlimited(self) -> bool:
        """Whether texts may be longer than the context that the config states."""
        return False

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

    @property
    def by_length(self) -> bool:
        return True

    @property
    def is_unlimited(self) -> bool:
        return True

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

    @property
    def by_length(self) -> bool:
        return True

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
