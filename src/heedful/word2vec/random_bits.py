"""SplitMix64 (Steele et al. 2014) on Python integers: the random streams of kernels.py and their seeds."""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def mix_bits(value: int) -> int:
    """Return the 64 bits of `value`, mixed: SplitMix64's last step."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def job_seed(seed: int, epoch: int, job: int) -> int:
    """Return the seed of the random stream that belongs to (seed, epoch, job)."""
    value = 0
    for part in (seed, epoch, job):
        value = mix_bits((value + part + GOLDEN) & MASK)
    return value


class RandomStream:
    """The draws of one job, in the order kernels.py makes them."""

    def __init__(self, seed: int) -> None:
        self.state = mix_bits(seed)

    def bits(self) -> int:
        """Return the next 64 random bits."""
        self.state = (self.state + GOLDEN) & MASK
        return mix_bits(self.state)

    def below(self, limit: int) -> int:
        """Draw evenly from 0 … limit - 1, by the high 32 bits."""
        return ((self.bits() >> 32) * limit) >> 32

    def draw_noise(self, alias: np.ndarray) -> int:
        """Draw a word from an alias table."""
        bits = self.bits()
        column = ((bits >> 32) * len(alias)) >> 32
        return column if bits & 0xFFFFFFFF < int(alias[column, 0]) else int(alias[column, 1])
