"""What a training run is told: one frozen value, checked once, written beside the vectors it made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from heedful.errors import ConfigError, nearest

MODES = ("skipgram", "cbow")
LOSSES = ("negative", "hierarchical")
SUBSAMPLE = 1e-3  # the authors' threshold, made for vocabularies of many thousand words
CBOW = ("mean", "sum")
# CBOW's mean divides its gradient by the window, so it learns at the same speed only with a larger step
# (İrsoy, Benton & Stratos 2021, "Corrected CBOW performs as well as skip-gram").
RATES = {
    ("skipgram", "mean"): 0.025,
    ("skipgram", "sum"): 0.025,
    ("cbow", "mean"): 0.075,
    ("cbow", "sum"): 0.025,
}


@dataclass(frozen=True)
class Settings:
    """Mikolov et al. 2013a (arXiv 1301.3781), 2013b (arXiv 1310.4546); defaults of the authors' program."""

    dim: int = 100
    window: int = 5
    mode: str = "skipgram"  # skipgram: each context word tells the centre; cbow: their mean or sum does
    loss: str = "negative"  # negative: against drawn words; hierarchical: along the Huffman path
    negatives: int = 5  # drawn once per window and shared by its examples
    min_count: int = 5
    max_vocab: int | None = None  # the most frequent so many
    subsample: float | None = None  # t: keep a word of frequency f with probability √(t/f) + t/f; 0 keeps all
    noise_exponent: float = 0.75  # P(w) ∝ count(w)^exponent
    dynamic: bool = True  # the reach of each window is 1..window, drawn evenly; False: always window
    cbow: str = "mean"
    rate: float | None = None  # None: RATES
    min_rate: float = 1e-4
    epochs: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("loss", LOSSES), ("cbow", CBOW)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not one of {', '.join(known)}")
        for name in ("dim", "window", "negatives", "min_count", "max_vocab", "epochs", "seed"):
            value = getattr(self, name)
            if type(value) is not int and not (name == "max_vocab" and value is None):
                raise ConfigError(f"{name}={value!r} is no whole number; give one, such as {name}=5")
        for name in ("subsample", "noise_exponent", "min_rate", "rate"):
            value = getattr(self, name)
            if type(value) not in (int, float) and not (name in ("rate", "subsample") and value is None):
                raise ConfigError(f"{name}={value!r} is no number")
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"{name}={value} is no number that can be trained with")
        for name, least in (
            ("dim", 1),
            ("window", 1),
            ("negatives", 1),
            ("min_count", 1),
            ("epochs", 1),
            ("seed", 0),
            ("subsample", 0),
            ("min_rate", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value} is below {least}; give {least} or more")
        if self.rate is not None and not 0 <= self.rate <= 10:
            raise ConfigError(
                f"rate={self.rate} is not between 0 and 10; the usual first step is {self.first_rate}"
            )
        if self.max_vocab is not None and self.max_vocab < 2:
            raise ConfigError(f"max_vocab={self.max_vocab} leaves nothing to tell apart; give 2 or more")

    @property
    def first_rate(self) -> float:
        """The step at the first word."""
        return RATES[self.mode, self.cbow] if self.rate is None else self.rate

    def threshold(self, words: int) -> float:
        """Return t of subsampling: as given, else max(10⁻³, 1/V) for a vocabulary of V words.

        A word of the mean frequency 1/V always stays, so that a tiny text is not emptied.
        """
        return max(SUBSAMPLE, 1 / words) if self.subsample is None else self.subsample

    @property
    def hierarchical(self) -> bool:
        return self.loss == "hierarchical"

    def rate_at(self, done: float) -> float:
        """η = max(η_min, η_0 (1 - done)), `done` the share of all words of all epochs read so far."""
        return max(min(self.min_rate, self.first_rate), self.first_rate * (1.0 - done))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Strict: an unknown field is an error that names the nearest known one."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown setting {name}={values[name]!r}; {nearest(name, known)}")
        return cls(**values)
